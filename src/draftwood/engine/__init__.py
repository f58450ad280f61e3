"""The engine: requests in, tokens out."""

from __future__ import annotations

from .engine import Engine
from .request import Generation, Piece, Request
from .service import RequestOptions
from .state import EngineConfig

__all__ = ["Engine", "EngineConfig", "Generation", "Piece", "Request", "RequestOptions"]
