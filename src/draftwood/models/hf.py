"""Targets from transformers, run through its attention interface: no forked model files.

transformers computes embeddings, projections, rotations, norms, MLPs and the head; attention over the KV pool is ours.
No transformers cache is involved: keys and values go from the attention call straight to the pool.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import PreTrainedModel

from ..attention import ATTENTION_NAME, AttendOptions, AttentionBackend, ensure_registered
from ..batch import Batch, upload
from ..cache import KVPool, LayerSpec
from ..errors import UnsupportedError
from ..linear import FewRowsLinear, use_few_rows, use_plain
from . import probe
from .base import TargetSpec

KNOWN_LAYER_TYPES = ("full_attention", "sliding_attention")
# Every model defines its attention as `eager`; other implementations may ignore soft-caps or sinks.
NATIVE_ATTENTION = "eager"
# Rope types that look at the largest position of the call: a neighbour in the pack would change a row's rotation.
REFUSED_ROPES = ("dynamic", "longrope")


class HFTarget:
    """A transformers causal LM behind the `TargetModel` contract.

    Raises UnsupportedError for models whose attention Draftwood cannot compute (recurrent layers, position-dependent
    ropes, models without the attention interface) and ModelError when the probe disagrees with the model's own
    attention.
    """

    def __init__(
        self, model: PreTrainedModel, backend: AttentionBackend, *, name: str, context_limit: int | None = None
    ) -> None:
        """Wrap `model`; `context_limit` is what its configuration names unless given. Runs the probe."""
        _check_supported(model, name)
        ensure_registered()
        self.model = model.eval()
        self.backend = backend
        model.set_attn_implementation(ATTENTION_NAME)
        self._embedding: torch.Tensor = model.get_input_embeddings().weight
        self._output = model.get_output_embeddings()
        config = model.config.get_text_config(decoder=True)
        self.spec = TargetSpec(
            name=name,
            num_layers=config.num_hidden_layers,
            hidden_size=config.hidden_size,
            vocab_size=self._output.weight.shape[0],
            embedding_rows=self._embedding.shape[0],
            context_limit=context_limit or config.max_position_embeddings,
            layers=self._layer_specs(),
            dtype=model.dtype,
            device=model.device,
        )
        probe.check(self)

    @torch.inference_mode()
    def forward(self, batch: Batch, pool: KVPool, tap_layers: Sequence[int], taps: torch.Tensor | None) -> torch.Tensor:
        """See `TargetModel.forward`."""
        tensors = upload(batch, self.spec.device)
        output = self._call(
            tensors.token_ids[None],
            position_ids=tensors.pos[None],
            # 0 means the logits of all rows to transformers.
            logits_to_keep=0 if len(batch.logit_rows) == len(batch.token_ids) else tensors.logit_rows,
            output_hidden_states=[layer + 1 for layer in tap_layers] if tap_layers else False,
            plan=self.backend.plan(batch, tensors, pool, self.spec.dtype),
        )
        if taps is not None:
            every_row = len(batch.tap_rows) == len(batch.token_ids)
            rows = None if every_row else tensors.tap_rows
            self._copy_taps([output.hidden_states[layer + 1] for layer in tap_layers], rows, taps)
        logits: torch.Tensor = output.logits[0]
        return logits

    @torch.inference_mode()
    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """See `TargetModel.embed`."""
        return self._embedding[token_ids]

    @torch.inference_mode()
    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """See `TargetModel.head`."""
        logits: torch.Tensor = self._output(hidden)
        return logits

    @torch.inference_mode()
    def native_logits(self, token_ids: Sequence[int], *, last_rows: int | None = None) -> torch.Tensor:
        """See `ReferenceModel.native_logits`: the reference of probe, check and demo."""
        kept = 0 if last_rows is None else last_rows  # 0 means all of them to transformers
        with self.as_shipped():
            ids = torch.tensor([list(token_ids)], device=self.spec.device)
            logits: torch.Tensor = self.model(input_ids=ids, use_cache=False, logits_to_keep=kept).logits[0]
        return logits

    @torch.inference_mode()
    def own_logits(self, token_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Logits (T, V) by the model's own attention, the rows at the given positions; for the probe."""
        with self.as_shipped():
            output = self.model(input_ids=token_ids[None], position_ids=position_ids[None], use_cache=False)
        logits: torch.Tensor = output.logits[0]
        return logits

    @contextmanager
    def as_shipped(self, attention: str = NATIVE_ATTENTION) -> Iterator[PreTrainedModel]:
        """The transformers model with its own attention and products, for the length of a `with` block."""
        few_rows = isinstance(self._output, FewRowsLinear)
        self.model.set_attn_implementation(attention)
        use_plain(self.model)
        try:
            yield self.model
        finally:
            self.model.set_attn_implementation(ATTENTION_NAME)
            if few_rows:
                use_few_rows(self.model)

    def _call(self, ids: torch.Tensor, **kwargs: Any) -> Any:
        return self.model(input_ids=ids, use_cache=False, return_dict=True, **kwargs)

    def _copy_taps(self, hidden_states: Sequence[torch.Tensor], rows: torch.Tensor | None, taps: torch.Tensor) -> None:
        width = self.spec.hidden_size
        for index, hidden in enumerate(hidden_states):
            columns = slice(index * width, (index + 1) * width)
            taps[:, columns] = hidden[0] if rows is None else hidden[0, rows]

    def _layer_specs(self) -> tuple[LayerSpec, ...]:
        """Widths of keys and values, read off one real forward rather than guessed from the config."""
        recorder = _ShapeRecorder()
        with torch.inference_mode():
            self._call(
                torch.zeros(1, 1, dtype=torch.int64, device=self.model.device),
                position_ids=torch.zeros(1, 1, dtype=torch.int64, device=self.model.device),
                plan=recorder,
            )
        num_layers = self.model.config.get_text_config(decoder=True).num_hidden_layers
        missing = [layer for layer in range(num_layers) if layer not in recorder.specs]
        if missing:
            raise UnsupportedError(f"layers {missing} make no keys and values of their own: not supported")
        return tuple(recorder.specs[layer] for layer in range(num_layers))


