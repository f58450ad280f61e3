"""The `config.json` of a DFlash drafter, read and checked (dflash.md sections 1.1 to 1.4)."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ..errors import ModelError, UnsupportedError
from ..files import read_object
from .keys import refuse_unread
from .rope import read_rope

Notify = Callable[[str], None]

ARCHITECTURE = "DFlashDraftModel"
DEFAULT_BLOCK_SIZE = 16
_LAYER_TYPES = ("full_attention", "sliding_attention")

# Fields that only other drafters of the family have; their checkpoints compute something else.
_DIALECT_FIELDS = {
    "conv_kernel_size": "DFlash2",
    "selector_rank": "DFlash2",
    "projector_type": "Domino or DSpark",
    "speculators_model_type": "speculators",
}


@dataclass(frozen=True, slots=True)
class LayerRule:
    """What the rows of one draft layer see."""

    window: int | None
    """A key is visible iff q_pos - k_pos < window, and in a bidirectional layer k_pos - q_pos < window."""
    causal: bool
    """Whether block slot a sees only the slots up to a."""


@dataclass(frozen=True, slots=True)
class DFlashConfig:
    """Sizes and conventions of a DFlash drafter."""

    where: str
    """The file, as it is named in messages."""
    hidden_size: int
    """h, equal to the target's."""
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int | None
    """The target's vocabulary as the drafter's authors saw it; None when not stated."""
    rms_norm_eps: float
    attention_bias: bool
    """Biases on all four projections, the output one included."""
    block_size: int
    """B, the pending token and the drafted positions."""
    mask_token_id: int | None
    """Row of the target's embedding that stands for an unknown token; None until `fill_guesses`."""
    target_layer_ids: tuple[int, ...] | None
    """Tapped target layers, 0-based, in the order of their concatenation; None until `fill_guesses`."""
    num_target_layers: int | None
    layers: tuple[LayerRule, ...]
    rope: Mapping[str, Any]
    """Rotary parameters in transformers' `rope_parameters` form."""
    input_embedding_scale: float
    output_multiplier: float
    final_logit_softcapping: float | None

    @property
    def depth(self) -> int:
        """D, the positions that a whole block scores."""
        return self.block_size - 1


class _Fields:
    """Lookup of one name: `dflash_config` first, then the top level, then the default; null counts as absent."""

    def __init__(self, where: str, config: Mapping[str, Any]) -> None:
        inner = config.get("dflash_config")
        if inner is not None and not isinstance(inner, Mapping):
            raise ModelError(f"{where}: dflash_config {inner!r}: expected an object")
        self.where = where
        self.places: tuple[tuple[str, Mapping[str, Any]], ...] = (("dflash_config.", inner or {}), ("", config))
        self.read = {"dflash_config"}
        """Names that were asked for."""

    def get(self, name: str) -> Any:
        self.read.add(name)
        (_, inner), (_, outer) = self.places
        if inner.get(name) is not None and outer.get(name) not in (None, inner[name]):
            raise ModelError(
                f"{self.where}: dflash_config.{name} {inner[name]!r} contradicts {name} {outer[name]!r}: expected "
                "one value"
            )
        return outer.get(name) if inner.get(name) is None else inner[name]

    def integer(self, name: str, least: int) -> int | None:
        value = self.get(name)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < least):
            raise ModelError(f"{self.where}: {name} {value!r}: expected an integer of at least {least}")
        return value

    def required(self, name: str) -> int:
        value = self.integer(name, 1)
        if value is None:
            raise ModelError(f"{self.where}: {name} is missing: expected an integer of at least 1")
        return value

    def positive(self, name: str) -> float | None:
        value = self.get(name)
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < math.inf:
            raise ModelError(f"{self.where}: {name} {value!r}: expected a finite number above 0")
        return float(value)

    def flag(self, name: str) -> bool | None:
        value = self.get(name)
        if value is not None and not isinstance(value, bool):
            raise ModelError(f"{self.where}: {name} {value!r}: expected true or false")
        return value


