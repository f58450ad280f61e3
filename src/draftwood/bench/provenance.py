"""Where a result comes from: source revision, machine, versions, command line."""

from __future__ import annotations

import os
import platform
import subprocess
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version
from pathlib import Path
from typing import Any

import torch

from .. import __version__
from ..engine import Engine
from ..engine.identity import device_name
from ..models.machine import processor_name

PACKAGES = ("torch", "transformers", "numpy", "numba")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Everything that a reader needs to place a number; plain values, ready for JSON."""

    git: dict[str, Any]
    """`revision` and `dirty` of the source; both None when it does not run from a checkout."""
    hardware: dict[str, Any]
    versions: dict[str, str]
    argv: list[str] = field(default_factory=list)
    seed: int = 0

    def to_json(self) -> dict[str, Any]:
        """The fields by name."""
        return {name: getattr(self, name) for name in ("git", "hardware", "versions", "argv", "seed")}


def provenance(engine: Engine, argv: list[str], seed: int) -> Provenance:
    """Describe this process and its engine."""
    return Provenance(
        git_state(Path(__file__).parents[1] / "__init__.py"), hardware(engine), versions(), list(argv), seed
    )


def git_state(file: Path) -> dict[str, Any]:
    """Revision and dirty flag of the checkout that holds `file`; None for both where git does not track it."""
    unknown: dict[str, Any] = {"revision": None, "dirty": None}
    if _git(file.parent, "ls-files", "--error-unmatch", file.name) is None:
        return unknown
    revision, changes = _git(file.parent, "rev-parse", "HEAD"), _git(file.parent, "status", "--porcelain")
    if revision is None or changes is None:
        return unknown
    return {"revision": revision.strip(), "dirty": bool(changes.strip())}


def hardware(engine: Engine) -> dict[str, Any]:
    """Processor or accelerator, threads, number type."""
    device = engine.state.target.spec.device
    facts = {
        "processor": processor_name(),
        "device": engine.device_name,
        "device_name": device_name(device),
        "cores": os.cpu_count(),
        "threads": engine.threads,
        "dtype": engine.dtype_name,
        "system": platform.system(),
    }
    if device.type == "cpu":
        facts["capability"] = torch.backends.cpu.get_cpu_capability()
    return facts


def versions() -> dict[str, str]:
    """Versions of Draftwood, Python and what the numbers depend on."""
    found = {"draftwood": __version__, "python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = package_version(name)
        except PackageNotFoundError:
            found[name] = "absent"
    return found


def _git(folder: Path, *arguments: str) -> str | None:
    """What git says, or None where it is absent or refuses."""
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments], capture_output=True, text=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
