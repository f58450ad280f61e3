"""Lines of the table from samples typed in by hand."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np
import pytest
import scipy.stats
from made_samples import sample

from draftwood.bench.plan import BenchRow, Panel, rows_of
from draftwood.bench.runner import Sample
from draftwood.bench.stats import expanded_tail
from draftwood.bench.summary import (
    OVERALL,
    Line,
    Verdicts,
    is_loop,
    line_json,
    repeated_share,
    summarise_panel,
)
from draftwood.bench.tables import notes
from draftwood.errors import UsageError

CHAIN: dict[str, Any] = {"committed": [2, 1], "rows": [4, 2], "drafted": [True, False]}
PANEL = Panel("", rows_of(["ar", "chain", "auto"], []), max_tokens=4)


def no_gap(_: Sample, shared: Sequence[int]) -> tuple[float, float]:
    raise AssertionError(f"outputs are equal, yet a gap after {shared} is asked for")


def lines_of(samples: list[Sample], panel: Panel = PANEL, timer: str = "decode", gap: object = no_gap) -> list[Line]:
    return summarise_panel(panel, samples, Verdicts("float32", gap), timer=timer)  # type: ignore[arg-type]


def two_prompts(set_name: str = "a") -> list[Sample]:
    """ar: 3 tokens in 3 s and in 1.5 s; chain twice as fast; auto three times."""
    made = []
    for prompt, plain_s in (("p", 3.0), ("q", 1.5)):
        made += [
            sample("ar", prompt, plain_s, set_name=set_name),
            sample("chain", prompt, plain_s / 2, set_name=set_name, **CHAIN),
            sample("auto", prompt, plain_s / 3, set_name=set_name, committed=[3], rows=[6], drafted=[True]),
        ]  # fmt: skip
    return made


def by_label(lines: list[Line], set_name: str = "a") -> dict[str, Line]:
    return {line.row.label: line for line in lines if line.set_name == set_name}


def test_speeds_are_tokens_minus_one_over_decode_seconds() -> None:
    found = by_label(lines_of(two_prompts()))
    # Prefill (0.5 s, one token) is on neither side.
    assert found["ar"].tokens_per_s == pytest.approx(6 / 4.5)
    assert found["chain"].tokens_per_s == pytest.approx(6 / 2.25)
    assert found["ar"].ms_per_token == pytest.approx(4500 / 6)
    assert found["auto"].speedup_over_ar == pytest.approx(3.0)
    assert found["auto"].gain_over_chain == pytest.approx(0.5)
    assert found["ar"].tokens_per_s * sum(s.decode_s for s in two_prompts() if s.row == "ar") == pytest.approx(6)


@pytest.mark.parametrize(
    ("timer", "chain_ms"),
    [
        ("decode", 1e3 * 2.25 / 6),
        ("paper", 1e3 * (2.25 - 2 * 0.1) / 8),  # opens at the first verification, all four tokens count
        ("wall", 1e3 * (2.25 + 2 * 0.5) / 8),
    ],
)
def test_timers(timer: str, chain_ms: float) -> None:
    found = by_label(lines_of(two_prompts(), timer=timer))
    assert found["chain"].ms_per_token == pytest.approx(chain_ms)
    assert found["chain"].tokens_per_s == pytest.approx(6 / 2.25)  # whatever the timer
    assert found["chain"].timer == timer
    ratio = found["ar"].ms_per_token / found["chain"].ms_per_token  # type: ignore[operator]
    assert found["chain"].speedup_over_ar == pytest.approx(ratio)


def test_rows_and_skipped_rounds_come_from_the_rounds() -> None:
    found = by_label(lines_of(two_prompts()))["chain"]
    assert (found.mean_committed, found.rounds, found.skipped_rounds) == (1.5, 4, 2)
    assert (found.mean_rows, found.sd_rows) == (3.0, 1.0)
    assert found.ttft_s == 0.5 and found.peak_bytes == 1000


def test_overall_is_the_mean_of_the_sets() -> None:
    samples = two_prompts() + two_prompts("b")
    # On set b auto is as fast as chain.
    samples = [
        replace(item, decode_s=item.decode_s * 1.5) if (item.set_name, item.row) == ("b", "auto") else item
        for item in samples
    ]
    overall = by_label(lines_of(samples), OVERALL)["auto"]
    assert overall.speedup_over_ar == pytest.approx((3 + 2) / 2)
    assert overall.gain_over_chain == pytest.approx((0.5 + 0.0) / 2)
    assert overall.tokens_per_s == pytest.approx(12 / (1.5 + 2.25))
    assert overall.prompts == 4


def test_intervals_agree_with_scipy() -> None:
    rng = np.random.default_rng(5)
    samples = []
    for index in range(12):
        plain_s = float(rng.gamma(3.0))
        samples += [
            sample("ar", f"p{index}", plain_s),
            sample("chain", f"p{index}", plain_s / 2),
            sample("auto", f"p{index}", plain_s * float(rng.uniform(0.2, 0.6))),
        ]
    found = by_label(lines_of(samples))["auto"]
    ours = np.array([s.decode_s for s in samples if s.row == "auto"])
    plain = np.array([s.decode_s for s in samples if s.row == "ar"])
    check = scipy.stats.bootstrap(
        (plain, ours), lambda a, b, axis=-1: a.sum(axis) / b.sum(axis), paired=True, vectorized=True,
        n_resamples=10_000, method="percentile", rng=np.random.default_rng(1),
        confidence_level=1 - 2 * expanded_tail(12, 0.025),
    ).confidence_interval  # fmt: skip
    assert found.intervals["speedup_over_ar"] == pytest.approx((check.low, check.high), rel=0.02)
    assert found.sign_over_ar is not None
    wins = int((ours < plain).sum())
    assert found.sign_over_ar.wins == wins
    assert found.sign_over_ar.p_value == pytest.approx(scipy.stats.binomtest(wins, 12).pvalue)


class TestDoubts:
    """What makes a table say less than it seems to."""

    LOOP: ClassVar = [*range(8), *[8, 9, 10, 11] * 8]
    PROSE: ClassVar = list(range(40))

    def run(self, texts: dict[str, list[int]], seconds: dict[str, float]) -> list[Line]:
        samples = [
            replace(sample(row, prompt, seconds.get(f"{row} {prompt}", 4.0)), token_ids=text)
            for prompt, text in texts.items()
            for row in ("ar", "chain", "auto")
        ]
        lines = lines_of(samples)
        return [line for line in lines if line.set_name != OVERALL]

    def test_share_of_repeated_grams_by_hand(self) -> None:
        assert repeated_share([1, 2, 3, 4, 5]) == 0.0 == repeated_share([1, 2, 3])
        assert repeated_share([1] * 8) == pytest.approx(1 - 1 / 5)
        assert repeated_share([1, 2, 1, 2, 1, 2], size=2) == pytest.approx(1 - 2 / 5)
        assert is_loop(self.LOOP) and not is_loop(self.PROSE) and not is_loop([1] * 20)

    def test_loops_are_counted_and_left_out(self) -> None:
        seconds = {"auto p": 2.0, "auto q": 0.4}  # twice as fast on prose, ten times on the loop
        found = by_label(self.run({"p": self.PROSE, "q": self.LOOP}, seconds))["auto"]
        assert (found.loops, found.prompts) == (1, 2)
        assert found.over_ar_without_loops == pytest.approx(2.0) and found.speedup_over_ar > 2.5
        said = "\n".join(notes(self.run({"p": self.PROSE, "q": self.LOOP}, seconds), None))
        assert "1 of 2 answers are loops" in said and "auto 2.00x" in said
        assert "loops" not in "\n".join(notes(self.run({"p": self.PROSE, "r": self.PROSE}, {}), None))

    def test_one_prompt_has_no_interval(self) -> None:
        lines = self.run({"p": self.PROSE}, {"auto p": 2.0})
        assert all(line.intervals == {} for line in lines)
        assert by_label(lines)["auto"].speedup_over_ar == pytest.approx(2.0)
        assert "one prompt: no interval can be given" in notes(lines, None)

    def test_drift_is_noticed(self) -> None:
        texts = {f"p{at}": self.PROSE for at in range(10)}
        slower = {f"{row} p{at}": 6.0 for row in ("ar", "chain", "auto") for at in range(5, 10)}
        lines = self.run(texts, slower)
        assert by_label(lines)["ar"].drift == pytest.approx(1.5)
        assert any("took 1.50 x as long in the later half" in note for note in notes(lines, None))
        assert not any("drifted" in note for note in notes(self.run(texts, {}), None))
        assert by_label(self.run({"p": self.PROSE}, {}))["ar"].drift is None

    def test_near_ties_are_explained(self) -> None:
        lines = self.run({"p": self.PROSE, "q": self.PROSE}, {})
        assert not any("rounding" in note for note in notes(lines, None))
        lines = [replace(line, near_ties=1) for line in lines]
        assert any(note.startswith("near-tie: equal but for rounding") for note in notes(lines, None))


class TestGate:
    def broken(self) -> list[Sample]:
        return [
            replace(item, token_ids=[1, 2, 9, 4]) if (item.row, item.prompt_id) == ("auto", "q") else item
            for item in two_prompts()
        ]

    def test_no_speedup_for_outputs_that_differ(self) -> None:
        found = by_label(lines_of(self.broken(), gap=lambda item, shared: (1.0, 10.0)))
        assert found["auto"].output == "different"
        assert found["auto"].speedup_over_ar is None and found["auto"].gain_over_chain is None
        assert "speedup_over_ar" not in found["auto"].intervals and found["auto"].sign_over_ar is None
        assert found["auto"].tokens_per_s is not None
        assert found["chain"].speedup_over_ar == pytest.approx(2.0)
        overall = by_label(lines_of(self.broken(), gap=lambda item, shared: (1.0, 10.0)), OVERALL)["auto"]
        assert overall.output == "different" and overall.speedup_over_ar is None

    def test_near_ties_are_let_through_and_counted(self) -> None:
        asked = []

        def gap(item: Sample, shared: Sequence[int]) -> tuple[float, float]:
            asked.append((item.prompt_id, list(shared)))
            return 1e-5, 10.0

        verdicts = Verdicts("bfloat16", gap)
        found = by_label(summarise_panel(PANEL, self.broken(), verdicts))["auto"]
        assert (found.output, found.near_ties) == ("near-tie", 1)
        assert found.speedup_over_ar == pytest.approx(3.0)
        assert asked == [("q", [1, 2])]
        summarise_panel(PANEL, self.broken(), verdicts)
        assert len(asked) == 1  # judged once

    def test_a_chain_that_differs_gives_no_gain(self) -> None:
        samples = [replace(s, token_ids=[9, 9, 9, 9]) if s.row == "chain" else s for s in two_prompts()]
        found = by_label(lines_of(samples, gap=lambda item, shared: (1.0, 10.0)))
        assert found["auto"].gain_over_chain is None and found["auto"].speedup_over_ar == pytest.approx(3.0)


def test_nothing_decoded_is_no_division_by_zero() -> None:
    """An end token from prefill: no rounds, no decode seconds."""
    nothing = {"tokens": [7], "committed": [], "rows": [], "drafted": [], "predicted_s": [], "first_draft_s": 0.0}
    samples = [sample(row, "p", 0.0, **nothing) for row in ("ar", "chain", "auto")]
    found = by_label(lines_of(samples))["auto"]
    assert found.tokens_per_s is None and found.ms_per_token is None and found.speedup_over_ar is None
    assert found.mean_committed is None and found.mean_rows is None and found.sd_rows is None
    assert (found.rounds, found.skipped_rounds) == (0, 0)
    # Beside prompts that decode something it changes nothing.
    both = by_label(lines_of(samples + [replace(s, prompt_id="q" + s.prompt_id) for s in two_prompts()]))["auto"]
    assert both.tokens_per_s == pytest.approx(6 / 1.5) and both.speedup_over_ar == pytest.approx(3.0)
    assert not any(math.isnan(end) for pair in both.intervals.values() for end in pair)


def test_oracle_is_the_fastest_fixed_budget() -> None:
    panel = Panel("", rows_of(["auto"], [4, 8]), max_tokens=4)
    samples = []
    for prompt in "pq":
        samples += [
            sample("ar", prompt, 4.0), sample("ddtree 4", prompt, 2.0), sample("ddtree 8", prompt, 1.0),
            sample("auto", prompt, 1.25),
        ]  # fmt: skip
    found = by_label(lines_of(samples, panel))
    assert found["auto"].oracle_budget == 8 and found["auto"].over_oracle == pytest.approx(0.8)
    one = Panel("", rows_of(["auto"], [4]), max_tokens=4)
    rest = [item for item in samples if item.row != "ddtree 8"]
    assert by_label(lines_of(rest, one))["auto"].oracle_budget is None


def test_unfinished_sets_are_left_out() -> None:
    samples = two_prompts() + two_prompts("b")[:-1]
    assert {line.set_name for line in lines_of(samples)} == {"a", OVERALL}
    assert lines_of(samples[:2]) == []


def test_seeds_and_repeats_are_runs_of_one_prompt() -> None:
    panel = replace(PANEL, seeds=(0, 1), repeats=2)
    samples = [
        replace(item, seed=seed, repeat=repeat) for seed in (0, 1) for repeat in (0, 1) for item in two_prompts()
    ]
    found = by_label(lines_of(samples, panel))["chain"]
    assert (found.prompts, found.samples, found.tokens) == (2, 8, 32)
    assert found.speedup_over_ar == pytest.approx(2.0)


def test_unknown_timer() -> None:
    with pytest.raises(UsageError, match="timer 'sun'"):
        lines_of(two_prompts(), timer="sun")


def test_json_line_has_the_promised_fields() -> None:
    line = lines_of(two_prompts(), Panel("", (*rows_of(["ar", "chain"], []), BenchRow("auto", "auto"))))[2]
    value = line_json(line, PANEL)
    wanted = (
        "set policy budget tokens_per_s speedup_over_ar gain_over_chain mean_committed mean_rows sd_rows output "
        "intervals"
    )
    assert set(wanted.split()) <= set(value)
    assert (value["set"], value["policy"], value["budget"]) == ("a", "auto", None)
    assert value["intervals"]["speedup_over_ar"] == list(line.intervals["speedup_over_ar"])
