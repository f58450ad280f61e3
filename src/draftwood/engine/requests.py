"""A request on its way through the engine: what it is asked, what it owns, what the user gets back."""

from __future__ import annotations

import secrets
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..core import RoundRecord, Sampling
from ..errors import RequestError
from ..policy import Policy
from .mailbox import Event, Mailbox


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """Every setting of a request but its policy. Raises RequestError or UsageError for values outside their range."""

    max_tokens: int = 256
    temperature: float = 0.0
    seed: int | None = None
    """Makes the draw repeatable; None: a fresh one per request."""
    completion: int = 0
    """Index among several completions of one prompt; each draws its own noise."""
    block_size: int | None = None
    """Rows of a drafter block, 1 (no draft) to the checkpoint's; None: the checkpoint's."""
    end_ids: frozenset[int] | None = None
    """Ids that end the text; None: the model's own, the end of a chat turn included."""

    def __post_init__(self) -> None:
        if isinstance(self.max_tokens, bool) or not isinstance(self.max_tokens, int | np.integer):
            raise RequestError(f"max_tokens {self.max_tokens!r}: expected a whole number")
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens {self.max_tokens}: expected at least 1")
        self.sampling()

    def sampling(self) -> Sampling:
        """How one request draws; without a seed a fresh one is taken from the system."""
        seed = self.seed if self.seed is not None else secrets.randbits(63)
        return Sampling(self.temperature, seed, self.completion)


@dataclass(frozen=True, slots=True)
class Limits:
    """When a request ends."""

    max_tokens: int
    end_ids: frozenset[int]
    """The first committed token of this set ends the text; it stays in `token_ids`."""


@dataclass(slots=True, eq=False)
class Request:
    """Mutable state of one request. Owned by the loop; changed only by the stages of a step."""

    id: int
    """Grows with arrival: the youngest request has the largest."""
    prompt_ids: np.ndarray
    """(P,) int64."""
    sampling: Sampling
    limits: Limits
    policy: Policy
    block_size: int
    """Rows of a drafter block; 1 leaves no depth."""
    token_ids: list[int] = field(default_factory=list)
    """Output so far; the last one is the pending token."""
    committed: int = 0
    """L: tokens whose keys and values are in the pool; in a round also the position of the pending token."""
    rounds: list[RoundRecord] = field(default_factory=list)
    finish_reason: str | None = None
    error: BaseException | None = None
    policy_memory: Any = None
    """The request half of its policy's state."""
    plain_next: bool = False
    """The next round drafts nothing: the last one met drafted rows that were not finite."""
    faulty_drafts: int = 0
    """Rounds that went without a draft because its scores were not finite."""
    preemptions: int = 0
    abort_wanted: bool = False
    mailbox: Mailbox = field(default_factory=Mailbox)
    """Where its reader waits."""
    submitted_s: float = 0.0
    first_token_s: float | None = None
    finished_s: float | None = None
    _told: int = 0
    _told_end: bool = False

    @property
    def finished(self) -> bool:
        """True when no further round will come."""
        return self.finish_reason is not None

    @property
    def prefill_len(self) -> int:
        """Tokens that must be committed before a round: the prompt, and what was delivered before a preemption."""
        return len(self.prompt_ids) + max(0, len(self.token_ids) - 1)

    @property
    def in_prefill(self) -> bool:
        """True until everything before the pending token is committed."""
        return self.committed < self.prefill_len or not self.token_ids

    @property
    def remaining_tokens(self) -> int:
        """Tokens that may still be delivered."""
        return self.limits.max_tokens - len(self.token_ids)

    def known_ids(self, start: int, stop: int) -> np.ndarray:
        """(stop - start,) int64 tokens of prompt and output."""
        if stop <= len(self.prompt_ids):
            return self.prompt_ids[start:stop]
        both = np.concatenate([self.prompt_ids, np.array(self.token_ids, np.int64)])
        return both[start:stop]

    def announce(self) -> None:
        """Tell the reader what it has not been told yet."""
        fresh = self.token_ids[self._told :]
        if fresh or (self.finished and not self._told_end):
            self._told += len(fresh)
            self._told_end = self.finished
            self.mailbox.put(Event(self, fresh, self.finished))


@dataclass(frozen=True, slots=True)
class RequestOutput:
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
    faulty_drafts: int = 0
    """Rounds decoded plainly because the drafter's scores were not finite."""
    preemptions: int = 0
    """How often its context was given up for older requests and computed again."""

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
    output: RequestOutput | None = None
