"""Prompts rendered turn by turn."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from draftwood.errors import UsageError
from draftwood.prompts.sets import Prompt, PromptSet
from draftwood.prompts.units import Rendering, Unit, hash_prompt, render


class Codec:
    def encode(self, prompt: str, *, raw: bool = False, system: str | None = None) -> list[int]:
        return [ord(sign) for sign in f"{system or ''}{prompt}{'!' if raw else '?'}"]

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        return [ord(sign) for sign in "|".join(f"{role[0]}:{text}" for role, text in messages)]


def texts(units: Sequence[Unit]) -> list[str]:
    return ["".join(map(chr, unit.prompt_ids)) for unit in units]


def a_set(*prompts: Prompt, name: str = "s") -> PromptSet:
    return PromptSet(name, prompts, bundled=False)


def answer(ids: Sequence[int]) -> str:
    return f"<{len(ids)}>"


def test_later_turns_carry_the_reference_answers() -> None:
    talk = a_set(Prompt("t", "a", ("a", "bb", "c")), Prompt("u", "x"))
    units = render([talk], Codec(), answer)
    assert [unit.prompt_id for unit in units] == ["t", "t#2", "t#3", "u"]
    assert texts(units) == ["a?", "u:a|a:<2>|u:bb", "u:a|a:<2>|u:bb|a:<14>|u:c", "x?"]


def test_system_and_raw() -> None:
    talk = a_set(Prompt("t", "a", ("a", "b")))
    assert texts(render([talk], Codec(), answer, Rendering(system="S")))[1] == "s:S|u:a|a:<3>|u:b"
    assert texts(render([a_set(Prompt("t", "a", ("a",)))], Codec(), answer, Rendering(raw=True))) == ["a!"]
    with pytest.raises(UsageError, match="leave out --raw"):
        render([talk], Codec(), answer, Rendering(raw=True))


def test_one_turn_asks_for_no_answer() -> None:
    def never(ids: Sequence[int]) -> str:
        raise AssertionError

    assert texts(render([a_set(Prompt("t", "a"))], Codec(), never)) == ["a?"]


def test_hash_tells_renderings_apart() -> None:
    one, two = Unit("s", "1", (1, 2)), Unit("s", "1", (1, 3))
    assert one.prompt_hash != two.prompt_hash and one.prompt_hash == Unit("t", "9", (1, 2)).prompt_hash


def test_names_that_appear_twice() -> None:
    with pytest.raises(UsageError, match="prompt set 's' appears twice"):
        render([a_set(Prompt("1", "a")), a_set(Prompt("1", "a"))], Codec(), answer)
    with pytest.raises(UsageError, match="id '1' appears twice"):
        render([a_set(Prompt("1", "a"), Prompt("1", "b"))], Codec(), answer)


def test_hash_is_of_the_numbers_alone() -> None:
    assert hash_prompt([1, 2]) == hash_prompt(np.array([1, 2], dtype=np.int32))
    assert len({hash_prompt([1, 2]), hash_prompt([2, 1]), hash_prompt([258])}) == 3
    assert Unit("s", "p", (1, 2)).prompt_hash == hash_prompt([1, 2])
