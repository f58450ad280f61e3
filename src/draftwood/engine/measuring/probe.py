"""The start-up probe: a small profile for an engine that has none, kept per identity."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from ...cost.profile import CostProfile
from ...errors import CostError
from ..identity import identity_key
from .assemble import assemble
from .base import Measurable
from .plan import PROBE_CONTEXT, fitting_contexts, probe_plan
from .profile import MeasureOptions, measure_gains, new_stand
from .sampler import Log, Sampler

PROBE_SECONDS = 20.0
PROBE_NODES = 64
PROFILES = "profiles"
# Gains come first and stop at this share: a drafted round is needed in any case, and the sampler keeps to what is left.
_GAIN_SECONDS = 4.0
_RESERVED_SECONDS = 0.5  # closing and assembling
_OPTIONS = MeasureOptions(quick=True, max_nodes=PROBE_NODES, prompts=4)

Notify = Callable[[str], None]


def probed_profile(
    engine: Measurable, cache_dir: Path | None, notify: Notify, *, clock: Callable[[], float] = perf_counter
) -> CostProfile:
    """The cached probe of this engine's identity, or one measured now, which takes at most PROBE_SECONDS.

    Where a dozen rounds take longer than that, it takes as long as the dozen that it cannot do without.
    `notify` gets one line when it is measured, and one when it cannot be kept.
    """
    path = None
    if cache_dir is not None and engine.identity is not None:
        path = cache_dir / PROFILES / f"{identity_key(engine.identity)}.json"
        found = _cached(path, engine, notify)
        if found is not None:
            return found
    kept = "kept for the next start" if path is not None else "for this engine only"
    notify(f"no cost profile: measuring a quick one, at most {PROBE_SECONDS:.0f} s, {kept} (see draftwood profile)")
    profile = _measure(engine, clock)
    if profile.unfit is not None:
        notify(
            f"the machine was disturbed meanwhile ({profile.unfit}): these costs serve this engine only, the next "
            "start "
            "measures again"
        )
    elif path is not None:
        _keep(profile, path, notify)
    return profile


def _measure(engine: Measurable, clock: Callable[[], float]) -> CostProfile:
    start_s = clock()
    stand = new_stand(engine, PROBE_NODES, clock=clock, seed=0)
    state = engine.state
    try:
        gains = measure_gains(engine, stand, _OPTIONS, until=lambda: clock() - start_s >= _GAIN_SECONDS)
        contexts = fitting_contexts(None, (PROBE_CONTEXT,), state.target.spec.context_limit, stand.block_size)
        plan = probe_plan(stand.widest_tree(contexts[0]), contexts)
        log = Log()
        left_s = PROBE_SECONDS - _RESERVED_SECONDS - (clock() - start_s)
        Sampler(stand, plan, log, clock=clock, budget_s=left_s).run()
    finally:
        stand.close()
    return assemble(log, plan, mean_gains=gains, identity=engine.identity, dtype=engine.dtype_name)


def _cached(path: Path, engine: Measurable, notify: Notify) -> CostProfile | None:
    """The stored probe; None when there is none that can be used."""
    if not path.is_file():
        return None
    try:
        profile = CostProfile.load(path)
        assert engine.identity is not None
        profile.check_identity(engine.identity)
    except CostError as error:
        notify(f"the cached cost profile cannot be used ({error})")
        return None
    if profile.unfit is not None:
        return None
    # A probe that ran out of time before it saw a round serves every policy but `cast`: it is worth another try.
    return profile if profile.mean_gains is not None or engine.codec is None else None


def _keep(profile: CostProfile, path: Path, notify: Notify) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        profile.save(path)
    except (OSError, CostError) as error:
        notify(f"the measured cost profile cannot be kept ({error}): the next start measures again")
