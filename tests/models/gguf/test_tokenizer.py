"""Pre-tokenizers by name: against the publishers' own forms, and ids that llama.cpp gave for the demo's file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_gguf import write_tiny_gguf
from tokenizers import Regex, pre_tokenizers
from transformers import AutoTokenizer

from draftwood.errors import ModelError
from draftwood.models.chat import ChatSettings
from draftwood.models.gguf.convert import convert
from draftwood.models.gguf.tokenizer import PRE_TOKENIZERS
from draftwood.models.loading import load_target
from draftwood.models.source import resolve_model
from draftwood.models.text import TextCodec

TEXTS = (
    "x =    12", "for i in range(   3):\n    a1b22  7", "Don't WE'LL they'Ve", "½ ¾ ²³ ٣٤ 1234567", "  \n\n\t end  ",
    "naïve CamelCaseWords HTTPServer", "你好、世界 カタカナ", "a+b<=c>>d ^~|` $5.00!!\r\n", "", " ", "é́x",
)  # fmt: skip
# Ids by llama.cpp for the demo's file, special tokens parsed or not.
LLAMA_CPP = (
    ("x =    12", False, [104, 446, 289, 33, 34]),
    ("for i in range(   3):", False, [1710, 2056, 281, 1845, 24, 333, 35, 727]),
    ("   3 apples,  4 pears", False, [333, 35, 13855, 28, 256, 36, 41684]),
    ("a1b22\n  7", True, [81, 33, 82, 34, 34, 11181, 39]),
)


def pieces(tokenizer: Any, text: str) -> list[str]:
    return [piece for piece, _ in tokenizer.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)]


def converted(folder: Path, **changes: Any) -> Any:
    def no_notice(line: str) -> None:
        raise AssertionError(line)

    return convert(write_tiny_gguf(folder / "tiny.gguf", **changes), no_notice)[1]


def published(name: str) -> Any:
    """What the publisher's tokenizer.json holds."""
    split, byte_level = pre_tokenizers.Split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2, digits = pre_tokenizers.ByteLevel(add_prefix_space=False), pre_tokenizers.Digits(individual_digits=True)
    words = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s"
    words += r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    return pre_tokenizers.Sequence(
        {
            "smollm": [digits, gpt2],
            "starcoder": [digits, gpt2],
            "gpt-2": [gpt2],
            "llama-bpe": [split(Regex(words.replace("%s", "{1,3}")), "isolated"), byte_level],
            "qwen2": [split(Regex(words.replace("%s", "")), "isolated"), byte_level],
        }[name]
    )


@pytest.mark.parametrize("name", ["smollm", "starcoder", "gpt-2", "llama-bpe", "qwen2"])
def test_words_are_cut_as_the_publisher_cuts_them(name: str, tmp_path: Path) -> None:
    tokenizer = converted(tmp_path, pairs={"tokenizer.ggml.pre": name})
    reference = published(name)
    for text in TEXTS:
        assert pieces(tokenizer, text) == [piece for piece, _ in reference.pre_tokenize_str(text)], (name, text)


@pytest.mark.parametrize(
    ("name", "text", "cut"),
    [
        ("smollm", "ab 12", ["ab", "Ġ", "1", "2"]),
        ("gpt-2", "ab 12", ["ab", "Ġ12"]),
        ("qwen2", "ab 12", ["ab", "Ġ", "1", "2"]),
        ("llama3", "a 12345", ["a", "Ġ", "123", "45"]),
        ("gpt-4o", "CamelCase'S 12345", ["Camel", "Case'S", "Ġ", "123", "45"]),
        ("tekken", "CamelCase's 12", ["Camel", "Case", "'s", "Ġ", "1", "2"]),
        ("falcon", "a1234 b!?", ["a", "123", "4", "Ġb", "!?"]),
        ("default", "a1234 b!?", ["a", "123", "4", "Ġb", "!?"]),
        ("deepseek-coder", "a 12\nb, c", ["a", "Ġ", "1", "2", "Ċ", "b", ",", "Ġc"]),
        ("deepseek-v3", "ab.xy 1234", ["ab", ".xy", "Ġ", "123", "4"]),
    ],
)
def test_words_by_hand(name: str, text: str, cut: list[str], tmp_path: Path) -> None:
    assert pieces(converted(tmp_path, pairs={"tokenizer.ggml.pre": name}), text) == cut


