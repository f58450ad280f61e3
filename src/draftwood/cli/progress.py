"""What a terminal shows while something takes a while; gone when done, and nothing where errors go elsewhere."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


class Shown:
    """The line on standard error; where that is no terminal there is no line, and everything does nothing."""

    def __init__(self, bar: Progress | None) -> None:
        self._bar = bar

    def advance(self) -> None:
        """One more is done."""
        if self._bar is not None:
            self._bar.advance(self._bar.task_ids[0])
            self._bar.update(self._bar.task_ids[0], left=time_left(self._bar.tasks[0].time_remaining))

    def report(self, done: int, total: int, left_s: float | None) -> None:
        """So many are done, and so many seconds are left (None: not known yet)."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], completed=done, total=total, left=time_left(left_s))

    def tell(self, what: str) -> None:
        """This is being done now."""
        if self._bar is not None:
            self._bar.update(self._bar.task_ids[0], description=what)


@contextmanager
def progress(what: str, total: int | None = None, *, counted: bool = True) -> Iterator[Shown]:
    """A bar of `total` steps (None: `report` will say) with the time left; without `counted`, a sign that turns."""
    if not sys.stderr.isatty():
        yield Shown(None)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

    text, left = TextColumn("{task.description}"), TextColumn("{task.fields[left]}")
    columns = (text, BarColumn(), MofNCompleteColumn(), left) if counted else (SpinnerColumn("line"), text)
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        bar.add_task(what, total=total, left="")
        yield Shown(bar)


def waiting_for(what: str) -> AbstractContextManager[Shown]:
    """Show that something takes a while, nobody knows how long."""
    return progress(what, counted=False)


def time_left(seconds: float | None) -> str:
    """`1:05 left`; nothing where it is not known."""
    if seconds is None:
        return ""
    minutes, rest = divmod(math.ceil(seconds), 60)
    return f"{minutes}:{rest:02d} left"
