"""Tables of rich as lines of plain text: what a command prints may end up in a file."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    from rich.box import Box
    from rich.table import Table


def encoding_of(stream: TextIO) -> str:
    """The encoding of a stream, ASCII where it does not say."""
    return getattr(stream, "encoding", None) or "ascii"


def is_unicode(stream: TextIO) -> bool:
    """Whether a stream can carry lines, ticks and arrows."""
    return encoding_of(stream).lower().startswith("utf")


def width_of(stream: TextIO, otherwise: int) -> int:
    """Columns of the terminal behind a stream; `otherwise` for files and pipes."""
    return shutil.get_terminal_size((otherwise, 24)).columns if stream.isatty() else otherwise


def box_for(stream: TextIO) -> Box:
    """The lines of a table that a stream can carry."""
    from rich import box

    return box.SIMPLE_HEAD if is_unicode(stream) else box.ASCII


def grid_lines(tables: Sequence[Table], width: int) -> list[str]:
    """Tables one below the other, without blank lines and without blanks at the ends."""
    from rich.console import Console

    console = Console(width=width, color_system=None, force_terminal=False)
    with console.capture() as captured:
        for table in tables:
            console.print(table)
    return [line.rstrip() for line in captured.get().splitlines() if line.strip()]
