"""Measuring a pair: from an engine to its cost profile."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from ...cost import schema
from ...cost.identity import Identity
from ...cost.profile import CostProfile
from ...errors import CostError, UsageError
from ...files import write_file
from .assemble import assemble
from .base import Measurable
from .gains import collect_gains, encoded_prompts
from .plan import CONTEXTS, QUICK_CONTEXTS, Plan, check_max_nodes, fitting_contexts, full_plan, quick_plan
from .sampler import Log, Report, Sampler
from .stand import Stand

CPU_NODES, DEVICE_NODES = 64, 512
PARTIAL_SCHEMA = 1
_ROUNDS_SHARE = 0.85  # of a time limit; the rest is for the prompts


@dataclass(frozen=True, slots=True)
class MeasureOptions:
    """How thoroughly a pair is measured."""

    quick: bool = False
    """Fewer contexts and repeats."""
    contexts: tuple[int, ...] | None = None
    """Committed context lengths; None: the usual ones that fit."""
    max_nodes: int | None = None
    """Largest tree; None: 64 on a CPU, 512 on a device."""
    max_seconds: float | None = None
    """Time for everything."""
    partial: Path | None = None
    """Where unfinished work is kept; None: nowhere."""
    resume: bool = False
    """Go on from `partial`."""
    prompts: int = 8
    """Bundled prompts that are decoded for mean gains."""
    seed: int = 0

    def __post_init__(self) -> None:
        if self.max_nodes is not None:
            check_max_nodes(self.max_nodes)
        if self.max_seconds is not None and not 0.0 < self.max_seconds < float("inf"):
            raise UsageError(f"max_seconds {self.max_seconds}: expected a number above 0")
        if self.resume and (self.partial is None or not self.partial.is_file()):
            raise UsageError(f"nothing to resume: {self.partial} does not exist, measure without --resume first")

    @property
    def gain_tokens(self) -> int:
        """Tokens decoded for each prompt."""
        return 24 if self.quick else 64


def measure_profile(
    engine: Measurable,
    options: MeasureOptions,
    *,
    report: Report = lambda done, total, left_s: None,
    clock: Callable[[], float] = perf_counter,
) -> CostProfile:
    """Measure the engine's pair on this machine.

    `report` is called after every round. Unfinished work is stored in `options.partial` after every sweep and when
    an exception, an interrupt included, leaves; the caller removes the file once the profile is safe.
    Raises UsageError for contexts that do not fit or a partial file of another machine or plan.
    """
    start_s = clock()
    max_nodes = options.max_nodes or default_max_nodes(engine)
    stand = new_stand(engine, max_nodes, clock=clock, seed=options.seed)
    try:
        plan = _plan(engine, options, stand, max_nodes)
        log = Log()
        if options.resume and options.partial is not None:
            log = load_partial(options.partial, plan, engine.identity)
        sampler = Sampler(
            stand,
            plan,
            log,
            clock=clock,
            budget_s=None if options.max_seconds is None else _ROUNDS_SHARE * options.max_seconds,
            seed=options.seed + len(log.reference_s),
            report=report,
            keep=lambda found: _save_partial(options.partial, plan, engine.identity, found),
        )
        sampler.run()
        gains = measure_gains(engine, stand, options, until=_deadline(clock, start_s, options.max_seconds))
    finally:
        stand.close()
    return assemble(log, plan, mean_gains=gains, identity=engine.identity, dtype=engine.dtype_name)


def measure_gains(
    engine: Measurable, stand: Stand, options: MeasureOptions, *, until: Callable[[], bool]
) -> np.ndarray | None:
    """Mean gains on bundled prompts; None for an engine without a tokenizer or without room for an answer."""
    spec = engine.state.target.spec
    room = spec.context_limit - options.gain_tokens
    if engine.codec is None or room < 1:
        return None
    prompts = [prompt[:room] for prompt in encoded_prompts(engine.codec, options.prompts, spec.embedding_rows)]
    return collect_gains(
        stand,
        [prompt for prompt in prompts if prompt],
        tokens=options.gain_tokens,
        end_ids=frozenset(engine.codec.end_ids),
        max_nodes=options.max_nodes or default_max_nodes(engine),
        until=until,
    )


def default_max_nodes(engine: Measurable) -> int:
    """Largest tree on this kind of device."""
    return CPU_NODES if engine.state.target.spec.device.type == "cpu" else DEVICE_NODES


def new_stand(engine: Measurable, max_nodes: int, *, clock: Callable[[], float], seed: int) -> Stand:
    """A stand over the engine's models; raises UsageError when there is no drafter."""
    return Stand(engine.state, max_nodes=max_nodes, clock=clock, seed=seed)


def load_partial(path: Path, plan: Plan, identity: Identity | None) -> Log:
    """Read unfinished work; raises CostError when it was measured elsewhere or under another plan."""
    document = schema.read_json(path)
    if not isinstance(document, dict) or document.get("partial_schema") != PARTIAL_SCHEMA:
        raise CostError(f"{path}: expected unfinished work of `draftwood profile`")
    if document.get("plan") != _plain_plan(plan):
        raise CostError(f"{path}: measured with other rows, contexts or repeats; use the same options, or no --resume")
    stored = document.get("identity")
    if (stored is None) != (identity is None):
        raise CostError(f"{path}: measured by another kind of engine; start again without --resume")
    if stored is not None and identity is not None:
        differing = Identity.from_json(stored).differences(identity)
        if differing:
            raise CostError(f"{path}: measured elsewhere: {differing[0]} here; start again without --resume")
    return Log.from_json(document.get("log"))


def _save_partial(path: Path | None, plan: Plan, identity: Identity | None, log: Log) -> None:
    if path is None:
        return
    document = {
        "partial_schema": PARTIAL_SCHEMA,
        "plan": _plain_plan(plan),
        "identity": None if identity is None else identity.to_json(),
        "log": log.to_json(),
    }
    write_file(path, json.dumps(document, allow_nan=False), CostError)


def _plain_plan(plan: Plan) -> dict[str, Any]:
    """The plan as JSON gives it back."""
    return {name: list(value) if isinstance(value, tuple) else value for name, value in asdict(plan).items()}


def _plan(engine: Measurable, options: MeasureOptions, stand: Stand, max_nodes: int) -> Plan:
    """The plan of these options, its rows cut to the trees that this drafter can give."""
    usual = QUICK_CONTEXTS if options.quick else CONTEXTS
    contexts = fitting_contexts(options.contexts, usual, engine.state.target.spec.context_limit, stand.block_size)
    make_plan = quick_plan if options.quick else full_plan
    return make_plan(min(max_nodes, stand.widest_tree(contexts[0])), contexts)


def _deadline(clock: Callable[[], float], start_s: float, limit_s: float | None) -> Callable[[], bool]:
    return lambda: limit_s is not None and clock() - start_s >= limit_s
