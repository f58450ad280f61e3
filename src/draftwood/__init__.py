"""Draftwood: faster decoding of large language models with draft trees, without changing what they say."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .errors import (
    CostError,
    DraftwoodError,
    ModelError,
    NonFiniteLogitsError,
    PoolExhaustedError,
    RequestError,
    TraceError,
    UnsupportedError,
    UsageError,
)

if TYPE_CHECKING:
    from .engine import Engine, EngineConfig, Piece, RequestHandle, RequestOutput, SamplingParams

__version__ = "0.1.0"
_ENGINE = ("Engine", "EngineConfig", "Piece", "RequestHandle", "RequestOutput", "SamplingParams")
__all__ = [
    "CostError",
    "DraftwoodError",
    "Engine",
    "EngineConfig",
    "ModelError",
    "NonFiniteLogitsError",
    "Piece",
    "PoolExhaustedError",
    "RequestError",
    "RequestHandle",
    "RequestOutput",
    "SamplingParams",
    "TraceError",
    "UnsupportedError",
    "UsageError",
    "__version__",
]


def __getattr__(name: str) -> Any:
    """Import the engine on first use, so that `draftwood version` and --help stay quick."""
    if name in _ENGINE:
        from . import engine

        return getattr(engine, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
