"""The certificate on texts: outputs of policies against plain decoding, position by position."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, Protocol

from ..core import Sampling
from ..engine import Engine
from ..errors import DraftwoodError, UsageError
from ..prompts.units import Unit
from .reference import Reference
from .verdict import Same, TopTwo, compare_output, first_difference, near_tie_tolerance, summarise

ReferenceKind = Literal["native", "ar"]
REFERENCES: tuple[ReferenceKind, ...] = ("native", "ar")


class CheckedRow(Protocol):
    """What is checked: a policy with its options, under a label; the rows of a bench are some."""

    @property
    def label(self) -> str:
        """Its name in the report."""

    @property
    def policy(self) -> str:
        """Name of the policy."""

    @property
    def options(self) -> Mapping[str, Any]:
        """The policy's own."""

    @property
    def block_size(self) -> int | None:
        """Of the drafter; None: the checkpoint's."""


@dataclass(frozen=True, slots=True)
class CheckSettings:
    """How texts are compared. Raises UsageError for values out of range."""

    max_tokens: int = 64
    temperature: float = 0.0
    seed: int = 0
    reference: ReferenceKind = "native"
    """`native`: the model's own attention and cache; `ar`: this engine's plain decoding, quicker and weaker."""
    batch: int = 4
    """Prompts decoded together; the reference always decodes alone."""
    raw: bool = False
    """The prompts were rendered without the chat template, whose end of turn then ends nothing."""

    def __post_init__(self) -> None:
        if self.reference not in REFERENCES:
            raise UsageError(f"reference {self.reference!r}: expected {' or '.join(REFERENCES)}")
        for name, value in (("max_tokens", self.max_tokens), ("batch", self.batch)):
            if value < 1:
                raise UsageError(f"{name} {value}: expected at least 1")
        self.sampling()

    def sampling(self) -> Sampling:
        """How both sides draw."""
        return Sampling(self.temperature, self.seed)


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an output leaves the plain one, and what the plain target says there."""

    set_name: str
    prompt_id: str
    index: int
    """0-based index of the first output token that differs."""
    token: int | None
    """The policy's token; None where its output ends."""
    expected: int | None
    """The plain token; None where the plain output ends."""
    gap: float | None
    """The plain target's top-two gap there, teacher-forced (at temperature T of logits plus T times noise)."""
    tolerance: float | None
    """Gaps below it are near-ties in this number type."""
    verdict: str
    reason: str


@dataclass(frozen=True, slots=True)
class TextCheck:
    """The outputs of one policy at one temperature."""

    policy: str
    """Label of the row."""
    temperature: float
    verdict: str
    """identical, near-tie or different."""
    prompts: int
    near_ties: int
    different: int
    positions: int
    """Output positions compared."""
    mean_committed: float | None
    """Committed tokens a round: 1 would mean that no draft was ever tested."""
    differences: tuple[Difference, ...]


def run_check(
    engine: Engine,
    rows: Sequence[CheckedRow],
    units: Sequence[Unit],
    settings: CheckSettings,
    advance: Callable[[], None] = lambda: None,
) -> list[TextCheck]:
    """Decode all prompts plainly and under every row, and compare.

    `advance` is called once a prompt for the reference and once a prompt for every row. Raises UsageError before
    anything runs for no prompts or a target without own attention.
    """
    if not units:
        raise UsageError("no prompts to check: expected at least one")
    reference = Reference.of(engine.state.target)
    if settings.reference == "ar":
        plain, _ = _decoded(engine, units, settings, advance, "ar")
    else:
        ends = () if engine.codec is None else engine.codec.raw_end_ids if settings.raw else engine.codec.end_ids
        plain = []
        for unit in units:
            plain.append(reference.decode(unit.prompt_ids, settings.max_tokens, frozenset(ends), settings.sampling()))
            advance()
    checks = []
    for row in rows:
        outputs, committed = _decoded(engine, units, settings, advance, row.policy, row.block_size, row.options)
        found = [
            compare_text(engine.dtype_name, reference, unit, output, expected, settings.sampling())
            for unit, output, expected in zip(units, outputs, plain, strict=True)
        ]
        verdicts = [Same.IDENTICAL if difference is None else Same(difference.verdict) for difference in found]
        check = TextCheck(
            policy=row.label,
            temperature=settings.temperature,
            verdict=summarise(verdicts, engine.dtype_name).value,
            prompts=len(verdicts),
            near_ties=verdicts.count(Same.NEAR_TIE),
            different=verdicts.count(Same.DIFFERENT),
            positions=sum(len(output) for output in outputs),
            mean_committed=sum(committed) / len(committed) if committed else None,
            differences=tuple(difference for difference in found if difference is not None),
        )
        checks.append(check)
    return checks


