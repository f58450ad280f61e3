"""The cost profile: file, errors, and the one function that knows rows."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_profile import IDENTITY, document

from draftwood.cost import CostProfile, CostWarning, Identity, LiveFactors
from draftwood.cost.fit import convex, monotone
from draftwood.errors import CostError

PROFILE = CostProfile.from_json(document())


def verify_by_hand(rows: float, context: float) -> float:
    """Linear in rows, then in the context, written out."""
    low = float(np.interp(rows, [1, 4, 8, 16], document()["verify_s"][0]))
    high = float(np.interp(rows, [1, 4, 8, 16], document()["verify_s"][1]))
    return low + (context - 100) / 200 * (high - low)


def host_by_hand(rows: float) -> float:
    return float(np.interp(rows, [1, 4, 8, 16], document()["host_s"]))


def test_a_round_is_draft_plus_host_plus_verify() -> None:
    costs = PROFILE.round_cost(1, 150, max_nodes=12)
    draft = 0.002 + 0.25 * 0.002
    assert costs.draft_s == pytest.approx(draft)
    assert costs.plain_s == pytest.approx(verify_by_hand(1, 150) + host_by_hand(1))
    assert len(costs.round_s) == 13
    for n in range(13):
        assert costs.round_s[n] == pytest.approx(draft + host_by_hand(1 + n) + verify_by_hand(1 + n, 150))


def test_base_rows_shift_the_curve() -> None:
    alone, loaded = PROFILE.round_cost(1, 200, max_nodes=12), PROFILE.round_cost(5, 200, max_nodes=8)
    np.testing.assert_allclose(loaded.round_s, alone.round_s[4:])
    assert loaded.plain_s == pytest.approx(PROFILE.target_s(5, 200))


def test_several_requests() -> None:
    costs = PROFILE.round_cost(3, 100, requests=3, max_nodes=10)
    assert costs.draft_s == pytest.approx(0.004), "between 2 and 4 requests"
    extra = {4: (0.001 + 0.003) / 2, 16: (0.002 + 0.006) / 2}
    for n in range(11):
        rows = 3 + n
        expected = (
            verify_by_hand(rows, 100) + float(np.interp(rows, [4, 16], list(extra.values()))) + host_by_hand(rows)
        )
        at_grid = rows in (4, 8)
        assert costs.round_s[n] == pytest.approx(0.004 + expected, rel=1e-9 if at_grid else 0.02)
    assert PROFILE.draft_cost_s(100, 6) == pytest.approx(0.007), "the last segment continues"
    assert PROFILE.slope(4, 16, requests=4).c1 > PROFILE.slope(4, 16).c1


@pytest.mark.parametrize(
    ("changes", "covered", "beyond", "how"),
    [
        ({}, (0, 1, 2, 3, 4), (5, 64), "as the costs of up to 4 go on"),
        ({"requests": 1, "batch": None, "draft_s": 0.002}, (0, 1), (2, 64), "as those of one with all their rows"),
        # Drafting was measured for several requests, verifying was not.
        ({"batch": None}, (0, 1), (2, 4), "as those of one with all their rows"),
    ],
)
def test_costs_of_more_requests_than_were_measured_are_said(
    changes: dict[str, Any], covered: tuple[int, ...], beyond: tuple[int, ...], how: str
) -> None:
    profile = CostProfile.from_json(document(**changes))
    for requests in covered:
        assert profile.covers_requests(requests) and profile.notice_requests(requests) is None
    assert profile.outside == set()
    for requests in beyond:
        assert not profile.covers_requests(requests)
    line = profile.notice_requests(beyond[0])
    assert line is not None and "\n" not in line
    assert line.startswith(f"no measured costs of {beyond[0]} requests together") and how in line
    assert [profile.notice_requests(requests) for requests in (*beyond, *covered)] == [None] * len((*beyond, *covered))
    assert profile.outside == {"requests"}


def test_what_is_said_about_unmeasured_requests_is_what_is_done() -> None:
    """One measured request: any number is priced as one with all rows. Several: the last segment goes on."""
    one = CostProfile.from_json(document(requests=1, batch=None, draft_s=0.002))
    np.testing.assert_array_equal(
        one.round_cost(3, 100, requests=3, max_nodes=9).round_s, one.round_cost(3, 100, max_nodes=9).round_s
    )
    several = CostProfile.from_json(document())
    by_count = [several.round_cost(8, 100, requests=requests, max_nodes=8).round_s for requests in (2, 4, 6)]
    np.testing.assert_allclose(by_count[2] - by_count[1], by_count[1] - by_count[0])


def test_null_drafting_and_host_time_count_as_zero() -> None:
    bare = CostProfile.from_json(document(draft_s=None, host_s=None, requests=1, batch=None))
    costs = bare.round_cost(1, 100, max_nodes=3)
    assert costs.draft_s == 0.0 and costs.plain_s == pytest.approx(0.010)
    assert bare.with_draft(0.0045).round_cost(1, 100, max_nodes=3).draft_s == pytest.approx(0.0045)
    assert CostProfile.from_json(document(draft_s=0.0065)).draft_cost_s(250, 2) == pytest.approx(0.0065)
    assert CostProfile.from_json(document(draft_s=[0.1, 0.2])).draft_cost_s(200, 4) == pytest.approx(0.15)


def test_beyond_the_grid_the_last_segment_continues_and_warns_once() -> None:
    profile = CostProfile.from_json(document(host_s=None))
    with pytest.warns(CostWarning, match="rows beyond the measured 16") as seen:
        costs = profile.round_cost(1, 100, max_nodes=20)
        profile.round_cost(1, 100, max_nodes=40)
    assert len(seen) == 1 and profile.outside == {"rows"}
    assert costs.round_s[20] == pytest.approx(0.002 + 0.025 + 5 * 0.001)
    with pytest.warns(CostWarning, match="context beyond the measured 300"):
        beyond = profile.round_cost(1, 500, max_nodes=3)
    assert beyond.plain_s == pytest.approx(0.014)
    assert profile.outside == {"rows", "context"}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert PROFILE.round_cost(1, 0, max_nodes=3).plain_s == pytest.approx(0.009 + 0.001)


def test_a_falling_last_segment_never_reaches_zero() -> None:
    profile = CostProfile.from_json(
        {"schema": 1, "rows": [1, 8, 16], "contexts": [1], "verify_s": [[0.02, 0.03, 0.025]]}
    )
    with pytest.warns(CostWarning):
        assert profile.round_cost(1, 1, max_nodes=500).round_s.min() == pytest.approx(0.02)


def test_steps_are_evaluated_as_steps() -> None:
    stepped = CostProfile.from_json(document(steps=[9], host_s=None, draft_s=None))
    costs = stepped.round_cost(1, 100, max_nodes=15).round_s
    assert costs[7] == costs[8] == pytest.approx(0.017), "rows 8 and 9"
    np.testing.assert_allclose(costs[9:], 0.025)
    sizes = [1, 4, 8, 16]
    padded = CostProfile.from_json(document(steps=[1, 4, 8], host_s=None, draft_s=None))
    for n, seconds in enumerate(padded.round_cost(1, 100, max_nodes=15).round_s):
        assert seconds == pytest.approx(document()["verify_s"][0][sum(size < n + 1 for size in sizes)])


def test_curves() -> None:
    dipped = document(verify_s=[[0.010, 0.0099, 0.017, 0.012], [0.02] * 4], host_s=None, draft_s=None)
    profile = CostProfile.from_json(dipped | {"spread_s": [[0.0005] * 4] * 2})
    rows, seconds = np.array([1, 4, 8, 16]), np.array(dipped["verify_s"][0])
    at = rows - 1
    for curve, fitted in (
        ("measured", seconds),
        ("monotone", monotone(seconds, np.full(4, 0.0005))),
        ("convex", convex(rows, seconds)),
    ):
        np.testing.assert_allclose(profile.round_cost(1, 100, max_nodes=15, curve=curve).round_s[at], fitted)
    with pytest.raises(CostError, match="curve 'concave': expected one of measured, monotone, convex"):
        profile.round_cost(1, 100, curve="concave", max_nodes=3)


@pytest.mark.parametrize("context", [0, 100, 170, 300, 2_000])
def test_the_convex_curve_is_convex_at_every_context(context: int) -> None:
    rng = np.random.default_rng(0)
    verify = (0.02 + 0.001 * np.sqrt(np.arange(4)) * [[1], [3]]) * (1 + 0.05 * rng.standard_normal((2, 4)))
    profile = CostProfile.from_json(document(verify_s=verify.tolist()))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CostWarning)
        costs = profile.round_cost(1, context, max_nodes=40, curve="convex", live=LiveFactors(1.0, 3.0, 1.0))
    assert np.all(np.diff(costs.round_s, 2) >= -1e-12)


def test_live_factors_cancel_when_common_and_tilt_when_not() -> None:
    plain = PROFILE.round_cost(1, 100, max_nodes=15)
    common = PROFILE.round_cost(1, 100, max_nodes=15, live=LiveFactors(2.0, 2.0, 2.0))
    np.testing.assert_allclose(common.round_s, plain.round_s)
    tilted = PROFILE.round_cost(1, 100, max_nodes=15, live=LiveFactors(2.0, 3.0, 1.0))
    single = PROFILE.target_s(1, 100)
    for n in range(16):
        expected = 0.5 * 0.002 + single + 1.5 * (PROFILE.target_s(1 + n, 100) - single)
        assert tilted.round_s[n] == pytest.approx(expected)
    with pytest.raises(CostError, match=r"cost factor slope 4.5: expected 0.25 to 4.0"):
        LiveFactors(slope=4.5)


def test_save_and_load(tmp_path: Path) -> None:
    path = tmp_path / "profile.json"
    profile = CostProfile.from_json(document(note="kept"))
    profile.save(path)
    loaded = CostProfile.load(path)
    assert loaded.to_json() == profile.to_json()
    assert loaded.notes == {"note": "kept"}
    assert [item.name for item in tmp_path.iterdir()] == ["profile.json"], "no partial file stays"
    with pytest.raises(CostError, match=r"nowhere/p\.json: cannot be written"):
        profile.save(tmp_path / "nowhere" / "p.json")


BAD_CELLS: list[tuple[dict[str, Any], str]] = [
    ({"verify_s": [[0.01, float("nan"), 0.02, 0.03], [0.01] * 4]}, r"verify_s\[0\]\[1\] is nan: expected a finite"),
    ({"verify_s": [[0.01] * 4, [0.01, 0.01, -0.01, 0.01]]}, r"verify_s\[1\]\[2\] is -0.01: expected a number > 0"),
    ({"verify_s": [[0.01] * 4, [0.01, 0.01, 0.01]]}, r"verify_s\[1\] has 3 cells: expected a list of 4"),
    ({"verify_s": [[0.01] * 4]}, "verify_s has 1 cells: expected a list of 2"),
    ({"verify_s": [[0.01, None, 0.01, 0.01]] * 2}, r"verify_s\[0\]\[1\] is None: expected a finite number"),
    ({"verify_s": [[0.01, "0.01", 0.01, 0.01]] * 2}, r"verify_s\[0\]\[1\] is '0.01': expected a finite number"),
    ({"verify_s": [[0.01, float("inf"), 0.01, 0.01]] * 2}, r"verify_s\[0\]\[1\] is inf"),
    ({"rows": [1, 8, 4, 16]}, r"rows\[2\] is 4: expected more than 8, the list must increase"),
    ({"rows": [2, 4, 8, 16]}, "rows starts at 2: expected 1 first"),
    ({"rows": [1, 4, 8.5, 16]}, r"rows\[2\] is 8.5: expected an integer"),
    ({"contexts": [300, 100]}, r"contexts\[1\] is 100: expected more than 300"),
    ({"contexts": []}, r"contexts is \[\]: expected a list of increasing integers"),
    ({"draft_s": [0.1, -0.1]}, r"draft_s\[1\] is -0.1: expected a number >= 0"),
    ({"host_s": [0.1]}, "host_s has 1 cells: expected a list of 4"),
    ({"requests": [2, 4]}, "requests starts at 2: expected 1 first"),
    ({"steps": [16]}, "step 16: expected less than the last of rows, 16"),
    ({"steps": [5, 6]}, r"steps \[5, 6\]: expected at most one between two neighbouring rows"),
    ({"mean_gains": [0.5, 0.6]}, r"mean_gains\[1\] is 0.6, more than the one before: sorted masses never grow"),
    ({"mean_gains": [1.5, 0.6]}, r"mean_gains\[0\] is 1.5: expected 0 to 1"),
    ({"schema": 2}, "schema 2 is from a newer Draftwood: expected at most 1"),
    ({"schema": "1"}, "schema '1': expected 1"),
    ({"batch": {"rows": [4]}}, "batch is .*: expected an object with rows, contexts and verify_s"),
    ({"identity": {"device": "cpu"}}, "identity .*: expected an object with device, threads"),
]


@pytest.mark.parametrize(("change", "message"), BAD_CELLS)
def test_a_bad_profile_names_the_cell(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(document(**change)))
    with pytest.raises(CostError, match=message) as caught:
        CostProfile.load(path)
    assert str(caught.value).startswith(str(path)) and "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["rows", "contexts", "verify_s"])
def test_a_missing_field_is_named(name: str) -> None:
    cut = document()
    del cut[name]
    with pytest.raises(CostError, match=f"{name} is missing"):
        CostProfile.from_json(cut)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "cannot be read"),
        ("{", "not a JSON file"),
        ("[1]", "a list instead of an object"),
        ("\udcff", "not a JSON"),
    ],
)
def test_a_file_that_is_no_profile(text: str | None, message: str, tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    if text is not None:
        path.write_text(text, errors="surrogateescape")
    with pytest.raises(CostError, match=message):
        CostProfile.load(path)


def test_another_identity_is_refused_and_named() -> None:
    here = Identity.from_json(IDENTITY)
    assert PROFILE.check_identity(here) == ()
    for field, value, shown in (
        ("threads", 4, "threads 2 against 4"),
        ("dtype", "bfloat16", "dtype 'float32' against 'bfloat16'"),
        ("versions", {"torch": "2.9.0"}, "versions.torch '2.8.0' against '2.9.0'"),
        ("versions", {"torch": "2.8.0", "numpy": "2"}, "versions.numpy None against '2'"),
    ):
        other = Identity.from_json(IDENTITY | {field: value})
        with pytest.raises(CostError, match=shown):
            PROFILE.check_identity(other)
        assert PROFILE.check_identity(other, allow_stale=True) == (shown,)
    with pytest.raises(CostError, match="identity None"):
        CostProfile.from_json(document(identity=None)).check_identity(here)


def test_a_look_up_is_fast(measured_in_units: Callable[[Callable[[], object]], float]) -> None:
    """Called every round, far below a round's time: 300 of them within 5 units (30 ms on a server of 2023)."""

    def look_up() -> None:
        for at in range(300):
            PROFILE.round_cost(1, 100 + at % 200, max_nodes=15)

    assert measured_in_units(look_up) < 5
