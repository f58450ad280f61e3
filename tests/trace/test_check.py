"""Integrity of a trace: one thing wrong at a time, each named by its column."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import made_trace
import numpy as np
import pytest

from draftwood.core import DraftTree
from draftwood.errors import TraceError
from draftwood.trace.builder import TraceBuilder, TraceRound
from draftwood.trace.format import Trace

Change = Callable[[np.ndarray], object]


def drafted() -> Trace:
    """One request of six tokens, three rounds; the middle one drafted three nodes and accepted two."""
    builder = TraceBuilder(made_trace.meta(policy="ddtree", every_position=False, stages=("draft",)), depth=3)
    logp, ids = made_trace.scores(np.random.default_rng(0), np.array([3, 4, 5]), 2)
    tree = DraftTree(
        parent=np.array([-1, 0, 1, 0], np.int32),
        token=np.array([2, 3, 4, 9], np.int64),
        depth=np.array([0, 1, 2, 1], np.int32),
        rank=np.array([0, 0, 0, 1], np.int32),
        logp=np.array([0.0, -0.1, -0.2, -2.0]),
    )
    one = builder.add_request(request_id="a", set_name="made", prompt_hash="00", prompt_len=4, max_tokens=9)
    builder.add_round(one, TraceRound(0, 1, 4))
    builder.add_round(
        one,
        TraceRound(1, 2, 5, logp, ids, tree=tree, candidates=3, num_nodes=3, accepted=[1, 2], committed=3,
                   seconds={"draft": 0.5}),
    )  # fmt: skip
    builder.add_round(one, TraceRound(4, 5, 8))
    builder.finish_request(one, [1, 2, 3, 4, 5, 6], "length")
    return builder.build()


def changed(table: str, column: str, change: Change) -> Trace:
    """A good trace with one column changed: in place, or by what `change` returns."""
    trace = drafted()
    values = getattr(getattr(trace, table), column).copy()
    found = change(values)
    made = values if found is None else found
    return replace(trace, **{table: replace(getattr(trace, table), **{column: made})})


def put(where: object, value: object) -> Change:
    def change(values: np.ndarray) -> None:
        values[where] = value  # type: ignore[index]

    return change


def test_a_good_trace_is_good() -> None:
    drafted().check_integrity()
    made_trace.every_position([9, 4, 1]).check_integrity()


@pytest.mark.parametrize("column", ["request_id", "set_name", "prompt_hash", "finish"])
def test_strings_of_requests(column: str) -> None:
    for change in (lambda values: values[:0], lambda values: np.zeros(1)):
        with pytest.raises(TraceError, match=rf"requests\.{column}: expected 1 strings"):
            changed("requests", column, change).check_integrity()


@pytest.mark.parametrize(
    ("column", "change", "says"),
    [
        ("prompt_len", put(0, 0), r"requests\.prompt_len: a value below 1"),
        ("prompt_len", lambda values: values.astype(np.int64), r"requests\.prompt_len: int64"),
        ("max_tokens", put(0, 5), "an output is longer than its max_tokens"),
        ("output_ids", put(5, made_trace.VOCAB), r"requests\.output_ids: id 40 outside 0 to 39"),
        ("output_ids", put(5, -1), r"requests\.output_ids: id -1 outside"),
        ("output_offsets", put(1, 5), "expected 2 rising int64 values from 0 to 6"),
        ("output_offsets", put(0, 1), "expected 2 rising"),
        ("finish", lambda values: np.array(["gone"]), r"finish reason \['gone'\]: expected one of stop, length, abort"),
    ],
)
def test_requests(column: str, change: Change, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        changed("requests", column, change).check_integrity()


@pytest.mark.parametrize(
    ("column", "change", "says"),
    [
        ("request", put(2, -1), r"rounds\.request: a value below 0"),
        ("request", put(2, 1), r"rounds\.request: expected 0 to 0"),
        ("position", put(2, 3), r"rounds\.position does not follow from rounds\.committed"),
        ("position", put(slice(None), [1, 2, 5]), "first round is not at position 0"),
        ("pending", put(1, 7), r"rounds\.pending differs from the output"),
        ("context", put(1, 6), r"rounds\.context differs from prompt length"),
        ("drafted", lambda values: values.astype(np.int8), r"rounds\.drafted: expected 3 flags"),
        ("drafted", put(1, False), "a round that drafted nothing has scores or nodes"),
        ("depth", put(1, 4), r"rounds\.depth: expected 0 to 3"),
        ("depth", put(1, -1), r"rounds\.depth: a value below 0"),
        ("depth", put(1, 1), "a score beyond the round's depth"),
        ("logp", lambda values: values.astype(np.float64), r"rounds\.logp: float64, expected float32"),
        ("logp", lambda values: values[:, :, 0], r"rounds\.logp: shape \(3, 3\), expected"),
        ("logp", put((1, 0, 0), np.nan), r"rounds\.logp: NaN"),
        ("logp", put((1, 0, 0), 0.1), "a log-probability above 0"),
        ("logp", put((1, 0, 0), -30.0), "a row is not in descending order"),
        ("ids", put((1, 0, 0), 40), r"rounds\.ids: id 40 outside"),
        ("ids", lambda values: values[:, :1], r"rounds\.ids: int32"),
        ("candidates", put(1, -1), r"rounds\.candidates: a value below 0"),
        ("num_nodes", put(1, 1), "a node outside the round's tree"),
        ("num_nodes", put(0, 2), "a round that drafted nothing has scores or nodes"),
        ("committed", put(0, 0), r"rounds\.position does not follow"),
        ("committed", put(2, 2), "committed lengths do not sum to the output tokens minus 1"),
        ("accepted", put(1, 0), "a node outside the round's tree"),
        ("accepted_offsets", put(3, 1), "expected 4 rising"),
        ("seconds", put((1, 0), -0.5), r"rounds\.seconds: a value is below 0"),
        ("seconds", put((1, 0), np.inf), r"rounds\.seconds: a value is not finite"),
        ("seconds", lambda values: np.zeros((3, 2)), r"rounds\.seconds: float64 \(3, 2\), expected float64 \(3, 1\)"),
        ("factors", lambda values: np.ones((3, 1)), r"rounds\.factors"),
    ],
)
def test_rounds(column: str, change: Change, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        changed("rounds", column, change).check_integrity()


@pytest.mark.parametrize(
    ("column", "change", "says"),
    [
        ("offsets", put(3, 2), r"trees\.offsets: expected 4 rising"),
        ("parent", put(1, 2), r"trees\.parent: a parent does not stand before its child"),
        ("parent", put(1, -1), r"trees\.parent: a value below 0"),
        ("token", put(0, 40), r"trees\.token: id 40 outside"),
        ("rank", lambda values: values.astype(np.int64), r"trees\.rank: int64"),
        ("logp", put(1, 0.5), r"trees\.logp: expected finite numbers <= 0"),
        ("logp", put(1, -np.inf), r"trees\.logp: expected finite numbers"),
        ("logp", put(2, -0.15), r"trees\.logp: a tree is not in descending order"),
        ("logp", lambda values: values.astype(np.float32), r"trees\.logp: float32"),
    ],
)
def test_trees(column: str, change: Change, says: str) -> None:
    with pytest.raises(TraceError, match=says):
        changed("trees", column, change).check_integrity()


def test_more_committed_than_accepted() -> None:
    trace = drafted()
    rounds = replace(trace.rounds, accepted=trace.rounds.accepted[:1], accepted_offsets=np.array([0, 0, 1, 1]))
    with pytest.raises(TraceError, match="committed exceeds the accepted path"):
        replace(trace, rounds=rounds).check_integrity()


def test_a_trace_of_every_position_chooses_nothing() -> None:
    trace = drafted()
    with pytest.raises(TraceError, match="commits one token per round and chooses nothing"):
        replace(trace, meta=replace(trace.meta, every_position=True)).check_integrity()