def test_an_unknown_name_is_refused_with_the_list(tmp_path: Path) -> None:
    with pytest.raises(ModelError) as error:
        converted(tmp_path, pairs={"tokenizer.ggml.pre": "smollm9"})
    line = str(error.value)
    assert "tokenizer.ggml.pre = 'smollm9'" in line and "tiny.gguf" in line and "\n" not in line
    assert all(name in line for name in PRE_TOKENIZERS)


def test_other_kinds_of_vocabulary_are_refused(tmp_path: Path) -> None:
    path = write_tiny_gguf(tmp_path / "t5.gguf")
    path.write_bytes(path.read_bytes().replace(b"\x04\0\0\0\0\0\0\0gpt2", b"\x04\0\0\0\0\0\0\0bert"))
    with pytest.raises(ModelError, match=r"tokenizer\.ggml\.model = 'bert': expected gpt2 or llama"):
        convert(path, print)


@pytest.mark.parametrize(
    ("pairs", "first", "last"),
    [
        ({"tokenizer.ggml.pre": "smollm"}, 97, 98),
        ({"tokenizer.ggml.pre": "llama-bpe"}, 257, 98),
        ({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}, 97, 98),
        ({"tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.add_bos_token": True}, 257, 98),
        ({"tokenizer.ggml.pre": "qwen2", "tokenizer.ggml.add_eos_token": True}, 97, 256),
    ],
)
def test_borders_of_a_text(pairs: dict[str, object], first: int, last: int, tmp_path: Path) -> None:
    tokenizer = converted(tmp_path, pairs={**pairs, "tokenizer.ggml.bos_token_id": 257})
    ids = tokenizer("a b")["input_ids"]
    names = {tokenizer.convert_ids_to_tokens(257): 257, tokenizer.convert_ids_to_tokens(256): 256}
    letters = {"a": 97, "b": 98}
    shown = [{**names, **letters}.get(tokenizer.convert_ids_to_tokens(token_id)) for token_id in ids]
    assert (shown[0], shown[-1]) == (first, last)


def test_user_defined_tokens_are_whole_words(tmp_path: Path) -> None:
    tokenizer = converted(tmp_path, user_defined="<tool>")
    (tool,) = tokenizer("<tool>", split_special_tokens=True)["input_ids"]
    assert tool == 259 and 259 not in tokenizer.all_special_ids
    assert len(tokenizer("<|turn|>", split_special_tokens=True)["input_ids"]) == len("<|turn|>")
    assert tokenizer("<|turn|>")["input_ids"] == [257]


def test_named_templates_survive_the_cache(tmp_path: Path) -> None:
    pairs = {"tokenizer.chat_template.rag": "{{ messages[0]['content'] }}"}
    tokenizer = converted(tmp_path, pairs=pairs)
    tokenizer.save_pretrained(tmp_path / "kept")
    kept = AutoTokenizer.from_pretrained(tmp_path / "kept")
    for found in (tokenizer, kept):
        assert set(found.chat_template) == {"default", "rag"}
        codec = TextCodec(found, name="t", chat=ChatSettings(template="rag"))
        assert codec.encode("ab") == found("ab", add_special_tokens=False)["input_ids"]


def test_the_demo_is_tokenized_as_llama_cpp_does_it(demo_tokenizer: Any) -> None:
    for text, parse_special, ids in LLAMA_CPP:
        assert demo_tokenizer(text, split_special_tokens=not parse_special)["input_ids"] == ids


@pytest.fixture(scope="module")
def demo_tokenizer() -> Any:
    from draftwood.attention import make_backend
    from draftwood.engine.loading import default_cache_dir

    loaded = load_target(
        resolve_model("demo:smollm2"), dtype="float32", device="cpu", backend=make_backend("sdpa"),
        cache_dir=default_cache_dir(), notify=lambda line: None,
    )  # fmt: skip
    return loaded.codec.tokenizer
