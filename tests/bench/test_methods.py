"""Methods files: what counts as a method, and what is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftwood.bench.methods import Pair, load_methods
from draftwood.errors import UsageError

PAIR = Pair("m", "d", None, None, "float32", "cpu", (2,))


def load(folder: Path, text: str) -> dict[str, object]:
    (folder / "methods.py").write_text(text)
    return dict(load_methods(folder / "methods.py", PAIR))


def test_public_functions_of_two_arguments(tmp_path: Path) -> None:
    text = (
        "from os.path import join\n"
        "def echo(prompt_ids, max_tokens, top=1): return prompt_ids[:max_tokens]\n"
        "def _hidden(a, b): ...\ndef one(a): ...\ndef three(a, b, c): ...\nclass Two:\n    def __call__(self, a): ...\n"
    )
    found = load(tmp_path, text)
    assert list(found) == ["echo"] and found["echo"]([5, 6, 7], 2) == [5, 6]  # type: ignore[operator]


def test_prepare_sees_the_pair_and_adds_methods(tmp_path: Path) -> None:
    text = "def prepare(pair): return {'made': lambda ids, n: [pair.end_ids[0]] * n}\ndef own(ids, n): return ids\n"
    found = load(tmp_path, text)
    assert list(found) == ["made", "own"] and found["made"]([1], 3) == [2, 2, 2]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("x = 1\n", "no function of"),
        ("def f(a b): ...\n", "cannot be imported"),
        ("import no_such_module_here\n", "cannot be imported"),
        ("def prepare(pair): return 3\n", "prepare must return functions by name"),
    ],
)
def test_refusals(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words) as caught:
        load(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_files_that_are_no_python(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file"):
        load_methods(tmp_path / "absent.py", PAIR)
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(UsageError, match="expected a Python file"):
        load_methods(tmp_path / "notes.txt", PAIR)
