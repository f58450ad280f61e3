"""Every key of a GGUF file: taken over by transformers' converter, set here, irrelevant, or the reason of a refusal.

The converter knows a few keys of each architecture and skips the others without a word. What it skips is looked up
in the configuration that it made: equal to what the file says, set to it, or, where the configuration has no such
field, refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from ...errors import ModelError

IRRELEVANT = {
    "GGUF.*": "the container itself",
    "general.architecture": "chosen by it",
    "general.alignment": "where tensors lie in the file",
    "general.*": "names, authors, licence, sources and how the file was made",
    "quantize.*": "how the file was made",
    "tokenizer.ggml.model": "see tokenizer.check_kind",
    "tokenizer.ggml.pre": "see tokenizer.check_kind",
    "tokenizer.ggml.tokens": "the vocabulary that transformers reads",
    "tokenizer.ggml.token_type": "see tokenizer.complete",
    "tokenizer.ggml.merges": "read by transformers",
    "tokenizer.ggml.scores": "read by transformers",
    "tokenizer.ggml.add_bos_token": "see tokenizer.complete",
    "tokenizer.ggml.add_eos_token": "see tokenizer.complete",
    "tokenizer.ggml.add_sep_token": "for pairs of texts, which are never encoded",
    "tokenizer.ggml.add_space_prefix": "read by transformers for SentencePiece vocabularies; byte-level ones have none",
    "tokenizer.ggml.remove_extra_whitespaces": "a rule of T5 vocabularies, which are refused",
    "tokenizer.ggml.precompiled_charsmap": "a rule of T5 vocabularies, which are refused",
    "tokenizer.ggml.*_token_id": "named tokens: the border and end ids are read, the others never inserted",
    "tokenizer.ggml.*_token_ids": "named tokens of tasks that are not offered",
    "tokenizer.ggml.token_type_count": "segment embeddings, which no decoder here has",
    "tokenizer.chat_template": "read by transformers",
    "tokenizer.chat_template.*": "further templates, handed on by their names",
    "tokenizer.chat_templates": "their names",
    "tokenizer.huggingface.json": "a copy of the tokenizer in another form",
    "*.vocab_size": "the number of rows of the embedding",
    "*.rope.scaling.finetuned": "whether training knew of the scaling",
    "*.tensor_data_layout": "how the converter stored the weights, undone by it",
}
"""Patterns of keys that change no number, with the reason. The first that fits counts."""

ATTRIBUTES = {
    "attention.key_length": "head_dim",
    "attention.value_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
    "expert_feed_forward_length": "moe_intermediate_size",
    "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    "expert_weights_norm": "norm_topk_prob",
    "expert_weights_scale": "routed_scaling_factor",
    "expert_count": "num_experts",
    "expert_used_count": "num_experts_per_tok",
    "feed_forward_length": "intermediate_size",
    "use_parallel_residual": "use_parallel_residual",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.layer_norm_epsilon": "layer_norm_epsilon",
    "logit_scale": "logit_scale",
    "embedding_scale": "embedding_multiplier",
    "residual_scale": "residual_multiplier",
    "attention.scale": "attention_multiplier",
}
"""Fields of a configuration that say what a key says, where the converter does not take the key over."""

_NEUTRAL: dict[str, tuple[object, ...]] = {
    "expert_count": (0,),
    "expert_used_count": (0,),
    "expert_shared_count": (0,),
    "expert_group_count": (0, 1),
    "expert_group_used_count": (0, 1),
    "expert_weights_scale": (0.0, 1.0),
    "leading_dense_block_count": (0,),
    "nextn_predict_layers": (0,),
    "attention.sliding_window": (0,),
    "attention.causal": (True,),
    "attention.clamp_kqv": (0.0,),
    "attention.max_alibi_bias": (0.0,),
    "attention.scale": (0.0,),
    "logit_scale": (0.0, 1.0),
    "embedding_scale": (0.0, 1.0),
    "residual_scale": (0.0, 1.0),
    "attn_logit_softcapping": (0.0,),
    "final_logit_softcapping": (0.0,),
    "pooling_type": (0,),
    "rope.scale_linear": (0.0, 1.0),
}
"""Values under which a key changes nothing, so that no configuration needs a field for it."""

_ROPE = ("rope.dimension_count", "rope.freq_base")
_SCALING = "rope.scaling."
_YARN = {
    "factor": "factor",
    "original_context_length": "original_max_position_embeddings",
    "attn_factor": "attention_factor",
    "yarn_beta_fast": "beta_fast",
    "yarn_beta_slow": "beta_slow",
}


def account(path: Path, metadata: Mapping[str, Any], config: Any, notify: Callable[[str], None]) -> None:
    """Bring `config`, which transformers made of the file, in line with all `metadata`. Changes `config`.

    Raises ModelError for a key that may change numbers and that nothing here can honour. Keys of other makers'
    namespaces cannot be judged: `notify` names them.
    """
    architecture = str(metadata["general.architecture"])
    if metadata.get("general.type", "model") != "model":
        raise _refusal(path, "general.type", metadata["general.type"], "expected model, a whole one")
    if metadata.get("split.count", 1) > 1:
        raise _refusal(path, "split.count", metadata["split.count"], "a part of a model; join the parts first")
    taken = _taken_over(architecture, config)
    unknown = []
    for key, value in metadata.items():
        rest = key.removeprefix(architecture + ".")
        if rest == key:
            if not _is_irrelevant(key) and not key.startswith("split."):
                unknown.append(key)
        elif not (rest in taken or rest.startswith(_SCALING) or rest in _ROPE or _is_irrelevant(key)):
            _settle(path, key, rest, value, config)
    _set_rope(path, architecture, metadata, config)
    if unknown:
        notify(f"model {str(path)!r}: GGUF keys that Draftwood does not know are not used: {', '.join(unknown)}")


def _taken_over(architecture: str, config: Any) -> set[str]:
    """Keys, without the architecture, that the converter puts into a field of the configuration."""
    from transformers.integrations.ggml import GGUF_CONFIG_MAPPING

    for name in (config.model_type.removesuffix("_text"), architecture):
        if name in GGUF_CONFIG_MAPPING:
            return {rest for rest, field in GGUF_CONFIG_MAPPING[name].items() if field is not None and field != -1}
    return set()


def _is_irrelevant(key: str) -> bool:
    return any(fnmatchcase(key, pattern) for pattern in IRRELEVANT)


def _settle(path: Path, key: str, rest: str, value: Any, config: Any) -> None:
    """Compare or set a field for a key that the converter skips."""
    field = ATTRIBUTES.get(rest)
    if field is not None and hasattr(config, field):
        if not _same(getattr(config, field), value):
            setattr(config, field, value)
        return
    head_dim = config.hidden_size // config.num_attention_heads
    if rest in ("attention.key_length", "attention.value_length") and value == head_dim:
        return
    if value not in _NEUTRAL.get(rest, ()):
        raise _refusal(path, key, value, "transformers' converter leaves it out, and the text might change")


def _set_rope(path: Path, architecture: str, metadata: Mapping[str, Any], config: Any) -> None:
    """Base, rotated part and scaling of the positions."""
    prefix = f"{architecture}.{_SCALING}"
    stated = {key.removeprefix(prefix): value for key, value in metadata.items() if key.startswith(prefix)}
    base, rotated = (metadata.get(f"{architecture}.{rest}") for rest in ("rope.freq_base", "rope.dimension_count"))
    parameters = getattr(config, "rope_parameters", None)
    if parameters is None:
        return  # positions are not rotated
    parameters = parameters.get("full_attention", parameters)
    if base is not None and not _same(parameters["rope_theta"], base):
        parameters["rope_theta"] = base
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    share = parameters.get("partial_rotary_factor", getattr(config, "partial_rotary_factor", None))
    if rotated is not None and not _same((share or 1.0) * head_dim, rotated):
        if share is None:
            raise _refusal(path, f"{architecture}.rope.dimension_count", rotated, f"expected {head_dim}, all of a head")
        parameters["partial_rotary_factor"] = config.partial_rotary_factor = rotated / head_dim
    kind = stated.pop("type", "none")
    stated.pop("finetuned", None)
    if kind == "none" or (kind == "linear" and stated.get("factor", 1.0) in (0.0, 1.0)):
        return
    if parameters.get("rope_type") == kind:
        return  # the converter has read it
    if kind not in ("linear", "yarn") or not set(stated) <= set(_YARN):
        named = ", ".join(f"{name} = {value}" for name, value in sorted(stated.items()))
        raise _refusal(path, prefix + "type", kind, f"with {named}: expected none, linear or yarn")
    parameters |= {"rope_type": kind, **{_YARN[name]: value for name, value in stated.items()}}


def _same(ours: Any, theirs: Any) -> bool:
    """Equal, as far as a float32 in the file can tell."""
    if isinstance(ours, int | float) and isinstance(theirs, int | float):
        return math.isclose(ours, theirs, rel_tol=1e-6)
    return bool(ours == theirs)


def _refusal(path: Path, key: str, value: Any, why: str) -> ModelError:
    shown = str(value) if len(str(value)) <= 60 else str(value)[:57] + "..."
    return ModelError(
        f"model {str(path)!r}: GGUF key {key} = {shown}: {why}; use the model's safetensors checkpoint instead"
    )
