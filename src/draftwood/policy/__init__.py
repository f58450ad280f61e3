"""Policies: how many nodes of the tree are worth verifying. One file a policy, one line in `POLICIES`."""

from __future__ import annotations

from difflib import get_close_matches
from typing import Any

from ..cost.profile import CostProfile
from ..errors import UsageError
from .ar import Ar
from .auto import Auto
from .base import Policy, PolicyState, ProfilePolicy, RoundCosts, RoundOutcome, SharedPolicy, WidthRule
from .caddtree import CaddTree
from .cast import Cast
from .chain import Chain
from .ddtree import DdTree
from .options import Option, options_of
from .ratio import Ratio

POLICIES: dict[str, type[Policy]] = {policy.name: policy for policy in (Ar, Chain, DdTree, Cast, CaddTree, Ratio, Auto)}


def policy_options(name: str) -> dict[str, Option]:
    """Return the options that a policy takes, by the name a user gives; raises UsageError for an unknown policy."""
    if name not in POLICIES:
        close = get_close_matches(str(name), POLICIES, 1)
        hint = f"; did you mean {close[0]}?" if close else ""
        raise UsageError(f"policy {name!r}: expected one of {', '.join(POLICIES)}{hint}")
    return options_of(POLICIES[name])


def make_policy(name: str, *, profile: CostProfile | None = None, **options: Any) -> Policy:
    """Build a policy from user options, with its constants from `profile` when one is given.

    Raises UsageError naming an unknown policy, an option that this policy does not use, or a value out of range.
    """
    known = policy_options(name)
    for option in options:
        if option not in known:
            allowed = ", ".join(known) if known else "no options"
            raise UsageError(f"option {option!r} is not used by policy {name}: expected {allowed}")
    policy = POLICIES[name](**{known[option].field: value for option, value in options.items()})
    if profile is not None and isinstance(policy, ProfilePolicy):
        return policy.with_profile(profile)
    return policy


__all__ = [
    "POLICIES",
    "Option",
    "Policy",
    "PolicyState",
    "ProfilePolicy",
    "RoundCosts",
    "RoundOutcome",
    "SharedPolicy",
    "WidthRule",
    "make_policy",
    "policy_options",
]
