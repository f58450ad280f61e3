"""Places on an axis, and what several requests cost beyond one: values by hand and by planted planes."""

from __future__ import annotations

import numpy as np
import pytest

from draftwood.cost.tables import BatchCosts, bracket
from draftwood.errors import CostError

AXIS = np.array([10, 20, 40])
COUNTS = np.array([1, 2, 4])
BATCH = {"rows": [4, 16], "contexts": [100, 300], "verify_s": [[[3.0, 6.0], [5.0, 9.0]], [[4.0, 8.0], [7.0, 13.0]]]}
SINGLE_S = np.array([[2.0, 4.0], [3.0, 6.0]])


def batch() -> BatchCosts:
    made = BatchCosts.from_json(BATCH, 2)
    assert made is not None
    return made


@pytest.mark.parametrize(
    ("value", "low", "weight"),
    [(10, 0, 0.0), (15, 0, 0.5), (20, 1, 0.0), (30, 1, 0.5), (40, 1, 1.0), (60, 1, 2.0), (0, 0, -1.0), (12.5, 0, 0.25)],
)
def test_bracket_by_hand(value: float, low: int, weight: float) -> None:
    assert bracket(AXIS, value) == (low, weight)


def test_a_bracket_gives_the_value_back() -> None:
    for value in np.linspace(-20, 100, 41):
        low, weight = bracket(AXIS, value)
        assert AXIS[low] + weight * (AXIS[low + 1] - AXIS[low]) == pytest.approx(value)


def test_an_axis_of_one_entry_has_no_slope() -> None:
    assert [bracket(np.array([7]), value) for value in (0, 7, 100)] == [(0, 0.0)] * 3


def test_there_and_back() -> None:
    assert batch().to_json() == BATCH
    assert BatchCosts.from_json(None, 2) is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"rows": None}, "batch.rows"),
        ({"contexts": [300, 100]}, "batch.contexts"),
        ({"verify_s": [[[3.0, 6.0], [5.0, 9.0]]]}, "batch.verify_s"),
        ({"verify_s": [[[3.0, 6.0], [5.0, 0.0]], [[4.0, 8.0], [7.0, 13.0]]]}, r"batch.verify_s\[0\]\[1\]\[1\]"),
    ],
)
def test_a_wrong_cell_is_named(change: dict[str, object], message: str) -> None:
    with pytest.raises(CostError, match=message):
        BatchCosts.from_json(BATCH | change, 2)


@pytest.mark.parametrize("value", [[], 3, {"rows": [4]}, "x"])
def test_what_is_no_batch_is_refused(value: object) -> None:
    with pytest.raises(CostError, match="expected an object with rows, contexts and verify_s"):
        BatchCosts.from_json(value, 2)


class TestExtra:
    def extra(self, context: int, requests: int, *rows: int) -> list[float]:
        found = batch().extra_s(SINGLE_S, COUNTS, context, requests, np.array(rows))
        return [round(float(value), 9) for value in found]

    def test_nothing_beyond_one_request(self) -> None:
        assert self.extra(100, 1, 4, 16) == [0.0, 0.0]

    def test_at_the_measured_points(self) -> None:
        assert self.extra(100, 2, 4, 16) == [1.0, 2.0]
        assert self.extra(300, 2, 4, 16) == [2.0, 3.0]
        assert self.extra(300, 4, 4, 16) == [4.0, 7.0]

    def test_linear_between_requests_contexts_and_rows(self) -> None:
        assert self.extra(100, 3, 4) == [1.5]
        assert self.extra(200, 2, 4) == [1.5]
        assert self.extra(100, 2, 10) == [1.5]
        # Three requests: the mean of two and of four; then of both contexts, then of both rows.
        assert self.extra(200, 3, 10) == [3.125]

    def test_requests_go_on_and_contexts_and_rows_stay(self) -> None:
        assert self.extra(100, 6, 4) == [3.0]
        assert self.extra(5000, 2, 4) == self.extra(300, 2, 4)
        assert self.extra(0, 2, 4) == self.extra(100, 2, 4)
        assert self.extra(100, 2, 1, 64) == [1.0, 2.0]

    def test_a_planted_plane_comes_out_everywhere_inside(self) -> None:
        def plane(count: float, context: float, rows: float) -> float:
            return 0.25 * (count - 1) + 0.001 * (count - 1) * context + 0.01 * (count - 1) * rows

        single = np.ones((2, 2))
        seconds = [[[1 + plane(c, at, m) for m in (4, 16)] for at in (100, 300)] for c in (2, 4)]
        costs = BatchCosts(np.array([100, 300]), np.array([4, 16]), np.array(seconds))
        for count in (1, 2, 3, 4, 7):
            for context in (100, 170, 300):
                found = costs.extra_s(single, COUNTS, context, count, np.array([4, 7, 16]))
                np.testing.assert_allclose(found, [plane(count, context, rows) for rows in (4, 7, 16)], atol=1e-12)
