"""Prompts in, answers out: templates, end ids, and text that arrives in pieces."""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from byte_tokenizer import CHAT_TEMPLATE, SPECIALS, byte_fallback, byte_level
from tokenizers import Tokenizer, decoders, models, processors
from transformers import PreTrainedTokenizerFast

from draftwood.errors import RequestError, UsageError
from draftwood.models.chat import ChatSettings
from draftwood.models.text import StreamDecoder, TextCodec

END, TURN, SYSTEM, USER, ASSISTANT = range(260, 265)
REFUSES_SYSTEM = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    + CHAT_TEMPLATE
)
IGNORES_SYSTEM = CHAT_TEMPLATE.replace("{% for message in messages %}", "{% for message in messages[-1:] %}")
EMOJI = "Hi 🎉 naïve  日本語🙂🙂 end "


def codec(tokenizer: Any = None, **options: Any) -> TextCodec:
    return TextCodec(tokenizer or byte_level(), name="toy", **options)


def pieces_of(text_codec: TextCodec, chunks: list[list[int]]) -> list[str]:
    stream = StreamDecoder(text_codec)
    return [*(stream.push(chunk) for chunk in chunks), stream.finish()]


def one_line(error: pytest.ExceptionInfo[Exception]) -> str:
    assert "\n" not in str(error.value)
    return str(error.value)


class TestEncode:
    def test_chat_prompt_by_hand(self) -> None:
        assert codec().encode("hi") == [USER, ord("h"), ord("i"), TURN, ASSISTANT]

    def test_system_by_hand(self) -> None:
        assert codec().encode("hi", system="be")[:4] == [SYSTEM, ord("b"), ord("e"), TURN]

    def test_equal_to_transformers(self) -> None:
        tokenizer = byte_level()
        messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": EMOJI}]
        own = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
        assert codec(tokenizer).encode(EMOJI, system="Be brief.") == own
        assert codec(tokenizer).encode(EMOJI, raw=True) == tokenizer(EMOJI)["input_ids"]

    def test_thinking_is_off(self) -> None:
        template = CHAT_TEMPLATE + "{% if enable_thinking is defined and not enable_thinking %}!{% endif %}"
        assert codec(byte_level(template)).encode("hi")[-1] == ord("!")

    def test_raw_prompt_is_taken_as_it_is(self) -> None:
        assert codec().encode(" a\n", raw=True) == [ord(" "), ord("a"), ord("\n")]

    def test_bos_is_not_doubled(self) -> None:
        tokenizer = byte_level("<|end|>" + CHAT_TEMPLATE, bos_token="<|end|>")
        tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
            single="<|end|> $A", special_tokens=[("<|end|>", END)]
        )
        text_codec = codec(tokenizer)
        assert text_codec.encode("hi", raw=True) == [END, ord("h"), ord("i")]
        parsing = codec(tokenizer, chat=ChatSettings(parse_special=True))
        assert parsing.encode("<|end|>hi", raw=True) == [END, ord("h"), ord("i")]
        assert text_codec.encode("<|end|>", raw=True) == [END, *b"<|end|>"]
        assert text_codec.encode("hi")[:2] == [END, USER]

    def test_empty_prompt(self) -> None:
        for raw in (False, True):
            with pytest.raises(RequestError, match="prompt is empty"):
                codec().encode("", raw=raw)

    @pytest.mark.parametrize("system", [None, "be"])
    def test_no_template(self, system: str | None) -> None:
        with pytest.raises(UsageError, match="'toy' has no chat template: use --raw") as error:
            codec(byte_level(None)).encode("hi", system=system)
        one_line(error)

    def test_template_that_refuses_the_system_role(self) -> None:
        text_codec = codec(byte_level(REFUSES_SYSTEM))
        assert text_codec.encode("hi") == codec().encode("hi")
        with pytest.raises(UsageError, match=r"System role not supported.*leave --system out") as error:
            text_codec.encode("hi", system="be")
        one_line(error)

    def test_template_that_ignores_the_system_role(self) -> None:
        with pytest.raises(UsageError, match="ignores the system role") as error:
            codec(byte_level(IGNORES_SYSTEM)).encode("hi", system="be")
        one_line(error)

    def test_template_that_fails_on_any_prompt(self) -> None:
        with pytest.raises(UsageError, match=r"refuses \(no\): use --raw"):
            codec(byte_level("{{ raise_exception('no') }}")).encode("hi")

    def test_system_needs_the_template(self) -> None:
        with pytest.raises(UsageError, match="--raw"):
            codec().encode("hi", raw=True, system="be")


