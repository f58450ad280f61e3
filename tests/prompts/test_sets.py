from __future__ import annotations

from pathlib import Path

import pytest

from draftwood.errors import UsageError
from draftwood.prompts.sets import BUNDLED_SETS, load_prompts


@pytest.mark.parametrize("name", BUNDLED_SETS)
def test_bundled_sets(name: str) -> None:
    found = load_prompts(name)
    assert found.bundled
    assert found.name == name
    assert len(found.prompts) == 20
    assert len({prompt.id for prompt in found.prompts}) == 20
    assert len({prompt.text for prompt in found.prompts}) == 20
    assert all(len(prompt.text) > 20 for prompt in found.prompts)
    assert load_prompts(name, limit=3).prompts == found.prompts[:3]


def test_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.jsonl"
    path.write_text(
        '\ufeff{"id": "a", "prompt": "Grüß Gott!", "split": "test"}\r\n\n'
        '{"prompt": "two", "turns": ["two", "and then?"]}\n{"turns": ["first", "second"], "id": 7}\n',
        encoding="utf-8",
    )
    found = load_prompts(path)
    assert not found.bundled
    assert found.name == "mine"
    assert [(prompt.id, prompt.text, prompt.turns) for prompt in found.prompts] == [
        ("a", "Grüß Gott!", ()), ("3", "two", ("two", "and then?")), ("7", "first", ("first", "second")),
    ]  # fmt: skip


def test_a_bad_line_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "one"}\nbroken\n')
    assert len(load_prompts(path, limit=1).prompts) == 1


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "empty"), (b"\n \n", "empty"), (b'{"prompt": "ok"}\n{"text": "x"}\n', "p.jsonl:2: no `prompt`"),
        (b'{"prompt": "ok"}\n{"prompt": ', "p.jsonl:2: not JSON"), (b"[1]", "p.jsonl:1: expected an object"),
        (b'{"prompt": ""}', "p.jsonl:1: no `prompt`"), (b'{"prompt": 5}', "p.jsonl:1: no `prompt`"),
        (b'{"prompt": "a", "id": null}', "`id` null must be text"),
        (b'{"prompt": "a", "id": true}', "`id` true must be text"),
        (b'{"prompt": "a", "turns": "b"}', "`turns`"),
        (b'{"prompt": "\xff"}', "p.jsonl:1: byte 0xff at offset 12 is not UTF-8"),
        (b'{"prompt": "\\ud800"}', "surrogate"), (b"[" * 100_000, "not JSON"),
    ],
)  # fmt: skip
def test_bad_sets_are_one_line(content: bytes, says: str, tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(content)
    with pytest.raises(UsageError, match=says) as caught:
        load_prompts(path)
    assert "\n" not in str(caught.value)


def test_unknown_name_names_the_bundled_sets(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="gsm8k_like, code, chat"):
        load_prompts("nosuch")
    with pytest.raises(UsageError, match="directory"):
        load_prompts(tmp_path)
    with pytest.raises(UsageError, match="limit 0"):
        load_prompts("chat", limit=0)
