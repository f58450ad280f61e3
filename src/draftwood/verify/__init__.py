"""Verification: from a tree and the target's logits to the tokens that the target decides."""

from __future__ import annotations

from ..core import Sampling
from .choose import RowsChooser
from .greedy import greedy
from .greedy import warm_up as _warm_up_greedy
from .processors import History, Processors
from .recursive import CounterDraw, Draw, recursive
from .sampling import Gumbel
from .sampling import warm_up as _warm_up_sampling
from .walk import Chooser, Controls, RowChooser, walk, walk_forest

__all__ = [
    "Chooser",
    "Controls",
    "CounterDraw",
    "Draw",
    "Gumbel",
    "History",
    "Processors",
    "RowChooser",
    "RowsChooser",
    "chooser",
    "greedy",
    "recursive",
    "walk",
    "walk_forest",
    "warm_up",
]


def chooser(sampling: Sampling) -> Chooser:
    """How the target's token is drawn under `sampling`: argmax at temperature 0, Gumbel-max above."""
    return greedy if sampling.greedy else Gumbel(sampling.temperature, sampling.seed, sampling.completion)


def warm_up() -> None:
    """Compile the kernels of the walk, so that loading pays for them and not the first rounds."""
    _warm_up_greedy()
    _warm_up_sampling()