class _ShapeRecorder:
    """A plan that only notes the widths of keys and values."""

    def __init__(self) -> None:
        self.specs: dict[int, LayerSpec] = {}

    def attend(
        self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: AttendOptions
    ) -> torch.Tensor:
        self.specs[layer] = LayerSpec(k.shape[0], k.shape[2], v.shape[2])
        return q.new_zeros(q.shape[1], q.shape[0], v.shape[2])


def _check_supported(model: PreTrainedModel, name: str) -> None:
    """Refuse what would be computed wrongly, with the reason."""
    config = model.config
    layer_types = getattr(config, "layer_types", None) or ()
    unknown = sorted({kind for kind in layer_types if kind not in KNOWN_LAYER_TYPES})
    if unknown:
        raise UnsupportedError(f"{name}: layer type {', '.join(unknown)}: expected {' or '.join(KNOWN_LAYER_TYPES)}")
    if not model._supports_attention_backend:
        raise UnsupportedError(f"{name}: {type(model).__name__} does not use transformers' attention interface")
    if getattr(config, "is_encoder_decoder", False):
        raise UnsupportedError(f"{name}: encoder-decoder models are not supported, only causal language models")
    for rope_type in _rope_types(getattr(config, "rope_parameters", None)):
        if rope_type in REFUSED_ROPES:
            raise UnsupportedError(
                f"{name}: rope type {rope_type!r} depends on the longest position of a call; "
                f"expected none of {', '.join(REFUSED_ROPES)}"
            )
    if "mrope_section" in str(getattr(config, "rope_parameters", None)):
        raise UnsupportedError(f"{name}: positions with several axes (mrope) are not supported")
    for module in model.modules():
        if hasattr(module, "layer_idx") and getattr(module, "is_causal", True) is False:
            raise UnsupportedError(f"{name}: layer {module.layer_idx} attends in both directions")


def _rope_types(parameters: Any) -> list[str]:
    """Rope types of a config, which holds one dictionary or one per layer type."""
    if not isinstance(parameters, dict):
        return []
    kind = parameters.get("rope_type", parameters.get("type"))
    found = [str(kind)] if kind else []
    for value in parameters.values():
        found += _rope_types(value)
    return found
