"""Whether an output is the plain one, and if not, whether rounding explains it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from enum import Enum
from typing import NamedTuple

FLOAT32_TOLERANCE = 1e-4
MAX_FLOAT32_NEAR_TIES = 0.05
# Distance from 1 to the next number of the type.
EPS_16BIT = {"bfloat16": 2.0**-7, "float16": 2.0**-10}


class TopTwo(NamedTuple):
    """The plain run's two largest logits at one position."""

    gap: float
    """Largest minus second largest."""
    top_logit: float


ExplainDifference = Callable[[Sequence[int], Sequence[int]], tuple[float, float]]
"""(prompt ids, output ids that both runs share) -> (gap, top logit) of the plain target after them, teacher-forced."""


class Same(Enum):
    """Verdict on one output, or on the outputs of several prompts."""

    IDENTICAL = "identical"
    NEAR_TIE = "near-tie"
    DIFFERENT = "different"


def near_tie_tolerance(dtype_name: str, top_logit: float) -> float:
    """The largest top-two gap that rounding may turn around: 0 in float64, where no difference is excused.

    float32: 1e-4 max(1, |top|); bfloat16 and float16: 2 eps max(1, |top|).
    """
    if dtype_name == "float64":
        return 0.0
    relative = FLOAT32_TOLERANCE if dtype_name == "float32" else 2.0 * EPS_16BIT[dtype_name]
    return relative * max(1.0, abs(top_logit))


def first_difference(output: Sequence[int], plain: Sequence[int]) -> int | None:
    """Index of the first token that differs, the shorter length if one continues the other, None if they are equal."""
    for index, (token, expected) in enumerate(zip(output, plain, strict=False)):
        if token != expected:
            return index
    return None if len(output) == len(plain) else min(len(output), len(plain))


def compare_output(
    output: Sequence[int],
    plain: Sequence[int],
    prompt_ids: Sequence[int],
    dtype_name: str,
    explain_difference: ExplainDifference,
) -> Same:
    """Verdict on one greedy output against the plain one, both with their end token if they have one.

    A near-tie needs a token on both sides: an output that merely stops early is different.
    """
    index = first_difference(output, plain)
    if index is None:
        return Same.IDENTICAL
    if index >= min(len(output), len(plain)):
        return Same.DIFFERENT
    top_two = TopTwo(*explain_difference(prompt_ids, list(plain[:index])))
    return Same.NEAR_TIE if top_two.gap < near_tie_tolerance(dtype_name, top_two.top_logit) else Same.DIFFERENT


def summarise(verdicts: Iterable[Same], dtype_name: str) -> Same:
    """Verdict over several prompts: the worst, and in float32 different when over 5 % of them are near-ties."""
    verdicts = list(verdicts)
    if Same.DIFFERENT in verdicts:
        return Same.DIFFERENT
    near_ties = verdicts.count(Same.NEAR_TIE)
    if dtype_name == "float32" and near_ties > MAX_FLOAT32_NEAR_TIES * len(verdicts):
        return Same.DIFFERENT
    return Same.NEAR_TIE if near_ties else Same.IDENTICAL
