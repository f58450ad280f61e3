"""The tables of a trace; `format` says what their columns are and stores them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

FINISH_REASONS = ("stop", "length", "abort")


@dataclass(frozen=True, slots=True)
class TraceMeta:
    """Where a trace comes from; stored as JSON."""

    policy: str
    """Name of the policy that made the trace; empty when `every_position`."""
    options: dict[str, Any]
    """That policy's options (its dataclass fields)."""
    model: str
    drafter: str
    dtype: str
    vocab_size: int
    """V; every id of the trace is below it."""
    seed: int = 0
    temperature: float = 0.0
    every_position: bool = False
    stages: tuple[str, ...] = ()
    """Names of the columns of `rounds.seconds`."""
    factor_names: tuple[str, ...] = ()
    """Names of the columns of `rounds.factors`."""
    versions: dict[str, str] = field(default_factory=dict)
    extra: dict[str, Any] = field(default_factory=dict)
    """Anything else worth keeping, JSON only."""


@dataclass(frozen=True, slots=True, eq=False)
class RoundTable:
    """The rounds of a trace; the fields are the `rounds.*` keys of the schema."""

    request: np.ndarray
    position: np.ndarray
    pending: np.ndarray
    context: np.ndarray
    drafted: np.ndarray
    depth: np.ndarray
    logp: np.ndarray
    ids: np.ndarray
    candidates: np.ndarray
    num_nodes: np.ndarray
    committed: np.ndarray
    accepted: np.ndarray
    accepted_offsets: np.ndarray
    seconds: np.ndarray
    factors: np.ndarray

    def __len__(self) -> int:
        return len(self.request)


@dataclass(frozen=True, slots=True, eq=False)
class TreeTable:
    """Trees that no table of scores describes; the fields are the `trees.*` keys of the schema."""

    offsets: np.ndarray
    parent: np.ndarray
    token: np.ndarray
    rank: np.ndarray
    logp: np.ndarray

    @classmethod
    def empty(cls, rounds: int) -> TreeTable:
        """No tree for any of `rounds` rounds."""
        none = np.zeros(0, np.int32)
        return cls(np.zeros(rounds + 1, np.int64), none, none, none, np.zeros(0, np.float64))


@dataclass(frozen=True, slots=True, eq=False)
class RequestTable:
    """The requests of a trace; the fields are the `requests.*` keys of the schema."""

    request_id: np.ndarray
    set_name: np.ndarray
    prompt_hash: np.ndarray
    prompt_len: np.ndarray
    max_tokens: np.ndarray
    finish: np.ndarray
    output_ids: np.ndarray
    output_offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.prompt_len)
