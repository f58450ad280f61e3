"""Prompt sets by name, with a made `datasets` package in place of the hub."""

from __future__ import annotations

import builtins
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from draftwood.errors import UsageError
from draftwood.prompts.hub import HubName, load_sets, parse_hub, split_names


class Rows(list[dict[str, Any]]):
    @property
    def column_names(self) -> list[str]:
        return list(self[0]) if self else []


def install(monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]]) -> list[Any]:
    asked: list[Any] = []

    def load_dataset(name: str, config: str | None, *, split: str) -> Rows:
        asked.append((name, config, split))
        if name == "no/set":
            raise ValueError("not on\nthe hub")
        return Rows(rows)

    module: Any = ModuleType("datasets")
    module.load_dataset = load_dataset
    monkeypatch.setitem(sys.modules, "datasets", module)
    return asked


def test_hub_names() -> None:
    assert parse_hub("hub:a/b") == HubName("a/b", None, "test", None)
    assert parse_hub("hub:a/b:main:train:q") == HubName("a/b", "main", "train", "q")
    for bad in ("hub:", "hub:a:b:c:d:e"):
        with pytest.raises(UsageError, match="expected hub:OWNER/NAME"):
            parse_hub(bad)


def test_questions_and_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = install(monkeypatch, [{"question": "1+1?", "answer": "2"}, {"question": "2+2?", "answer": "4"}])
    (found,) = load_sets(["hub:openai/gsm8k:main"], limit=1)
    assert asked == [("openai/gsm8k", "main", "test")]
    assert found.name == "gsm8k" and [(p.id, p.text, p.turns) for p in found.prompts] == [("1", "1+1?", ())]
    install(monkeypatch, [{"turns": ["a", "b"], "id": 7}])
    (talk,) = load_sets(["hub:x/bench"])
    assert (talk.prompts[0].id, talk.prompts[0].turns) == ("7", ("a", "b"))


@pytest.mark.parametrize(
    ("rows", "name", "words"),
    [
        ([{"q": "x"}], "hub:a/b", "no column prompt or question"),
        ([{"q": 3}], "hub:a/b::test:q", "row 1: `q` is no text"),
        ([], "hub:a/b", "no column"),
        ([], "hub:no/set", r"cannot be loaded \(not on the hub\)"),
    ],
)
def test_sets_that_cannot_be_used(
    monkeypatch: pytest.MonkeyPatch, rows: list[dict[str, Any]], name: str, words: str
) -> None:
    install(monkeypatch, rows)
    with pytest.raises(UsageError, match=words):
        load_sets([name])


def test_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def absent(name: str, *rest: Any, **options: Any) -> Any:
        if name == "datasets":
            raise ImportError(name)
        return real(name, *rest, **options)

    monkeypatch.setattr(builtins, "__import__", absent)
    with pytest.raises(UsageError, match="pip install datasets"):
        load_sets(["hub:a/b"])


def test_files_and_bundled_names(tmp_path: Path) -> None:
    file = tmp_path / "a,b.jsonl"
    file.write_text('{"prompt": "x"}\n')
    assert split_names([str(file), "code,chat"]) == [str(file), "code", "chat"]
    assert [prompts.name for prompts in load_sets([str(file), "code"], limit=2)] == ["a,b", "code"]
    with pytest.raises(UsageError, match="each once"):
        load_sets(["code", "code"])
    with pytest.raises(UsageError, match="no prompt set"):
        load_sets([])
