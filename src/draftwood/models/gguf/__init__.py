"""GGUF files: read whole, converted once, refused where a part of the file would be ignored."""

from .folder import GgufFolder, GgufInMemory, open_gguf

__all__ = ["GgufFolder", "GgufInMemory", "open_gguf"]
