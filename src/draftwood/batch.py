"""One round as arrays: the rows of all its requests, packed for one forward.

Everything that runs through a model is a batch: a plain step, a prompt's chunk, draft trees, a drafter's blocks, one
request or many. Rows of a request are neighbours; inside a draft tree they stand in best-first order, the root first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

import numpy as np
import torch

from .core import Extent, Visibility

SCRATCH_KV = 0
WORD_BITS = 64
_NO_ROWS = np.empty(0, np.int64)


class RequestRows(NamedTuple):
    """What one request brings into a batch."""

    request: int
    token_ids: np.ndarray
    """(n,) int64."""
    pos: np.ndarray
    """(n,) int64 absolute positions."""
    prefix_len: int
    prefix: tuple[Extent, ...]
    """Pool rows of its committed context, in order."""
    staged: tuple[Extent, ...]
    """Pool rows where the n rows go."""
    visibility: Visibility
    ancestors: np.ndarray | None = None
    """(n, words) int64, ANCESTORS only: bit b of word w of row i is set where i sees row 64 w + b of its request."""
    logits_from: int | None = None
    """First own row whose logits are wanted; None: no row's."""
    taps: bool = False
    """Whether its rows' taps are wanted."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """One packed forward of R requests and T rows; rows from T to T_pad are padding and are never read.

    | interval                        | space | what                                                       |
    |---------------------------------|-------|------------------------------------------------------------|
    | [offsets[i], offsets[i + 1])    | row   | rows of request i                                          |
    | `prefix[i]`, prefix_len[i] rows | kv    | its committed context, positions 0..prefix_len - 1         |
    | kv_rows of its rows             | kv    | where the rows' keys and values go; scratch for padding    |

    Parent and depth of a tree's rows stand in the round's `Forest`, in the same order.
    """

    requests: tuple[int, ...]
    offsets: np.ndarray
    """(R + 1,) int64."""
    prefix_len: np.ndarray
    """(R,) int64."""
    prefix: tuple[tuple[Extent, ...], ...]
    visibility: tuple[Visibility, ...]
    token_ids: np.ndarray
    """(T_pad,) int64."""
    pos: np.ndarray
    """(T_pad,) int64 absolute positions."""
    kv_rows: np.ndarray
    """(T_pad,) int64."""
    ancestors: np.ndarray
    """(T_pad, W) int64 words as in `RequestRows`; W = 0 without trees."""
    logit_rows: np.ndarray
    """(n,) int64 rows whose logits are wanted."""
    tap_rows: np.ndarray
    """(m,) int64 rows whose taps are wanted."""
    buffer: np.ndarray
    """The one array whose views are the six above: it is what travels to a device."""

    @property
    def num_rows(self) -> int:
        """T, the rows that belong to requests."""
        return int(self.offsets[-1])

    def rows(self, index: int) -> slice:
        """Rows of request `index`."""
        return slice(int(self.offsets[index]), int(self.offsets[index + 1]))

    def own_visible(self, index: int) -> np.ndarray | None:
        """(n, n) bool, [i, j] = row i of request `index` sees its row j; None where every row sees every row."""
        rows = self.rows(index)
        num_rows = rows.stop - rows.start
        kind = self.visibility[index]
        if num_rows == 1 or kind is Visibility.FULL:
            return None
        if kind is Visibility.CAUSAL:
            return np.tri(num_rows, dtype=bool)
        bits = np.unpackbits(self.ancestors[rows].view(np.uint8), axis=1, count=num_rows, bitorder="little")
        return bits.view(bool)


class BatchTensors(NamedTuple):
    """The arrays of a batch on a device."""

    token_ids: torch.Tensor
    pos: torch.Tensor
    kv_rows: torch.Tensor
    ancestors: torch.Tensor
    logit_rows: torch.Tensor
    tap_rows: torch.Tensor


def build(parts: Sequence[RequestRows], tiers: Sequence[int] = ()) -> Batch:
    """Pack `parts` in their order, padded to the smallest of `tiers` (increasing) that holds them, if there is one.

    Written for few rows: each array is made once, as a part of the buffer, and filled request by request.
    """
    starts = [0, *accumulate(len(part.token_ids) for part in parts)]
    num_rows = starts[-1]
    padded = next((tier for tier in tiers if tier >= num_rows), num_rows)
    words = max((part.ancestors.shape[1] for part in parts if part.ancestors is not None), default=0)
    places = list(zip(starts, starts[1:], parts, strict=False))
    wanted = [(start + part.logits_from, stop) for start, stop, part in places if part.logits_from is not None]
    tapped = [(start, stop) for start, stop, part in places if part.taps]
    sizes = [padded, padded, padded, padded * words, *(sum(b - a for a, b in runs) for runs in (wanted, tapped))]
    buffer = np.zeros(sum(sizes), np.int64)
    cuts = [0, *accumulate(sizes)]
    token_ids, pos, kv_rows, ancestors, logit_rows, tap_rows = (buffer[start:stop] for start, stop in pairwise(cuts))
    ancestors = ancestors.reshape(padded, words)
    for start, stop, part in places:
        token_ids[start:stop] = part.token_ids
        pos[start:stop] = part.pos
        _fill(kv_rows[start:stop], [(extent.start_kv, extent.start_kv + extent.length) for extent in part.staged])
        if part.ancestors is not None:
            ancestors[start:stop, : part.ancestors.shape[1]] = part.ancestors
    kv_rows[num_rows:] = SCRATCH_KV
    _fill(logit_rows, wanted)
    _fill(tap_rows, tapped)
    return Batch(
        requests=tuple(part.request for part in parts),
        offsets=np.array(starts, np.int64),
        prefix_len=np.array([part.prefix_len for part in parts], np.int64),
        prefix=tuple(part.prefix for part in parts),
        visibility=tuple(part.visibility for part in parts),
        token_ids=token_ids,
        pos=pos,
        kv_rows=kv_rows,
        ancestors=ancestors,
        logit_rows=logit_rows,
        tap_rows=tap_rows,
        buffer=buffer,
    )


def _fill(numbers: np.ndarray, runs: Iterable[tuple[int, int]]) -> None:
    """Write half-open runs of neighbours behind one another into `numbers`, which they fill."""
    at = 0
    for start, stop in runs:
        numbers[at : at + stop - start] = np.arange(start, stop)
        at += stop - start
    assert at == len(numbers), f"{at} rows for {len(numbers)} places"


def upload(batch: Batch, device: torch.device) -> BatchTensors:
    """The arrays of `batch` on `device`, by one copy; on a CPU they share its memory."""
    whole = torch.from_numpy(batch.buffer).to(device, non_blocking=True)
    padded, words = batch.ancestors.shape
    sizes = [padded, padded, padded, padded * words, len(batch.logit_rows), len(batch.tap_rows)]
    token_ids, pos, kv_rows, ancestors, logit_rows, tap_rows = torch.split(whole, sizes)
    return BatchTensors(token_ids, pos, kv_rows, ancestors.view(padded, words), logit_rows, tap_rows)


def kv_index(extents: Sequence[Extent]) -> np.ndarray:
    """Pool rows of `extents` in order: (rows,) int64."""
    if len(extents) == 1:
        return np.arange(extents[0].start_kv, extents[0].start_kv + extents[0].length)
    parts = [np.arange(extent.start_kv, extent.start_kv + extent.length) for extent in extents]
    return np.concatenate(parts) if parts else _NO_ROWS