class TestEndIds:
    def test_union_in_the_documented_order(self) -> None:
        text_codec = codec(
            config=SimpleNamespace(eos_token_id=7),
            generation_config=SimpleNamespace(eos_token_id=[9, 7]),
            file_end_ids=[11, 9],
        )
        assert text_codec.end_ids == (9, 7, END, 11, TURN)
        assert text_codec.raw_end_ids == (9, 7, END, 11)
        sources = {end.token_id: end.source for end in text_codec.ends()}
        assert sources == {
            9: "generation_config", 7: "generation_config", END: "tokenizer", 11: "file metadata", TURN: "chat template"
        }  # fmt: skip
        assert text_codec.ends()[2].token == "<|end|>"

    def test_nothing_named_twice_or_nowhere(self) -> None:
        text_codec = codec(config=SimpleNamespace(eos_token_id=None), generation_config=SimpleNamespace())
        assert text_codec.end_ids == (END, TURN)

    @pytest.mark.parametrize("template", [None, "{{ messages[-1]['content'] }}\n", "{{ raise_exception('no') }}"])
    def test_template_without_an_end_of_turn(self, template: str | None) -> None:
        assert codec(byte_level(template)).end_ids == (END,)

    def test_id_beyond_the_tokenizer_is_kept(self) -> None:
        assert codec(config=SimpleNamespace(eos_token_id=900)).end_ids == (900, END, TURN)


class TestDecode:
    def test_equal_to_the_tokenizer(self) -> None:
        tokenizer = byte_level()
        ids = tokenizer(EMOJI)["input_ids"]
        assert codec(tokenizer).decode(ids) == EMOJI == tokenizer.decode(ids)

    def test_special_tokens_and_unknown_ids_leave_no_text(self) -> None:
        assert codec().decode([ord("a"), 5000, END, -3, ord("b"), len(SPECIALS) + 260]) == "ab"

    def test_broken_bytes_equal_the_tokenizer(self) -> None:
        tokenizer = byte_level()
        rng = np.random.default_rng(0)
        for length in (1, 2, 5, 40):
            ids = rng.integers(0, 256, length).tolist()
            assert codec(tokenizer).decode(ids) == tokenizer.decode(ids)


class TestStream:
    @pytest.mark.parametrize("edge", range(len(EMOJI.encode()) + 1))
    def test_split_at_every_byte(self, edge: int) -> None:
        ids = list(EMOJI.encode())
        pieces = pieces_of(codec(), [ids[:edge], ids[edge:]])
        assert "".join(pieces) == EMOJI
        assert not any("\ufffd" in piece for piece in pieces)
        assert pieces[0] == EMOJI.encode()[:edge].decode(errors="ignore")

    @pytest.mark.parametrize("size", [1, 2, 3, 7])
    def test_a_piece_in_every_round_that_completes_a_code_point(self, size: int) -> None:
        ids = list(EMOJI.encode())
        chunks = [ids[start : start + size] for start in range(0, len(ids), size)]
        pieces = pieces_of(codec(), chunks)
        done = 0
        for number, piece in enumerate(pieces[:-1]):
            whole = len(bytes(ids[: (number + 1) * size]).decode(errors="ignore"))
            assert len(piece) == whole - done
            done = whole
        assert pieces[-1] == ""

    def test_leading_blank_of_answer_and_rounds(self) -> None:
        tokenizer = byte_level()
        ids = tokenizer(" the one the")["input_ids"]
        assert pieces_of(codec(tokenizer), [[token] for token in ids]) == [" the", " ", "on", "e", " the", ""]

    def test_text_without_blanks_is_not_held_back(self) -> None:
        assert pieces_of(codec(), [[ord("a")], [ord("b"), ord("c")]]) == ["a", "bc", ""]

    def test_incomplete_end_is_written_at_the_finish(self) -> None:
        start = "🎉".encode()[:3]
        assert pieces_of(codec(), [[ord("a"), *start[:1]], list(start[1:])]) == ["a", "", "\ufffd"]

    def test_any_bytes_however_cut(self) -> None:
        rng = np.random.default_rng(1)
        text_codec = codec()
        for _ in range(200):
            ids = rng.choice([0xF0, 0x9F, 0x8E, 0x89, 0xC3, 0xA9, 0x41, 0x20, END, 5000], rng.integers(0, 12)).tolist()
            cuts = sorted(rng.integers(0, len(ids) + 1, 3).tolist())
            bounds = itertools.pairwise([0, *cuts, len(ids)])
            pieces = pieces_of(text_codec, [ids[start:stop] for start, stop in bounds])
            assert "".join(pieces) == text_codec.decode(ids)

    def test_special_token_inside_a_code_point(self) -> None:
        first, *rest = "é".encode()
        assert pieces_of(codec(), [[first], [END], rest]) == ["", "", "é", ""]


