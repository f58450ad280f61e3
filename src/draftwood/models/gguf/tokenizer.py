"""The tokenizer of a GGUF file, with the rules that the file only names.

A file holds the vocabulary and the merges of a byte-level tokenizer, but of the way in which text is cut into words
before any merge only a name, `tokenizer.ggml.pre`. The rules behind the names are those of the publishers' own
tokenizers, as llama.cpp knows them by the same names (`llama-vocab.cpp`).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import ModelError

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_BLANKS = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
_DIGITS = r"\p{N}"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _BLANKS
_QWEN2 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|" + _BLANKS
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|" + _BLANKS
_GPT4O = (
    f"{_LEAD}{_UPPER}*{_LOWER}+{_CONTRACTIONS}?|{_LEAD}{_UPPER}+{_LOWER}*{_CONTRACTIONS}?|" + r"\p{N}{1,3}|" + _SIGNS
)
_TEKKEN = f"{_LEAD}{_UPPER}*{_LOWER}+|{_LEAD}{_UPPER}+{_LOWER}*|" + r"\p{N}|" + _SIGNS
_DEEPSEEK3 = (
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|"
    + _BLANKS
)

_RULES: dict[tuple[str, ...], tuple[str, ...]] = {
    ("smollm", "starcoder", "refact", "command-r", "codeshell", "exaone", "minerva-7b"): (_DIGITS, _GPT2),
    ("gpt-2", "phi-2", "mpt", "olmo", "jais", "gigachat", "roberta-bpe", "trillion"): (_GPT2,),
    ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "dbrx", "smaug-bpe"): (
        _LLAMA3,
    ),
    ("qwen2", "deepseek-r1-qwen", "stablelm2", "hunyuan", "megrez"): (_QWEN2,),
    ("gpt-4o", "llama4"): (_GPT4O,),
    ("tekken",): (_TEKKEN,),
    ("deepseek-v3",): (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3),  # noqa: RUF001
    ("deepseek-coder",): (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", _DIGITS),
    ("falcon",): (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]"),
    ("default",): (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
}
PRE_TOKENIZERS = {name: rules for names, rules in _RULES.items() for name in names}
"""Patterns by name. Each cuts the pieces that the one before it left; what it does not match stays a piece."""
_WHOLE_WORDS = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken")
"""Names under which a word that is in the vocabulary is taken whole, whatever the merges say."""
_STARTS_TEXT = ("llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "tekken")
"""Names under which a text begins with the beginning-of-text token unless the file says otherwise."""
_CONTROL, _USER_DEFINED = 3, 4
_TEMPLATES = "tokenizer.chat_template."
_BYTE_LEVEL, _SENTENCE_PIECE = "gpt2", "llama"


def check_kind(path: Path, metadata: Mapping[str, Any]) -> None:
    """Raise ModelError for a tokenizer that would be rebuilt by other rules than the file's."""
    kind = metadata.get("tokenizer.ggml.model")
    if kind not in (_BYTE_LEVEL, _SENTENCE_PIECE):
        raise ModelError(
            f"model {str(path)!r}: GGUF key tokenizer.ggml.model = {kind!r}: expected {_BYTE_LEVEL} or "
            f"{_SENTENCE_PIECE}; use the model's safetensors checkpoint"
        )
    name = metadata.get("tokenizer.ggml.pre", "default")
    if kind == _BYTE_LEVEL and name not in PRE_TOKENIZERS:
        raise ModelError(
            f"model {str(path)!r}: GGUF key tokenizer.ggml.pre = {name!r}: expected one of "
            f"{', '.join(sorted(PRE_TOKENIZERS))}; use the model's safetensors checkpoint"
        )


def complete(tokenizer: Any, metadata: Mapping[str, Any]) -> None:
    """Give the tokenizer that transformers rebuilt what it leaves out: word rules, special tokens, text borders,
    further chat templates.

    `metadata` are all pairs of the file, arrays included; `check_kind` accepts them. Changes `tokenizer`.
    """
    from tokenizers import AddedToken, Regex, models, pre_tokenizers

    backend = tokenizer.backend_tokenizer
    name = str(metadata.get("tokenizer.ggml.pre", "default"))
    byte_level = metadata["tokenizer.ggml.model"] == _BYTE_LEVEL
    if byte_level:
        cuts = [pre_tokenizers.Split(Regex(rule), "isolated") for rule in PRE_TOKENIZERS[name]]
        last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        backend.pre_tokenizer = pre_tokenizers.Sequence([*cuts, last])
        if isinstance(backend.model, models.BPE):
            backend.model.ignore_merges = name in _WHOLE_WORDS
    kinds, tokens = metadata.get("tokenizer.ggml.token_type", ()), metadata["tokenizer.ggml.tokens"]
    known = set(tokenizer.added_tokens_decoder)
    for token_id, kind in enumerate(kinds):
        if kind in (_CONTROL, _USER_DEFINED) and token_id not in known:
            special = kind == _CONTROL
            tokenizer.add_tokens([AddedToken(tokens[token_id], special=special, normalized=False)], special)
    named = {
        key.removeprefix(_TEMPLATES): value
        for key, value in metadata.items()
        if key.startswith(_TEMPLATES) and isinstance(value, str)
    }
    if named:
        default = metadata.get("tokenizer.chat_template")
        tokenizer.chat_template = named if default is None else {"default": default, **named}
    _set_borders(tokenizer, metadata, name in _STARTS_TEXT or not byte_level)


def _set_borders(tokenizer: Any, metadata: Mapping[str, Any], starts: bool) -> None:
    """Begin and end every text with the tokens that the file wants there."""
    from tokenizers import processors

    wanted = {
        "bos": metadata.get("tokenizer.ggml.add_bos_token", starts),
        "eos": metadata.get("tokenizer.ggml.add_eos_token", False),
    }
    pieces, special = ["$A"], []
    for border, place in (("bos", 0), ("eos", 2)):
        token_id = metadata.get(f"tokenizer.ggml.{border}_token_id")
        if wanted[border] and token_id is not None:
            token = metadata["tokenizer.ggml.tokens"][token_id]
            pieces.insert(place, token)
            special.append((token, int(token_id)))
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single=pieces, pair=[*pieces, "$B"], special_tokens=special
    )
