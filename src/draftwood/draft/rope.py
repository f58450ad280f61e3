"""The rotary settings of a drafter, found wherever a config keeps them.

Older configs hold `rope_theta` beside `rope_scaling`, newer ones put both into `rope_parameters`; either may sit in
`dflash_config` or at the top level (dflash.md 1.1). All that is found must agree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import ModelError, UnsupportedError

# Types whose angles depend on a row's own position alone; dynamic and longrope look at the whole call.
ROPE_TYPES = ("default", "linear", "llama3", "yarn")

_NUMBERS = frozenset(
    [
        "rope_theta",
        "partial_rotary_factor",
        "factor",
        "original_max_position_embeddings",
        "attention_factor",
        "beta_fast",
        "beta_slow",
        "low_freq_factor",
        "high_freq_factor",
        "mscale",
        "mscale_all_dim",
    ]
)
# Positions of text are one-dimensional: all sections of a multimodal rope then turn by the same position.
_WITHOUT_EFFECT = frozenset({"mrope_section", "mrope_interleaved"})
_NEEDS = {
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "yarn": ("factor", "original_max_position_embeddings"),
}


def read_rope(where: str, places: Sequence[tuple[str, Mapping[str, Any]]], max_positions: int | None) -> dict[str, Any]:
    """Rotary parameters in transformers' `rope_parameters` form, always with `rope_theta` and `rope_type`.

    `places` are the dictionaries that may hold them, each with the prefix that names its keys in messages;
    `max_positions` stands in for a missing original length. Raises ModelError when there is no base, when two places
    contradict each other or when a parameter is missing; UnsupportedError for types and keys that are not computed.
    """
    found: dict[str, tuple[Any, str]] = {}
    for place, fields in places:
        for key in ("rope_theta", "partial_rotary_factor", "original_max_position_embeddings"):
            _merge(where, found, key, fields.get(key), f"{place}{key}")
        for spelling in ("rope_parameters", "rope_scaling"):
            inner = fields.get(spelling)
            if inner is None:
                continue
            if not isinstance(inner, Mapping):
                raise ModelError(f"{where}: {place}{spelling} {inner!r}: expected an object")
            for key, value in inner.items():
                name = "rope_type" if key == "type" else key
                _merge(where, found, name, value, f"{place}{spelling}.{key}")
    rope = {key: value for key, (value, _) in found.items()}
    if "rope_theta" not in rope:
        raise ModelError(f"{where}: no rope_theta: expected it at the top level or in rope_parameters")
    rope.setdefault("rope_type", "default")
    _check(where, rope, max_positions)
    return rope


def _merge(where: str, found: dict[str, tuple[Any, str]], key: str, value: Any, place: str) -> None:
    if value is None or key in _WITHOUT_EFFECT:
        return
    if key in _NUMBERS:
        if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
            raise ModelError(f"{where}: {place} {value!r}: expected a number above 0")
    elif key == "rope_type":
        if value not in ROPE_TYPES:
            raise UnsupportedError(f"{where}: {place} {value!r}: expected one of {', '.join(ROPE_TYPES)}")
    elif key != "truncate":
        raise UnsupportedError(f"{where}: {place} {value!r}: expected only keys of the types {', '.join(ROPE_TYPES)}")
    if key in found and found[key][0] != value:
        earlier, earlier_place = found[key]
        raise ModelError(f"{where}: {earlier_place} {earlier!r} contradicts {place} {value!r}: expected one value")
    found.setdefault(key, (value, place))


def _check(where: str, rope: dict[str, Any], max_positions: Any) -> None:
    if rope.pop("partial_rotary_factor", 1.0) != 1.0:
        raise UnsupportedError(f"{where}: partial_rotary_factor: expected 1, DFlash heads rotate whole")
    if rope["rope_type"] in ("yarn", "llama3") and max_positions is not None:
        # As in transformers, a scaling dictionary without the original length means the model's own.
        rope.setdefault("original_max_position_embeddings", max_positions)
    missing = [key for key in _NEEDS[rope["rope_type"]] if key not in rope]
    if missing:
        raise ModelError(f"{where}: rope type {rope['rope_type']!r} lacks {', '.join(missing)}")
