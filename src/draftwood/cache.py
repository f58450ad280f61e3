"""The KV pool: one allocation for life, shared by all requests. Knows torch and nothing of models.

The pool is cut into pages of `PAGE_ROWS` rows; page 0 is scratch, where padding rows of a batch write. A request owns a
list of runs of pages. Offsets count along its runs, for a prefix length L and n staged rows:

| offsets       | state     | written by          | read by             |
|---------------|-----------|---------------------|---------------------|
| [0, L)        | committed | earlier forwards    | every forward       |
| [L, L + n)    | staged    | the current forward | the current forward |
| [L + n, end)  | spare     | nobody              | nobody              |

`end` is the page edge behind L + n: pages are taken when rows are staged and given back when they are dropped, so
memory follows tokens, not limits. Pages wholly inside the prefix may be shared; they are never written again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch

from .batch import Batch
from .core import Extent
from .errors import PoolExhaustedError
from .kernel import compiled, first_call
from .memory import untouched
from .pages import Pages, Run

PAGE_ROWS = 16


@compiled
def _moves(
    offsets: np.ndarray, kv_rows: np.ndarray, accepted: np.ndarray, counts: np.ndarray, moves: np.ndarray
) -> int:
    """Fill `counts` (R,), the accepted rows of each request, and `moves` (2, n), pool rows from where to where.

    Returns how many rows move, or -1 for rows that are not increasing or not in the batch.
    """
    request, moved, before = 0, 0, -1
    for row in accepted:
        if not before < row < offsets[-1]:
            return -1
        before = row
        while row >= offsets[request + 1]:
            request += 1
        target = offsets[request] + counts[request]
        if target != row:
            moves[0, moved], moves[1, moved] = kv_rows[row], kv_rows[target]
            moved += 1
        counts[request] += 1
    return moved


class LayerSpec(NamedTuple):
    """Width of one layer's keys and values."""

    kv_heads: int
    k_dim: int
    v_dim: int


@dataclass(slots=True)
class _Owned:
    """What one request owns."""

    expected_pages: int
    """How far it is expected to grow; others keep away from there while they can."""
    runs: list[Run] = field(default_factory=list)
    prefix_len: int = 0
    staged_len: int = 0

    @property
    def pages(self) -> int:
        return sum(run.size for run in self.runs)


def row_bytes(specs: Sequence[LayerSpec], dtype: torch.dtype) -> int:
    """Bytes that one row takes in all layers."""
    return sum(spec.kv_heads * (spec.k_dim + spec.v_dim) for spec in specs) * dtype.itemsize


