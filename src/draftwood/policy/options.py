"""A policy's options: its dataclass fields, as users give them in Python and on the command line.

A field is an option unless its metadata says otherwise. Its annotation is the type that is accepted: int, float, bool,
str, a tuple of whole numbers, each with `| None` or without.
"""

from __future__ import annotations

import numbers
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, fields
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

import numpy as np

from ..errors import UsageError

INTERNAL: Mapping[str, Any] = {"option": False}
"""Metadata of a field that no user sets."""


def about(
    help: str,
    metavar: str | None = None,
    *,
    name: str | None = None,
    flag: str | None = None,
    choices: Iterable[str] = (),
) -> dict[str, Any]:
    """Metadata of an option: what the command line says about it.

    `name` is what users call it, if not by the field's name; `flag` the command-line flag, if not that name; of a
    text, `choices` are the values that are accepted.
    """
    return {"help": help, "metavar": metavar, "option_name": name, "flag": flag, "choices": tuple(choices)}


# Options of the same name are the same flag of the command line: these belong to several policies.
CANDIDATES = about("Candidates per depth of a tree.", "K")
LARGEST_TREE = about("Largest tree (cost-aware policies).", "N")


@dataclass(frozen=True, slots=True)
class Option:
    """One setting of a policy."""

    name: str
    """As users write it."""
    field: str
    """Of the dataclass."""
    kind: type
    """int, float, bool, str or tuple (of whole numbers)."""
    length: int | None
    """How many numbers a tuple has; None: any number of them, or no tuple."""
    optional: bool
    """True when None is accepted."""
    default: Any
    help: str
    metavar: str | None
    flag: str
    """Of the command line, with its dashes."""
    choices: tuple[str, ...]
    """Values of a text; empty: any."""

    def checked(self, value: object) -> Any:
        """Return `value` in the option's own type, tuples for lists; raises UsageError for a value of another type."""
        if value is None and self.optional:
            return None
        try:
            settled = _CONVERTERS[self.kind](value)
        except TypeError as error:
            raise UsageError(f"{self.name} {value!r}: expected {self.expected}") from error
        if self.length is not None and len(settled) != self.length:
            raise UsageError(f"{self.name} {value!r}: expected {self.expected}")
        if self.choices and settled not in self.choices:
            raise UsageError(f"{self.name} {value!r}: expected one of {', '.join(self.choices)}")
        return settled

    @property
    def expected(self) -> str:
        """The accepted type in words."""
        words = _WORDS[self.kind]
        if self.length is not None:
            words = f"{self.length} whole numbers"
        return f"{words} or None" if self.optional else words


def options_of(policy: type[Any]) -> dict[str, Option]:
    """The options of a policy class, by the name a user gives. Raises TypeError for a field of no accepted type."""
    hints = get_type_hints(policy)
    found = {}
    for item in fields(policy):
        if not item.metadata.get("option", True):
            continue
        name = item.metadata.get("option_name") or item.name
        kind, length, optional = _type_of(f"{policy.__name__}.{item.name}", hints[item.name])
        found[name] = Option(
            name=name,
            field=item.name,
            kind=kind,
            length=length,
            optional=optional,
            default=None if item.default is MISSING else item.default,
            help=item.metadata.get("help", f"Option of policy {getattr(policy, 'name', policy.__name__)}."),
            metavar=item.metadata.get("metavar"),
            flag=item.metadata.get("flag") or "--" + name.replace("_", "-"),
            choices=item.metadata.get("choices", ()),
        )
    return found


def settle(policy: Any) -> None:
    """Bring the options of a policy to their types: the first line of a policy's `__post_init__`.

    A list would leave the policy without a hash, and policies are keys. Mutates the frozen dataclass while it is made.
    Raises UsageError for a value of another type.
    """
    for option in options_of(type(policy)).values():
        object.__setattr__(policy, option.field, option.checked(getattr(policy, option.field)))


def _type_of(where: str, hint: Any) -> tuple[type, int | None, bool]:
    """(kind, length, optional) of an annotation."""
    parts = get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,)
    kinds = [part for part in parts if part is not NoneType]
    if len(kinds) == 1:
        kind, optional = kinds[0], len(parts) > 1
        if kind in (int, float, bool, str):
            return kind, None, optional
        inside = get_args(kind)
        if get_origin(kind) is tuple and set(inside) <= {int, Ellipsis}:
            return tuple, None if Ellipsis in inside else len(inside), optional
    raise TypeError(f"{where}: {hint} is no type of an option; mark the field with metadata=INTERNAL")


def _whole(value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise TypeError
    return int(value)


def _real(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise TypeError
    return float(value)


def _truth(value: object) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError
    return bool(value)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError
    return str(value)


def _whole_numbers(value: object) -> tuple[int, ...]:
    if isinstance(value, str | bytes) or not isinstance(value, Iterable):
        raise TypeError
    return tuple(_whole(item) for item in value)


_CONVERTERS: Mapping[type, Any] = {int: _whole, float: _real, bool: _truth, str: _text, tuple: _whole_numbers}
_WORDS: Mapping[type, str] = {
    int: "a whole number",
    float: "a number",
    bool: "True or False",
    str: "a text",
    tuple: "whole numbers",
}
