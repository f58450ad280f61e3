"""What is measured: a pair in an engine, seen from below."""

from __future__ import annotations

from typing import Protocol

from ...cost.identity import Identity
from ...models.text import TextCodec
from ..state import EngineState


class Measurable(Protocol):
    """What measuring reads of an engine."""

    @property
    def state(self) -> EngineState:
        """Target, drafter, pool and settings."""

    @property
    def codec(self) -> TextCodec | None:
        """The text layer; None without a tokenizer, and then there are no mean gains."""

    @property
    def identity(self) -> Identity | None:
        """What a profile holds for; None for models of unknown origin."""

    @property
    def dtype_name(self) -> str:
        """Number type of the target."""
