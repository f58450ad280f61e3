"""`draftwood version`."""

from __future__ import annotations

import platform
from importlib.metadata import PackageNotFoundError
from importlib.metadata import version as package_version

from ... import __version__
from ..io import write

LIBRARIES = ("torch", "transformers", "numba")


def version() -> None:
    """Print the version of Draftwood and of what it runs on."""
    parts = [f"Python {platform.python_version()}"]
    for name in LIBRARIES:
        try:
            parts.append(f"{name} {package_version(name)}")
        except PackageNotFoundError:
            parts.append(f"{name} absent")
    write(f"draftwood {__version__} ({', '.join(parts)})\n")
