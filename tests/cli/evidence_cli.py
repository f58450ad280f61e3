"""The commands that measure, with the tiny pair in place of a model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tiny_bench import engine, profile

from draftwood.cli.commands import bench as cli_bench
from draftwood.cli.commands import record as cli_record
from draftwood.cli.commands import show as cli_show
from draftwood.engine import Engine

DEMO = "demo:smollm2"


def tiny_commands(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    """Let the commands load the tiny pair; returns the engines as they are loaded."""
    loaded: list[Engine] = []

    def load(options: object) -> Engine:
        loaded.append(engine(codec=True))
        return loaded[-1]

    for module in (cli_bench, cli_record, cli_show):
        monkeypatch.setattr(module, "load_engine", load)
    return loaded


def refuse_loading(monkeypatch: pytest.MonkeyPatch) -> None:
    """A command that loads a model fails the test."""

    def load(options: object) -> Engine:
        raise AssertionError("a model was loaded although the input is bad")

    for module in (cli_bench, cli_record, cli_show):
        monkeypatch.setattr(module, "load_engine", load)


def write_sets(folder: Path) -> list[str]:
    """Two sets of prompts that the tiny codec knows."""
    rows = {"first": ["p0", "p1"], "second": ["p2"]}
    for name, prompts in rows.items():
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))
    return [str(folder / f"{name}.jsonl") for name in rows]


def write_profile(folder: Path) -> str:
    """The made cost profile as a file."""
    path = folder / "profile.json"
    profile().save(path)
    return str(path)


def error_line(capsys: pytest.CaptureFixture[str]) -> str:
    """The one error line; nothing on standard output."""
    captured = capsys.readouterr()
    assert captured.out == ""
    lines = captured.err.splitlines()
    assert len(lines) == 1 and lines[0].startswith("draftwood: error: "), captured.err
    return lines[0]
