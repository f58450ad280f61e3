"""Whether a union's costly part is worth its seconds beside what the cheap part has already proposed.

Where the cheap part is sure (text that repeats itself), a pass of a network adds little to what is accepted and costs
as much as ever. What either brings is learned online, by how much the cheap part promises.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

_PROMISES = np.array([0.25, 0.5, 1.0, 2.0, 4.0, 8.0])
"""Expected accepted tokens of the cheap part's trees at which a new class begins."""
_DISCOUNT = 0.97
"""Of what a class has learned, per round of the class: about the last thirty rounds count."""
_PRIOR_ROUNDS = 2.0
_PRIOR_EXTRA = 2.0
"""The prior: so many rounds in which the cheap part kept its promise and the costly one added so many tokens."""
_LOOK_EVERY = 16
"""A class that is not worth the pass is looked at again after so many rounds without one."""


class Gate:
    """Decides round by round; mutable, `learn` moves what it expects."""

    def __init__(self) -> None:
        classes = len(_PROMISES) + 1
        self._cheap = np.zeros((classes, 2))  # sums of tokens committed by the cheap part alone, and of rounds
        self._extra = np.zeros((classes, 2))  # sums of tokens that the costly part added, and of rounds with it
        self._without = np.zeros(classes, np.int64)

    def asks(self, promised: Sequence[float], share: float) -> bool:
        """Whether one pass of the costly part, for all requests of a round together, is worth it.

        `promised`: per request, expected accepted tokens of the cheap part's tree; `share`: what part of the round's
        seconds the pass takes, 0 if that is not known. With T tokens committed without the pass and D more with it,
        in seconds 1 - share and 1, the pass is worth it when T + D > T / (1 - share).
        """
        if share <= 0.0:
            return True
        classes = np.searchsorted(_PROMISES, promised, side="right")
        cheap = _mean(self._cheap[classes], 1.0 + np.asarray(promised))
        extra = _mean(self._extra[classes], _PRIOR_EXTRA)
        worth = float(extra.sum()) * (1.0 - share) > float(cheap.sum()) * share
        looks = bool((self._without[classes] >= _LOOK_EVERY).any())
        self._without[classes] = 0 if worth or looks else self._without[classes] + 1
        return worth or looks

    def learn(self, promised: float, cheap: int, extra: int | None) -> None:
        """Take in what a round brought: drafts of the cheap part that were accepted, and how many more the union had.

        `extra` is None for a round without the costly part.
        """
        place = int(np.searchsorted(_PROMISES, promised, side="right"))
        self._cheap[place] = _DISCOUNT * self._cheap[place] + (1.0 + cheap, 1.0)
        if extra is not None:
            self._extra[place] = _DISCOUNT * self._extra[place] + (extra, 1.0)


def _mean(sums: np.ndarray, prior: float | np.ndarray) -> np.ndarray:
    """Means (n,) of (n, 2) sums and rounds, with some rounds of what was expected before."""
    mean: np.ndarray = (sums[:, 0] + _PRIOR_ROUNDS * prior) / (sums[:, 1] + _PRIOR_ROUNDS)
    return mean
