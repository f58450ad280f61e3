"""What the commands share: the options that name and load a model, and the loading itself."""

from __future__ import annotations

import os
import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .cli_io import notice
from .errors import UsageError

if TYPE_CHECKING:
    from . import Engine


class Dtype(str, Enum):
    """Number types of a run."""

    AUTO = "auto"
    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"
    FLOAT64 = "float64"


def integer(text: str) -> int:
    """Parse a whole number; the error names what was given."""
    try:
        return int(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a whole number") from error


def at_least_one(text: str) -> int:
    """Parse a whole number that is at least 1."""
    value = integer(text)
    if value < 1:
        raise typer.BadParameter(f"{value} is out of range, expected at least 1")
    return value


def number(text: str) -> float:
    """Parse a number; the error names what was given."""
    try:
        return float(text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r} is not a number") from error


class Switch(str, Enum):
    """A part that can be turned on or off."""

    ON = "on"
    OFF = "off"


ModelArgument = Annotated[
    str,
    typer.Argument(metavar="MODEL", help="A Hugging Face id, a local folder, a .gguf file or demo:smollm2."),
]
DrafterOption = Annotated[
    str | None,
    typer.Option("--drafter", metavar="D", help="A DFlash drafter: folder or Hugging Face id."),
]
DtypeOption = Annotated[Dtype, typer.Option("--dtype", help="Number type of weights and arithmetic.")]
DeviceOption = Annotated[str, typer.Option("--device", help="Where to run: cpu, cuda, cuda:1, ...")]
ThreadsOption = Annotated[
    int | None,
    typer.Option(
        "--threads",
        parser=at_least_one,
        metavar="N",
        help="CPU threads; default: what cores, affinity and cgroup quota allow.",
    ),
]
ProfileOption = Annotated[
    str | None,
    typer.Option("--profile", metavar="FILE", help="Costs measured by `draftwood profile`; default: a quick probe."),
]
StaleOption = Annotated[
    bool, typer.Option("--allow-stale-profile", help="Use costs of another machine, setting or pair.")
]
LiveCostsOption = Annotated[
    bool, typer.Option("--live-costs/--no-live-costs", help="Correct the costs while decoding.")
]


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Which model to load, and how."""

    model: str
    drafter: str | None
    dtype: str
    device: str
    threads: int | None
    profile: str | None = None
    allow_stale_profile: bool = False
    live_costs: bool = True


def cache_folder(environment: Mapping[str, str]) -> Path:
    """Folder for converted models: $DRAFTWOOD_CACHE, else $XDG_CACHE_HOME/draftwood, else ~/.cache/draftwood."""
    if own := environment.get("DRAFTWOOD_CACHE"):
        return Path(own)
    shared = environment.get("XDG_CACHE_HOME")
    return (Path(shared) if shared else Path.home() / ".cache") / "draftwood"


def check_pair(options: LoadOptions, policy: str) -> None:
    """Raise UsageError before anything is loaded: unknown model, or a policy that drafts without a drafter."""
    from .policy import POLICIES
    from .target.source import resolve_model

    bundled = resolve_model(options.model).drafter
    if POLICIES[policy].drafts and options.drafter is None and bundled is None:
        raise UsageError(f"policy {policy!r} needs a drafter for {options.model!r}: give --drafter, or --policy ar")


def load_engine(options: LoadOptions) -> Engine:
    """Load the pair quietly; notices go to standard error."""
    from . import Engine
    from .target.quiet import quiet_libraries
    from .target.threads import default_threads

    quiet_libraries()
    warnings.showwarning = _as_notice
    return Engine.load(
        options.model,
        options.drafter,
        dtype=options.dtype,
        device=options.device,
        threads=options.threads or default_threads(),
        cache_dir=cache_folder(os.environ),
        notify=notice,
        profile=options.profile,
        allow_stale_profile=options.allow_stale_profile,
        live_costs=options.live_costs,
    )


@contextmanager
def waiting_for(what: str) -> Iterator[None]:
    """Show on a terminal that something takes a while; the line is gone afterwards."""
    if not sys.stderr.isatty():
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(what, spinner="line"):
        yield


def _as_notice(message: Warning | str, *_: object, **__: object) -> None:
    """How a warning of ours is shown: one line, without the source line that raised it."""
    notice(str(message))
