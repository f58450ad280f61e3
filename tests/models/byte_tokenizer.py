"""Tokenizers built in the tests: byte-level, and pieces with byte fallback and a leading-blank rule."""

from __future__ import annotations

from typing import Any

from tiny_gguf import byte_tokens
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|turn|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SPECIALS = ["<|end|>", "<|turn|>", "<|system|>", "<|user|>", "<|assistant|>"]


def byte_level(chat_template: str | None = CHAT_TEMPLATE, **options: Any) -> Any:
    """Token id = byte value, a few merged words, then the specials; `<|end|>` is the eos."""
    vocab = {token: index for index, token in enumerate(byte_tokens())}
    merges = [("Ġ", "t"), ("Ġt", "h"), ("Ġth", "e"), ("o", "n")]
    for left, right in merges:
        vocab[left + right] = len(vocab)
    backend = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(SPECIALS)
    return PreTrainedTokenizerFast(
        tokenizer_object=backend, eos_token="<|end|>", chat_template=chat_template, **options
    )


def byte_fallback() -> Any:
    """Pieces as SentencePiece makes them: `▁` for a blank, the first one dropped; unknown characters as bytes."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    pieces += ["▁", "a", "b", "e", "o", "t", "▁the", "▁cat", "s", "."]
    backend = Tokenizer(models.BPE({piece: index for index, piece in enumerate(pieces)}, [], byte_fallback=True))
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens(["<s>", "</s>"])
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>", unk_token="<unk>")
