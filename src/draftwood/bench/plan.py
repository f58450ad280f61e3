"""What a bench compares: rows (a policy with its options, or an outside method) and how often each is run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from ..cost.profile import CostProfile
from ..errors import UsageError
from ..policy import POLICIES, make_policy

PLAIN = "ar"
CHAIN = "chain"
FIXED = "ddtree"


@dataclass(frozen=True, slots=True)
class CostNoise:
    """Factors on what a row believes about costs; what it really pays is unchanged."""

    slope: float = 1.0
    """On C(M) - C(1)."""
    draft: float = 1.0
    """On C_draft."""

    def apply(self, profile: CostProfile) -> CostProfile:
        """The profile with these errors in it."""
        first, first_host = profile.verify_s[:, :1], profile.host_s[:1]
        return replace(
            profile,
            verify_s=first + self.slope * (profile.verify_s - first),
            host_s=first_host + self.slope * (profile.host_s - first_host),
            draft_s=profile.draft_s * self.draft,
        )


@dataclass(frozen=True, slots=True)
class BenchRow:
    """One line of the table."""

    label: str
    """Unique in a panel."""
    policy: str
    """Name of a policy, or of an outside method."""
    options: Mapping[str, Any] = field(default_factory=dict)
    budget: int | None = None
    """Set on rows of a sweep of fixed budgets."""
    block_size: int | None = None
    """None: the checkpoint's."""
    noise: CostNoise | None = None
    method: bool = False
    """True for an outside method."""


@dataclass(frozen=True, slots=True)
class Panel:
    """Rows that are measured against each other under one setting."""

    name: str
    """Empty when a bench has one panel."""
    rows: tuple[BenchRow, ...]
    max_tokens: int = 256
    temperature: float = 0.0
    seeds: tuple[int, ...] = (0,)
    repeats: int = 1
    set_tokens: Mapping[str, int] = field(default_factory=dict)
    """Other caps than `max_tokens`, by a part of the set's name."""
    timing: bool = False
    """Record seconds by stage in every run: slower, for probes."""

    def __post_init__(self) -> None:
        labels = [row.label for row in self.rows]
        twice = sorted({label for label in labels if labels.count(label) > 1})
        if twice:
            raise UsageError(f"row {twice[0]!r} appears twice")
        if self.max_tokens < 2:
            raise UsageError(f"max_tokens {self.max_tokens}: expected at least 2, the first token belongs to prefill")
        if self.repeats < 1 or not self.seeds:
            raise UsageError(f"repeats {self.repeats} x seeds {list(self.seeds)}: expected at least 1 of each")
        if self.temperature > 0 and any(row.method for row in self.rows):
            raise UsageError(f"temperature {self.temperature}: outside methods decode greedily, expected 0")

    def tokens_for(self, set_name: str) -> int:
        """Most output tokens on a set."""
        return next((cap for part, cap in self.set_tokens.items() if part in set_name), self.max_tokens)


def fixed_row(budget: int, **options: Any) -> BenchRow:
    """The row of one fixed budget."""
    return BenchRow(f"{FIXED} {budget}", FIXED, {"budget": budget, **options}, budget=budget)


def rows_of(policies: Sequence[str], budgets: Sequence[int], candidates: int | None = None) -> tuple[BenchRow, ...]:
    """Rows for names and budgets: plain decoding first, because every other row is compared with it.

    A budget is one `ddtree` row; `ddtree` among the names stands for those, or for its default budget without any.
    `candidates` goes to the rows that take it. Raises UsageError for an unknown name, a name twice, or an option out
    of range.
    """
    names = list(dict.fromkeys([PLAIN, *policies]))
    if len(set(policies)) != len(policies):
        raise UsageError(f"policies {','.join(policies)}: each name once")
    if budgets and FIXED not in names:
        names.append(FIXED)
    rows: list[BenchRow] = []
    for name in names:
        if name not in POLICIES:
            raise UsageError(f"policy {name!r}: expected one of {', '.join(POLICIES)}")
        if name == FIXED and budgets:
            rows += [fixed_row(budget, **_wanted(FIXED, candidates)) for budget in budgets]
        else:
            rows.append(BenchRow(name, name, _wanted(name, candidates)))
    for row in rows:
        make_policy(row.policy, **row.options)
    if len({row.label for row in rows}) != len(rows):
        raise UsageError(f"budgets {','.join(map(str, budgets))}: each once")
    return tuple(rows)


def _wanted(name: str, candidates: int | None) -> dict[str, int]:
    takes = candidates is not None and name not in (PLAIN, CHAIN)
    return {"candidates": candidates} if takes and candidates is not None else {}
