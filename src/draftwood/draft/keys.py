"""Keys of a drafter's configuration that nothing reads: irrelevant, without effect as they stand, or refused."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from ..errors import UnsupportedError

ROPE_KEYS = (
    "rope_theta", "rope_scaling", "rope_parameters", "partial_rotary_factor", "original_max_position_embeddings",
)  # fmt: skip
"""Read by `rope.read_rope`, which compares all places."""
IRRELEVANT = {
    "model_type": "the family whose layers it resembles; the architecture decides",
    "auto_map": "code of the checkpoint, which never runs",
    "dtype": "the files say in which type their numbers lie",
    "torch_dtype": "the files say in which type their numbers lie",
    "transformers_version": "who wrote the file",
    "use_cache": "whether transformers keeps its own cache",
    "initializer_range": "training",
    "attention_dropout": "training",
    "hidden_dropout": "training",
    "gradient_checkpointing": "training",
    "loss_type": "training",
    "loss_decay": "training",
    "num_anchors": "training",
    "anchor_num": "training",
    "pretraining_tp": "training",
    "tie_word_embeddings": "embedding and head are the target's",
    "num_target_layers": "compared with the target",
    "target_model": "a name",
    "target_model_name_or_path": "a name",
    "attn_implementation": "which attention another library takes",
    "is_encoder_decoder": "a drafter has no encoder",
    "is_decoder": "a drafter has no encoder",
    "add_cross_attention": "a drafter has no encoder",
    "torchscript": "an export that is not made",
    "tf_legacy_loss": "another framework",
    "pruned_heads": "shapes show them",
    "architectures": "read",
    "max_window_layers": "layer_types say which layers slide",
    "use_sliding_window": "layer_types say which layers slide",
    "sliding_window": "layer_types say which layers slide",
}
"""Names that change no number, with the reason."""
_IRRELEVANT_PATTERN = re.compile(
    r"_.*|.*_token_id|id2label|label2id|return_dict|output_(attentions|hidden_states)|chunk_.*"
)
_WITHOUT_EFFECT: dict[str, tuple[object, ...]] = {
    "mlp_bias": (False,),
    "qk_norm": (True,),
    "use_qk_norm": (True,),
    "norm_type": ("rmsnorm", "RMSNorm"),
    "attention_scale": (1.0,),
    "residual_multiplier": (1.0,),
    "embedding_multiplier": (1.0,),
    "logits_scaling": (1.0,),
    "rope_interleaved": (False,),
    "is_neox_style": (True,),
    "num_experts": (0,),
}
"""Values with which a name says what is computed anyway."""


def refuse_unread(where: str, places: Sequence[tuple[str, Mapping[str, Any]]], read: Collection[str]) -> None:
    """Raise UnsupportedError, naming key and value, for the first key of `places` that might change the arithmetic.

    `places` are pairs of a prefix for messages and the keys below it, `read` the names that were read.
    """
    for prefix, fields in places:
        for name, value in fields.items():
            if name in read or name in IRRELEVANT or name in ROPE_KEYS or _IRRELEVANT_PATTERN.fullmatch(name):
                continue
            if value is None or value in ("", [], {}) or value in _WITHOUT_EFFECT.get(name, ()):
                continue
            raise UnsupportedError(
                f"{where}: {prefix}{name} {value!r}: not a key of DFlash drafters, and what it changes is not "
                "computed; "
                "remove it if it changes nothing"
            )
