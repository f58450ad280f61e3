"""Same output, near-tie or different."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import torch

from draftwood.certify.verdict import Same, compare_output, first_difference, near_tie_tolerance, summarise


def gap_of(gap: float, top: float = 10.0, seen: list[tuple[list[int], list[int]]] | None = None):  # type: ignore[no-untyped-def]
    def explain(prompt_ids: Sequence[int], common: Sequence[int]) -> tuple[float, float]:
        if seen is not None:
            seen.append((list(prompt_ids), list(common)))
        return gap, top

    return explain


def unasked(*_: object) -> tuple[float, float]:
    raise AssertionError("asked without need")


@pytest.mark.parametrize(
    ("output", "plain", "expected"),
    [([1, 2], [1, 2], None), ([1, 3], [1, 2], 1), ([1], [1, 2], 1), ([1, 2, 3], [1, 2], 2), ([], [], None)],
)
def test_first_difference(output: list[int], plain: list[int], expected: int | None) -> None:
    assert first_difference(output, plain) == expected


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("top", [-30.0, 0.2, 17.0])
def test_tolerance_of_short_types(dtype: str, top: float) -> None:
    assert near_tie_tolerance(dtype, top) == 2 * torch.finfo(getattr(torch, dtype)).eps * max(1.0, abs(top))


def test_tolerance_of_long_types() -> None:
    assert near_tie_tolerance("float32", 20.0) == pytest.approx(2e-3)
    assert near_tie_tolerance("float32", 0.0) == pytest.approx(1e-4)
    assert near_tie_tolerance("float64", 20.0) == 0.0


def test_identical_asks_nothing() -> None:
    assert compare_output([1, 2], [1, 2], [9], "bfloat16", unasked) is Same.IDENTICAL


def test_early_end_is_never_a_tie() -> None:
    assert compare_output([1], [1, 2], [9], "bfloat16", unasked) is Same.DIFFERENT
    assert compare_output([1, 2, 3], [1, 2], [9], "bfloat16", unasked) is Same.DIFFERENT


@pytest.mark.parametrize(
    ("dtype", "gap", "expected"),
    [
        ("bfloat16", 0.15, Same.NEAR_TIE),  # 2 * 2**-7 * 10 = 0.156
        ("bfloat16", 0.16, Same.DIFFERENT),
        ("float32", 0.0009, Same.NEAR_TIE),
        ("float32", 0.0011, Same.DIFFERENT),
        ("float64", 0.0, Same.DIFFERENT),
    ],
)
def test_gap_decides(dtype: str, gap: float, expected: Same) -> None:
    seen: list[tuple[list[int], list[int]]] = []
    assert compare_output([5, 6, 7, 8], [5, 6, 1, 8], [9], dtype, gap_of(gap, seen=seen)) is expected
    assert seen == [([9], [5, 6])]


def test_summary() -> None:
    same, tie, bug = Same.IDENTICAL, Same.NEAR_TIE, Same.DIFFERENT
    assert summarise([same, same], "float32") is same
    assert summarise([same, tie, bug], "bfloat16") is bug
    assert summarise([same] * 5 + [tie], "bfloat16") is tie
    assert summarise([same] * 19 + [tie], "float32") is tie
    assert summarise([same] * 18 + [tie], "float32") is bug
