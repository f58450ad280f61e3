"""Which keys a class of transformers reads: by its fields, or by name in its own code."""

from __future__ import annotations

import dataclasses
import re
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any


def is_declared(declared: Any, key: str) -> bool:
    """Whether the configuration class has a field of that name, or an older name of one."""
    return key in declared.attribute_map or any(field.name == key for field in dataclasses.fields(declared))


def is_named_in_code(declared: Any, key: str) -> bool:
    """Whether the code of the configuration or of its model takes the key, as `config.key` or in quotes.

    Keys that a class only converts (GPT-NeoX's `rotary_pct`) are no fields of it.
    """
    return re.search(rf"(\bconfig\.|[\"']){re.escape(key)}\b", _code(declared)) is not None


@cache
def _code(declared: Any) -> str:
    """Text of the modules of the class and its bases in transformers.models, the models beside them included."""
    owners = {cls.__module__ for cls in declared.__mro__ if cls.__module__.startswith("transformers.models.")}
    specs = [
        find_spec(name) for name in sorted(owners | {name.replace(".configuration_", ".modeling_") for name in owners})
    ]
    return "\n".join(Path(spec.origin).read_text(encoding="utf-8") for spec in specs if spec and spec.origin)
