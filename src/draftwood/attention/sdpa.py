"""Reference backend: torch's scaled_dot_product_attention, one call per request and layer.

Query heads that share a key head are folded into the query axis, so keys are never repeated and one float mask per
request serves every layer of a window size. Runs on any device; ragged kernels are compared with it.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as F

from ..batch import Batch, BatchTensors, kv_index
from ..cache import KVPool
from ..core import Extent, Visibility
from .base import AttendOptions


@dataclass(slots=True)
class _RequestPlan:
    """One request of a batch, resolved to indices of the device."""

    rows: slice
    """Rows of the batch."""
    kv: slice | torch.Tensor
    """Pool rows of prefix and own rows, in this order: a view where they are consecutive, else an index."""
    q_pos: np.ndarray
    k_pos: np.ndarray
    own: np.ndarray | None
    """(n, n) bool visibility among the request's rows; None: every row sees every row."""
    two_sided: bool
    """Windows cut keys on both sides (a drafter's full block)."""
    masks: dict[tuple[int | None, int], torch.Tensor | None] = field(default_factory=dict)


class SdpaPlan:
    """Indices and masks of one forward; `attend` is called once per layer."""

    def __init__(self, batch: Batch, tensors: BatchTensors, pool: KVPool, dtype: torch.dtype) -> None:
        self._pool = pool
        self._dtype = dtype
        self._device = tensors.kv_rows.device
        self._requests = [self._resolve(batch, index) for index in range(len(batch.requests))]
        alone = len(batch.requests) == 1 and batch.num_rows == len(batch.token_ids)
        self._whole = self._requests[0] if alone else None
        """The only request of a batch without padding, whose rows need no gathering."""
        staged = _run(batch.kv_rows) if alone else None
        self._row_kv = tensors.kv_rows if staged is None else staged

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
            # Some models view what they get; the others would copy it anyway.
            return self._attend_request(self._whole, q, keys, values, options).contiguous()
        out = q.new_zeros(num_rows, num_heads, v.shape[-1])
        for request in self._requests:
            keys = pool_k[request.kv].transpose(0, 1)  # (G, S, E)
            values = pool_v[request.kv].transpose(0, 1)
            out[request.rows] = self._attend_request(request, q[:, request.rows], keys, values, options)
        return out

    def _attend_request(
        self,
        request: _RequestPlan,
        q: torch.Tensor,  # (H, n, E)
        keys: torch.Tensor,
        values: torch.Tensor,
        options: AttendOptions,
    ) -> torch.Tensor:
        num_heads, num_rows, _ = q.shape
        groups = keys.shape[0]
        shared = num_heads // groups
        mask = self._mask(request, options.window, shared)
        folded = q.reshape(groups, shared * num_rows, -1)  # head h belongs to key head h // shared
        if options.needs_explicit:
            out = _explicit(folded, keys, values, mask, options)
        else:
            out = F.scaled_dot_product_attention(
                folded[None], keys[None], values[None], attn_mask=mask, scale=options.scaling
            )[0]
        return out.reshape(num_heads, num_rows, -1).transpose(0, 1)

    def _resolve(self, batch: Batch, index: int) -> _RequestPlan:
        rows = batch.rows(index)
        q_pos = batch.pos[rows]
        return _RequestPlan(
            rows=rows,
            kv=self._kv(batch.prefix[index], batch.kv_rows[rows]),
            q_pos=q_pos,
            k_pos=np.concatenate([np.arange(batch.prefix_len[index]), q_pos]),
            own=batch.own_visible(index),
            two_sided=batch.visibility[index] is Visibility.FULL,
        )

    def _kv(self, prefix: tuple[Extent, ...], staged: np.ndarray) -> slice | torch.Tensor:
        run = _run(staged)
        if run is not None and not prefix:
            return run
        if run is not None and len(prefix) == 1 and prefix[0].start_kv + prefix[0].length == run.start:
            return slice(prefix[0].start_kv, run.stop)
        return torch.from_numpy(np.concatenate([kv_index(prefix), staged])).to(self._device)

    def _mask(self, request: _RequestPlan, window: int | None, shared: int) -> torch.Tensor | None:
        """Additive (shared * n, S) mask, 0 or -inf; None when every row sees everything. Built once per window."""
        key = (window, shared)
        if key not in request.masks:
            visible = _visible(request, window)
            if visible is not None:
                additive = torch.from_numpy(np.where(visible, np.float32(0.0), np.float32(-np.inf)))
                request.masks[key] = additive.to(self._device, self._dtype).repeat(shared, 1)
            else:
                request.masks[key] = None
        return request.masks[key]


class SdpaBackend:
    """Plans batches for torch's scaled_dot_product_attention."""

    name = "sdpa"

    def plan(self, batch: Batch, tensors: BatchTensors, pool: KVPool, dtype: torch.dtype) -> SdpaPlan:
        """Resolve `batch` against `pool`, once per forward; `dtype` is that of the queries."""
        return SdpaPlan(batch, tensors, pool, dtype)


def _run(rows_kv: np.ndarray) -> slice | None:
    """Pool rows as a slice where they are consecutive."""
    start, stop = int(rows_kv[0]), int(rows_kv[-1]) + 1
    return slice(start, stop) if stop - start == len(rows_kv) and (np.diff(rows_kv) == 1).all() else None


def _visible(request: _RequestPlan, window: int | None) -> np.ndarray | None:
    """(n, S) bool: what each row sees, positions deciding about windows; None for everything."""
    num_rows, num_keys = len(request.q_pos), len(request.k_pos)
    distance = request.q_pos[:, None] - request.k_pos[None, :] if window is not None else None
    cut = False
    if distance is not None and window is not None:
        cut = bool(distance.max() >= window or (request.two_sided and distance.min() <= -window))
    if request.own is None and not cut:
        return None
    visible = np.ones((num_rows, num_keys), dtype=bool)
    if request.own is not None:
        visible[:, num_keys - num_rows :] = request.own
    if distance is not None and window is not None:
        visible &= distance < window
        if request.two_sided:
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
