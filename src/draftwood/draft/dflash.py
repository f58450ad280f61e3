"""The DFlash block drafter: one packed forward scores every position of every request's block."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ..attention import make_backend
from ..attention.base import AttentionBackend
from ..batch import Batch, RequestRows, build, kv_index, upload
from ..cache import PAGE_ROWS, KVPool, LayerSpec, row_bytes
from ..core import DraftBlock, Forest, Visibility
from ..errors import ModelError, UsageError
from ..linear import helps, use_few_rows
from ..tree.grow import GrowLimits, grow_forest
from .base import Committed, DraftRequest, TargetHead, TargetSizes
from .checkpoint import check_tensors, count_taps, load_tensors, read_header
from .config import DFlashConfig, Notify, check_layer_ids, fill_guesses, read_config
from .model import DFlashModel
from .scores import top_scores

# Queued taps are projected together at the next draft, but never more than this many rows wait: a long prompt would
# keep K states a token alive.
_MAX_QUEUED_ROWS = 512
_MAX_LOGITS = 2**24
"""Logits computed at a time; float32 copies of more are cut into runs of rows."""


class _Queued(NamedTuple):
    """Taps that are not projected yet."""

    request: int
    pos: int
    """Absolute position of the first."""
    taps: torch.Tensor
    """(rows, taps * h)."""


class DFlashDrafter:
    """A drafter of z-lab's DFlash format; satisfies `Drafter`.

    Keeps one row of keys and values per committed token and layer in a pool of its own. Block rows are staged there
    for one forward and dropped: a mask token never becomes context.
    """

    def __init__(
        self,
        config: DFlashConfig,
        model: DFlashModel,
        target: TargetHead,
        backend: AttentionBackend | None = None,
    ) -> None:
        """Wrap a loaded network; `config` names its layers and mask token. `load_drafter` checks them first."""
        if config.target_layer_ids is None or config.mask_token_id is None:
            raise ModelError(f"{config.where}: target_layer_ids and mask_token_id must be known")
        self.config = config
        self.model = model
        self.block_size = config.block_size
        self.depth = config.depth
        self.target_layer_ids = config.target_layer_ids
        self._mask_token_id = config.mask_token_id
        self.target = target
        """Whose embedding and head it borrows."""
        self._backend = backend or make_backend("sdpa")
        self._dtype, self._device = model.fc.weight.dtype, model.fc.weight.device
        self._layers = [LayerSpec(config.num_kv_heads, config.head_dim, config.head_dim)] * config.num_layers
        self.pool = self._pool(0)
        self._lengths: dict[int, int] = {}
        """Committed tokens of each open request, queued ones included."""
        self._queue: list[_Queued] = []
        self._visibility = [Visibility.CAUSAL if rule.causal else Visibility.FULL for rule in config.layers]

    @property
    def kv_row_bytes(self) -> int:
        """See `Drafter.kv_row_bytes`."""
        return row_bytes(self._layers, self._dtype)

    def allocate(self, kv_rows: int, requests: int) -> None:
        """See `Drafter.allocate`; blocks of all requests at once have room beside the committed tokens."""
        assert not self._lengths, f"requests {list(self._lengths)} are open"
        block_pages = -(-self.block_size // PAGE_ROWS) + 1
        self.pool = self._pool(kv_rows + requests * block_pages * PAGE_ROWS)

    def open(self, request: int, token_ids: np.ndarray, rows: int) -> None:
        """See `Drafter.open`; the text plays no part."""
        self.pool.open(request, rows + self.block_size)
        self._lengths[request] = 0

    def close(self, request: int) -> None:
        """See `Drafter.close`."""
        if self._lengths.pop(request, None) is not None:
            self._queue = [item for item in self._queue if item.request != request]
            self.pool.release(request)

    def context_len(self, request: int) -> int:
        """Committed tokens of a request, queued ones included; 0 for an unknown request."""
        return self._lengths.get(request, 0)

    @torch.inference_mode()
    def commit(self, committed: Committed) -> None:
        """Queue the taps of committed tokens; they are copied. Raises UsageError for another width."""
        width = self.model.fc.in_features
        taps = committed.taps
        if taps is None or taps.ndim != 2 or taps.shape[1] != width:
            shape = None if taps is None else list(taps.shape)
            raise UsageError(f"taps of shape {shape}: expected [rows, {width}]")
        kept = taps.to(self._device, self._dtype, copy=True)
        bounds = committed.offsets.tolist()
        for request, (start, stop) in zip(committed.requests, pairwise(bounds), strict=True):
            if stop > start:
                rows = kept if stop - start == len(kept) else kept[start:stop]
                self._queue.append(_Queued(request, self._lengths[request], rows))
                self._lengths[request] += stop - start
        if sum(len(item.taps) for item in self._queue) >= _MAX_QUEUED_ROWS:
            self.flush()

    @torch.inference_mode()
    def flush(self) -> None:
        """Project all queued taps in one product and append them to the contexts of their requests."""
        if not self._queue:
            return
        rows_kv = np.concatenate([self._staged_kv(item) for item in self._queue])
        pos = np.concatenate([np.arange(item.pos, item.pos + len(item.taps)) for item in self._queue])
        taps = torch.cat([item.taps for item in self._queue])  # (S, taps * h)
        index = self._on_device(rows_kv)
        for layer, context in enumerate(self.model.context(taps, self._on_device(pos))):
            self.pool.k(layer).index_copy_(0, index, context.k)
            self.pool.v(layer).index_copy_(0, index, context.v)
        for request in {item.request for item in self._queue}:
            self.pool.advance(request, self._lengths[request] - self.pool.prefix_len(request))
        self._queue.clear()

    @torch.inference_mode()
    def propose(self, wanted: Sequence[DraftRequest]) -> Forest:
        """See `Drafter.propose`: one packed forward scores all blocks, parents not distinguished (P = 1).

        Raises UsageError for a block or context that does not fit.
        """
        hidden = self.block_states(wanted)
        # Row 0 of a block stands for the pending token and was never trained: it is left out (dflash.md 2.3).
        parts = [block[1:] for block in torch.split(hidden, [request.block_size for request in wanted])]
        kept = max(max(request.candidates, request.scored) for request in wanted)
        logp, ids = self._scores(torch.cat(parts) if len(parts) > 1 else parts[0], kept)
        block, faulty = _assemble(wanted, logp, ids)
        limits = [GrowLimits(item.pending, item.candidates, item.max_nodes, item.max_depth) for item in wanted]
        return grow_forest(block, limits, faulty)

    @torch.inference_mode()
    def block_states(self, requests: Sequence[DraftRequest]) -> torch.Tensor:
        """Normalised states (T, h) of all block rows, request after request, the pending token's row included.

        Projects what is queued first. Raises UsageError as `draft` does.
        """
        self.flush()
        self._check(requests)
        batch = build([self._block_rows(request) for request in requests])
        tensors = upload(batch, self._device)
        plans = {}
        for visibility in set(self._visibility):
            seen: Batch = replace(batch, visibility=(visibility,) * len(requests))
            plans[visibility] = self._backend.plan(seen, tensors, self.pool, self._dtype)
        inputs = self.target.embed(tensors.token_ids).to(self._device, self._dtype)
        if self.config.input_embedding_scale != 1.0:
            inputs = inputs * self.config.input_embedding_scale
        layer_plans = [plans[visibility] for visibility in self._visibility]
        states: torch.Tensor = self.model(inputs, tensors.pos, layer_plans)
        for request in requests:
            self.pool.advance(request.request, 0)
        return states

    def _block_rows(self, request: DraftRequest) -> RequestRows:
        """The pending token and mask tokens behind it, staged in the pool."""
        token_ids = np.full(request.block_size, self._mask_token_id)
        token_ids[0] = request.pending
        pos = request.context_len + np.arange(request.block_size)
        staged = self.pool.reserve(request.request, request.block_size)
        prefix = self.pool.prefix(request.request)
        return RequestRows(request.request, token_ids, pos, request.context_len, prefix, staged, Visibility.FULL)

    def _staged_kv(self, item: _Queued) -> np.ndarray:
        """Pool rows of queued taps, behind what is committed and what was queued before them."""
        before = item.pos - self.pool.prefix_len(item.request)
        staged = self.pool.reserve(item.request, before + len(item.taps))
        return kv_index(staged)[before:]

    def _pool(self, kv_rows: int) -> KVPool:
        return KVPool(self._layers, kv_rows=kv_rows, dtype=self._dtype, device=self._device)

    def _scores(self, hidden: torch.Tensor, candidates: int) -> tuple[np.ndarray, np.ndarray]:
        """Host arrays logp (n, K) float32 and ids (n, K) int64 for states (n, h): one copy from the device."""
        step = max(1, _MAX_LOGITS // self.target.spec.vocab_size)
        packed = []
        for start in range(0, len(hidden), step):
            logits = self.target.head(hidden[start : start + step])
            if self.config.output_multiplier != 1.0:
                logits = logits * self.config.output_multiplier
            if self.config.final_logit_softcapping is not None:
                cap = self.config.final_logit_softcapping
                logits = torch.tanh(logits / cap) * cap
            best = top_scores(logits, candidates)
            packed.append(torch.cat([best.logp.view(torch.int32), best.ids.to(torch.int32)], dim=1))
        both = torch.cat(packed).cpu().numpy()
        count = both.shape[1] // 2
        return np.ascontiguousarray(both[:, :count]).view(np.float32), both[:, count:].astype(np.int64)

    def _check(self, requests: Sequence[DraftRequest]) -> None:
        """Refuse what would be computed wrongly: a hole in the context only shows as lost acceptance."""
        limit = self.target.spec.context_limit
        if not requests:
            raise UsageError("a block for 0 requests: expected at least 1")
        if len({request.request for request in requests}) != len(requests):
            raise UsageError(f"requests {[request.request for request in requests]}: expected distinct ones")
        for request in requests:
            name, length, rows = request.request, request.context_len, request.block_size
            if name not in self._lengths:
                raise UsageError(f"request {name}: expected one that is open")
            if not 2 <= rows <= self.block_size:
                raise UsageError(f"request {name}: block size {rows}: expected 2 to {self.block_size}")
            if length + rows > limit:
                raise UsageError(f"request {name}: block of {rows} at position {length}: expected to end by {limit}")
            if request.candidates < 1:
                raise UsageError(f"request {name}: candidates {request.candidates}: expected at least 1")
            if length != self.context_len(name):
                raise UsageError(f"request {name}: block at {length}: expected {self.context_len(name)}, its context")

    def _on_device(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)


def _assemble(requests: Sequence[DraftRequest], logp: np.ndarray, ids: np.ndarray) -> tuple[DraftBlock, dict[int, str]]:
    """Scores of all rows, request after request, as a rectangular block; and which requests' are not finite.

    Positions beyond a request's own block hold log-probability -inf and id 0, and so does all of a faulty request.
    """
    depths = np.array([request.block_size - 1 for request in requests], dtype=np.int64)
    shortest, deepest = int(depths.min()), int(depths.max())
    if shortest == deepest and np.isfinite(logp[:, 0]).all():
        whole = (len(requests), deepest, 1, -1)
        return DraftBlock(logp.reshape(whole), ids.reshape(whole), depths), {}
    shape = (len(requests), deepest, 1, logp.shape[1])
    block = DraftBlock(np.full(shape, -np.inf, dtype=np.float32), np.zeros(shape, dtype=np.int64), depths)
    faulty: dict[int, str] = {}
    row = 0
    for index, request in enumerate(requests):
        rows = slice(row, row + depths[index])
        row = rows.stop
        finite = np.isfinite(logp[rows, 0])
        if not finite.all():
            faulty[index] = (
                f"draft scores of position {request.context_len + 1 + int(np.argmin(finite))} are not finite"
            )
            depths[index] = 0
            continue
        block.logp[index, : depths[index], 0] = logp[rows]
        block.ids[index, : depths[index], 0] = ids[rows]
    return block, faulty


def load_drafter(
    folder: str | Path,
    target: TargetHead,
    *,
    dtype: torch.dtype,
    device: torch.device | str,
    notify: Notify,
    tokenizer_len: int | None = None,
    backend: AttentionBackend | None = None,
) -> DFlashDrafter:
    """Load a DFlash drafter for `target` from a local folder.

    Everything is checked before a weight is read. `notify` receives one line for each guess or harmless difference;
    `tokenizer_len` is needed only by checkpoints that name no mask token; `backend` computes its attention (None:
    sdpa). Raises ModelError or UnsupportedError.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ModelError(
            f"drafter {str(folder)!r}: no such folder: expected one with config.json and model.safetensors"
        )
    config = read_config(folder)
    header = read_header(folder)
    config = fill_guesses(config, count_taps(config, header), target.spec.num_layers, tokenizer_len, notify)
    check_tensors(config, header)
    check_target(config, target.spec, notify)
    tensors = load_tensors(header, dtype, torch.device(device))
    model = DFlashModel(config, tensors)
    if helps(dtype, torch.device(device)):
        use_few_rows(model)
    return DFlashDrafter(config, model, target, backend)


