"""A request on its way through the engine, and what the user gets back."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..core import DraftTree, RoundRecord, Sampling
from ..cost.rounds import RoundCosts
from ..errors import DraftwoodError
from ..policy import Policy
from ..verify import Chooser


@dataclass(frozen=True, slots=True)
class Limits:
    """When a request ends."""

    max_tokens: int
    end_ids: frozenset[int]
    """The first committed token of this set ends the text; it stays in `token_ids`."""


@dataclass(slots=True, eq=False)
class Request:
    """Mutable state of one request. Owned by the engine; changed only by the stages of a step."""

    id: int
    prompt_ids: np.ndarray
    """(P,) int64."""
    sampling: Sampling
    limits: Limits
    policy: Policy
    choose: Chooser
    block_size: int
    """Rows of a drafter block; 1 leaves no depth."""
    token_ids: list[int] = field(default_factory=list)
    """Output so far; the last one is the pending token."""
    prefilled: int = 0
    """Prompt tokens whose keys and values are committed."""
    rounds: list[RoundRecord] = field(default_factory=list)
    finish_reason: str | None = None
    error: DraftwoodError | None = None
    policy_memory: Any = None
    """The request half of its policy's state."""
    plain_next: bool = False
    """The next round drafts nothing: the last one met drafted rows that were not finite."""
    submitted_s: float = 0.0
    first_token_s: float | None = None
    finished_s: float | None = None

    @property
    def finished(self) -> bool:
        """True when no further round will come."""
        return self.finish_reason is not None

    @property
    def in_prefill(self) -> bool:
        """True until the whole prompt is committed."""
        return self.prefilled < len(self.prompt_ids)

    @property
    def context_len(self) -> int:
        """L: committed tokens, which is also the position of the pending token."""
        return self.prefilled + max(0, len(self.token_ids) - 1)

    @property
    def remaining_tokens(self) -> int:
        """Tokens that may still be delivered."""
        return self.limits.max_tokens - len(self.token_ids)


@dataclass(slots=True)
class Job:
    """The part of one request in one step: a prefill chunk or a round."""

    request: Request
    token_ids: np.ndarray
    """(rows,) int64."""
    pos: np.ndarray
    """(rows,) int64."""
    tree: DraftTree | None
    """What is judged: the draft tree, the last prompt token before the first round; None in mid-prefill."""
    max_depth: int = 0
    """Deepest node that can still be delivered in this round."""
    draft_index: int | None = None
    """Which request of the DraftBlock this is; None when the round drafts nothing."""
    costs: RoundCosts | None = None
    """The costs under which drafting and nodes were chosen; None for policies that need none."""
    path: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """Own rows that become prefix."""
    new_tokens: tuple[int, ...] = ()
    """Tokens that the target decided in this step."""
    row_start: int = 0

    @property
    def is_round(self) -> bool:
        """False for prefill, whose token belongs to no round."""
        return not self.request.in_prefill


@dataclass(frozen=True, slots=True)
class Generation:
    """The result of one request."""

    text: str
    """Decoded output without the end token."""
    token_ids: list[int]
    """Output tokens, the end token included."""
    prompt_tokens: int
    finish_reason: str
    """`stop` (an end token), `length` (max_tokens or the context limit) or `abort`."""
    policy: str
    seed: int
    """What a repeated run needs to draw the same tokens; not used at temperature 0."""
    prefill_s: float
    """Seconds from submission to the first token."""
    decode_s: float
    """Seconds from the first token to the last."""
    rounds: list[RoundRecord]

    @property
    def mean_committed(self) -> float | None:
        """Mean committed length of the rounds; None without rounds."""
        return sum(r.committed for r in self.rounds) / len(self.rounds) if self.rounds else None

    @property
    def tokens_per_s(self) -> float | None:
        """(output tokens - 1) / decode seconds; None when nothing was decoded after the first token."""
        return (len(self.token_ids) - 1) / self.decode_s if self.rounds and self.decode_s > 0 else None


@dataclass(frozen=True, slots=True)
class Piece:
    """What a stream yields after each step that delivered tokens; the last one carries the whole result."""

    text: str
    token_ids: list[int]
    generation: Generation | None = None
