"""A checkpoint's configuration: what its publisher wrote, in the types that the model's class declares.

transformers keeps keys that a class does not declare as bare attributes, which nothing reads, and stops with a
validation error of many lines at a number in quotes. Here a key is declared, irrelevant, or named.
"""

from __future__ import annotations

import dataclasses
import json
import re
import types
import typing
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import ModelError, UnsupportedError
from ...files import read_object
from ..source import Notify

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
}
"""Keys that no class needs to declare, with the reason."""
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
_ARITHMETIC = re.compile(
    r"soft_?cap|scal(e|ing)|multiplier|window|sink|alibi|norm|clip|clamp|rope|rotary|quant|bias|expert|router|moe|"
    r"residual|head_dim|attn|attention|hidden|layer|embedding|activation|act_fn|logit|mlp|conv|ssm|state|query|key|gate",
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
    if kind not in CONFIG_MAPPING:
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
    try:
        return declared.from_dict({**_typed(raw, declared), "_name_or_path": str(folder)})
    except StrictDataclassError as error:
        raise ModelError(f"model {name!r}: {CONFIG}: {' '.join(str(error).split())}") from error
    except (ValueError, TypeError, KeyError, AttributeError) as error:
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


def _check_keys(raw: Mapping[str, Any], declared: Any, name: str, notify: Notify, prefix: str = "") -> None:
    """Name the keys that the class does not declare; refuse those that sound like arithmetic."""
    fields = {field.name for field in dataclasses.fields(declared)} | set(declared.attribute_map)
    rotates = "rope_parameters" in fields
    unknown = []
    for key, value in raw.items():
        part = getattr(declared, "sub_configs", {}).get(key)
        if key == "text_config" and isinstance(value, dict) and part is not None and dataclasses.is_dataclass(part):
            _check_keys(value, part, name, notify, f"{key}.")
        known = key in fields or key in IRRELEVANT or (rotates and _ROPE.fullmatch(key))
        if known or value in (None, False, "", [], {}) or _IRRELEVANT_PATTERN.fullmatch(key):
            continue
        if not _GENERATION.fullmatch(key):
            unknown.append(key)
    for key in unknown:
        if _ARITHMETIC.search(key):
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
        return json.loads(value.strip().lower())
    except ValueError:
        return value
