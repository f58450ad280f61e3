"""Random ragged batches over a fragmented pool, with queries, keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from draftwood.attention import AttendOptions, Plan, SdpaBackend
from draftwood.attention.oracle import attend_plain
from draftwood.batch import Batch, RequestRows, build, kv_index, upload
from draftwood.cache import KVPool, LayerSpec
from draftwood.core import Visibility

HEADS, KV_HEADS, K_DIM, V_DIM = 6, 2, 4, 5


@dataclass
class Case:
    pool: KVPool
    batch: Batch
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    def plan(self) -> Plan:
        return plan_of(self.batch, self.pool, self.q.dtype)

    def ours(self, options: AttendOptions, layer: int = 0) -> torch.Tensor:
        """(T_pad, H, V_DIM) by the backend; stages k and v."""
        return self.plan().attend(layer, self.q, self.k, self.v, options)

    def plain(self, options: AttendOptions, layer: int = 0) -> np.ndarray:
        """The same by the definition; reads what `ours` staged."""
        return attend_plain(
            self.batch,
            self.pool,
            layer,
            self.q.double().numpy(),
            scaling=options.scaling,
            window=options.window,
            softcap=options.softcap,
            sinks=None if options.sinks is None else options.sinks.double().numpy(),
        )


def plan_of(batch: Batch, pool: KVPool, dtype: torch.dtype = torch.float64) -> Plan:
    """The reference backend's plan of a batch on the CPU."""
    return SdpaBackend().plan(batch, upload(batch, torch.device("cpu")), pool, dtype)


def words_of(visible: np.ndarray) -> np.ndarray:
    """(n, W) ancestor words of a visibility matrix (n, n), set bit by bit."""
    words = np.zeros((len(visible), -(-len(visible) // 64)), np.uint64)
    for row, seen in zip(*np.nonzero(visible), strict=True):
        words[row, seen // 64] |= np.uint64(1) << np.uint64(seen % 64)
    return words.view(np.int64)


def rows_of(
    pool: KVPool, request: int, offset: np.ndarray, kind: Visibility, visible: np.ndarray | None = None
) -> RequestRows:
    """Rows of a request at its prefix length + `offset` (n,), newly staged; ANCESTORS as `visible` (n, n) says."""
    return RequestRows(
        request=request,
        token_ids=np.zeros(len(offset), np.int64),
        pos=pool.prefix_len(request) + offset,
        prefix_len=pool.prefix_len(request),
        prefix=pool.prefix(request),
        staged=pool.reserve(request, len(offset)),
        visibility=kind,
        ancestors=None if visible is None else words_of(visible),
    )


def random_tree(rng: np.random.Generator, rows: int) -> tuple[np.ndarray, np.ndarray]:
    """Depths (rows,) and visibility (rows, rows) of a random tree, parents first, deeper than the windows of tests."""
    depth, visible = np.zeros(rows, np.int64), np.eye(rows, dtype=bool)
    for row in range(1, rows):
        parent = int(rng.integers(max(0, row - 3), row))
        depth[row] = depth[parent] + 1
        visible[row] |= visible[parent]
    return depth, visible


def make_case(
    seed: int,
    kinds: tuple[Visibility, ...] = tuple(Visibility),
    *,
    padding: int = 3,
    rows: int | None = None,
    heads: int = HEADS,
    kv_heads: int = KV_HEADS,
    dtype: torch.dtype = torch.float64,
) -> Case:
    """One request of random size (or of `rows`) for each kind; prefixes of 0 to 12 tokens in several extents."""
    rng = np.random.default_rng(seed)
    pool = KVPool([LayerSpec(kv_heads, K_DIM, V_DIM)] * 2, kv_rows=1000, dtype=dtype, page_rows=3)
    prefixes = [int(rng.integers(0, 13)) for _ in kinds]
    for request in range(len(kinds)):
        pool.open(request, 1)  # no room is left behind it, so runs of several requests interleave
    fill = torch.Generator().manual_seed(seed)
    for step in range(4):  # prefixes grow in turns, so their extents interleave
        for request, length in enumerate(prefixes):
            grown = length // 4 + (step < length % 4)
            if grown:
                at = torch.from_numpy(kv_index(pool.reserve(request, grown)))
                for layer in range(2):
                    pool.k(layer)[at] = torch.randn(grown, kv_heads, K_DIM, generator=fill, dtype=dtype)
                    pool.v(layer)[at] = torch.randn(grown, kv_heads, V_DIM, generator=fill, dtype=dtype)
                pool.advance(request, grown)
    parts = []
    for request, kind in enumerate(kinds):
        count = int(rng.integers(1, 15)) if rows is None else rows
        depth, visible = random_tree(rng, count)
        offset = depth if kind is Visibility.ANCESTORS else np.arange(count)
        parts.append(rows_of(pool, request, offset, kind, visible if kind is Visibility.ANCESTORS else None))
    total = sum(len(part.token_ids) for part in parts) + padding
    batch = build(parts, [total])
    make = lambda n, width: torch.randn(n, total, width, generator=fill, dtype=dtype)  # noqa: E731
    return Case(pool, batch, make(heads, K_DIM), make(kv_heads, K_DIM), make(kv_heads, V_DIM))
