"""Attention written as the definition reads: one query, one head, one key at a time. For tests only."""

from __future__ import annotations

import math

import numpy as np

from ..cache import KVPool, kv_index
from ..core import Pack, Segment, Visibility


def sees(segment: Segment, pos: np.ndarray, row: int, key: int, window: int | None) -> bool:
    """Whether segment row `row` sees key `key` (prefix first, then the segment's own rows)."""
    q_pos = int(pos[segment.row_start + row])
    own = key - segment.prefix_len
    k_pos = key if own < 0 else int(pos[segment.row_start + own])
    if own >= 0:
        if segment.visibility is Visibility.CAUSAL and own > row:
            return False
        if segment.visibility is Visibility.ANCESTORS:
            assert segment.visible is not None
            if not segment.visible[row, own]:
                return False
    if window is None:
        return True
    if segment.visibility is Visibility.FULL and k_pos - q_pos >= window:
        return False
    return q_pos - k_pos < window


def attend_plain(
    pack: Pack,
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
    for segment in pack.segments:
        keys_kv = kv_index(segment.prefix + segment.staged)
        for row in range(segment.num_rows):
            for head in range(num_heads):
                group = head * groups // num_heads
                weights, values = [], []
                for key, key_kv in enumerate(keys_kv):
                    if not sees(segment, pack.pos, row, key, window):
                        continue
                    score = float(q[head, segment.row_start + row] @ pool_k[key_kv, group]) * scaling
                    if softcap is not None:
                        score = softcap * math.tanh(score / softcap)
                    weights.append(math.exp(score))
                    values.append(pool_v[key_kv, group])
                total = sum(weights) + (math.exp(float(sinks[head])) if sinks is not None else 0.0)
                mixed = sum((w / total * value for w, value in zip(weights, values, strict=True)), np.zeros(1))
                out[segment.row_start + row, head] = mixed
    return out
