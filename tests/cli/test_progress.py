"""The one line that a terminal sees while a command works."""

from __future__ import annotations

import io
import sys

import pytest

from draftwood.cli.progress import progress, time_left, waiting_for


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Standard error as a terminal; called inside a test, for pytest puts its own stream back before each."""
    shown = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(sys, "stderr", shown)
    return shown


def test_time_left() -> None:
    assert (time_left(0.2), time_left(65.0), time_left(600.0)) == ("0:01 left", "1:05 left", "10:00 left")
    assert time_left(None) == ""


def test_nothing_is_written_where_errors_are_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("measuring", 2) as bar, waiting_for("loading") as wait:
        bar.advance()
        bar.report(1, 2, 3.0)
        wait.tell("thinking")
    captured = capsys.readouterr()
    assert captured.out == captured.err == ""


def test_a_bar_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    with progress("measuring", 2) as bar:
        bar.advance()
        bar.advance()
    assert "measuring" in shown.getvalue() and "2/2" in shown.getvalue()


def test_a_bar_learns_its_total_and_the_time_left(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    with progress("measuring") as bar:
        bar.report(3, 7, None)
        bar.report(4, 7, 65.0)
    assert "4/7" in shown.getvalue() and "1:05 left" in shown.getvalue()


def test_waiting_says_what_for(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    with waiting_for("loading a model") as wait:
        wait.tell("measuring: rope")
    text = shown.getvalue()
    assert "loading a model" in text and "measuring: rope" in text and "0/" not in text


def test_the_line_is_gone_when_done(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = terminal(monkeypatch)
    with waiting_for("loading"):
        pass
    assert shown.getvalue().rstrip().endswith("\x1b[2K")
