"""The tables of the diagnostics, cell by cell, and the same numbers from scores and from stored trees."""

from __future__ import annotations

from typing import Any

import made_trace
import numpy as np
import pytest

from draftwood.core import DraftTree
from draftwood.trace import diagnostics
from draftwood.trace.arms import diagnose
from draftwood.trace.builder import TraceBuilder, TraceRound
from draftwood.trace.diagnosis import Grid, diagnosis_grids, diagnosis_markdown, diagnosis_text
from draftwood.trace.format import Trace
from draftwood.trace.regret import regret

BUDGETS = [4, 12]


@pytest.fixture(scope="module")
def found() -> dict[str, Any]:
    return diagnose(made_trace.every_position([40, 30, 20], seed=3, slack=20), None, BUDGETS)


@pytest.fixture(scope="module")
def grids(found: dict[str, Any]) -> dict[str, Grid]:
    return {grid.title: grid for grid in diagnosis_grids(found)}


def test_every_row_has_a_cell_for_every_heading(grids: dict[str, Grid]) -> None:
    assert len(grids) == 8
    for grid in grids.values():
        assert grid.rows and all(len(row) == len(grid.heads) for row in grid.rows), grid.title


def test_ranks_are_shares_of_the_rejections(found: dict[str, Any], grids: dict[str, Grid]) -> None:
    ((rounds, events, *shares),) = grids["Rank of the correction where the chain is first rejected"].rows
    value = found["correction_ranks"]
    assert (rounds, events) == (str(value["rounds"]), str(value["events"]))
    assert sum(float(share.rstrip("%")) for share in shares) == pytest.approx(100, abs=0.3)


def test_scores_are_binned_in_order(found: dict[str, Any], grids: dict[str, Grid]) -> None:
    rows = grids["Reliability: path scores against hits"].rows
    assert [row[0] for row in rows] == [f"{low / 10:.1f}-{(low + 1) / 10:.1f}" for low in range(10)]
    counts = [int(row[2].split("(")[1].rstrip(")")) for row in rows]
    assert counts == found["reliability"]["everything"]["count"]


def test_depths_count_what_the_bins_count(found: dict[str, Any], grids: dict[str, Grid]) -> None:
    rows = grids["Reliability by depth"].rows
    assert [row[0] for row in rows] == [str(depth) for depth in range(1, made_trace.DEPTH + 1)]
    total = sum(found["reliability"]["everything"]["count"])
    assert sum(int(row[1]) for row in rows) == total
    hits = sum(int(row[1]) * float(row[3]) for row in rows)
    everything = found["reliability"]["everything"]
    expected = sum(n * rate for n, rate in zip(everything["count"], everything["hit_rate"], strict=True) if n)
    assert hits == pytest.approx(expected, abs=0.001 * total)


def test_masses_fall_and_have_no_threshold_without_costs(grids: dict[str, Grid]) -> None:
    rows = grids["Mean sorted masses"].rows
    values = [float(row[1]) for row in rows]
    assert values == sorted(values, reverse=True) and {row[2] for row in rows} == {"-"}


def test_a_table_for_each_budget(grids: dict[str, Grid]) -> None:
    caps = grids["Candidates per depth"].rows
    assert [row[:2] for row in caps] == [(str(b), str(k)) for b in BUDGETS for k in (1, 2, 4, 8, 16)]
    shapes = grids["Best-first trees against fixed shapes"].rows
    assert [row[:2] for row in shapes][:4] == [("4", "ddtree"), ("4", "medusa"), ("4", "binary"), ("4", "chain")]
    assert [row[0] for row in grids["Accepted drafts left behind (CAST, Proposition 1)"].rows] == ["4", "12"]
    split = grids["Accepted drafts of a batch under one budget"].rows
    assert [row[0] for row in split] == ["32 x 4", "32 x 16"]


def test_text_and_markdown_hold_the_same_cells(found: dict[str, Any], grids: dict[str, Grid]) -> None:
    text, page = diagnosis_text(found, "utf-8"), diagnosis_markdown(found)
    for grid in grids.values():
        assert grid.title in text and f"**{grid.title}**" in page
        for row in grid.rows:
            assert "| " + " | ".join(row) + " |" in page
    assert diagnosis_text(found, "ascii").isascii()


def test_a_policys_own_rounds_are_called_biased(found: dict[str, Any]) -> None:
    assert "these rounds are one policy's own" not in diagnosis_text(found, "ascii")
    assert diagnosis_text(found | {"biased": True}, "ascii").endswith("missing from every table above\n")


def with_long_trees(length: int = 30) -> Trace:
    """A trace without scores, whose stored chains reach deeper than any scored position and know the text."""
    rng = np.random.default_rng(0)
    builder = TraceBuilder(made_trace.meta(), depth=2)
    output = rng.integers(0, made_trace.VOCAB, length)
    one = builder.add_request(request_id="a", set_name="s", prompt_hash="0", prompt_len=3, max_tokens=length + 50)
    for position in range(length - 1):
        chain = output[position : position + 7]
        nodes = np.arange(len(chain))
        tree = DraftTree(
            parent=(nodes - 1).astype(np.int32),
            token=chain.astype(np.int64),
            depth=nodes.astype(np.int32),
            rank=np.zeros(len(chain), np.int32),
            logp=-0.1 * nodes.astype(np.float64),
        )
        builder.add_round(one, TraceRound(position, int(output[position]), 3 + position, tree=tree))
    builder.finish_request(one, output, "length")
    return builder.build()


class TestStoredTrees:
    def test_ranks_are_known_for_scored_positions_only(self) -> None:
        trace = with_long_trees()
        found = diagnostics.correction_ranks(trace)
        # No position has a score: the realised token stands outside the candidates of every depth.
        assert found.events == found.outside == found.rounds == trace.num_rounds

    def test_reliability_is_that_of_the_trees(self) -> None:
        found = diagnostics.reliability(with_long_trees())
        assert all(rate in (None, 1.0) for rate in found.everything.hit_rate)
        assert sum(found.off_spine.count) == 0

    def test_regret_counts_the_text_beyond_the_scores(self) -> None:
        found = regret(with_long_trees(), 3)
        assert found.accepted is not None and 2.8 < found.accepted <= 3.0
        assert found.plug_in == 0.0 and found.bound == 0.0