class KVPool:
    """Keys and values of all requests for a list of layers, which may differ in width.

    Paired verbs: `open`/`release` per request; `reserve`/`commit` per forward. Tensors never move and never grow.
    """

    def __init__(
        self,
        specs: Sequence[LayerSpec],
        *,
        kv_rows: int,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        page_rows: int = PAGE_ROWS,
    ) -> None:
        """Room for `kv_rows` rows, rounded up to pages. Raises UsageError when there is no such room."""
        self.specs = tuple(specs)
        self.page_rows = page_rows
        self._num_pages = -(-kv_rows // page_rows)
        self._pages = Pages(1, 1 + self._num_pages)
        self._owned: dict[int, _Owned] = {}
        widths = [(spec.kv_heads, dim) for spec in self.specs for dim in (spec.k_dim, spec.v_dim)]
        # Equal widths share a tensor, so that a commit moves the rows of all of them, keys and values, at once.
        self._slots = [(width, widths[:at].count(width)) for at, width in enumerate(widths)]
        rows, place = (1 + self._num_pages) * page_rows, torch.device(device)
        self._stores = {
            width: untouched((widths.count(width), rows, *width), dtype, place) for width in dict.fromkeys(widths)
        }
        """(slots, kv_rows, heads, width) by width; a slot is the keys or the values of one layer."""

    @property
    def kv_rows(self) -> int:
        """Rows that requests can have."""
        return self._num_pages * self.page_rows

    @property
    def free_rows(self) -> int:
        """Rows of the pages that nobody holds."""
        return self._pages.free * self.page_rows

    @property
    def requests(self) -> tuple[int, ...]:
        """Requests that are open."""
        return tuple(self._owned)

    def k(self, layer: int) -> torch.Tensor:
        """Keys of a layer: a (kv_rows, G, E) view."""
        width, slot = self._slots[2 * layer]
        return self._stores[width][slot]

    def v(self, layer: int) -> torch.Tensor:
        """Values of a layer: a (kv_rows, G, E) view."""
        width, slot = self._slots[2 * layer + 1]
        return self._stores[width][slot]

    def open(self, request: int, expected_rows: int) -> None:
        """Admit a request. No page is taken; `expected_rows` only tells how much room to leave behind its first."""
        if request in self._owned:
            raise AssertionError(f"request {request} is open already")
        self._owned[request] = _Owned(expected_pages=self._pages_of(expected_rows))

    def share(self, request: int, source: int, rows: int) -> int:
        """Let an empty request begin with the first `rows` committed rows of `source`, whole pages only.

        Returns how many rows that are. They are read-only for both, which costs nothing: rows are only ever written
        behind the prefix.
        """
        owned, other = self._owned[request], self._owned[source]
        assert not owned.runs and rows <= other.prefix_len, "only an empty request can share committed rows"
        left = rows // self.page_rows
        for run in other.runs:
            part = Run(run.start, min(run.stop, run.start + left))
            if part.size:
                self._pages.hold(part)
                owned.runs.append(part)
            left -= part.size
        owned.prefix_len = owned.pages * self.page_rows
        return owned.prefix_len

    def release(self, request: int) -> None:
        """Give back every page of a request."""
        for run in self._owned.pop(request).runs:
            self._pages.drop(run)

    def prefix_len(self, request: int) -> int:
        """L, the committed rows of a request."""
        return self._owned[request].prefix_len

    def prefix(self, request: int) -> tuple[Extent, ...]:
        """Extents of the committed rows, in order of position."""
        owned = self._owned[request]
        return self._extents(owned, 0, owned.prefix_len)

    def lacking(self, request: int, rows: int) -> int:
        """Rows of the pages that `reserve(request, rows)` would still have to take."""
        owned = self._owned[request]
        return max(0, self._pages_of(owned.prefix_len + rows) - owned.pages) * self.page_rows

    def spare(self, request: int) -> int:
        """Rows that can be staged without another page."""
        owned = self._owned[request]
        return owned.pages * self.page_rows - owned.prefix_len

    def reserve(self, request: int, rows: int) -> tuple[Extent, ...]:
        """Stage `rows` rows behind the prefix and return their extents; an earlier reservation is dropped.

        Raises PoolExhaustedError, the request unchanged, when too few pages are free.
        """
        owned = self._owned[request]
        missing = self._pages_of(owned.prefix_len + rows) - owned.pages
        if missing > 0:
            self._extend(owned, missing)
        owned.staged_len = rows
        self._trim(owned)
        return self._extents(owned, owned.prefix_len, owned.prefix_len + rows)

    def advance(self, request: int, rows: int) -> None:
        """Make the first `rows` staged rows prefix and drop the rest."""
        owned = self._owned[request]
        assert 0 <= rows <= owned.staged_len, f"{rows} rows of {owned.staged_len} staged ones"
        owned.prefix_len += rows
        owned.staged_len = 0
        self._trim(owned)

    def commit(self, batch: Batch, accepted: np.ndarray) -> list[int]:
        """Make the rows `accepted` (n,) of a batch, strictly increasing, prefix of their requests; drop all others.

        One gather and one scatter for all requests, layers, keys and values; only rows that are not in their place
        yet move. Returns how many rows each request of the batch keeps.
        """
        counts, moves = np.zeros(len(batch.requests), np.int64), np.empty((2, len(accepted)), np.int64)
        moved = _moves(batch.offsets, batch.kv_rows, accepted, counts, moves)
        if moved < 0:
            raise AssertionError(f"accepted rows {accepted.tolist()} are not increasing inside {batch.num_rows} rows")
        if moved:
            both = torch.from_numpy(moves[:, :moved])
            for store in self._stores.values():
                source, target = both.to(store.device)
                # index_select copies first, so overlapping source and target rows are safe.
                store.index_copy_(1, target, store.index_select(1, source))
        kept: list[int] = counts.tolist()
        for request, count in zip(batch.requests, kept, strict=True):
            self.advance(request, count)
        return kept

    def check_integrity(self) -> None:
        """Assert that free and owned pages partition the pool and that no request exceeds or hoards its pages."""
        for request, owned in self._owned.items():
            used = owned.prefix_len + owned.staged_len
            assert self._pages_of(used) == owned.pages, f"request {request} has {owned.pages} pages for {used} rows"
        self._pages.check_integrity(run for owned in self._owned.values() for run in owned.runs)

    def _pages_of(self, rows: int) -> int:
        return -(-rows // self.page_rows)

    def _extend(self, owned: _Owned, missing: int) -> None:
        """Add `missing` pages to a request's runs."""

        def claims() -> dict[int, int]:
            return {
                other.runs[-1].stop: other.expected_pages - other.pages
                for other in self._owned.values()
                if other is not owned and other.runs and other.expected_pages > other.pages
            }

        try:
            taken = self._pages.take(
                missing,
                behind=owned.runs[-1].stop if owned.runs else None,
                room=owned.expected_pages - owned.pages,
                claims=claims,
            )
        except PoolExhaustedError as error:
            raise PoolExhaustedError(f"KV pool of {self.kv_rows} rows is full: {error}; see --kv-memory") from error
        for run in taken:
            if owned.runs and owned.runs[-1].stop == run.start:
                owned.runs[-1] = Run(owned.runs[-1].start, run.stop)
            else:
                owned.runs.append(run)

    def _trim(self, owned: _Owned) -> None:
        """Give back the pages behind the last used row."""
        surplus = owned.pages - self._pages_of(owned.prefix_len + owned.staged_len)
        while surplus > 0:
            last = owned.runs.pop()
            kept = Run(last.start, max(last.start, last.stop - surplus))
            if kept.size:
                owned.runs.append(kept)
            self._pages.drop(Run(kept.stop, last.stop))
            surplus -= last.stop - kept.stop

    def _extents(self, owned: _Owned, start: int, stop: int) -> tuple[Extent, ...]:
        """The part of a request's rows between two offsets, [start, stop)."""
        parts: list[Extent] = []
        offset = 0
        for run in owned.runs:
            length = run.size * self.page_rows
            low, high = max(start, offset), min(stop, offset + length)
            if low < high:
                parts.append(Extent(run.start * self.page_rows + low - offset, high - low))
            offset += length
        return tuple(parts)


def warm_up() -> None:
    """Compile the kernel of `KVPool.commit`, so that loading pays for it and not the first step."""
    one = np.zeros(1, np.int64)
    first_call(lambda: _moves(np.arange(2), one, one, np.zeros(1, np.int64), np.zeros((2, 1), np.int64)))
