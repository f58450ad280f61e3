"""Reading JSON cell by cell: what is right comes out as arrays, what is wrong is named."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from draftwood.cost import schema
from draftwood.errors import CostError


def test_read_json(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": [1, 2.5]}', encoding="utf-8")
    assert schema.read_json(path) == {"a": [1, 2.5]}


@pytest.mark.parametrize("data", [b"", b"{", b"\xff\xfe", b"[1,"])
def test_a_file_that_is_no_json_is_named(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(data)
    with pytest.raises(CostError, match=rf"{path}: not a JSON file"):
        schema.read_json(path)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(CostError, match=r"none\.json: cannot be read \(No such file"):
        schema.read_json(tmp_path / "none.json")


class TestNumber:
    def test_numbers(self) -> None:
        assert schema.number(3, "x") == 3.0 and isinstance(schema.number(3, "x"), float)
        assert schema.number(0, "x") == 0.0
        assert schema.number(-2.5, "x", low=-3) == -2.5

    @pytest.mark.parametrize("value", [None, "1", True, [1], float("nan"), float("inf")])
    def test_what_is_none(self, value: object) -> None:
        with pytest.raises(CostError, match=r"x is .*expected a finite number"):
            schema.number(value, "x")

    def test_below_its_least(self) -> None:
        with pytest.raises(CostError, match="x is -1: expected a number >= 0"):
            schema.number(-1, "x")
        with pytest.raises(CostError, match="x is 0: expected a number > 0"):
            schema.number(0, "x", above=True)


class TestTable:
    @pytest.mark.parametrize("shape", [(), (3,), (2, 3), (2, 1, 2)])
    def test_nested_lists_of_a_shape(self, shape: tuple[int, ...]) -> None:
        wanted = np.arange(1, 1 + int(np.prod(shape)), dtype=np.float64).reshape(shape)
        found = schema.table(wanted.tolist(), shape, "t")
        assert np.asarray(found).dtype == np.float64
        np.testing.assert_array_equal(found, wanted)

    @pytest.mark.parametrize(
        ("value", "named"),
        [
            ([[1, 2], [3]], r"t\[1\]"),
            ([[1, 2]], "t"),
            ([1, 2], r"t\[0\]"),
            (None, "t"),
            ([[1, 2], [3, "x"]], r"t\[1\]\[1\]"),
        ],
    )
    def test_the_list_or_cell_that_is_wrong_is_named(self, value: object, named: str) -> None:
        with pytest.raises(CostError, match=named):
            schema.table(value, (2, 2), "t")


class TestAxis:
    def test_increasing_whole_numbers(self) -> None:
        found = schema.axis([0, 3, 9], "contexts", 0)
        assert found.dtype == np.int64 and found.tolist() == [0, 3, 9]

    @pytest.mark.parametrize("value", [[], None, "12", [1.5], [True], [3, 3], [3, 2], [-1, 2]])
    def test_anything_else(self, value: object) -> None:
        with pytest.raises(CostError, match="contexts"):
            schema.axis(value, "contexts", 0)


class TestMasses:
    def test_falling_shares(self) -> None:
        assert schema.masses([1, 0.5, 0.5, 0.0], "m").tolist() == [1.0, 0.5, 0.5, 0.0]

    def test_rounding_is_no_growth(self) -> None:
        assert len(schema.masses([0.5, 0.5 + 1e-13], "m")) == 2

    @pytest.mark.parametrize(
        ("value", "message"),
        [
            ([0.5, 0.6], r"m\[1\] is 0.6, more than the one before"),
            ([1.5, 0.5], r"m\[0\] is 1.5: expected 0 to 1"),
            ([], "m"),
            ("x", "m"),
            ([0.5, -0.1], r"m\[1\]"),
        ],
    )
    def test_anything_else(self, value: object, message: str) -> None:
        with pytest.raises(CostError, match=message):
            schema.masses(value, "m")


class TestFields:
    def test_the_schema_is_read_first(self) -> None:
        document = {"schema": 1, "rows": [], "contexts": [], "verify_s": []}
        assert schema.check_schema(document) is document

    @pytest.mark.parametrize(
        ("document", "message"),
        [
            ([], "a list instead of an object"),
            ({}, "schema None: expected 1"),
            ({"schema": True}, "schema True"),
            ({"schema": "1"}, "schema '1'"),
            ({"schema": 2}, "from a newer Draftwood"),
            ({"schema": 1, "rows": []}, "contexts is missing"),
        ],
    )
    def test_a_document_that_is_none(self, document: object, message: str) -> None:
        with pytest.raises(CostError, match=message):
            schema.check_schema(document)

    def test_request_counts(self) -> None:
        assert schema.request_counts(1).tolist() == [1]
        assert schema.request_counts([1, 2, 8]).tolist() == [1, 2, 8]
        with pytest.raises(CostError, match="requests starts at 2: expected 1 first"):
            schema.request_counts([2, 4])

    def test_drafting_in_its_four_forms(self) -> None:
        assert schema.draft_table(None, 2, 3).tolist() == [[0.0] * 3] * 2
        assert schema.draft_table(0.5, 2, 3).tolist() == [[0.5] * 3] * 2
        assert schema.draft_table([0.5, 0.7], 2, 3).tolist() == [[0.5] * 3, [0.7] * 3]
        assert schema.draft_table([[1, 2, 3], [4, 5, 6]], 2, 3).tolist() == [[1, 2, 3], [4, 5, 6]]

    @pytest.mark.parametrize("value", [[0.5], [[1, 2, 3]], [[1, 2], [3, 4]], -1, "x"])
    def test_drafting_of_another_shape(self, value: object) -> None:
        with pytest.raises(CostError, match="draft_s"):
            schema.draft_table(value, 2, 3)

    def test_steps(self) -> None:
        rows = np.array([1, 4, 8, 16])
        assert schema.step_rows(None, rows) == schema.step_rows([], rows) == ()
        assert schema.step_rows([1, 4, 15], rows) == (1, 4, 15)

    @pytest.mark.parametrize(
        ("value", "message"),
        [([16], "step 16: expected less than the last"), ([5, 6], "at most one between"), ([0], "steps"), (3, "steps")],
    )
    def test_steps_outside_the_grid_or_two_in_a_gap(self, value: object, message: str) -> None:
        with pytest.raises(CostError, match=message):
            schema.step_rows(value, np.array([1, 4, 8, 16]))
