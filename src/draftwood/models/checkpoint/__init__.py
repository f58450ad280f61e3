"""Checkpoint folders: configuration and tensors, each part honoured, irrelevant, or named."""

from .config import context_limit, read_config
from .tensors import check_head, check_left_over, check_shapes, stored_dtype

__all__ = ["check_head", "check_left_over", "check_shapes", "context_limit", "read_config", "stored_dtype"]
