"""How the rows of several requests are decided at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..core import Sampling
from .faults import kinds
from .greedy import greedy
from .sampling import gumbel
from .uniform import position_key


class RowsChooser:
    """The `RowChooser` of requests that sample as `samplings` say, in the order of their trees."""

    def __init__(self, samplings: Sequence[Sampling]) -> None:
        self._samplings = samplings
        self.greedy = not any(sampling.temperature for sampling in samplings)
        """Whether every token is an argmax."""

    def __call__(self, logits: torch.Tensor, tree: np.ndarray, pos: np.ndarray) -> torch.Tensor:
        """(n, V) logits, (n,) tree and (n,) position of each drawn token -> (2, n): token ids and row kinds."""
        likeliest = greedy(logits, pos)
        # The likeliest logit is also the largest, and a NaN counts as such: no second look at the row.
        kind = kinds(logits.gather(1, likeliest[:, None])[:, 0])
        temperature = np.array([sampling.temperature for sampling in self._samplings], np.float64)[tree]
        sampled = np.flatnonzero(temperature > 0.0)
        if len(sampled) == 0:
            return torch.stack([likeliest, kind])
        keys = [self._key(int(tree[row]), int(pos[row])) for row in sampled]
        if len(sampled) == len(tree):
            return torch.stack([gumbel(logits, temperature, keys), kind])
        rows = torch.from_numpy(sampled).to(logits.device)
        tokens = likeliest.index_copy(0, rows, gumbel(logits[rows], temperature[sampled], keys))
        return torch.stack([tokens, kind])

    def _key(self, tree: int, pos: int) -> int:
        sampling = self._samplings[tree]
        return position_key(sampling.seed, sampling.completion, pos)
