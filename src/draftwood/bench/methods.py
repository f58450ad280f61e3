"""Outside baselines: functions of a user's file that decode under the same timer and the same output gate."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ..errors import UsageError

Method = Callable[[list[int], int], Sequence[int]]
"""(prompt ids, max tokens) -> output ids, greedy, the prompt left out and an end token kept."""
PREPARE = "prepare"


@dataclass(frozen=True, slots=True)
class Pair:
    """What `prepare` of a methods file gets: the pair that the other rows use."""

    model: str
    drafter: str | None
    """Local folder of the drafter; None without one."""
    target: Any
    """The loaded model object of the target, whose weights a second handle may share; None where there is none."""
    tokenizer: Any
    dtype: str
    device: str
    end_ids: tuple[int, ...]
    """Ids at which an output ends."""


def load_methods(path: str | Path, pair: Pair) -> dict[str, Method]:
    """Run the file and return its methods by name.

    Methods are its public functions of two arguments. `prepare(pair)`, if it is there, runs first and may return
    more of them in a dictionary. Raises UsageError, one line, for a file that cannot be read or run, or without any.
    """
    module = _run_file(Path(path))
    methods: dict[str, Method] = {}
    prepare = getattr(module, PREPARE, None)
    if prepare is not None:
        made = prepare(pair)
        if made is not None and not (isinstance(made, dict) and all(callable(method) for method in made.values())):
            raise UsageError(f"methods file {path}: prepare must return functions by name, or nothing")
        methods |= made or {}
    by_place = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    for name, value in vars(module).items():
        own = inspect.isfunction(value) and value.__module__ == module.__name__
        if own and not name.startswith("_") and name != PREPARE:
            parameters = inspect.signature(value).parameters.values()
            needed = [item for item in parameters if item.default is inspect.Parameter.empty]
            if len(needed) == 2 and all(item.kind in by_place for item in needed):
                methods[name] = value
    if not methods:
        raise UsageError(f"methods file {path}: no function of (prompt_ids, max_tokens)")
    return methods


def _run_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise UsageError(f"methods file {path}: no such file")
    spec = importlib.util.spec_from_file_location(f"draftwood_methods_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise UsageError(f"methods file {path}: expected a Python file (.py)")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except (SyntaxError, ImportError) as error:
        raise UsageError(f"methods file {path}: cannot be imported ({error})") from error
    return module
