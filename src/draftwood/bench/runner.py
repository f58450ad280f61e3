"""The paired runner: on every prompt all rows take turns, in one process, under one timer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from time import perf_counter
from typing import Protocol

import numpy as np
import torch

from ..batch import Batch
from ..cost.profile import CostProfile
from ..engine import Engine, SamplingParams
from ..engine.round import Forward
from ..engine.state import EngineState
from ..engine.step import Stages
from ..errors import DraftwoodError, NonFiniteLogitsError, UsageError
from ..policy import Policy, make_policy
from ..prompts.units import Unit
from .memory import PeakMemory
from .methods import Method
from .plan import PLAIN, BenchRow, Panel

WARM_UP_TOKENS = 8
Key = tuple[str, str, str, str, int, int]


@dataclass(frozen=True, slots=True)
class Sample:
    """One generation as it was measured. The lists hold one entry a round; outside methods have none."""

    panel: str
    set_name: str
    prompt_id: str
    row: str
    """Label of the row."""
    seed: int
    repeat: int
    prompt_hash: str
    token_ids: list[int]
    finish: str
    prefill_s: float
    """From submission to the first token."""
    decode_s: float
    """From the first token to the last."""
    first_draft_s: float
    """The part of `decode_s` before the first verification: what the papers' timer leaves out."""
    peak_bytes: int | None
    committed: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    drafted: list[bool] = field(default_factory=list)
    predicted_s: list[float | None] = field(default_factory=list)
    stage_s: dict[str, list[float]] = field(default_factory=dict)
    """Seconds by stage, only where they were asked for."""

    @property
    def key(self) -> Key:
        """What tells samples apart."""
        return (self.panel, self.set_name, self.prompt_id, self.row, self.seed, self.repeat)


@dataclass(frozen=True, slots=True)
class Turn:
    """One generation that is due."""

    panel: Panel
    unit: Unit
    row: str
    seed: int
    repeat: int

    @property
    def key(self) -> Key:
        """The key of its sample."""
        return (self.panel.name, self.unit.set_name, self.unit.prompt_id, self.row, self.seed, self.repeat)


class Arm(Protocol):
    """Decodes prompts under one row."""

    def run(self, turn: Turn, max_tokens: int) -> Sample:
        """Decode `turn.unit` from a fresh state and measure it."""
        ...


class _FirstVerify:
    """Notes when verification starts, once a step."""

    def __init__(self) -> None:
        self.starts_s: list[float] = []

    def change(self, stages: Stages) -> Stages:
        """The same stages, watched."""

        def verify(state: EngineState, batch: Batch) -> Forward:
            self.starts_s.append(perf_counter())
            found: Forward = stages.verify(state, batch)
            return found

        return replace(stages, verify=verify)


class EngineArm:
    """A policy in the engine. What policies learned in earlier runs is forgotten before each."""

    def __init__(
        self,
        engine: Engine,
        row: BenchRow,
        profile: CostProfile | None,
        *,
        live_costs: bool = True,
        end_ids: frozenset[int] | None = None,
    ) -> None:
        """`profile` prices the rounds of this row; None leaves the engine's own in place. Raises UsageError."""
        if profile is None and engine.state.costs is not None:
            profile = engine.state.costs.profile
        if profile is not None and row.noise is not None:
            profile = row.noise.apply(profile)
        self._engine, self._row, self._profile = engine, row, profile
        self._live_costs, self._end_ids = live_costs, end_ids
        self.policy: Policy = make_policy(row.policy, profile=profile, **row.options)
        if self.policy.needs_costs and profile is None:
            raise UsageError(f"policy {row.policy} chooses by cost: give --profile")
        if self.policy.drafts and not engine.has_drafter:
            raise UsageError(f"policy {row.policy} needs a drafter: name one with --drafter")
        self._memory = PeakMemory(engine.state.target.spec.device)

    def run(self, turn: Turn, max_tokens: int) -> Sample:
        """See `Arm.run`; raises the engine's error of a request that fails."""
        engine, panel = self._engine, turn.panel
        engine.reset_policies()
        if self._profile is not None:
            engine.use_profile(self._profile, live_costs=self._live_costs)
        options = SamplingParams(
            max_tokens, panel.temperature, turn.seed, block_size=self._row.block_size, end_ids=self._end_ids
        )
        watch = _FirstVerify()
        self._memory.start()
        with engine.loop.watching(watch.change, timing=panel.timing):
            (request,) = engine.run([engine.make_request(turn.unit.prompt_ids, self.policy, options)])
        result = engine.output(request)
        first_s = request.submitted_s + result.prefill_s
        stages = dict.fromkeys(name for record in result.rounds for name in record.seconds)
        return Sample(
            panel=panel.name,
            set_name=turn.unit.set_name,
            prompt_id=turn.unit.prompt_id,
            row=turn.row,
            seed=turn.seed,
            repeat=turn.repeat,
            prompt_hash=turn.unit.prompt_hash,
            token_ids=result.token_ids,
            finish=result.finish_reason,
            prefill_s=result.prefill_s,
            decode_s=result.decode_s,
            first_draft_s=next((start - first_s for start in watch.starts_s if start >= first_s), 0.0),
            peak_bytes=self._memory.read(),
            committed=[record.committed for record in result.rounds],
            rows=[record.rows for record in result.rounds],
            drafted=[record.drafted for record in result.rounds],
            predicted_s=[record.predicted_s for record in result.rounds],
            stage_s={name: [record.seconds.get(name, 0.0) for record in result.rounds] for name in stages},
        )


