"""Rows of prompt sets: the forms that people keep them in, and keys that would be ignored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from draftwood.errors import UsageError
from draftwood.prompts.rows import REFUSED, SETTINGS, Prompt, parse_row

CHAT = [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]
SHAREGPT = [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}, {"from": "human", "value": "and?"}]
ANSWERED = [*CHAT, {"role": "assistant", "content": "ho"}]


def parsed(**row: Any) -> Prompt:
    return parse_row(json.dumps(row), 7, "set x:7")


def refused(**row: Any) -> str:
    with pytest.raises(UsageError) as error:
        parsed(**row)
    line = str(error.value)
    assert line.startswith("set x:7: ") and "\n" not in line
    return line


def test_the_plain_forms() -> None:
    assert parsed(prompt="hi") == Prompt("7", "hi")
    assert parsed(prompt="hi", id=3, answer="ho", category=None) == Prompt("3", "hi")
    assert parsed(turns=["a", "b"], id="x") == Prompt("x", "a", ("a", "b"))


@pytest.mark.parametrize(
    ("row", "messages"),
    [
        ({"messages": CHAT}, (("system", "be"), ("user", "hi"))),
        ({"prompt": CHAT}, (("system", "be"), ("user", "hi"))),
        ({"messages": ANSWERED}, (("system", "be"), ("user", "hi"))),
        ({"conversations": SHAREGPT}, (("user", "hi"), ("assistant", "ho"), ("user", "and?"))),
        ({"conversations": SHAREGPT[:2]}, (("user", "hi"),)),
        ({"prompt": "hi", "system": "be"}, (("system", "be"), ("user", "hi"))),
    ],
)
def test_conversations(row: dict[str, Any], messages: tuple[tuple[str, str], ...]) -> None:
    found = parsed(**row)
    assert found.messages == messages and found.text == messages[-1][1] and found.turns == ()


def test_settings_of_a_row() -> None:
    assert parsed(prompt="hi", max_tokens=3, temperature=1, seed=0).settings == {
        "max_tokens": 3, "temperature": 1.0, "seed": 0,
    }  # fmt: skip
    assert parsed(prompt="hi", max_tokens=None).settings == {}


@pytest.mark.parametrize(
    ("key", "value"),
    [("max_tokens", 0), ("max_tokens", 2.5), ("max_tokens", True), ("temperature", -1), ("temperature", "hot"),
     ("temperature", False), ("seed", -1), ("seed", "x")],
)  # fmt: skip
def test_a_setting_out_of_range_is_named(key: str, value: object) -> None:
    assert f"`{key}` {json.dumps(value)}: expected" in refused(prompt="hi", **{key: value})


@pytest.mark.parametrize("key", REFUSED)
def test_what_would_be_ignored_is_refused_by_name(key: str) -> None:
    line = refused(prompt="hi", **{key: 1})
    assert f"`{key}` is not honoured" in line and all(name in line for name in SETTINGS)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "hi", "messages": CHAT}, "`prompt` and `messages`"),
        ({"messages": CHAT, "conversations": SHAREGPT}, "`messages` and `conversations`"),
        ({"messages": CHAT, "turns": ["a"]}, "`messages` and `turns`"),
        ({"messages": CHAT, "system": "be"}, "`system` and `messages`"),
        ({"turns": ["a", "b"], "system": "be"}, "`system` must be text, beside a lone `prompt`"),
        ({"prompt": "hi", "system": 3}, "`system` must be text"),
        ({"messages": []}, "`messages` must be a list of messages"),
        ({"messages": "hi"}, "`messages` must be a list of messages"),
        ({"messages": ["hi"]}, "`messages`[0]: expected an object"),
        ({"messages": [{"role": "user"}]}, "`messages`[0]: expected role and content"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "expected role and content (text)"),
        ({"messages": [{"role": "user", "content": "a", "tool_calls": [1]}]}, "`tool_calls` of a message"),
        ({"messages": [CHAT[0]]}, "expected a user's message at the end"),
        ({"conversations": [{"from": "alien", "value": "a"}]}, "`conversations`[0]: expected role"),
        ({"prompt": "hi", "id": True}, "`id` true must be text"),
        ({"prompt": " "}, "no `prompt` text"),
        ({"question": "hi"}, "no `prompt` text"),
        ({"turns": [1]}, "`turns` must be a list of texts"),
        ({"messages": [{"role": "user", "content": "\ud800"}]}, "half a surrogate pair"),
    ],
)
def test_rows_that_are_none(row: dict[str, Any], words: str) -> None:
    assert words in refused(**row)


@pytest.mark.parametrize(
    ("line", "words"), [("{", "not JSON"), ("[1]", "expected an object"), ("[" * 100_000, "not JSON")]
)
def test_lines_that_are_no_objects(line: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        parse_row(line, 1, "set x:1")