def compare_text(
    dtype_name: str,
    reference: Reference,
    unit: Unit,
    output: Sequence[int],
    plain: Sequence[int],
    sampling: Sampling,
) -> Difference | None:
    """Compare one output with the plain one; None if they are equal.

    Beyond the tolerance of the top-two gap, a near-tie asks that the output's own token is one of the two, and that
    every later token is the plain target's choice, given the output so far, up to a tie of its own: a fault that hides
    behind a tie is no tie.
    """
    index = first_difference(output, plain)
    if index is None:
        return None
    token = output[index] if index < len(output) else None
    expected = plain[index] if index < len(plain) else None
    forced = reference.forced(unit.prompt_ids, output, sampling) if token is not None else None
    top_two = None
    if forced is not None and expected is not None:
        top_two = TopTwo(float(forced.gap[index]), float(forced.top_logit[index]))

    def explain(*_: Sequence[int]) -> TopTwo:
        assert top_two is not None, "an output that merely ends early is not asked for its gap"
        return top_two

    verdict = compare_output(output, plain, unit.prompt_ids, dtype_name, explain)
    stray = None if forced is None else forced.first_stray(index, dtype_name)
    if token is None or expected is None:
        reason = f"the {'output' if token is None else 'plain text'} ends early"
    elif verdict is not Same.NEAR_TIE:
        reason = "top-two gap is no tie"
    elif stray is None:
        reason = "top-two gap below the tolerance"
    else:
        verdict = Same.DIFFERENT
        reason = f"after a near-tie, token {output[stray]} at {stray} is not what the target would choose"
    return Difference(
        set_name=unit.set_name,
        prompt_id=unit.prompt_id,
        index=index,
        token=token,
        expected=expected,
        gap=None if top_two is None else top_two.gap,
        tolerance=None if top_two is None else near_tie_tolerance(dtype_name, top_two.top_logit),
        verdict=verdict.value,
        reason=reason,
    )


def _decoded(
    engine: Engine,
    units: Sequence[Unit],
    settings: CheckSettings,
    advance: Callable[[], None],
    policy: str,
    block_size: int | None = None,
    options: Mapping[str, Any] = MappingProxyType({}),
) -> tuple[list[list[int]], list[int]]:
    """Output ids of every prompt, and the committed length of every round."""
    outputs: list[list[int]] = []
    committed: list[int] = []
    for start in range(0, len(units), settings.batch):
        together = units[start : start + settings.batch]
        try:
            generations = engine.generate(
                [unit.prompt_ids for unit in together],
                policy=policy,
                raw=settings.raw,
                max_tokens=settings.max_tokens,
                temperature=settings.temperature,
                seed=settings.seed,
                block_size=block_size,
                **options,
            )
        except DraftwoodError as error:
            if error.prompt is None:
                raise
            unit = together[error.prompt]
            raise type(error)(f"policy {policy}, set {unit.set_name}, prompt {unit.prompt_id}: {error}") from error
        for generation in generations:
            outputs.append(generation.token_ids)
            committed += [record.committed for record in generation.rounds]
            advance()
    return outputs, committed
