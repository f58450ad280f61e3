"""The KV pool: one flat array per layer, shared by all requests. Knows torch and nothing else.

A request owns a list of extents of pool rows. Row 0 of the pool is scratch: padding rows of a pack write there.
For a request with prefix length L that has reserved n rows (offsets count along its extents):

| offsets       | state     | written by          | read by            |
|---------------|-----------|---------------------|--------------------|
| [0, L)        | committed | earlier forwards    | every forward      |
| [L, L + n)    | staged    | the current forward | the current forward|
| [L + n, end)  | capacity  | nobody              | nobody             |
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from .core import Extent
from .errors import PoolExhaustedError

SCRATCH_KV = 0


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """Width of one layer's keys and values."""

    kv_heads: int
    k_dim: int
    v_dim: int


@dataclass(slots=True)
class _Owned:
    """What one request owns."""

    extents: list[Extent] = field(default_factory=list)
    prefix_len: int = 0
    staged_len: int = 0

    @property
    def capacity(self) -> int:
        return sum(extent.length for extent in self.extents)


def kv_index(extents: Iterable[Extent]) -> np.ndarray:
    """Pool rows of `extents` in order: (rows,) int64."""
    parts = [np.arange(extent.start_kv, extent.start_kv + extent.length) for extent in extents]
    return np.concatenate(parts) if parts else np.empty(0, dtype=np.int64)


def _slice_extents(extents: Sequence[Extent], start: int, stop: int) -> tuple[Extent, ...]:
    """The part of `extents` between two offsets, [start, stop)."""
    parts: list[Extent] = []
    offset = 0
    for extent in extents:
        low, high = max(start, offset), min(stop, offset + extent.length)
        if low < high:
            parts.append(Extent(extent.start_kv + low - offset, high - low))
        offset += extent.length
    return tuple(parts)


