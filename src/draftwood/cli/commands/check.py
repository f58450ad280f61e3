"""`draftwood check`: the lossless certificate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, TextIO

import typer

from ...errors import RequestError, UsageError
from ..evidence import adopt_profile, load_profile, names, numbers, prompt_sets
from ..grids import box_for, grid_lines
from ..io import stdout_for_results, write, write_json
from ..load import LoadOptions, check_pair, load_engine
from ..options import (
    BudgetsOption,
    DeviceOption,
    DrafterOption,
    Dtype,
    DtypeOption,
    JsonOption,
    KvMemoryOption,
    MaxTokensOption,
    ModelArgument,
    ProfileOption,
    PromptsOption,
    RawOption,
    SeedOption,
    ThreadsOption,
    at_least_one,
)
from ..progress import progress, waiting_for
from .demo import machine_facts

if TYPE_CHECKING:
    from ... import Engine
    from ...bench.plan import BenchRow
    from ...certify.law import LawCheck
    from ...certify.texts import CheckSettings, TextCheck
    from ...prompts.sets import PromptSet
    from ...prompts.units import Unit

SCHEMA = 1
DEFAULT_POLICIES = "chain,ddtree,auto"
DEFAULT_TEMPERATURES = "0,1"
DEFAULT_PROMPTS = 8


class ReferenceName(str, Enum):
    """What outputs are compared with."""

    NATIVE = "native"
    AR = "ar"


PoliciesOption = Annotated[str, typer.Option("--policies", metavar="NAMES", help="Policies to check.")]
ReferenceOption = Annotated[
    ReferenceName,
    typer.Option("--reference", help="native: transformers' own attention and cache; ar: this engine, quicker."),
]
TemperaturesOption = Annotated[
    str, typer.Option("--temperatures", metavar="T,T,...", help="Of the texts; above 0 the laws are tested too.")
]
LimitOption = Annotated[
    int, typer.Option("--limit", parser=at_least_one, metavar="N", help="Prompts in all, taken from the sets in turn.")
]
BatchOption = Annotated[
    int, typer.Option("--batch", parser=at_least_one, metavar="R", help="Prompts that a policy decodes together.")
]


@dataclass(frozen=True, slots=True)
class Certificate:
    """All parts of a check."""

    texts: list[TextCheck]
    laws: list[LawCheck]

    @property
    def verdict(self) -> str:
        """identical, near-tie or different; a law that is missed counts as different."""
        found = {check.verdict for check in self.texts} | {"different" for law in self.laws if not law.passed}
        return next((verdict for verdict in ("different", "near-tie") if verdict in found), "identical")


def check(
    model: ModelArgument,
    drafter: DrafterOption = None,
    policies: PoliciesOption = DEFAULT_POLICIES,
    budgets: BudgetsOption = None,
    reference: ReferenceOption = ReferenceName.NATIVE,
    temperatures: TemperaturesOption = DEFAULT_TEMPERATURES,
    prompts: PromptsOption = None,
    limit: LimitOption = DEFAULT_PROMPTS,
    max_tokens: MaxTokensOption = 64,
    batch: BatchOption = 4,
    seed: SeedOption = 0,
    profile: ProfileOption = None,
    raw: RawOption = False,
    dtype: DtypeOption = Dtype.AUTO,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    kv_memory: KvMemoryOption = None,
    as_json: JsonOption = False,
) -> None:
    """Certify that policies say what plain decoding says; exit 1 on a real difference."""
    from ...certify.texts import CheckSettings

    load = LoadOptions(model, drafter, dtype.value, device, threads, kv_memory=kv_memory)
    rows = checked_rows(policies, budgets)
    for row in rows:
        check_pair(load, row.policy)
    chosen = numbers(temperatures, "--temperatures", float)
    if not chosen:
        raise UsageError("--temperatures: expected at least one number")
    settings = [CheckSettings(max_tokens, temperature, seed, reference.value, batch, raw) for temperature in chosen]
    sets, costs = prompt_sets(prompts, None), load_profile(profile)
    with stdout_for_results() as results:
        with waiting_for(f"loading {model}"):
            engine = load_engine(load)
        # Costs decide how wide trees are, never what is said: a profile of another machine checks as well.
        adopt_profile(engine, costs, allow_stale=True, live_costs=True)
        certificate = certify(engine, rows, mixed_units(engine, sets, limit, raw), settings)
        facts = {
            "schema": SCHEMA, "model": model, "machine": machine_facts(engine), "reference": reference.value,
            "max_tokens": max_tokens, "seed": seed,
        }  # fmt: skip
        if as_json:
            write_json(as_object(certificate, facts), results)
        else:
            write(report(certificate, facts, results), results)
    if certificate.verdict == "different":
        raise typer.Exit(1)


def certify(
    engine: Engine, rows: Sequence[BenchRow], units: Sequence[Unit], settings: Sequence[CheckSettings]
) -> Certificate:
    """Compare texts under every setting; where one samples, test the verifiers' laws at its temperature too."""
    from ...certify.law import LawSettings, check_gumbel, check_verifiers, record_cases
    from ...certify.texts import run_check

    texts, laws = [], []
    with progress("comparing texts", len(settings) * (1 + len(rows)) * len(units)) as bar:
        for setting in settings:
            texts += run_check(engine, rows, units, setting, bar.advance)
    sampled = [setting for setting in settings if setting.temperature > 0]
    cases = record_cases(engine, units) if sampled and engine.has_drafter else []
    for setting in sampled if cases else []:
        how = LawSettings(setting.temperature, seed=setting.seed)
        with waiting_for(f"testing laws at temperature {setting.temperature:g}"):
            laws += [*check_verifiers(cases, how), check_gumbel(cases, how)]
    return Certificate(texts, laws)