def check_target(config: DFlashConfig, sizes: TargetSizes, notify: Notify) -> None:
    """Raise ModelError when a drafter cannot belong to a target of these sizes.

    `notify` receives one line for each difference that does no harm to the output.
    """
    if config.hidden_size != sizes.hidden_size:
        raise ModelError(f"{config.where}: hidden_size {config.hidden_size}: the target has {sizes.hidden_size}")
    check_layer_ids(config, sizes.num_layers)
    if config.num_target_layers not in (None, sizes.num_layers):
        notify(f"{config.where}: num_target_layers {config.num_target_layers}, but this target has {sizes.num_layers}")
    if config.vocab_size not in (None, sizes.vocab_size):
        _check_padding(config, sizes, notify)
    if config.mask_token_id is not None and config.mask_token_id >= sizes.embedding_rows:
        raise ModelError(
            f"{config.where}: mask_token_id {config.mask_token_id}: expected a row of the target's embedding, "
            f"0..{sizes.embedding_rows - 1}"
        )


def _check_padding(config: DFlashConfig, sizes: TargetSizes, notify: Notify) -> None:
    """Tell two paddings of one vocabulary from two vocabularies: tables are padded to multiples of at most 512."""
    small, large = sorted((config.vocab_size or 0, sizes.vocab_size))
    if large - small > 512 or 8 * (large - small) > large:
        raise ModelError(f"{config.where}: vocab_size {config.vocab_size}: the target has {sizes.vocab_size}")
    notify(
        f"{config.where}: vocab_size {config.vocab_size} and the target's {sizes.vocab_size} differ by padding; "
        "the target's embedding and head are used"
    )
