"""A checkpoint's configuration: what its publisher wrote, in the types that the model's class declares.

transformers keeps keys that a class does not declare as bare attributes, which nothing reads, and stops with a
validation error of many lines at a number in quotes. Here a key is declared, irrelevant, or named.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from ...errors import ModelError, UnsupportedError
from ...files import read_object
from ..source import Notify
from .reading import is_declared, is_named_in_code
from .rope import check_rope

CONFIG = "config.json"

IRRELEVANT = {
    "architectures": "the class that was saved; the type of model chooses",
    "auto_map": "code of the checkpoint, which never runs",
    "model_type": "chosen by it",
    "torch_dtype": "the number type, read apart",
    "dtype": "the number type, read apart",
    "transformers_version": "who wrote the file",
    "transformers.js_config": "for another library",
    "unsloth_version": "who wrote the file",
    "unsloth_fixed": "who wrote the file",
    "use_cache": "whether transformers keeps its own cache",
    "pretraining_tp": "how training was spread; one product gives the same numbers",
    "gradient_checkpointing": "training",
    "initializer_range": "training",
    "output_router_logits": "an output for training",
    "router_aux_loss_coef": "training",
    "router_z_loss_coef": "training",
    "task_specific_params": "suggestions for pipelines",
    "torchscript": "an export that is not made",
    "tf_legacy_loss": "another framework",
    "attn_implementation": "which attention transformers would take; ours is checked against its eager one",
    "use_flash_attn": "which attention transformers would take; ours is checked against its eager one",
    "vision_config": "the part for pictures, which texts do not reach",
    "audio_config": "the part for sound, which texts do not reach",
    "tokenizer_class": "read with the tokenizer",
    "num_nextn_predict_layers": "layers that draft, which the model's own text does not use",
    "attention_softmax_in_fp32": "where a softmax is rounded; ours is checked against transformers' own",
    "masked_softmax_fusion": "a faster kernel for the same numbers",
    "skip_bias_add": "how training fused its products",
    "skip_bias_add_qkv": "how training fused its products",
    "output_attentions": "an output that nobody asks for",
}
"""Keys that no class needs to declare, with the reason."""
NEUTRAL = {
    **dict.fromkeys(("moe_layer_freq", "full_attn_mod", "interpolate_factor"), 1),
    **dict.fromkeys(("is_causal", "causal", "use_rope", "norm_topk_prob"), True),
}
"""Values of undeclared keys that ask for what is computed anyway; any other value is refused, false included."""
_NEUTRAL_ONE = re.compile(r".*(scale|scaling|multiplier|scaling_factor)")
"""Factors, which change nothing where they are 1."""
TWINS = {"hidden_act": "hidden_activation", "experts_per_token": "num_experts_per_tok"}
"""Undeclared keys that repeat a declared one; refused where the two differ."""
_IRRELEVANT_PATTERN = re.compile(r"_.*|.*dropout.*|.*_pdrop|summary_.*|.*_token_id|.*_token_index|id2label|label2id")
"""Private bookkeeping, training noise, heads for classification and names of tokens."""
_GENERATION = re.compile(
    r"temperature|top_[kp]|min_p|typical_p|do_sample|num_beams|max_length|min_length|repetition_penalty|"
    r"no_repeat_ngram_size|length_penalty|early_stopping|bad_words_ids|forced_.*|suppress_tokens|"
    r"begin_suppress_tokens|num_return_sequences|remove_invalid_values|diversity_penalty|num_beam_groups|"
    r"encoder_no_repeat_ngram_size|exponential_decay_length_penalty|output_scores|prefix"
)
"""Settings of sampling that old checkpoints keep here; those that count stand in generation_config.json."""
_ROPE = re.compile(
    r"rope_theta|rope_scaling|partial_rotary_factor|rope_local_base_freq|original_max_position_embeddings"
)
"""Older spellings of `rope_parameters`, which classes with rotated positions read."""
_SIZES = (
    "vocab_size", "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim",
    "max_position_embeddings",
)  # fmt: skip
_FUNCTIONS = ("hidden_act", "hidden_activation", "activation_function")
_ARITHMETIC = re.compile(
    r"soft_?cap|scal(e|ing)|multiplier|window|sink|alibi|norm|clip|clamp|rope|rotary|quant|bias|expert|router|moe|"
    r"residual|head_dim|attn|attention|hidden|layer|embedding|activation|act_fn|logit|mlp|conv|ssm|state|query|key|gate|head|text_config",
    re.IGNORECASE,
)
"""Words in the name of a key from which on it must be taken for a part of the arithmetic."""


def read_config(folder: Path, name: str, notify: Notify) -> Any:
    """The transformers configuration of a checkpoint folder.

    Numbers in quotes, whole floats and 0 or 1 for a truth value are read as what the class declares. Raises ModelError
    or UnsupportedError, in one line, for a file that cannot be read, a type of model without a built-in class, a
    value that is not of the declared type, packed weights, and an undeclared key that sounds like arithmetic; other
    undeclared keys are named to `notify`.
    """
    from huggingface_hub.errors import StrictDataclassError
    from transformers import CONFIG_MAPPING

    raw = read_object(folder / CONFIG, lambda line: ModelError(f"model {name!r}: {line}"))
    kind = raw.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        own = "its code is its own and never runs; " if "auto_map" in raw else ""
        raise UnsupportedError(
            f"model {name!r}: {CONFIG}: model_type {kind!r}: {own}expected one that this transformers has built in"
        )
    if "auto_map" in raw:
        notify(f"model {name!r}: the checkpoint's own code (auto_map) is not run, but transformers' class for {kind}")
    packed = raw.get("quantization_config") or raw.get("compression_config")
    if packed:
        method = packed.get("quant_method", "unknown") if isinstance(packed, dict) else packed
        raise UnsupportedError(
            f"model {name!r}: {CONFIG}: quantization_config ({method}): packed weights are not supported; use the "
            "checkpoint in bfloat16 or a GGUF file"
        )
    declared = CONFIG_MAPPING[kind]
    _check_keys(raw, declared, name, notify)
    typed = _typed(raw, declared)
    _check_values(typed, declared, f"model {name!r}: {CONFIG}")
    try:
        # Some other form of results than the engine reads would only be a matter of form.
        return declared.from_dict({**typed, "_name_or_path": str(folder), "return_dict": True})
    except StrictDataclassError as error:
        raise ModelError(f"model {name!r}: {CONFIG}: {' '.join(str(error).split())}") from error
    except (ValueError, TypeError, KeyError, AttributeError, ArithmeticError) as error:
        raise ModelError(f"model {name!r}: {CONFIG}: {type(error).__name__}: {' '.join(str(error).split())}") from error


def context_limit(config: Any, name: str, notify: Notify) -> int:
    """Positions that a text may reach: what the configuration names, or what its scaling extends that to.

    `config` is that of the text part. Raises UnsupportedError where nothing is named.
    """
    fields = ("max_position_embeddings", "n_positions", "seq_length", "max_sequence_length", "max_seq_len", "n_ctx")
    named = next((value for field in fields if isinstance(value := getattr(config, field, None), int)), None)
    if named is None:
        raise UnsupportedError(f"{name}: the configuration names no context length: expected max_position_embeddings")
    rope = getattr(config, "rope_parameters", None) or {}
    rope = rope.get("full_attention") or rope
    original, factor = rope.get("original_max_position_embeddings"), rope.get("factor")
    if not original or not factor or rope.get("rope_type") not in ("yarn", "llama3", "longrope"):
        return named
    extended = int(original * factor)
    if named >= extended or rope["rope_type"] == "llama3":
        return named
    notify(
        f"model {name!r}: {rope['rope_type']} scaling (rope_parameters) extends {original} positions {factor} times: "
        f"context of {extended} tokens, though max_position_embeddings is {named}"
    )
    return extended


def _check_values(typed: Mapping[str, Any], declared: Any, place: str) -> None:
    """Refuse sizes below 1, unknown functions and number types, and two spellings of one key that disagree."""
    from transformers.activations import ACT2FN

    for old, new in {**getattr(declared, "attribute_map", {}), "torch_dtype": "dtype"}.items():
        if old in typed and new in typed and typed[old] != typed[new]:
            both = f"{old} = {_short(typed[old])} but {new} = {_short(typed[new])}"
            raise ModelError(f"{place}: {both}: which one the model was trained with is not said; keep one")
    sizes = {key: key for key in _SIZES} | getattr(declared, "attribute_map", {})
    for key, value in typed.items():
        if sizes.get(key) in _SIZES and isinstance(value, int) and value < 1:
            raise ModelError(f"{place}: {key} = {value}: expected a whole number from 1")
        if key in _FUNCTIONS and isinstance(value, str) and value not in ACT2FN:
            raise UnsupportedError(f"{place}: {key} {value!r}: expected one that transformers has, as silu or gelu")
        if key in ("dtype", "torch_dtype") and isinstance(value, str) and value != "auto":
            known = isinstance(getattr(torch, value.removeprefix("torch."), None), torch.dtype)
            if not known:
                raise UnsupportedError(f"{place}: {key} {value!r}: expected float64, float32, float16 or bfloat16")
        part = getattr(declared, "sub_configs", {}).get(key)
        if key == "text_config" and isinstance(value, dict) and dataclasses.is_dataclass(part):
            _check_values(value, part, f"{place}: text_config")
    check_rope(typed, declared, place)


def _check_keys(raw: Mapping[str, Any], declared: Any, name: str, notify: Notify, prefix: str = "") -> None:
    """Name the keys that the class does not declare; refuse those that sound like arithmetic."""
    rotates = is_declared(declared, "rope_parameters")
    defaults = {field.name: field.default for field in dataclasses.fields(declared)}
    unknown = []
    for key, value in raw.items():
        part = getattr(declared, "sub_configs", {}).get(key)
        if key == "text_config" and isinstance(value, dict) and part is not None and dataclasses.is_dataclass(part):
            _check_keys(value, part, name, notify, f"{key}.")
        if is_declared(declared, key) or key in IRRELEVANT or (rotates and _ROPE.fullmatch(key)):
            continue
        if is_named_in_code(declared, key) or _is_neutral(key, value):
            continue
        if key in TWINS and TWINS[key] in defaults and value == raw.get(TWINS[key], defaults[TWINS[key]]):
            continue
        off = key not in NEUTRAL and value in (None, False, "", [], {})
        if off or value is None or _IRRELEVANT_PATTERN.fullmatch(key):
            continue
        if not _GENERATION.fullmatch(key):
            unknown.append(key)
    for key in unknown:
        if key in NEUTRAL or _ARITHMETIC.search(key):
            raise UnsupportedError(
                f"model {name!r}: {CONFIG}: {prefix}{key} = {_short(raw[key])}: transformers' {declared.__name__} "
                "has no such "
                "field, and the text might change without it; correct the key, or remove it if it means nothing"
            )
    if unknown:
        named = ", ".join(f"{prefix}{key} = {_short(raw[key])}" for key in unknown)
        notify(
            f"model {name!r}: {CONFIG}: keys that transformers' {declared.__name__} does not have are not used: {named}"
        )


def _is_neutral(key: str, value: Any) -> bool:
    if key in NEUTRAL:
        return bool(value == NEUTRAL[key])
    return value == 1 and not isinstance(value, bool) and _NEUTRAL_ONE.fullmatch(key) is not None


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _typed(raw: Mapping[str, Any], declared: Any) -> dict[str, Any]:
    """`raw` with values in the declared types, where they mean the same."""
    if not dataclasses.is_dataclass(declared):
        return dict(raw)
    kinds = {field.name: field.type for field in dataclasses.fields(declared)}
    kinds |= {old: kinds[new] for old, new in getattr(declared, "attribute_map", {}).items() if new in kinds}
    parts = getattr(declared, "sub_configs", {})
    found = {}
    for key, value in raw.items():
        if key in parts and isinstance(value, dict) and isinstance(parts[key], type):
            found[key] = _typed(value, parts[key])
        elif key in ("rope_parameters", "rope_scaling") and isinstance(value, dict):
            found[key] = _typed_rope(value)
        elif _ROPE.fullmatch(key):
            found[key] = _number(value)
        else:
            found[key] = _as_declared(value, kinds.get(key))
    return found


def _typed_rope(parameters: Mapping[str, Any]) -> dict[str, Any]:
    names = ("rope_type", "type")
    return {
        key: _typed_rope(value) if isinstance(value, dict) else value if key in names else _number(value)
        for key, value in parameters.items()
    }


def _as_declared(value: Any, kind: Any) -> Any:
    """The value as the declared type, or unchanged where it is no spelling of one."""
    kinds = (
        typing.get_args(kind)
        if isinstance(kind, types.UnionType) or typing.get_origin(kind) is typing.Union
        else (kind,)
    )
    if value is None or str in kinds or Any in kinds:
        return value
    number = _number(value)
    if bool in kinds and (isinstance(number, bool) or number in (0, 1)):
        return bool(number)
    if isinstance(number, bool) or not isinstance(number, int | float):
        return value
    if int in kinds and number == int(number):
        return int(number)
    return float(number) if float in kinds else value


def _number(value: Any) -> Any:
    """The number or truth value that a string spells; anything else unchanged."""
    if not isinstance(value, str):
        return value
    try:
        number = json.loads(value.strip().lower())
    except ValueError:
        return value
    return value if isinstance(number, float) and not math.isfinite(number) else number
