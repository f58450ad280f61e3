"""Chat templates: parts, names, failures, and text that spells special tokens."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from byte_tokenizer import CHAT_TEMPLATE, SPECIALS, byte_level
from tokenizers import AddedToken

from draftwood.errors import UsageError
from draftwood.models.chat import ChatSettings
from draftwood.models.text import TextCodec

TURN, USER, ASSISTANT = "<|turn|>", "<|user|>", "<|assistant|>"
PARTS = CHAT_TEMPLATE.replace(
    "{{ message['content'] }}", "{% for part in message['content'] %}{{ part['text'] }}{% endfor %}"
)


def codec(own: Any = CHAT_TEMPLATE, /, **settings: Any) -> TextCodec:
    return TextCodec(byte_level(own), name="toy", chat=ChatSettings(**settings))


def refused(text_codec: TextCodec, *messages: tuple[str, str]) -> str:
    with pytest.raises(UsageError) as error:
        text_codec.encode_chat(messages or [("user", "hi")])
    assert "\n" not in str(error.value) and "'toy'" in str(error.value)
    return str(error.value)


def ids_of(text_codec: TextCodec, *pieces: str) -> list[int]:
    """Special tokens as their ids, everything else byte by byte (the texts here have no merges)."""
    known = text_codec.tokenizer.convert_tokens_to_ids
    return list(itertools.chain(*([known(piece)] if piece in SPECIALS else piece.encode() for piece in pieces)))


class TestTemplates:
    def test_content_parts_where_only_they_work(self) -> None:
        assert codec(PARTS).encode("hi") == codec().encode("hi")

    def test_several_names_and_no_default(self) -> None:
        named = {"tool_use": CHAT_TEMPLATE + "!", "rag": CHAT_TEMPLATE}
        assert refused(codec(named)).endswith("(chat_template=...): rag, tool_use; or use --raw (raw=True)")
        assert codec(named).encode("hi", raw=True) == [*b"hi"]
        assert codec(named, template="rag").encode("hi") == codec().encode("hi")
        assert codec(named, template="tool_use").encode("hi") == [*codec().encode("hi"), ord("!")]
        assert codec({**named, "default": CHAT_TEMPLATE}).encode("hi") == codec().encode("hi")

    def test_an_unknown_name_is_refused_with_the_list(self) -> None:
        with pytest.raises(UsageError, match="chat template 'rags': expected one of rag, tool_use, or a file"):
            codec({"rag": "x", "tool_use": "y"}, template="rags")
        with pytest.raises(UsageError, match="chat template 'rags': expected a file"):
            codec(template="rags")

    def test_a_template_from_a_file(self, tmp_path: Path) -> None:
        path = tmp_path / "own.jinja"
        path.write_bytes(b"\xef\xbb\xbf" + (CHAT_TEMPLATE + "?").encode())
        assert codec(None, template=str(path)).encode("hi") == [*codec().encode("hi"), ord("?")]

    @pytest.mark.parametrize(
        ("broken", "reason"),
        [
            ("{{ 1 // 0 }}", "modulo by zero"),
            ("{{ messages[0]['content'] + 1 }}", "concatenate"),
            ("{% if %}", "Expected"),
        ],
    )
    def test_one_that_fails_fails_when_it_is_used(self, broken: str, reason: str) -> None:
        text_codec = codec(broken + CHAT_TEMPLATE)
        assert text_codec.encode("hi", raw=True) == [*b"hi"] and text_codec.encode_own("hi") == [*b"hi"]
        assert reason in refused(text_codec)

    def test_kwargs_reach_the_template(self) -> None:
        template = CHAT_TEMPLATE + "{{ 'T' if enable_thinking else 'F' }}{{ tone }}"
        assert codec(template).encode("hi")[-1:] == [*b"F"]
        assert codec(template, kwargs={"enable_thinking": True, "tone": "x"}).encode("hi")[-2:] == [*b"Tx"]


class TestWords:
    def test_words_that_do_not_reach_the_prompt(self) -> None:
        first = CHAT_TEMPLATE.replace("in messages %}", "in messages[:1] %}")
        line = refused(codec(first), ("user", "one"), ("assistant", "two"), ("user", "three"))
        assert "ignores the user role: 'three' does not reach the prompt" in line
        cut = CHAT_TEMPLATE.replace("message['content']", "message['content'][:3]")
        assert codec(cut).encode("hi") == codec().encode("hi")
        assert "'long one'" in refused(codec(cut), ("user", "long one"))

    def test_blanks_and_an_assistants_thoughts_may_go(self) -> None:
        trimmed = CHAT_TEMPLATE.replace("message['content']", "message['content'].split('</think>')[-1].strip()")
        said = [("user", " hi \n"), ("assistant", "<think>no</think>yes"), ("user", "a  b")]
        assert codec(trimmed).encode_chat(said) == ids_of(
            codec(), USER, "hi", TURN, ASSISTANT, "yes", TURN, USER, "a  b", TURN, ASSISTANT
        )


class TestSpelledTokens:
    @pytest.mark.parametrize(
        "said", [f"a{TURN}{ASSISTANT}b", TURN, f"{USER}", f"x{TURN}", "<|turn|><|turn|>", "\ue0000;<|end|>"]
    )
    def test_they_are_text_in_a_chat(self, said: str) -> None:
        expected = [*ids_of(codec(), USER), *said.encode(), *ids_of(codec(), TURN, ASSISTANT)]
        assert codec().encode(said) == expected
        assert codec().decode(codec().encode(said)) == said

    def test_they_are_text_in_every_message(self) -> None:
        said = [("system", f"s{TURN}"), ("user", f"u{ASSISTANT}"), ("assistant", f"a{USER}"), ("user", "v")]
        pieces: list[int] = []
        for role, text in said:
            pieces += [*ids_of(codec(), f"<|{role}|>"), *text.encode(), *ids_of(codec(), TURN)]
        assert codec().encode_chat(said) == [*pieces, *ids_of(codec(), ASSISTANT)]

    def test_parsed_when_asked(self) -> None:
        said = f"a{TURN}{ASSISTANT}b"
        assert codec(parse_special=True).encode(said) == ids_of(
            codec(), USER, "a", TURN, ASSISTANT, "b", TURN, ASSISTANT
        )
        assert codec(parse_special=True).encode(said, raw=True) == ids_of(codec(), "a", TURN, ASSISTANT, "b")
        assert codec().encode(said, raw=True) == [*said.encode()]

    def test_as_transformers_itself_where_nothing_is_spelled(self) -> None:
        tokenizer = byte_level()
        messages = [{"role": "system", "content": "the thin on"}, {"role": "user", "content": " the | <turn> on the"}]
        own = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        assert TextCodec(tokenizer, name="toy").encode_chat([(m["role"], m["content"]) for m in messages]) == own

    def test_merges_do_not_cross_what_was_spelled(self) -> None:
        """The pieces around a spelled token are encoded with it, as one text."""
        tokenizer = byte_level()
        plain = tokenizer(f"on{TURN} the", add_special_tokens=False, split_special_tokens=True)["input_ids"]
        assert codec().encode(f"on{TURN} the")[1:-2] == plain

    def test_refused_where_pieces_cannot_stand_alone(self) -> None:
        """A token that swallows the blank before it is not the same between pieces."""
        tokenizer = byte_level(CHAT_TEMPLATE.replace("<|turn|>", " <|cut|>"))
        tokenizer.add_tokens([AddedToken("<|cut|>", lstrip=True, special=True)], special_tokens=True)
        text_codec = TextCodec(tokenizer, name="toy")
        assert tokenizer.convert_ids_to_tokens(text_codec.encode("ab"))[:4] == [USER, "a", "b", "<|cut|>"]
        assert "spells the special token '<|turn|>'" in refused(text_codec, ("user", f"a{TURN}b"))
