"""Reference backend: torch's scaled_dot_product_attention, one call per segment and layer.

Query heads that share a key head are folded into the query axis, so keys are never repeated and one float mask per
segment serves every layer of a window size. Runs on any device; ragged kernels are compared with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

from ..cache import SCRATCH_KV, KVPool, kv_index
from ..core import Extent, Pack, Segment, Visibility
from .base import AttendOptions


@dataclass(slots=True)
class _SegmentPlan:
    """One segment, resolved to indices of the device."""

    rows: slice
    """Rows of the pack."""
    kv: slice | torch.Tensor
    """Pool rows of prefix and own rows, in this order: a view where they are consecutive, else an index."""
    q_pos: np.ndarray
    k_pos: np.ndarray
    own: np.ndarray | None
    """(n, n) bool visibility among the segment's rows; None: every row sees every row."""
    two_sided: bool
    """Windows cut keys on both sides (a drafter's full block)."""
    masks: dict[tuple[int | None, int], torch.Tensor | None] = field(default_factory=dict)


class SdpaPlan:
    """Indices and masks of one packed forward; `attend` is called once per layer."""

    def __init__(self, pack: Pack, pool: KVPool, dtype: torch.dtype, device: torch.device) -> None:
        self._pool = pool
        self._dtype = dtype
        self._device = device
        self._segments = [self._resolve(segment, pack) for segment in pack.segments]
        alone = len(pack.segments) == 1 and pack.num_rows == len(pack.token_ids)
        self._whole = self._segments[0] if alone else None
        """The only segment of a pack without padding, whose rows need no gathering."""
        self._row_kv = self._staged(pack)

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: AttendOptions
    ) -> torch.Tensor:
        """Stage k, v in the pool and attend.

        q (H, T, E), k (G, T, E), v (G, T, E_v); returns (T, H, E_v), zero for padding rows. Mutates the pool's staged
        rows.
        """
        pool_k, pool_v = self._pool.k(layer), self._pool.v(layer)
        pool_k[self._row_kv] = k.transpose(0, 1)
        pool_v[self._row_kv] = v.transpose(0, 1)
        num_heads, num_rows, _ = q.shape
        if self._whole is not None:
            keys, values = pool_k[self._whole.kv].transpose(0, 1), pool_v[self._whole.kv].transpose(0, 1)
            return self._attend_segment(self._whole, q, keys, values, options)
        out = q.new_zeros(num_rows, num_heads, v.shape[-1])
        for segment in self._segments:
            keys = pool_k[segment.kv].transpose(0, 1)  # (G, S, E)
            values = pool_v[segment.kv].transpose(0, 1)
            out[segment.rows] = self._attend_segment(segment, q[:, segment.rows], keys, values, options)
        return out

    def _attend_segment(
        self,
        segment: _SegmentPlan,
        q: torch.Tensor,  # (H, n, E)
        keys: torch.Tensor,
        values: torch.Tensor,
        options: AttendOptions,
    ) -> torch.Tensor:
        num_heads, num_rows, _ = q.shape
        groups = keys.shape[0]
        shared = num_heads // groups
        mask = self._mask(segment, options.window, shared)
        folded = q.reshape(groups, shared * num_rows, -1)  # head h belongs to key head h // shared
        if options.needs_explicit:
            out = _explicit(folded, keys, values, mask, options)
        else:
            out = F.scaled_dot_product_attention(
                folded[None], keys[None], values[None], attn_mask=mask, scale=options.scaling
            )[0]
        return out.reshape(num_heads, num_rows, -1).transpose(0, 1)

    def _resolve(self, segment: Segment, pack: Pack) -> _SegmentPlan:
        rows = slice(segment.row_start, segment.row_start + segment.num_rows)
        q_pos = pack.pos[rows]
        own = segment.visible
        if segment.visibility is Visibility.CAUSAL and segment.num_rows > 1:
            own = np.tri(segment.num_rows, dtype=bool)
        return _SegmentPlan(
            rows=rows,
            kv=self._kv(segment.prefix + segment.staged),
            q_pos=q_pos,
            k_pos=np.concatenate([np.arange(segment.prefix_len), q_pos]),
            own=own,
            two_sided=segment.visibility is Visibility.FULL,
        )

    def _staged(self, pack: Pack) -> slice | torch.Tensor:
        """Pool rows that the pack's rows write, scratch for padding."""
        if self._whole is not None:
            return self._kv(pack.segments[0].staged)
        row_kv = np.full(len(pack.token_ids), SCRATCH_KV, dtype=np.int64)
        for segment in pack.segments:
            row_kv[segment.row_start : segment.row_start + segment.num_rows] = kv_index(segment.staged)
        return torch.from_numpy(row_kv).to(self._device)

    def _kv(self, extents: tuple[Extent, ...]) -> slice | torch.Tensor:
        start, stop = extents[0].start_kv, extents[0].start_kv
        for extent in extents:
            if extent.start_kv != stop:
                return torch.from_numpy(kv_index(extents)).to(self._device)
            stop += extent.length
        return slice(start, stop)

    def _mask(self, segment: _SegmentPlan, window: int | None, shared: int) -> torch.Tensor | None:
        """Additive (shared * n, S) mask, 0 or -inf; None when every row sees everything. Built once per window."""
        key = (window, shared)
        if key not in segment.masks:
            visible = _visible(segment, window)
            if visible is not None:
                additive = torch.from_numpy(np.where(visible, 0.0, -np.inf)).to(self._device, self._dtype)
                segment.masks[key] = additive.repeat(shared, 1)
            else:
                segment.masks[key] = None
        return segment.masks[key]


