"""Loading a pair, as all commands do it: checks before, quiet libraries, notices on standard error."""

from __future__ import annotations

import logging
import warnings
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import UsageError
from .io import notice

if TYPE_CHECKING:
    from .. import Engine
    from ..engine import EngineConfig
    from ..models.chat import ChatSettings


@dataclass(frozen=True, slots=True)
class LoadOptions:
    """Which model to load, and how."""

    model: str
    drafter: str | None
    dtype: str
    device: str
    threads: int | None
    profile: Path | None = None
    allow_stale_profile: bool = False
    live_costs: bool = True
    kv_memory: str | None = None
    config: EngineConfig | None = None
    """Settings of the engine beside its memory; None: the usual ones."""
    generation_config: str | None = None
    chat: ChatSettings | None = None


def check_pair(options: LoadOptions, policy: str) -> None:
    """Raise UsageError before anything is loaded: unknown model, or a policy that drafts without a drafter."""
    from ..models.source import resolve_model
    from ..policy import POLICIES

    bundled = resolve_model(options.model).drafter
    if POLICIES[policy].drafts and options.drafter is None and bundled is None:
        raise UsageError(f"policy {policy!r} needs a drafter for {options.model!r}: give --drafter, or --policy ar")


def load_engine(options: LoadOptions) -> Engine:
    """Load the pair quietly; notices go to standard error."""
    from .. import Engine
    from ..engine import EngineConfig
    from ..models.quiet import quiet_libraries

    quiet_libraries()
    warnings.showwarning = as_notice
    logger = logging.getLogger("draftwood")
    logger.handlers, logger.propagate = [_Notices()], False
    return Engine.load(
        options.model,
        options.drafter,
        dtype=options.dtype,
        device=options.device,
        threads=options.threads,
        profile=options.profile,
        allow_stale_profile=options.allow_stale_profile,
        live_costs=options.live_costs,
        config=replace(options.config or EngineConfig(), kv_memory=options.kv_memory),
        generation_config=options.generation_config,
        chat=options.chat,
    )


def as_notice(message: Warning | str, *_: object, **__: object) -> None:
    """Show a warning of ours as one line, without the source line that raised it."""
    notice(str(message))


class _Notices(logging.Handler):
    """Writes what the library logs as notices of the command line."""

    def emit(self, record: logging.LogRecord) -> None:
        notice(record.getMessage())
