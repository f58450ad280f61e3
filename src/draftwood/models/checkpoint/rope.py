"""Rotated positions of a configuration: each key is read by the kind of scaling, each number is possible.

transformers only logs keys that a kind does not read, and of two places that disagree it takes one in silence.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from ...errors import ModelError, UnsupportedError
from .reading import is_declared, is_named_in_code

READ = {
    "default": set[str](),
    "linear": {"factor"},
    "dynamic": {"factor"},
    "proportional": {"factor"},
    "yarn": {"factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim", "truncate"},
    "longrope": {"factor", "attention_factor", "short_factor", "long_factor"},
    "llama3": {"factor", "low_freq_factor", "high_freq_factor"},
}
"""What each kind of scaling takes, beside what all take."""
COMMON = {"rope_type", "type", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings"}
"""What any kind may hold: without scaling the original length changes no number."""
IRRELEVANT_ROPE = {"finetuned": "how the model was trained"}
"""Keys that no kind needs to read, with the reason."""
_POSITIVE = ("factor", "rope_theta", "partial_rotary_factor", "original_max_position_embeddings")
_LISTS = ("short_factor", "long_factor")


def check_rope(raw: Mapping[str, Any], declared: Any, place: str) -> None:
    """Check what a configuration's JSON says of rotated positions; `place` begins each line.

    Raises ModelError for places that disagree and impossible numbers, UnsupportedError for kinds and keys that
    transformers' class does not read.
    """
    spellings = {key: raw[key] for key in ("rope_parameters", "rope_scaling") if isinstance(raw.get(key), dict)}
    if all(spellings.get(key) for key in ("rope_parameters", "rope_scaling")):
        older = {"rope_theta": raw.get("rope_theta"), **raw["rope_scaling"]}
        for key, value in raw["rope_parameters"].items():
            _agree(place, f"rope_parameters.{key}", value, f"rope_scaling.{key}", older.get(key))
    for name, parameters in spellings.items():
        parts = {f"{name}.{key}": part for key, part in parameters.items() if isinstance(part, dict)}
        for path, part in (parts or {name: parameters}).items():
            for key in () if parts else ("rope_theta", "partial_rotary_factor"):
                if raw.get(key) is not None and key in part:
                    _agree(place, f"{path}.{key}", part[key], key, raw[key])
            _check_part(part, declared, f"{place}: {path}")
    for key in ("partial_rotary_factor", "rope_local_base_freq"):
        if raw.get(key) not in (None, 1) and not is_declared(declared, key):
            _need_reader(declared, key, raw[key], place)


def _check_part(part: Mapping[str, Any], declared: Any, place: str) -> None:
    """One set of parameters: of the model, or of one type of layers."""
    if "type" in part and "rope_type" in part:
        _agree(place, "rope_type", part["rope_type"], "type", part["type"])
    kind = part.get("rope_type", part.get("type", "default"))
    if kind not in READ:
        if isinstance(kind, str) and is_named_in_code(declared, kind):
            return  # a kind of the model's own
        raise UnsupportedError(f"{place}.rope_type {kind!r}: expected one of {', '.join(READ)}")
    extra = getattr(declared, "ignore_keys_at_rope_validation", None) or ()
    for key, value in part.items():
        known = READ[kind] | COMMON | {*IRRELEVANT_ROPE, *extra}
        # Positions with several axes have a refusal of their own, when the model is built.
        if key not in known and not key.startswith("mrope") and value not in (None, False):
            raise UnsupportedError(
                f"{place}.{key} = {json.dumps(value)}: positions of rope_type {kind!r} do not read it; "
                f"expected {', '.join(sorted(READ[kind] | COMMON))}; correct the key, or remove it if it means nothing"
            )
        if key in READ[kind] | COMMON and key not in ("rope_type", "type", "truncate"):
            _check_number(key, value, place, required=key == "factor" and kind not in ("longrope", "proportional"))
    if part.get("partial_rotary_factor") not in (None, 1) and kind != "proportional":
        _need_reader(declared, "partial_rotary_factor", part["partial_rotary_factor"], place)


def _check_number(key: str, value: Any, place: str, *, required: bool) -> None:
    if value is None and not required:
        return
    for number in value if key in _LISTS and isinstance(value, list) else [value]:
        is_number = isinstance(number, int | float) and not isinstance(number, bool) and math.isfinite(number)
        if not is_number or (number <= 0 and key in _POSITIVE):
            kind = "a number above 0" if key in _POSITIVE else "a number"
            raise ModelError(f"{place}.{key} = {json.dumps(value)}: expected {kind}")


def _agree(place: str, one: str, value: Any, other: str, other_value: Any) -> None:
    if value != other_value:
        raise ModelError(
            f"{place}: {one} = {json.dumps(value)} but {other} = {json.dumps(other_value)}: which one the model was "
            "trained with is not said; keep one"
        )


def _need_reader(declared: Any, key: str, value: Any, place: str) -> None:
    if not is_named_in_code(declared, key):
        raise UnsupportedError(
            f"{place}: {key} = {json.dumps(value)}: transformers' {declared.__name__} and its model do not read it, "
            "and the text might change without it; correct the key, or remove it if it means nothing"
        )
