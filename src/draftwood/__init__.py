"""Draftwood: faster decoding of large language models with draft trees, without changing what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .engine import Engine, EngineConfig, Generation, Piece

__version__ = "0.1.0"
__all__ = ["Engine", "EngineConfig", "Generation", "Piece", "__version__"]


def __getattr__(name: str) -> Any:
    """Import the engine on first use, so that `draftwood version` and --help stay quick."""
    if name in {"Engine", "EngineConfig", "Generation", "Piece"}:
        from . import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