class KVPool:
    """Keys and values of all requests for a list of layers, which may differ in width.

    Paired verbs: `open`/`release` per request; `reserve`/`commit` per forward. The pool grows by reallocation, only
    inside `open` and `reserve`, so views are valid from one `reserve` to the next.
    """

    def __init__(
        self,
        specs: Sequence[LayerSpec],
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        max_kv_rows: int | None = None,
    ) -> None:
        self.specs = tuple(specs)
        self._max_kv_rows = max_kv_rows
        self._owned: dict[int, _Owned] = {}
        self._free: list[Extent] = []
        self._rows = 1
        # Layers of one width share a tensor, so that a commit moves the rows of all of them in one operation.
        self._group_of: list[tuple[LayerSpec, int]] = []
        counts: dict[LayerSpec, int] = {}
        for spec in self.specs:
            self._group_of.append((spec, counts.get(spec, 0)))
            counts[spec] = counts.get(spec, 0) + 1
        self._k = {s: torch.zeros(n, 1, s.kv_heads, s.k_dim, dtype=dtype, device=device) for s, n in counts.items()}
        self._v = {s: torch.zeros(n, 1, s.kv_heads, s.v_dim, dtype=dtype, device=device) for s, n in counts.items()}

    @property
    def kv_rows(self) -> int:
        """Rows of the pool, scratch included."""
        return self._rows

    @property
    def free_rows(self) -> int:
        """Rows that nobody owns."""
        return sum(extent.length for extent in self._free)

    @property
    def requests(self) -> tuple[int, ...]:
        """Requests that are open."""
        return tuple(self._owned)

    def k(self, layer: int) -> torch.Tensor:
        """Keys of a layer: a (kv_rows, G, E) view."""
        spec, index = self._group_of[layer]
        return self._k[spec][index]

    def v(self, layer: int) -> torch.Tensor:
        """Values of a layer: a (kv_rows, G, E) view."""
        spec, index = self._group_of[layer]
        return self._v[spec][index]

    def open(self, request: int, expected_rows: int) -> None:
        """Admit a request and set aside one extent of `expected_rows` (more is added when it runs out).

        Raises PoolExhaustedError when the pool may not grow; nothing is changed then.
        """
        if request in self._owned:
            raise AssertionError(f"request {request} is open already")
        extent = self._take(max(1, expected_rows))
        self._owned[request] = _Owned(extents=[extent])

    def release(self, request: int) -> None:
        """Give back every row of a request."""
        for extent in self._owned.pop(request).extents:
            self._give(extent)

    def prefix_len(self, request: int) -> int:
        """L, the committed rows of a request."""
        return self._owned[request].prefix_len

    def prefix(self, request: int) -> tuple[Extent, ...]:
        """Extents of the committed rows, in order of position."""
        owned = self._owned[request]
        return _slice_extents(owned.extents, 0, owned.prefix_len)

    def reserve(self, request: int, rows: int) -> tuple[Extent, ...]:
        """Stage `rows` rows behind the prefix and return their extents; an earlier reservation is dropped.

        Raises PoolExhaustedError when the pool may not grow.
        """
        owned = self._owned[request]
        missing = owned.prefix_len + rows - owned.capacity
        if missing > 0:
            self._extend(owned, missing)
        owned.staged_len = rows
        return _slice_extents(owned.extents, owned.prefix_len, owned.prefix_len + rows)

    def commit(self, request: int, path: np.ndarray) -> None:
        """Make the staged rows `path` (strictly increasing indices) the next prefix rows, in place; drop the rest.

        Costs O(len(path)): a row moves only if it is not in its place yet.
        """
        owned = self._owned[request]
        count = len(path)
        if count and (path[0] < 0 or path[-1] >= owned.staged_len or (np.diff(path) <= 0).any()):
            raise AssertionError(f"path {path.tolist()} is not increasing inside {owned.staged_len} staged rows")
        moved = np.nonzero(path != np.arange(count))[0]
        if len(moved):
            base = owned.prefix_len
            index_kv = kv_index(_slice_extents(owned.extents, base, base + int(path[-1]) + 1))
            self._move(index_kv[path[moved]], index_kv[moved])
        owned.prefix_len += count
        owned.staged_len = 0

    def check_integrity(self) -> None:
        """Assert that scratch, free and owned extents partition the pool and that no request exceeds its capacity."""
        spans = [Extent(SCRATCH_KV, 1), *self._free]
        for request, owned in self._owned.items():
            assert owned.prefix_len + owned.staged_len <= owned.capacity, f"request {request} exceeds its capacity"
            spans += owned.extents
        end = 0
        for span in sorted(spans, key=lambda extent: extent.start_kv):
            assert span.length > 0 and span.start_kv == end, f"pool row {end} is lost or owned twice"
            end += span.length
        assert end == self._rows, f"extents end at {end}, the pool has {self._rows} rows"

    def _move(self, source_kv: np.ndarray, target_kv: np.ndarray) -> None:
        for tensors in (self._k, self._v):
            for tensor in tensors.values():
                source = torch.from_numpy(source_kv).to(tensor.device)
                target = torch.from_numpy(target_kv).to(tensor.device)
                # index_select copies first, so overlapping source and target rows are safe.
                tensor.index_copy_(1, target, tensor.index_select(1, source))

    def _extend(self, owned: _Owned, missing: int) -> None:
        """Add at least `missing` rows, in place behind the last extent where they are free."""
        last = owned.extents[-1]
        behind = last.start_kv + last.length
        want = max(missing, owned.capacity)  # doubling keeps the number of extents logarithmic
        for index, free in enumerate(self._free):
            if free.start_kv == behind and free.length >= missing:
                used = min(want, free.length)
                owned.extents[-1] = Extent(last.start_kv, last.length + used)
                self._shrink_free(index, used)
                return
        room = missing if self._max_kv_rows is None else self._max_kv_rows - self._rows
        if behind == self._rows and room >= missing:
            self._grow(want, missing)
            self._extend(owned, missing)
            return
        owned.extents.append(self._take(missing, want))

    def _take(self, least: int, want: int | None = None) -> Extent:
        want = want or least
        for index, free in enumerate(self._free):
            if free.length >= least:
                used = min(want, free.length)
                self._shrink_free(index, used)
                return Extent(free.start_kv, used)
        self._grow(want, least)
        return self._take(least, want)

    def _shrink_free(self, index: int, used: int) -> None:
        free = self._free[index]
        if free.length == used:
            del self._free[index]
        else:
            self._free[index] = Extent(free.start_kv + used, free.length - used)

    def _give(self, extent: Extent) -> None:
        merged = sorted([*self._free, extent], key=lambda e: e.start_kv)
        self._free = []
        for part in merged:
            last = self._free[-1] if self._free else None
            if last is not None and last.start_kv + last.length == part.start_kv:
                self._free[-1] = Extent(last.start_kv, last.length + part.length)
            else:
                self._free.append(part)

    def _grow(self, want: int, least: int) -> None:
        """Append free rows by reallocation; zeroed memory is touched by the system only when written."""
        room = None if self._max_kv_rows is None else self._max_kv_rows - self._rows
        if room is not None and room < least:
            raise PoolExhaustedError(f"KV pool of {self._max_kv_rows} rows has no {least} free rows in one piece")
        extra = want if room is None else min(want, room)
        for tensors in (self._k, self._v):
            for spec, old in tensors.items():
                new = torch.zeros(old.shape[0], self._rows + extra, *old.shape[2:], dtype=old.dtype, device=old.device)
                new[:, : self._rows] = old
                tensors[spec] = new
        self._give(Extent(self._rows, extra))
        self._rows += extra
