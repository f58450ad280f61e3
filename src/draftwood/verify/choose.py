"""How the rows of several requests are decided at once."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch

from ..core import Sampling
from .greedy import greedy
from .sampling import gumbel
from .uniform import position_key
from .walk import kinds


class RowsChooser:
    """The `RowChooser` of requests that sample as `samplings` say, in the order of their trees."""

    def __init__(self, samplings: Sequence[Sampling]) -> None:
        self._samplings = samplings
        self._temperature = np.array([sampling.temperature for sampling in samplings], np.float64)
        self._greedy = not self._temperature.any()

    def __call__(self, logits: torch.Tensor, tree: np.ndarray, pos: np.ndarray) -> torch.Tensor:
        """(n, V) logits, (n,) tree and (n,) position of each drawn token -> (2, n): token ids and row kinds."""
        if self._greedy and logits.device.type == "cpu":
            return _greedy_rows(logits)
        likeliest = greedy(logits, pos)
        # The likeliest logit is also the largest, and a NaN counts as such: no second look at the row.
        kind = kinds(logits.gather(1, likeliest[:, None])[:, 0])
        temperature = self._temperature[tree]
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


def _greedy_rows(logits: torch.Tensor) -> torch.Tensor:
    """As `RowsChooser` for greedy requests on a CPU, in numpy: this is most of what a round takes beside its models."""
    rows = (logits if logits.dtype in (torch.float32, torch.float64) else logits.float()).numpy()
    tokens = rows.argmax(axis=-1)  # the first of equals
    largest = rows[np.arange(len(rows)), tokens]
    kind = np.zeros(len(rows), np.int64) if np.isfinite(largest).all() else kinds(torch.from_numpy(largest)).numpy()
    return torch.from_numpy(np.stack([tokens, kind]))