def read_config(folder: Path) -> DFlashConfig:
    """Read `config.json` of a drafter folder.

    Raises ModelError for a missing or malformed file and for values out of range; UnsupportedError for drafters and
    conventions that are not computed here.
    """
    path = folder / "config.json"
    if not path.exists():
        raise ModelError(f"drafter {folder}: no config.json in it")
    return parse_config(str(path), read_object(path, lambda line: ModelError(f"drafter {folder}: {line}")))


def parse_config(where: str, config: Mapping[str, Any]) -> DFlashConfig:
    """The config of `read_config` from its JSON object; `where` names it in messages. Raises as `read_config`."""
    fields = _Fields(where, config)
    _refuse_dialects(fields)
    num_heads = fields.required("num_attention_heads")
    num_kv_heads = fields.integer("num_key_value_heads", 1) or num_heads
    hidden_size = fields.required("hidden_size")
    # A wrong guess cannot pass: the shapes of q_norm and of the projections are compared with it.
    head_dim = fields.integer("head_dim", 1) or hidden_size // num_heads
    if num_heads % num_kv_heads:
        raise ModelError(f"{where}: num_key_value_heads {num_kv_heads}: expected a divisor of {num_heads} heads")
    if head_dim % 2 or not head_dim:
        raise ModelError(f"{where}: head_dim {head_dim}: expected an even number, rotary halves it")
    num_layers = fields.required("num_hidden_layers")
    found = DFlashConfig(
        where=where,
        hidden_size=hidden_size,
        intermediate_size=fields.required("intermediate_size"),
        num_layers=num_layers,
        num_heads=num_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        vocab_size=fields.integer("vocab_size", 1),
        rms_norm_eps=fields.positive("rms_norm_eps") or 1e-6,
        attention_bias=fields.flag("attention_bias") or False,
        block_size=fields.integer("block_size", 2) or DEFAULT_BLOCK_SIZE,
        mask_token_id=fields.integer("mask_token_id", 0),
        target_layer_ids=_layer_ids(fields),
        num_target_layers=fields.integer("num_target_layers", 1),
        layers=_layer_rules(fields, num_layers),
        rope=MappingProxyType(read_rope(where, fields.places, fields.integer("max_position_embeddings", 1))),
        input_embedding_scale=fields.positive("input_embedding_scale") or 1.0,
        output_multiplier=fields.positive("output_multiplier") or 1.0,
        final_logit_softcapping=fields.positive("final_logit_softcapping"),
    )
    refuse_unread(where, fields.places, fields.read)
    return found


