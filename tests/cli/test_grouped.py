"""Help in groups: nothing lost, nothing twice, the rare at the end."""

from __future__ import annotations

import re

import pytest

from draftwood import cli
from draftwood.cli.app import COMMANDS
from draftwood.cli.grouped import FIRST, GROUPS


def helped(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    assert cli.run([command, "--help"]) == 0
    return capsys.readouterr().out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_stands_once(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = helped(command, capsys)
    options = re.findall(r"^  (?:-\w, )?(--[a-z-]+)", text, re.MULTILINE)
    assert "--help" in options and len(options) == len(set(options))
    heads = re.findall(r"^(\S[^\n]*):$", text, re.MULTILINE)
    known = ["Arguments", FIRST, *GROUPS]
    assert heads == [name for name in known if name in heads]
    for at, head in enumerate(heads):
        part = text.split(f"\n{head}:\n")[1].split("\n\n")[0]
        for option in re.findall(r"^  (?:-\w, )?(--[a-z-]+)", part, re.MULTILINE):
            assert option in GROUPS.get(head, ()) or not any(option in names for names in GROUPS.values()), (at, option)


def test_the_rare_ones_come_last(capsys: pytest.CaptureFixture[str]) -> None:
    text = helped("generate", capsys)
    assert text.index("--json") < text.index("--policy") < text.index("--drafter") < text.index("--fit-rows")
    assert text.rstrip().splitlines()[-1].strip()