class MethodArm:
    """An outside method: a function of prompt ids and max tokens.

    Its decode seconds are those of the whole call minus those of a call for one token, which is its prefill.
    """

    def __init__(self, method: Method, vocab_size: int, device: torch.device | str) -> None:
        self._method, self._vocab_size = method, vocab_size
        self._memory = PeakMemory(device)

    def run(self, turn: Turn, max_tokens: int) -> Sample:
        """See `Arm.run`; raises UsageError when the method returns something that is no output."""
        ids = list(turn.unit.prompt_ids)
        self._memory.start()
        prefill_s, _ = self._timed(turn.row, ids, 1)
        whole_s, token_ids = self._timed(turn.row, ids, max_tokens)
        return Sample(
            panel=turn.panel.name,
            set_name=turn.unit.set_name,
            prompt_id=turn.unit.prompt_id,
            row=turn.row,
            seed=turn.seed,
            repeat=turn.repeat,
            prompt_hash=turn.unit.prompt_hash,
            token_ids=token_ids,
            finish="length" if len(token_ids) == max_tokens else "stop",
            prefill_s=prefill_s,
            decode_s=max(whole_s - prefill_s, 0.0),
            first_draft_s=0.0,
            peak_bytes=self._memory.read(),
        )

    def _timed(self, name: str, prompt_ids: list[int], max_tokens: int) -> tuple[float, list[int]]:
        start_s = perf_counter()
        output = self._method(list(prompt_ids), max_tokens)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        seconds = perf_counter() - start_s
        array = np.asarray(output)
        whole = array.ndim == 1 and len(array) and np.issubdtype(array.dtype, np.integer)
        if not whole or int(array.min()) < 0 or int(array.max()) >= self._vocab_size:
            raise UsageError(f"method {name}: expected a list of output token ids below {self._vocab_size}")
        if len(array) > max_tokens:
            raise UsageError(f"method {name}: {len(array)} tokens for max_tokens {max_tokens} (the prompt left in?)")
        return seconds, array.tolist()


def turns(panel: Panel, units: Sequence[Unit]) -> Iterator[Turn]:
    """All generations of a panel in the order in which they run.

    Set by set, so that an interruption leaves whole sets; on each prompt the rows take turns, another one starting
    each time, so that a machine that slows down slows all of them.
    """
    labels = [row.label for row in panel.rows]
    for set_name in dict.fromkeys(unit.set_name for unit in units):
        members = [unit for unit in units if unit.set_name == set_name]
        number = 0
        for repeat in range(panel.repeats):
            for unit in members:
                for seed in panel.seeds:
                    start = number % len(labels)
                    number += 1
                    for label in [*labels[start:], *labels[:start]]:
                        yield Turn(panel, unit, label, seed, repeat)


def run_panel(
    panel: Panel,
    units: Sequence[Unit],
    arms: dict[str, Arm],
    *,
    done: frozenset[Key] = frozenset(),
    keep: Callable[[Sample], None],
    set_ended: Callable[[str], None] = lambda set_name: None,
    failed: Callable[[str, str], None] = lambda row, reason: None,
) -> None:
    """Run what is not `done` and hand every sample to `keep`, then every finished set's name to `set_ended`.

    A short run of every arm comes first and is not kept. An arm whose numbers are not finite is handed to `failed`,
    with the prompt, and left out from then on; raises what else an arm raises, and all that plain decoding does.
    Samples kept so far stay kept.
    """
    left_out: set[str] = set()
    due = list(turns(panel, units))
    if not due:
        raise UsageError("no prompts to decode")
    if any(turn.key not in done for turn in due):
        for label in dict.fromkeys(turn.row for turn in due):
            first = next(turn for turn in due if turn.row == label)
            with suppress(NonFiniteLogitsError):  # said when the run itself meets it
                arms[label].run(first, min(WARM_UP_TOKENS, panel.max_tokens))
    for turn, following in zip(due, [*due[1:], None], strict=True):
        if turn.key not in done and turn.row not in left_out:
            try:
                keep(arms[turn.row].run(turn, panel.tokens_for(turn.unit.set_name)))
            except DraftwoodError as error:
                place = f"set {turn.unit.set_name}, prompt {turn.unit.prompt_id}: {error}"
                if turn.row == PLAIN or not isinstance(error, NonFiniteLogitsError):
                    raise type(error)(f"row {turn.row}, {place}") from error
                left_out.add(turn.row)
                failed(turn.row, place)
        if following is None or following.unit.set_name != turn.unit.set_name:
            set_ended(turn.unit.set_name)
