"""Text as it is committed: pieces joined are the text, whatever the rounds."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from byte_tokenizer import byte_fallback, byte_level
from scripted import Play
from transformers import AutoModelForCausalLM, LlamaConfig

from draftwood.attention import SdpaBackend
from draftwood.engine import Engine, Piece
from draftwood.models.hf import HFTarget
from draftwood.models.text import TextCodec

TEXTS = ["on the 😀 then 🇳🇴 end", "😀😀", "Zażółć", "  two  blanks ", "nobreakatallinthisline"]
POLICIES: list[dict[str, Any]] = [
    {"policy": "ar"},
    {"policy": "chain"},
    {"policy": "chain", "block_size": 2},
    {"policy": "chain", "block_size": 3},
    {"policy": "ddtree", "budget": 24},
]


def make_codec() -> TextCodec:
    return TextCodec(byte_level(), name="bytes")


def pieces_of(play: Play, codec: TextCodec, text: str, prompt: str, **options: Any) -> list[Piece]:
    """Stream a request whose script is `text` and an end token."""
    ids = codec.tokenizer(prompt)["input_ids"]
    script = [*codec.tokenizer(text)["input_ids"], codec.tokenizer.eos_token_id, 65, 66]
    following = len(play.target.scripts)  # ids of requests count up from 0
    play.expect(following, script, prompt=ids, dice=following)
    return list(play.engine.stream(prompt, raw=True, **options))


@pytest.mark.parametrize("options", POLICIES, ids=str)
@pytest.mark.parametrize("sure", [False, True])
def test_pieces_joined_are_the_text(options: dict[str, Any], sure: bool) -> None:
    codec = make_codec()
    play = Play(vocab=len(codec.tokenizer), codec=codec, sure=sure)
    for text in TEXTS:
        pieces = pieces_of(play, codec, text, "a", **options)
        result = pieces[-1].output
        assert result is not None and all(piece.output is None for piece in pieces[:-1])
        assert "".join(piece.text for piece in pieces) == result.text == text
        ids = [token for piece in pieces for token in piece.token_ids]
        assert ids == result.token_ids and result.finish_reason == "stop"
        assert ids[-1] == codec.tokenizer.eos_token_id and codec.decode(ids) == text
        # One piece a step: prefill's token, then every round; a piece is empty only inside a code point.
        assert len(pieces) == 1 + len(result.rounds)
        done, shown = 0, ""
        for piece in pieces[:-1]:
            done += len(piece.token_ids)
            shown += piece.text
            assert codec.decode(ids[:done]).rstrip("\ufffd") == shown


def test_a_text_cut_inside_a_code_point_ends_with_its_replacement() -> None:
    codec = make_codec()
    play = Play(vocab=len(codec.tokenizer), codec=codec)
    pieces = pieces_of(play, codec, "ab😀", "a", policy="ar", max_tokens=4)
    assert pieces[-1].output is not None
    assert "".join(piece.text for piece in pieces) == pieces[-1].output.text
    assert pieces[-1].output.text.startswith("ab") and pieces[-1].output.finish_reason == "length"
    assert "\ufffd" not in "".join(piece.text for piece in pieces[:-1])


def test_the_first_piece_keeps_its_rules_about_blanks() -> None:
    codec = TextCodec(byte_fallback(), name="pieces")
    play = Play(vocab=len(codec.tokenizer), codec=codec)
    vocab = codec.tokenizer.get_vocab()
    script = [vocab[piece] for piece in ("▁the", "▁cat", "s", "▁", "a", ".")]
    play.expect(0, [*script, codec.tokenizer.eos_token_id], prompt=[vocab["a"]])
    pieces = list(play.engine.stream([vocab["a"]], policy="ar"))
    result = pieces[-1].output
    assert result is not None
    assert "".join(piece.text for piece in pieces) == result.text == codec.tokenizer.decode(script)
    assert [piece.text for piece in pieces[:3]] == ["the", " cat", "s"]


def test_the_end_token_is_kept_in_ids_and_left_out_of_the_text() -> None:
    codec = make_codec()
    play = Play(vocab=len(codec.tokenizer), codec=codec)
    (piece,) = pieces_of(play, codec, "", "a", policy="ddtree", budget=4)
    result = piece.output
    assert result is not None
    assert (result.token_ids, result.text, piece.text) == ([codec.tokenizer.eos_token_id], "", "")
    assert (result.finish_reason, result.rounds) == ("stop", [])


def test_raw_prompts_and_chats_end_where_they_should() -> None:
    """The template's end of turn ends a chat answer; a raw text goes on to the end of text."""
    codec = make_codec()
    turn = codec.tokenizer.convert_tokens_to_ids("<|turn|>")
    eos = codec.tokenizer.eos_token_id
    for raw, expected in ((True, [97, turn, 98, eos]), (False, [97, turn])):
        play = Play(vocab=len(codec.tokenizer), codec=codec)
        play.expect(0, [97, turn, 98, eos, 99], prompt=codec.encode("a", raw=raw))
        (result,) = play.engine.generate(["a"], policy="ar", raw=raw)
        assert (result.token_ids, result.finish_reason) == (expected, "stop")


def test_a_model_may_have_more_rows_than_the_tokenizer_has_tokens() -> None:
    """Sampled ids of the gap are kept; the text is that of the known ones."""
    codec = make_codec()
    known = len(codec.tokenizer)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=known + 800,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=256,
    )
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    engine = Engine(HFTarget(model, SdpaBackend(), name="padded"), codec=codec)
    (result,) = engine.generate(["a"], policy="ar", raw=True, temperature=1.0, seed=3, max_tokens=60)
    unknown = [token for token in result.token_ids if token >= known]
    assert len(unknown) > 20 and len(result.token_ids) == 60
    assert result.text == codec.decode([token for token in result.token_ids if token < known])
    pieces = list(engine.stream("a", policy="ar", raw=True, temperature=1.0, seed=3, max_tokens=60))
    assert [token for piece in pieces for token in piece.token_ids] == result.token_ids
    assert "".join(piece.text for piece in pieces) == result.text
