"""Attention written as the definition reads: one query, one head, one key at a time. For tests only."""

from __future__ import annotations

import math

import numpy as np

from ..batch import Batch, kv_index
from ..cache import KVPool
from ..core import Visibility


def sees(batch: Batch, index: int, row: int, key: int, window: int | None) -> bool:
    """Whether row `row` of request `index` sees key `key` (prefix first, then the request's own rows)."""
    pos, kind = batch.pos[batch.rows(index)], batch.visibility[index]
    q_pos = int(pos[row])
    own = key - int(batch.prefix_len[index])
    k_pos = key if own < 0 else int(pos[own])
    if own >= 0:
        if kind is Visibility.CAUSAL and own > row:
            return False
        if kind is Visibility.ANCESTORS:
            word = int(batch.ancestors[int(batch.offsets[index]) + row, own // 64])
            if not word >> (own % 64) & 1:
                return False
    if window is None:
        return True
    if kind is Visibility.FULL and k_pos - q_pos >= window:
        return False
    return q_pos - k_pos < window


def attend_plain(
    batch: Batch,
    pool: KVPool,
    layer: int,
    q: np.ndarray,
    *,
    scaling: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: np.ndarray | None = None,
) -> np.ndarray:
    """Outputs (T, H, E_v) for queries (H, T, E), keys and values read from a pool that holds the staged rows."""
    pool_k, pool_v = pool.k(layer).double().numpy(), pool.v(layer).double().numpy()
    num_heads, num_rows, _ = q.shape
    groups = pool_k.shape[1]
    out = np.zeros((num_rows, num_heads, pool_v.shape[-1]))
    for index in range(len(batch.requests)):
        rows = batch.rows(index)
        keys_kv = np.concatenate([kv_index(batch.prefix[index]), batch.kv_rows[rows]])
        for row in range(rows.stop - rows.start):
            for head in range(num_heads):
                group = head * groups // num_heads
                weights, values = [], []
                for key, key_kv in enumerate(keys_kv):
                    if not sees(batch, index, row, key, window):
                        continue
                    score = float(q[head, rows.start + row] @ pool_k[key_kv, group]) * scaling
                    if softcap is not None:
                        score = softcap * math.tanh(score / softcap)
                    weights.append(math.exp(score))
                    values.append(pool_v[key_kv, group])
                total = sum(weights) + (math.exp(float(sinks[head])) if sinks is not None else 0.0)
                mixed = sum((w / total * value for w, value in zip(weights, values, strict=True)), np.zeros(1))
                out[rows.start + row, head] = mixed
    return out