class TestByteFallback:
    def test_leading_blanks_of_rounds_stay(self) -> None:
        tokenizer = byte_fallback()
        ids = tokenizer.convert_tokens_to_ids(["▁the", "▁cat", "s", "▁", "▁", "a", ".", "</s>"])
        text_codec = codec(tokenizer)
        assert tokenizer.decode(ids, skip_special_tokens=True) == "the cats  a."
        for size in (1, 2, 3, 8):
            chunks = [ids[start : start + size] for start in range(0, len(ids), size)]
            assert "".join(pieces_of(text_codec, chunks)) == text_codec.decode(ids) == "the cats  a."

    def test_characters_as_bytes_come_one_by_one(self) -> None:
        tokenizer = byte_fallback()
        ids = [3 + byte for byte in "日本🎉".encode()]
        pieces = pieces_of(codec(tokenizer), [[token] for token in ids])
        assert pieces == ["", "", "日", "", "", "本", "", "", "", "🎉", ""]

    def test_whole_characters_before_a_cut_one_survive(self) -> None:
        tokenizer = byte_fallback()
        ids = [3 + byte for byte in "🎉🎉".encode()[:6]]
        text_codec = codec(tokenizer)
        assert tokenizer.decode(ids) == "\ufffd" * 6  # what the documented exception is about
        assert text_codec.decode(ids) == "🎉\ufffd\ufffd"
        for cut in range(7):
            assert "".join(pieces_of(text_codec, [ids[:cut], ids[cut:]])) == text_codec.decode(ids)


class TestCleanUp:
    """Tokenizers that take blanks away before signs, as their own decoding does."""

    WORDS = ("hello", "world", ".", "!", "?", ",", "do", "n't", "'", "'s", "'re", "##ing", "x")

    def tokenizer(self, **options: Any) -> Any:
        vocab = {"[UNK]": 0, **{word: at for at, word in enumerate(self.WORDS, start=1)}}
        backend = Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
        backend.decoder = decoders.WordPiece(cleanup=False)
        return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", **options)

    def test_equal_to_the_tokenizers_own_decoding_however_cut(self) -> None:
        tokenizer = self.tokenizer(clean_up_tokenization_spaces=True)
        text_codec = codec(tokenizer)
        assert text_codec.decode([1, 2, 3]) == "hello world." and text_codec.cleans
        rng = np.random.default_rng(0)
        for _ in range(200):
            ids = rng.integers(1, len(self.WORDS) + 1, rng.integers(1, 30)).tolist()
            cuts = sorted(rng.integers(0, len(ids) + 1, 3).tolist())
            chunks = [ids[a:b] for a, b in itertools.pairwise([0, *cuts, len(ids)])]
            own = tokenizer.decode(ids, skip_special_tokens=True)
            assert text_codec.decode(ids) == own == "".join(pieces_of(text_codec, chunks))

    def test_words_are_not_held_longer_than_needed(self) -> None:
        text_codec = codec(self.tokenizer(clean_up_tokenization_spaces=True))
        assert pieces_of(text_codec, [[1], [2], [3], [7]]) == ["", "hello", " world", "", ". do"]

    def test_left_alone_where_the_tokenizer_leaves_them(self) -> None:
        plain = codec(self.tokenizer(clean_up_tokenization_spaces=False))
        assert plain.decode([1, 3]) == "hello ." and not plain.cleans
        assert pieces_of(plain, [[1], [3]]) == ["hello", " .", ""]
        pairs = codec(byte_level(clean_up_tokenization_spaces=True))  # transformers does not touch byte pairs
        assert not pairs.cleans and pairs.decode([*b"a ."]) == "a ."
