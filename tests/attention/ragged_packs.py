"""Random ragged packs over a fragmented pool, with queries, keys and values."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from draftwood.attention import AttendOptions, SdpaBackend
from draftwood.attention.oracle import attend_plain
from draftwood.cache import KVPool, LayerSpec, kv_index
from draftwood.core import Pack, Segment, Visibility

HEADS, KV_HEADS, K_DIM, V_DIM = 6, 2, 4, 5
NONE = np.empty(0, dtype=np.int64)


@dataclass
class Case:
    pool: KVPool
    pack: Pack
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor

    def ours(self, options: AttendOptions, layer: int = 0) -> torch.Tensor:
        """(T_pad, H, V_DIM) by the backend; stages k and v."""
        plan = SdpaBackend().plan(self.pack, self.pool, self.q.dtype, torch.device("cpu"))
        return plan.attend(layer, self.q, self.k, self.v, options)

    def plain(self, options: AttendOptions, layer: int = 0) -> np.ndarray:
        """The same by the definition; reads what `ours` staged."""
        return attend_plain(
            self.pack,
            self.pool,
            layer,
            self.q.double().numpy(),
            scaling=options.scaling,
            window=options.window,
            softcap=options.softcap,
            sinks=None if options.sinks is None else options.sinks.double().numpy(),
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
    heads: int = HEADS,
    kv_heads: int = KV_HEADS,
    dtype: torch.dtype = torch.float64,
) -> Case:
    """One segment of random size for each kind; prefixes of 0 to 12 tokens in several extents."""
    rng = np.random.default_rng(seed)
    pool = KVPool([LayerSpec(kv_heads, K_DIM, V_DIM)] * 2, dtype=dtype)
    prefixes = [int(rng.integers(0, 13)) for _ in kinds]
    for request in range(len(kinds)):
        pool.open(request, 3)
    fill = torch.Generator().manual_seed(seed)
    for step in range(4):  # prefixes grow in turns, so their extents interleave
        for request, length in enumerate(prefixes):
            rows = length // 4 + (step < length % 4)
            if rows:
                at = torch.from_numpy(kv_index(pool.reserve(request, rows)))
                for layer in range(2):
                    pool.k(layer)[at] = torch.randn(rows, kv_heads, K_DIM, generator=fill, dtype=dtype)
                    pool.v(layer)[at] = torch.randn(rows, kv_heads, V_DIM, generator=fill, dtype=dtype)
                pool.commit(request, np.arange(rows))
    segments, pos, row = [], [], 0
    for request, kind in enumerate(kinds):
        rows = int(rng.integers(1, 15))
        depth, visible = random_tree(rng, rows)
        offset = depth if kind is Visibility.ANCESTORS else np.arange(rows)
        segments.append(
            Segment(
                request=request,
                row_start=row,
                num_rows=rows,
                prefix_len=prefixes[request],
                prefix=pool.prefix(request),
                staged=pool.reserve(request, rows),
                visibility=kind,
                visible=visible if kind is Visibility.ANCESTORS else None,
            )
        )
        pos.append(prefixes[request] + offset)
        row += rows
    total = row + padding
    pack = Pack(
        np.zeros(total, np.int64), np.concatenate([*pos, np.zeros(padding, np.int64)]), NONE, NONE, tuple(segments)
    )
    make = lambda n, width: torch.randn(n, total, width, generator=fill, dtype=dtype)  # noqa: E731
    return Case(pool, pack, make(heads, K_DIM), make(kv_heads, K_DIM), make(kv_heads, V_DIM))