def default_target_layers(num_layers: int, num_target_layers: int) -> tuple[int, ...]:
    """Tapped layers of a checkpoint that names none: evenly from layer 1 to T - 3 (dflash.md 1.3)."""
    if num_layers == 1:
        return (num_target_layers // 2,)
    step = (num_target_layers - 4) / (num_layers - 1)
    return tuple(round(1 + i * step) for i in range(num_layers))


def fill_guesses(
    config: DFlashConfig, num_taps: int, num_target_layers: int, tokenizer_len: int | None, notify: Notify
) -> DFlashConfig:
    """Complete a config that names no tapped layers or no mask token, and say so through `notify`.

    `num_taps` is the tap count by the width of `fc`, `tokenizer_len` the number of the target's tokens. Raises
    ModelError when a guess would not be sound.
    """
    if config.target_layer_ids is None:
        layers = default_target_layers(config.num_layers, config.num_target_layers or num_target_layers)
        if len(layers) != num_taps or config.num_target_layers not in (None, num_target_layers):
            raise ModelError(
                f"{config.where}: target_layer_ids is missing and cannot be guessed: the usual formula gives "
                f"{len(layers)} layers of a {config.num_target_layers or num_target_layers}-layer target, fc.weight "
                f"takes {num_taps} and this target has {num_target_layers} layers"
            )
        notify(f"{config.where}: target_layer_ids is missing, guessed {list(layers)} (0-based)")
        config = replace(config, target_layer_ids=layers)
    if config.mask_token_id is None:
        if tokenizer_len is None:
            raise ModelError(f"{config.where}: mask_token_id is missing: expected a row of the target's embedding")
        notify(f"{config.where}: mask_token_id is missing, guessed {tokenizer_len}, the first id without a token")
        config = replace(config, mask_token_id=tokenizer_len)
    return config


def check_layer_ids(config: DFlashConfig, num_target_layers: int) -> None:
    """Raise ModelError unless every tapped layer is a 0-based layer of the target below its last one.

    The last layer is out because transformers hands out its state after the final norm (dflash.md 2.1).
    """
    for layer in config.target_layer_ids or ():
        if layer > num_target_layers - 2:
            # Layer i of the other convention, an index into the hidden states with the embedding first, is i - 1 here.
            hint = "; if they count the embedding as 0, each is one less here" if layer <= num_target_layers else ""
            raise _bad_layer(config.where, layer, f"0..{num_target_layers - 2}{hint}")


def _bad_layer(where: str, layer: object, span: str) -> ModelError:
    return ModelError(f"{where}: target_layer_ids holds {layer!r}: expected distinct 0-based layer ids in {span}")


def _layer_ids(fields: _Fields) -> tuple[int, ...] | None:
    ids = fields.get("target_layer_ids")
    if ids is None:
        return None
    layers = fields.integer("num_target_layers", 1)
    span = f"0..{layers - 2}" if layers else "0..layers - 2"
    if not isinstance(ids, list) or not ids:
        raise ModelError(f"{fields.where}: target_layer_ids {ids!r}: expected a list of 0-based layer ids in {span}")
    for index, layer in enumerate(ids):
        if isinstance(layer, bool) or not isinstance(layer, int) or layer < 0 or layer in ids[:index]:
            raise _bad_layer(fields.where, layer, span)
    return tuple(ids)


def _layer_rules(fields: _Fields, num_layers: int) -> tuple[LayerRule, ...]:
    """Window and causality per layer; sliding layers are causal unless the config says otherwise (dflash.md 2.3)."""
    where, types, window = fields.where, fields.get("layer_types"), fields.integer("sliding_window", 1)
    if types is None:
        first_sliding = fields.integer("max_window_layers", 0)
        if fields.flag("use_sliding_window") and window and (first_sliding is None or first_sliding < num_layers):
            raise ModelError(f"{where}: use_sliding_window true without layer_types: expected {num_layers} layer types")
        types = ["full_attention"] * num_layers
    if not isinstance(types, list) or len(types) != num_layers:
        raise ModelError(f"{where}: layer_types {types!r}: expected {num_layers} entries, one a draft layer")
    for kind in types:
        if kind not in _LAYER_TYPES:
            raise UnsupportedError(f"{where}: layer type {kind!r}: expected one of {', '.join(_LAYER_TYPES)}")
    if "sliding_attention" in types and (window is None or fields.flag("use_sliding_window") is False):
        raise ModelError(
            f"{where}: sliding_attention layers with sliding_window {window} and use_sliding_window "
            f"{fields.get('use_sliding_window')}: expected a window of at least 1"
        )
    causal = _causal(fields)
    return tuple(
        LayerRule(window if sliding else None, sliding if causal is None else causal)
        for sliding in (kind == "sliding_attention" for kind in types)
    )


def _causal(fields: _Fields) -> bool | None:
    """The one answer of the three names that the dialects use for it; None when none is given."""
    given = {name: fields.flag(name) for name in ("is_causal", "causal_head", "causal")}
    stated = {name: value for name, value in given.items() if value is not None}
    if len(set(stated.values())) > 1:
        raise ModelError(f"{fields.where}: {stated} contradict each other: expected one answer")
    return next(iter(stated.values()), None)


def _refuse_dialects(fields: _Fields) -> None:
    names = fields.get("architectures")
    if names is not None and names != [ARCHITECTURE]:
        raise UnsupportedError(f"{fields.where}: architectures {names!r}: expected [{ARCHITECTURE!r}]")
    for name, dialect in _DIALECT_FIELDS.items():
        if fields.get(name) is not None:
            raise UnsupportedError(
                f"{fields.where}: {name} {fields.get(name)!r} belongs to {dialect} drafters: expected {ARCHITECTURE}"
            )
    for name in ("hidden_act", "hidden_activation"):
        if fields.get(name) not in (None, "silu"):
            raise UnsupportedError(f"{fields.where}: {name} {fields.get(name)!r}: expected 'silu'")
