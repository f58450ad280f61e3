"""The engine: requests in, tokens out."""

from __future__ import annotations

from .engine import Engine
from .handle import RequestHandle
from .requests import Piece, Request, RequestOutput, SamplingParams
from .state import EngineConfig

__all__ = ["Engine", "EngineConfig", "Piece", "Request", "RequestHandle", "RequestOutput", "SamplingParams"]
