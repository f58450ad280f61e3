"""Whose costs these are: a profile serves only the machine, precision and pair that it was measured on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from ..errors import CostError


@dataclass(frozen=True, slots=True)
class Identity:
    """Everything that changes what a round costs."""

    device: str
    """Name of the processor or accelerator."""
    threads: int
    """CPU threads that the engine uses."""
    dtype: str
    """Precision of the target."""
    attention: str
    """Attention backend."""
    model: str
    """Digest of the target: config, and of each weight file its size, header and a sample of its bytes."""
    drafter: str
    """Digest of the drafter: config, and every byte of its weights."""
    versions: Mapping[str, str] = field(default_factory=dict)
    """Package name to version."""

    def differences(self, other: Identity) -> tuple[str, ...]:
        """Fields that differ, each with both values; a version goes by its package."""
        mine, theirs = self._flat(), other._flat()
        names = [*mine, *(name for name in theirs if name not in mine)]
        return tuple(
            f"{name} {mine.get(name)!r} against {theirs.get(name)!r}"
            for name in names
            if mine.get(name) != theirs.get(name)
        )

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return {item.name: _plain(getattr(self, item.name)) for item in fields(self)}

    @classmethod
    def from_json(cls, value: object) -> Identity:
        """Read `to_json`; raises CostError on a missing, unknown or mistyped field."""
        names = [item.name for item in fields(cls)]
        if not isinstance(value, dict) or sorted(value) != sorted(names):
            raise CostError(f"identity {value!r}: expected an object with {', '.join(names)}")
        if not isinstance(value["threads"], int) or not isinstance(value["versions"], dict):
            raise CostError(f"identity {value!r}: expected threads as an integer and versions as an object")
        return cls(**value)

    def _flat(self) -> dict[str, object]:
        flat: dict[str, object] = {item.name: getattr(self, item.name) for item in fields(self)}
        del flat["versions"]
        return flat | {f"versions.{name}": version for name, version in sorted(self.versions.items())}


def _plain(value: object) -> object:
    return dict(value) if isinstance(value, Mapping) else value
