"""The DFlash block drafter: one packed forward scores every position of every request's block."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from ..attention import make_backend
from ..attention.base import AttentionBackend
from ..cache import KVPool, LayerSpec, kv_index
from ..core import DraftBlock, Extent, Pack, Segment, Visibility
from ..errors import ModelError, NonFiniteLogitsError, UsageError
from ..linear import helps, use_few_rows
from .base import DraftRequest, TargetHead, TargetSizes
from .checkpoint import check_tensors, count_taps, load_tensors, read_header
from .config import DFlashConfig, Notify, check_layer_ids, fill_guesses, read_config
from .model import DFlashModel
from .scores import top_scores

# Queued taps are projected together at the next draft, but never more than this many rows wait: a long prompt would
# keep K states a token alive.
_MAX_QUEUED_ROWS = 512
_MAX_LOGITS = 2**24
"""Logits computed at a time; float32 copies of more are cut into runs of rows."""
_SPARE_ROWS = 128
_NO_PATH = np.empty(0, dtype=np.int64)


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
        spec = LayerSpec(config.num_kv_heads, config.head_dim, config.head_dim)
        self.pool = KVPool([spec] * config.num_layers, dtype=self._dtype, device=self._device)
        self._queue: dict[int, list[torch.Tensor]] = {}
        self._visibility = [Visibility.CAUSAL if rule.causal else Visibility.FULL for rule in config.layers]

    def context_len(self, request: int) -> int:
        """Committed tokens of a request, queued ones included; 0 for an unknown request."""
        committed = self.pool.prefix_len(request) if request in self.pool.requests else 0
        return committed + sum(len(taps) for taps in self._queue.get(request, ()))

    def commit(self, request: int, taps: torch.Tensor) -> None:
        """Queue the taps (rows, taps * h) of committed tokens, in order of position; they are copied.

        Raises UsageError for another width.
        """
        width = self.model.fc.in_features
        if taps.ndim != 2 or taps.shape[1] != width:
            raise UsageError(f"taps of shape {list(taps.shape)}: expected [rows, {width}]")
        self._queue.setdefault(request, []).append(taps.to(self._device, self._dtype, copy=True))
        if sum(len(part) for parts in self._queue.values() for part in parts) >= _MAX_QUEUED_ROWS:
            self.flush()

    def release(self, request: int) -> None:
        """Forget a request and give its pool rows back; an unknown one is accepted."""
        self._queue.pop(request, None)
        if request in self.pool.requests:
            self.pool.release(request)

    @torch.inference_mode()
    def flush(self) -> None:
        """Project all queued taps in one product and append them to the contexts of their requests.

        Raises PoolExhaustedError when the pool may not grow; the queue is kept then.
        """
        counts = {request: sum(len(part) for part in parts) for request, parts in self._queue.items()}
        if not counts:
            return
        for request, rows in counts.items():
            if request not in self.pool.requests:
                self.pool.open(request, rows + _SPARE_ROWS)
        staged = [extent for request, rows in counts.items() for extent in self.pool.reserve(request, rows)]
        starts = [self.pool.prefix_len(request) for request in counts]
        pos = np.concatenate([np.arange(s, s + n) for s, n in zip(starts, counts.values(), strict=True)])
        taps = torch.cat([part for parts in self._queue.values() for part in parts])  # (S, taps * h)
        rows_kv = self._on_device(kv_index(staged))
        for layer, context in enumerate(self.model.context(taps, self._on_device(pos))):
            self.pool.k(layer).index_copy_(0, rows_kv, context.k)
            self.pool.v(layer).index_copy_(0, rows_kv, context.v)
        for request, rows in counts.items():
            self.pool.commit(request, np.arange(rows))
        self._queue.clear()

    @torch.inference_mode()
    def draft(self, requests: Sequence[DraftRequest], candidates: int) -> DraftBlock:
        """Score the blocks of `requests` in one packed forward.

        Returns the min(candidates, V) best tokens of each position, parents not distinguished (P = 1); positions
        beyond a request's own block hold log-probability -inf and id 0. Raises UsageError for a block or context that
        does not fit, NonFiniteLogitsError when the network gives NaN.
        """
        if candidates < 1 or not requests:
            raise UsageError(f"{candidates} candidates for {len(requests)} requests: expected at least 1 of both")
        hidden = self.block_states(requests)
        sizes = np.array([request.block_size for request in requests])
        starts = np.cumsum(sizes) - sizes
        # Row 0 of a block stands for the pending token and was never trained: it is left out (dflash.md 2.3).
        rows = np.concatenate([np.arange(s + 1, s + n) for s, n in zip(starts, sizes, strict=True)])
        logp, ids = self._scores(hidden.index_select(0, self._on_device(rows)), candidates)
        return _assemble(requests, logp, ids)

    @torch.inference_mode()
    def block_states(self, requests: Sequence[DraftRequest]) -> torch.Tensor:
        """Normalised states (T, h) of all block rows, request after request, the pending token's row included.

        Projects what is queued first. Raises UsageError as `draft` does.
        """
        self.flush()
        self._check(requests)
        token_ids = np.full(sum(request.block_size for request in requests), self._mask_token_id)
        pos = np.empty_like(token_ids)
        row = 0
        for request in requests:
            token_ids[row] = request.pending
            pos[row : row + request.block_size] = request.context_len + np.arange(request.block_size)
            row += request.block_size
        spans = {request.request: self.pool.reserve(request.request, request.block_size) for request in requests}
        plans = {}
        for visibility in set(self._visibility):
            segments = self._segments(requests, spans, visibility)
            pack = Pack(token_ids, pos, _NO_PATH, _NO_PATH, segments)
            plans[visibility] = self._backend.plan(pack, self.pool, self._dtype, self._device)
        inputs = self.target.embed(self._on_device(token_ids)).to(self._device, self._dtype)
        if self.config.input_embedding_scale != 1.0:
            inputs = inputs * self.config.input_embedding_scale
        layer_plans = [plans[visibility] for visibility in self._visibility]
        states: torch.Tensor = self.model(inputs, self._on_device(pos), layer_plans)
        for request in requests:
            self.pool.commit(request.request, _NO_PATH)
        return states

    def _segments(
        self, requests: Sequence[DraftRequest], spans: dict[int, tuple[Extent, ...]], visibility: Visibility
    ) -> tuple[Segment, ...]:
        segments, row = [], 0
        for request in requests:
            segments.append(
                Segment(
                    request=request.request,
                    row_start=row,
                    num_rows=request.block_size,
                    prefix_len=request.context_len,
                    prefix=self.pool.prefix(request.request),
                    staged=spans[request.request],
                    visibility=visibility,
                )
            )
            row += request.block_size
        return tuple(segments)

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
        if len({request.request for request in requests}) != len(requests):
            raise UsageError(f"requests {[request.request for request in requests]}: expected distinct ones")
        for request in requests:
            name, length, rows = request.request, request.context_len, request.block_size
            if not 2 <= rows <= self.block_size:
                raise UsageError(f"request {name}: block size {rows}: expected 2 to {self.block_size}")
            if length + rows > limit:
                raise UsageError(f"request {name}: block of {rows} at position {length}: expected to end by {limit}")
            if length != self.context_len(name):
                raise UsageError(f"request {name}: block at {length}: expected {self.context_len(name)}, its context")
            if request.request not in self.pool.requests:
                self.pool.open(name, _SPARE_ROWS)

    def _on_device(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values).to(self._device)


def _assemble(requests: Sequence[DraftRequest], logp: np.ndarray, ids: np.ndarray) -> DraftBlock:
    """Scores of all rows, request after request, as a rectangular block."""
    depths = np.array([request.block_size - 1 for request in requests], dtype=np.int64)
    shape = (len(requests), int(depths.max()), 1, logp.shape[1])
    block = DraftBlock(np.full(shape, -np.inf, dtype=np.float32), np.zeros(shape, dtype=np.int64), depths)
    row = 0
    for index, request in enumerate(requests):
        rows = slice(row, row + depths[index])
        if not np.isfinite(logp[rows, 0]).all():
            bad = request.context_len + 1 + int(np.argmin(np.isfinite(logp[rows, 0])))
            raise NonFiniteLogitsError(f"request {request.request}: drafter's scores of position {bad} are not finite")
        block.logp[index, : depths[index], 0] = logp[rows]
        block.ids[index, : depths[index], 0] = ids[rows]
        row += int(depths[index])
    return block


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
