"""Predicted against measured seconds of a round: how well a cost profile describes the machine it was measured on.

    python benchmarks/predict.py [--profile profile.json] [--model demo:smollm2] [--tokens 48] [--prompts 6]

Without --profile a quick one is measured first. Every policy decodes every prompt, in turns, with stage timing on. A
round's prediction is what the profile says for its rows and context, drafting included; it is compared as it is, and
with the live correction as it stood before the round. Prints the median relative error by policy and overall.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import numpy as np

from draftwood import Engine
from draftwood.core import RoundRecord
from draftwood.cost import CostProfile
from draftwood.engine.measuring.profile import MeasureOptions, measure_profile
from draftwood.prompts.sets import BUNDLED_SETS, load_prompts

BAR = 0.10
ARMS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("ar", {}),
    ("chain", {}),
    ("ddtree", {"budget": 4}),
    ("ddtree", {"budget": 12}),
    ("ddtree", {"budget": 24}),
    ("ddtree", {"budget": 48}),
    ("auto", {}),
)


def corrected(rounds: Sequence[RoundRecord]) -> list[float]:
    """|predicted / measured - 1| of each timed round, with the live factors that stood before it."""
    found = []
    for record in rounds:
        assert record.predicted_s is not None and record.cost_factors is not None
        # Predictions are in the policies' clock: divided by the base factor.
        found.append(abs(record.predicted_s * record.cost_factors[0] / sum(record.seconds.values()) - 1.0))
    return found


def as_profiled(profile: CostProfile, rounds: Sequence[RoundRecord]) -> list[float]:
    """The same without correction, from the profile itself."""
    found = []
    for record in rounds:
        predicted_s = profile.target_s(record.rows, record.context)
        if record.drafted:
            predicted_s += profile.draft_cost_s(record.context)
        found.append(abs(predicted_s / sum(record.seconds.values()) - 1.0))
    return found


def main() -> None:
    """Measure, decode, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo:smollm2")
    parser.add_argument("--drafter")
    parser.add_argument("--profile")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--prompts", type=int, default=6)
    options = parser.parse_args()
    engine = Engine.load(
        options.model,
        options.drafter,
        dtype=options.dtype,
        threads=options.threads,
        profile=options.profile,
    )
    if options.profile is None:
        engine.use_profile(measure_profile(engine, MeasureOptions(quick=True)))
    profile = engine.ensure_costs()
    for line in profile.notes.get("measured", {}).get("disturbed", ()):
        print(f"disturbed: {line}")
    rounds: dict[str, list[RoundRecord]] = {}
    each = -(-options.prompts // len(BUNDLED_SETS))
    prompts = [prompt.text for name in BUNDLED_SETS for prompt in load_prompts(name, each).prompts][: options.prompts]
    for prompt in prompts:
        for policy, settings in ARMS:
            with engine.timing():
                (result,) = engine.generate([prompt], policy=policy, max_tokens=options.tokens, **settings)
            label = " ".join([policy, *map(str, settings.values())])
            rounds.setdefault(label, []).extend(result.rounds)
    report(profile, rounds)


def report(profile: CostProfile, rounds: dict[str, list[RoundRecord]]) -> None:
    """The table, and whether the bar is met."""
    print(f"{'policy':<12}{'rounds':>8}{'as profiled':>14}{'corrected':>12}")
    for label, records in [*rounds.items(), ("all", [record for found in rounds.values() for record in found])]:
        plain, live = as_profiled(profile, records), corrected(records)
        print(f"{label:<12}{len(records):>8}{np.median(plain):>13.1%} {np.median(live):>11.1%}")
    overall = float(np.median(as_profiled(profile, [record for found in rounds.values() for record in found])))
    print(f"median error as profiled {overall:.1%}: {'under' if overall < BAR else 'NOT under'} {BAR:.0%}")


if __name__ == "__main__":
    main()