class SdpaBackend:
    """Plans packs for torch's scaled_dot_product_attention."""

    name = "sdpa"

    def plan(self, pack: Pack, pool: KVPool, dtype: torch.dtype, device: torch.device) -> SdpaPlan:
        """Resolve `pack` against `pool`, once per forward; `dtype` is that of the queries."""
        return SdpaPlan(pack, pool, dtype, device)


def _visible(segment: _SegmentPlan, window: int | None) -> np.ndarray | None:
    """(n, S) bool: what each row sees, positions deciding about windows; None for everything."""
    num_rows, num_keys = len(segment.q_pos), len(segment.k_pos)
    distance = segment.q_pos[:, None] - segment.k_pos[None, :] if window is not None else None
    cut = False
    if distance is not None and window is not None:
        cut = bool(distance.max() >= window or (segment.two_sided and distance.min() <= -window))
    if segment.own is None and not cut:
        return None
    visible = np.ones((num_rows, num_keys), dtype=bool)
    if segment.own is not None:
        visible[:, num_keys - num_rows :] = segment.own
    if distance is not None and window is not None:
        visible &= distance < window
        if segment.two_sided:
            visible &= -distance < window
    return visible


def _explicit(
    q: torch.Tensor,  # (G, shared * n, E)
    keys: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor | None,
    options: AttendOptions,
) -> torch.Tensor:
    """Attention with soft-capped scores or sinks, which torch's fused call does not know."""
    scores = torch.matmul(q, keys.transpose(1, 2)) * options.scaling
    if options.softcap is not None:
        scores = torch.tanh(scores / options.softcap) * options.softcap
    if mask is not None:
        scores = scores + mask
    wide = torch.promote_types(q.dtype, torch.float32)
    if options.sinks is None:
        return torch.matmul(torch.softmax(scores, dim=-1, dtype=wide).to(q.dtype), values)
    # A sink is one more logit per head that takes probability and has no value (GPT-OSS).
    groups, folded, _ = scores.shape
    shared = options.sinks.numel() // groups
    sinks = options.sinks.to(scores.dtype).reshape(groups, shared, 1).expand(-1, -1, folded // shared)
    joined = torch.cat([scores, sinks.reshape(groups, folded, 1)], dim=-1)
    prob = torch.softmax(joined, dim=-1, dtype=wide)[..., :-1].to(q.dtype)
    return torch.matmul(prob, values)
