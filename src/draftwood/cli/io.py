"""Streams of the command line: what may be read, what may be written, and what happens when the reader leaves."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from io import TextIOWrapper
from typing import Any, TextIO

from ..files import decoded, json_line

STDIN_MARK = "-"
STDOUT = 1


class ReaderGone(Exception):
    """The reader of standard output closed it, as `head` does."""


def prepare_streams() -> None:
    """Let a terminal that cannot show a character show a replacement instead of failing; replace closed streams.

    Python leaves None where a stream was closed before the start, as `>&-` does.
    """
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 (stays open)
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")
    if isinstance(sys.stderr, TextIOWrapper):
        sys.stderr.reconfigure(errors="replace")


def write(text: str, stream: TextIO | None = None) -> None:
    """Write to standard output at once. Raises ReaderGone when nobody reads it any more."""
    stream = stream or sys.stdout
    try:
        stream.write(text)
        stream.flush()
    except BrokenPipeError as error:
        raise ReaderGone from error


def flush_stdout() -> None:
    """Raises ReaderGone when nobody reads standard output any more."""
    write("")


def drop_stdout() -> None:
    """Point standard output to nowhere, so that the interpreter's last flush stays silent."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, STDOUT)
    os.close(nowhere)


def complain(message: str) -> None:
    """One error line on standard error."""
    _to_stderr(f"draftwood: error: {_one_line(message)}\n")


def notice(message: str) -> None:
    """One line on standard error that does not stop the work."""
    _to_stderr(f"draftwood: note: {_one_line(message)}\n")


@contextmanager
def stdout_for_results() -> Iterator[TextIO]:
    """Standard output for results alone: what libraries print meanwhile goes to standard error."""
    stream = sys.stdout
    with redirect_stdout(sys.stderr):
        yield stream


def plural(count: int, noun: str) -> str:
    """`1 thread`, `2 threads`."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def write_json(value: Any, stream: TextIO | None = None) -> None:
    """Exactly one JSON object and a line end, in ASCII; numbers that are not finite become null."""
    write(json_line(value), stream)


def read_prompt(argument: str) -> str:
    """The prompt as it is: the argument, or all of standard input for `-`. Raises UsageError if it is not UTF-8."""
    if argument != STDIN_MARK:
        return read_argument(argument, "prompt")
    return decoded(sys.stdin.buffer.read(), "standard input")


def read_argument(argument: str, name: str) -> str:
    """A command-line argument as text, whatever the locale. Raises UsageError if its bytes are not UTF-8."""
    # Bytes that the locale could not decode arrive as lone surrogates. As `core.is_text`, without its imports at start.
    lone = any("\ud800" <= character <= "\udfff" for character in argument)
    return decoded(os.fsencode(argument), name) if lone else argument


def _one_line(message: str) -> str:
    return " ".join(message.split())


def _to_stderr(line: str) -> None:
    try:
        sys.stderr.write(line)
        sys.stderr.flush()
    except BrokenPipeError:
        # Nobody reads errors either: the exit code still tells.
        return
