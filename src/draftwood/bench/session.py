"""A bench from loaded engine to lines: arms, gate, floor, store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import torch

from ..cost.profile import CostProfile
from ..engine import Engine, SamplingParams
from ..errors import UsageError
from ..models.base import ReferenceModel
from ..policy import POLICIES, make_policy
from ..prompts.units import Unit
from ..verify.uniform import position_key, uniforms
from .bandwidth import Floor, floor
from .load import LoadWatch
from .methods import Method
from .plan import PLAIN, Panel
from .results import SampleStore
from .runner import Arm, EngineArm, MethodArm, Sample, Turn, run_panel
from .summary import OVERALL, Explain, Line, Verdicts, line_json, stage_means, summarise_panel

STAGE_TOKENS = 64


@dataclass(frozen=True, slots=True)
class BenchOptions:
    """What all panels of a bench share."""

    timer: str = "decode"
    live_costs: bool = True
    profile: CostProfile | None = None
    """None: the engine's own."""
    end_ids: frozenset[int] | None = None
    """None: the model's own."""
    measure_floor: bool = True
    stage_pass: bool = False
    """After a panel, one short run of every row with the stages timed: never inside a measured run."""


@dataclass(slots=True)
class BenchRun:
    """What a bench has found so far. Mutable: grows set by set."""

    panels: Sequence[Panel]
    lines: dict[str, list[Line]] = field(default_factory=dict)
    """By panel."""
    floor: Floor | None = None
    failed: dict[str, dict[str, str]] = field(default_factory=dict)
    """By panel and row: why a row was left out, with set and prompt."""
    load: float | None = None
    """Processor time of others while this ran, in cores; None where it cannot be read."""

    def to_json(self) -> list[dict[str, Any]]:
        """All lines, ready for `save_results`; those of `ar` carry the bandwidth floor."""
        found = []
        for panel in self.panels:
            for line in self.lines.get(panel.name, []):
                value = line_json(line, panel)
                if line.row.policy == PLAIN and self.floor is not None:
                    value |= {"floor_ms_per_token": self.floor.ms_per_token, "floor": asdict(self.floor)}
                found.append(value)
        return found


def run_bench(
    engine: Engine,
    panels: Sequence[Panel],
    units: Sequence[Unit],
    options: BenchOptions,
    store: SampleStore | None = None,
    *,
    methods: Mapping[str, Method] | None = None,
    advance: Callable[[], None] = lambda: None,
    set_ended: Callable[[BenchRun], None] = lambda run: None,
) -> BenchRun:
    """Measure every panel on `units`; what `store` holds already is not run again.

    `advance` is called after every generation, `set_ended` after every set of a panel with all lines so far. Raises
    UsageError for rows that cannot run, before any does.
    """
    arms = {panel.name: make_arms(engine, panel, options, methods or {}) for panel in panels}
    run, watch = BenchRun(panels), LoadWatch()
    if options.measure_floor:
        run.floor = floor(engine.state.target, engine.state.target.spec.device)
    samples: list[Sample] = list(store.samples) if store is not None else []
    done = frozenset(sample.key for sample in samples)

    def keep(sample: Sample) -> None:
        samples.append(sample)
        if store is not None:
            store.keep(sample)
        advance()

    for panel in panels:
        verdicts = Verdicts(engine.dtype_name, explain_with(engine, panel, units))

        def ended(set_name: str, panel: Panel = panel, verdicts: Verdicts = verdicts) -> None:
            own = [sample for sample in samples if sample.panel == panel.name]
            whole = replace(panel, rows=tuple(row for row in panel.rows if row.label not in run.failed[panel.name]))
            run.lines[panel.name] = summarise_panel(whole, own, verdicts, timer=options.timer)
            run.load = watch.foreign_cores()
            set_ended(run)

        run.failed[panel.name] = {}
        run_panel(
            panel, units, arms[panel.name], done=done, keep=keep, set_ended=ended,
            failed=run.failed[panel.name].__setitem__,
        )  # fmt: skip
        if options.stage_pass:
            _add_stages(run, panel, units, arms[panel.name])
            set_ended(run)
    return run


def _add_stages(run: BenchRun, panel: Panel, units: Sequence[Unit], arms: Mapping[str, Arm]) -> None:
    """Put mean seconds by stage, of the first prompt of every set, into the overall lines of `panel`."""
    timed = replace(panel, timing=True)
    first = list({unit.set_name: unit for unit in reversed(units)}.values())
    tokens = min(panel.max_tokens, STAGE_TOKENS)
    for at, line in enumerate(run.lines[panel.name]):
        if line.set_name == OVERALL and not line.row.method:
            turns = [Turn(timed, unit, line.row.label, panel.seeds[0], 0) for unit in first]
            samples = [arms[line.row.label].run(turn, tokens) for turn in turns]
            run.lines[panel.name][at] = replace(line, stage_s=stage_means(samples))


def make_arms(engine: Engine, panel: Panel, options: BenchOptions, methods: Mapping[str, Method]) -> dict[str, Arm]:
    """One arm a row; raises UsageError for a row that cannot run."""
    spec = engine.state.target.spec
    arms: dict[str, Arm] = {}
    for row in panel.rows:
        if row.method:
            if row.policy not in methods:
                raise UsageError(f"method {row.policy!r}: expected one of {', '.join(methods) or 'none'}")
            arms[row.label] = MethodArm(methods[row.policy], spec.vocab_size, spec.device)
        else:
            arms[row.label] = EngineArm(
                engine, row, options.profile, live_costs=options.live_costs, end_ids=options.end_ids
            )
    return arms


def needs_costs(panels: Sequence[Panel]) -> bool:
    """True when a row chooses by cost."""
    return any(not row.method and POLICIES[row.policy].needs_costs for panel in panels for row in panel.rows)


def reference_answer(engine: Engine, max_tokens: int) -> Callable[[Sequence[int]], str]:
    """Greedy plain decoding: what conversations take as history."""
    policy = make_policy(PLAIN)

    def answer(prompt_ids: Sequence[int]) -> str:
        (request,) = engine.run([engine.make_request(prompt_ids, policy, SamplingParams(max_tokens))])
        return engine.output(request).text

    return answer


def explain_with(engine: Engine, panel: Panel, units: Sequence[Unit]) -> Explain:
    """How near the plain run was to another token where an output leaves it, teacher-forced.

    At temperature > 0 the draw is the largest of logit / T + noise, noise a function of seed and position: the gap is
    between the two largest of those, times T, so that it compares with the rounding of logits.
    """
    prompts = {(unit.set_name, unit.prompt_id): unit.prompt_ids for unit in units}

    def explain(sample: Sample, shared: Sequence[int]) -> tuple[float, float]:
        ids = [*prompts[sample.set_name, sample.prompt_id], *shared]
        if panel.temperature == 0:
            return engine.top_two_gap(ids[: -len(shared) or None], shared)
        target = engine.state.target
        if not isinstance(target, ReferenceModel):
            raise UsageError("this target has no attention of its own to compare with")
        logits = target.native_logits(ids, last_rows=1)[0].double().cpu()
        u = uniforms([position_key(sample.seed, 0, len(ids))], len(logits), torch.device("cpu"))[0]
        scores = logits - panel.temperature * torch.log(-torch.log(u))
        top = torch.topk(scores, 2).values
        return float(top[0] - top[1]), float(logits.max())

    return explain
