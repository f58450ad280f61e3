"""Tables of replays: policies, fixed budgets and fixed shapes on one trace, set by set."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from ..bench.plan import CHAIN, FIXED
from ..bench.summary import OVERALL
from ..cost.profile import CostProfile
from ..errors import UsageError
from ..policy import POLICIES, Policy, make_policy
from . import diagnostics
from .format import Trace
from .grown import Nursery
from .regret import regret, shared_allocation
from .replay import ReplayResult, replay
from .shapes import Shape, named_shape

GAIN_WIDTH = 128
BATCH, FEW, MANY = 32, 4, 16


@dataclass(frozen=True, slots=True)
class ReplayLine:
    """One arm on one set of a trace, or overall; None where there is nothing to average."""

    set: str
    arm: str
    budget: int | None
    rounds: int
    tokens: int
    mean_committed: float | None
    mean_rows: float | None
    sd_rows: float | None
    skipped_rounds: int
    predicted_s: float | None
    """Under the profile; None without one."""
    tokens_per_s: float | None
    biased: bool


def arms_of(
    names: Sequence[str] | None,
    budgets: Sequence[int],
    shapes: Sequence[str],
    trace: Trace,
    profile: CostProfile | None,
) -> dict[str, Policy | Shape]:
    """Arms by label. Without names: every policy that can run, cost-aware ones only with a profile.

    `budgets` are `ddtree` rows and the nodes of each shape (without one, as many as the drafter's depth). Raises
    UsageError for unknown names, and for cost-aware policies asked for without a profile.
    """
    depth = trace.rounds.logp.shape[1]
    chosen = list(POLICIES) if names is None else list(names)
    if budgets and FIXED not in chosen:
        chosen.append(FIXED)
    arms: dict[str, Policy | Shape] = {}
    for name in chosen:
        if name in POLICIES and POLICIES[name].needs_costs and profile is None:
            if names is not None:
                raise UsageError(f"policy {name} chooses by cost: give --profile")
            continue
        if name == FIXED and budgets:
            arms |= {f"{FIXED} {budget}": make_policy(FIXED, budget=budget) for budget in budgets}
        else:
            arms[name] = make_policy(name, profile=profile)
    for shape in shapes:
        for nodes in budgets or (depth,):
            arms[f"shape {shape} {nodes}"] = named_shape(shape, nodes, depth)
    return arms


def with_gains(profile: CostProfile, trace: Trace) -> CostProfile:
    """The profile; mean gains that it lacks are taken from the trace (8 candidates, as `cast` keeps them)."""
    if profile.mean_gains is not None:
        return profile
    gains = diagnostics.masses(trace, candidates=8, max_nodes=GAIN_WIDTH).masses
    return replace(profile, mean_gains=np.minimum.accumulate(np.array(gains)))


def replay_lines(
    trace: Trace,
    arms: Mapping[str, Policy | Shape],
    profile: CostProfile | None,
    *,
    fresh_state: bool = False,
    nursery: Nursery | None = None,
) -> tuple[list[ReplayLine], list[str]]:
    """Replay every arm; the lines set by set, those of all sets last, and notes on what is biased."""
    nursery = nursery or Nursery(trace)
    results = {
        label: replay(trace, arm, profile, nursery=nursery, fresh_state=fresh_state) for label, arm in arms.items()
    }
    sets = trace.requests.set_name.tolist()
    groups = {name: [at for at, own in enumerate(sets) if own == name] for name in dict.fromkeys(sets)}
    groups[OVERALL] = list(range(len(sets)))
    lines = [
        _line(name, label, arms[label], result, members)
        for name, members in groups.items()
        for label, result in results.items()
    ]
    return lines, list(dict.fromkeys(result.note for result in results.values() if result.note))


def _line(name: str, label: str, arm: Policy | Shape, result: ReplayResult, members: Sequence[int]) -> ReplayLine:
    own = [result.requests[at] for at in members]
    rows = [rows for item in own for rows in item.rows]
    tokens = sum(sum(item.committed) for item in own)
    priced = result.predicted_s is not None
    seconds = sum(sum(item.predicted_s) for item in own) if priced else None
    budget = getattr(arm, "budget", None)
    return ReplayLine(
        set=name,
        arm=label,
        budget=budget if isinstance(budget, int) else None,
        rounds=len(rows),
        tokens=tokens,
        mean_committed=tokens / len(rows) if rows else None,
        mean_rows=statistics.fmean(rows) if rows else None,
        sd_rows=statistics.pstdev(rows) if rows else None,
        skipped_rounds=sum(item.drafted.count(False) for item in own),
        predicted_s=seconds,
        tokens_per_s=tokens / seconds if seconds else None,
        biased=result.biased,
    )


def diagnose(trace: Trace, profile: CostProfile | None, budgets: Sequence[int] = ()) -> dict[str, Any]:
    """The papers' diagnostics as plain values, ready for JSON.

    Ranks of corrections are those of the chain's rounds. `budgets` (default: the drafter's depth and 47) are the
    nodes of the ablations. What is not about all positions of a text is only as good as the trace: see `biased`.
    """
    depth, width = trace.rounds.logp.shape[1:]
    nursery = Nursery(trace)
    chosen = list(budgets) or [depth, 47]
    chain = replay(trace, make_policy(CHAIN), nursery=nursery)
    caps = [cap for cap in diagnostics.RANK_CAPS if cap <= width]
    found: dict[str, Any] = {
        "biased": not trace.meta.every_position,
        "correction_ranks": asdict(diagnostics.correction_ranks(trace, diagnostics.visited_rounds(trace, chain))),
        "reliability": asdict(diagnostics.reliability(trace, nursery=nursery)),
        "reliability_given_parent": asdict(diagnostics.reliability(trace, conditional=True, nursery=nursery)),
        "masses": asdict(diagnostics.masses(trace, profile=profile, nursery=nursery)),
        "rank_cap": [asdict(row) for row in diagnostics.rank_cap(trace, chosen, caps, nursery=nursery)],
        "shapes": [asdict(row) for row in diagnostics.shape_comparison(trace, chosen)],
        "regret": [asdict(regret(trace, budget, nursery=nursery)) for budget in chosen],
        "shared_allocation": [],
    }
    if len(diagnostics.drafted_rounds(trace)):
        found["shared_allocation"] = [
            asdict(shared_allocation(trace, requests=BATCH, nodes_per_request=nodes, nursery=nursery))
            for nodes in (FEW, MANY)
        ]
    return found
