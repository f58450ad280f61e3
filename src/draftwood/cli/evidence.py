"""Steps that several commands share: prompt sets, profiles, policies, files to write."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ..errors import UsageError
from ..files import check_folder
from .io import notice, read_argument

if TYPE_CHECKING:
    from .. import Engine
    from ..cost.profile import CostProfile
    from ..policy import Policy
    from ..prompts.sets import PromptSet
    from ..prompts.units import Unit


Number = TypeVar("Number", int, float)


def names(text: str | None) -> list[str]:
    """A list separated by commas."""
    return [] if text is None else [name.strip() for name in text.split(",") if name.strip()]


def numbers(text: str | None, option: str, kind: type[Number] = int) -> list[Number]:
    """Numbers of one kind separated by commas; raises UsageError naming what is none."""
    found = []
    for name in names(text):
        try:
            found.append(kind(name))
        except ValueError as error:
            wanted = "whole numbers" if kind is int else "numbers"
            raise UsageError(f"{option} {name!r}: expected {wanted} separated by commas") from error
    return found


def prompt_sets(arguments: Sequence[str] | None, limit: int | None) -> list[PromptSet]:
    """The named sets, all bundled ones without a name."""
    from ..prompts.hub import load_sets, split_names
    from ..prompts.sets import BUNDLED_SETS

    return load_sets(split_names(arguments) if arguments else list(BUNDLED_SETS), limit)


def load_profile(path: Path | None) -> CostProfile | None:
    """The profile file, read before any model is."""
    from ..cost.profile import CostProfile

    return None if path is None else CostProfile.load(path)


def adopt_profile(engine: Engine, profile: CostProfile | None, *, allow_stale: bool, live_costs: bool) -> None:
    """Let the engine choose by `profile`; refuses one of another machine or pair unless `allow_stale`."""
    engine.live_costs = live_costs
    if profile is None:
        return
    if engine.identity is not None:
        for difference in profile.check_identity(engine.identity, allow_stale):
            notice(f"cost profile measured elsewhere: {difference} here")
    engine.use_profile(profile, live_costs=live_costs)


def make_rule(engine: Engine, name: str, options: dict[str, Any]) -> Policy:
    """The policy, with constants of the engine's costs, which are measured now if it needs any."""
    from ..policy import POLICIES, make_policy

    needs = name in POLICIES and POLICIES[name].needs_costs
    return make_policy(name, profile=engine.ensure_costs() if needs else None, **options)


def end_ids(engine: Engine, raw: bool) -> frozenset[int] | None:
    """What ends an answer; None: the engine's own choice."""
    if engine.codec is None or not raw:
        return None
    return frozenset(engine.codec.raw_end_ids)


def render_units(
    engine: Engine, sets: Sequence[PromptSet], *, raw: bool, system: str | None, history_tokens: int
) -> list[Unit]:
    """Prompts as ids; the history of conversations is decoded by `ar`."""
    from ..bench.session import reference_answer
    from ..prompts.units import Rendering, render

    if engine.codec is None:
        raise UsageError("this model has no tokenizer")
    text = None if system is None else read_argument(system, "--system")
    return render(sets, engine.codec, reference_answer(engine, history_tokens), Rendering(raw, text))


def check_parent(path: Path, option: str) -> None:
    """Raise UsageError unless a file can be made at `path`: found out before hours of work, not after."""
    if path.is_dir():
        raise UsageError(f"{option} {path}: is a folder, expected a file name")
    if not path.parent.is_dir():
        raise UsageError(f"{option} {path}: no folder {path.parent}")
    check_folder(path.parent)