def checked_rows(policies: str, budgets: str | None) -> list[BenchRow]:
    """The rows that the options name; `ar` only when it is asked for."""
    from ...bench.plan import PLAIN, rows_of

    chosen = names(policies)
    if not chosen:
        raise UsageError("--policies: expected at least one name")
    rows = rows_of(chosen, numbers(budgets, "--budgets"))
    return [row for row in rows if row.policy != PLAIN or PLAIN in chosen]


def mixed_units(engine: Engine, sets: Sequence[PromptSet], limit: int, raw: bool) -> list[Unit]:
    """The first `limit` prompts, one of each set in turn, first turns alone, as ids."""
    from ...prompts.sets import in_turn
    from ...prompts.units import Unit

    if engine.codec is None:
        raise UsageError("this model has no tokenizer")
    turns = in_turn(sets)[:limit]
    found = []
    for name, prompt in turns:
        try:
            found.append(Unit(name, prompt.id, tuple(engine.encode(prompt.text, raw=raw))))
        except RequestError as error:
            raise RequestError(f"prompt set {name}, id {prompt.id}: {error}") from error
    return found


def as_object(certificate: Certificate, facts: dict[str, Any]) -> dict[str, Any]:
    """The `--json` object."""
    return {
        **facts,
        "verdict": certificate.verdict,
        "texts": [asdict(text) for text in certificate.texts],
        "laws": [asdict(law) for law in certificate.laws],
    }


def report(certificate: Certificate, facts: dict[str, Any], stream: TextIO) -> str:
    """Tables of texts and laws, every difference in a line, and the verdict last."""
    from rich.table import Table

    style = box_for(stream)
    texts = Table("policy", "T", "prompts", "positions", "committed", "output", box=style)
    for text in certificate.texts:
        texts.add_row(*text_cells(text))
    laws = Table("verifier", "T", "tokens", "total variation", "limit", "law", box=style)
    for law in certificate.laws:
        laws.add_row(*law_cells(law))
    lines = grid_lines([texts, laws] if certificate.laws else [texts], 100)
    lines += [line for text in certificate.texts for line in difference_lines(text)]
    return "\n".join([*lines, "", described(facts), f"verdict: {certificate.verdict}"]) + "\n"


def text_cells(text: TextCheck) -> list[str]:
    """One row of the table of texts."""
    counts = f" ({text.near_ties} near-tie, {text.different} different)" if text.differences else ""
    mean = "-" if text.mean_committed is None else f"{text.mean_committed:.2f}"
    shown = [f"{text.temperature:g}", str(text.prompts), str(text.positions), mean, text.verdict + counts]
    return [text.policy, *shown]


def law_cells(law: LawCheck) -> list[str]:
    """One row of the table of laws."""
    numbers = [str(law.committed_tokens), f"{law.tv:.5f}", f"{law.limit:.5f}"]
    return [law.verifier, f"{law.temperature:g}", *numbers, "exact" if law.passed else "different"]


def difference_lines(text: TextCheck) -> list[str]:
    """One line for each output that leaves the plain one."""
    return [
        f"{text.policy}, T {text.temperature:g}, {one.set_name}/{one.prompt_id}: {one.verdict} at output token "
        f"{one.index} ({one.token} for {one.expected}): {one.reason}"
        + ("" if one.gap is None else f" (gap {one.gap:.3g}, tolerance {one.tolerance:.3g})")
        for one in text.differences
    ]


def described(facts: dict[str, Any]) -> str:
    """What was compared with what, and where."""
    machine = facts["machine"]
    against = {"native": "transformers' own attention and cache", "ar": "this engine's plain decoding"}
    return (
        f"{facts['model']}, {machine['dtype']}, {machine['device']}, {machine['processor']}, torch {machine['torch']}; "
        f"{facts['max_tokens']} tokens a prompt against {against[facts['reference']]}"
    )
