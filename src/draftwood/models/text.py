"""Text to token ids and back, around a transformers tokenizer."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..errors import RequestError, UsageError
from .chat import ChatSettings, ChatTemplate, Message
from .stream import REPLACEMENT, StreamDecoder


@dataclass(frozen=True, slots=True)
class EndId:
    """A token id that ends an answer, with the place that names it first."""

    token_id: int
    token: str
    source: str


class TextCodec:
    """Encodes prompts, decodes answers and knows which ids end one.

    End ids are the union, in this order, of what the generation config, the model config, the tokenizer and the
    model file's own metadata (GGUF) name; when the chat template is used, also the token with which the template
    closes an assistant's turn. So they contain all that transformers' `generate` honours.

    Text that spells a special token is text, so that nobody who writes a message can end it and open another's turn;
    with `parse_special` it becomes the token. transformers always parses it, unless `split_special_tokens` is given;
    llama.cpp leaves the choice to its caller (`parse_special` of `llama_tokenize`), and its server parses.
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        name: str,
        config: Any = None,
        generation_config: Any = None,
        file_end_ids: Sequence[int] = (),
        chat: ChatSettings | None = None,
    ) -> None:
        self.tokenizer = tokenizer
        self.name = name
        self.chat = chat or ChatSettings()
        self.template = ChatTemplate(tokenizer, name, self.chat)
        self._known = frozenset(tokenizer.get_vocab().values())
        named = [
            ("generation_config", getattr(generation_config, "eos_token_id", None)),
            ("config", getattr(config, "eos_token_id", None)),
            ("tokenizer", tokenizer.eos_token_id),
            ("file metadata", list(file_end_ids)),
        ]
        self._raw_ends = self._unite(named)
        self._chat_ends = self._unite([*named, ("chat template", self._end_of_turn())])
        self.cleans = bool(getattr(tokenizer, "clean_up_tokenization_spaces", False)) and self.clean("a .") == "a."

    def encode(self, prompt: str, *, raw: bool = False, system: str | None = None) -> list[int]:
        """Token ids of a prompt.

        By default the chat template is applied (one user turn, after `system` if given, open for the assistant's
        answer, thinking off); with `raw` the text is tokenized as it is. Ids are those of transformers, but for text
        that spells special tokens (see the class). Raises RequestError for an empty prompt, UsageError for a template
        that is absent, fails or loses words.
        """
        if not prompt:
            raise RequestError("prompt is empty: expected at least one character")
        if raw:
            return self._encode_raw(prompt, system)
        user = {"role": "user", "content": prompt}
        if system is None:
            return self._encode_turns([user], f"use --raw (raw=True) for model {self.name!r}")
        way_out = "leave --system out and put its text into the prompt"
        return self._encode_turns([{"role": "system", "content": system}, user], way_out)

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Token ids of a conversation of (role, content), open for the assistant's next answer.

        Raises UsageError for a template that is absent, fails or loses words.
        """
        turns = [{"role": role, "content": content} for role, content in messages]
        return self._encode_turns(turns, "its roles or their order do not suit this model")

    def encode_own(self, text: str) -> list[int]:
        """Token ids of a text that Draftwood brings itself, raw where the template cannot take it."""
        try:
            return self.encode(text)
        except UsageError:
            return self.encode(text, raw=True)

    def decode(self, ids: Iterable[int]) -> str:
        """Text of token ids: special tokens left out, ids that the tokenizer lacks skipped.

        Equal to the tokenizer's own decoding, its clean-up of blanks included, and to the joined pieces of a
        `StreamDecoder`. The one exception is broken UTF-8 under byte fallback, where the tokenizer would drop whole
        characters beside the broken bytes.
        """
        known = self.known(ids)
        text = self.plain(known)
        if REPLACEMENT not in text:
            return self.clean(text) if self.cleans else text
        stream = StreamDecoder(self)
        return stream.push(known) + stream.finish()

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Ids that end an answer to a chat prompt, in the documented order."""
        return tuple(end.token_id for end in self.ends())

    @property
    def raw_end_ids(self) -> tuple[int, ...]:
        """Ids that end an answer to a raw prompt: `end_ids` without what the chat template alone adds."""
        return tuple(end.token_id for end in self.ends(raw=True))

    def ends(self, *, raw: bool = False) -> tuple[EndId, ...]:
        """The end ids with the places that name them, for display."""
        return self._raw_ends if raw else self._chat_ends

    def stream(self) -> StreamDecoder:
        """A decoder for one answer that arrives in pieces."""
        return StreamDecoder(self)

    def known(self, ids: Iterable[int]) -> list[int]:
        """The ids that the tokenizer has."""
        return [int(token_id) for token_id in ids if int(token_id) in self._known]

    def plain(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out, nothing cleaned."""
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def clean(self, text: str) -> str:
        """What the tokenizer's own decoding makes of the blanks of a text; transformers leaves those of BPE alone."""
        byte_pairs = type(self.tokenizer.backend_tokenizer.model).__name__ == "BPE"
        if byte_pairs and not self.tokenizer.clean_up_tokenization_spaces_for_bpe_even_though_it_will_corrupt_output:
            return text
        cleaned: str = self.tokenizer.clean_up_tokenization(text)
        return cleaned if self.tokenizer.clean_up_tokenization_spaces else text

    @cached_property
    def context(self) -> list[int]:
        """One token that decodes to visible text by itself, so that what follows it keeps its leading blank."""
        special = set(self.tokenizer.all_special_ids)
        letters = [self.tokenizer.convert_tokens_to_ids(letter) for letter in "aeot"]
        for token_id in [*letters, *sorted(self._known - special)]:
            if token_id in self._known and token_id not in special:
                text = self.plain([token_id])
                if text and text == text.strip() and REPLACEMENT not in text:
                    return [token_id]
        return []

    def _encode_raw(self, prompt: str, system: str | None) -> list[int]:
        if system is not None:
            raise UsageError("--system (system=...) needs the chat template: leave out --raw")
        parse = self.chat.parse_special
        ids: list[int] = self.tokenizer(prompt, split_special_tokens=not parse)["input_ids"]
        bos = self.tokenizer.bos_token_id
        if parse and bos is not None and ids[:2] == [bos, bos] and prompt.startswith(self.tokenizer.bos_token):
            ids = ids[1:]
        if not ids:
            raise RequestError("prompt has no tokens: expected at least one")
        return ids

    def _encode_turns(self, messages: list[Message], way_out: str) -> list[int]:
        """Ids of a rendered conversation, special tokens of the template parsed and those of the messages not."""
        text = self.template.render(messages, way_out)
        if self.chat.parse_special or not any(self._specials.search(message["content"]) for message in messages):
            ids: list[int] = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            return ids
        return self._encode_spelling(messages, way_out)

    def _encode_spelling(self, messages: list[Message], way_out: str) -> list[int]:
        """Ids of a conversation whose messages spell special tokens: these are hidden while the template's are "
        "found."""
        mark = "\ue000"
        while any(mark in message["content"] for message in messages):
            mark += "\ue000"
        spelled: list[str] = []

        def hide(match: re.Match[str]) -> str:
            spelled.append(match[0])
            return f"{mark}{len(spelled) - 1};"

        hidden = [{**message, "content": self._specials.sub(hide, message["content"])} for message in messages]
        text = self.template.render(hidden, way_out)
        place = re.compile(f"{mark}(\\d+);")
        ordinary = place.sub("x", text)
        if self._joined(ordinary, str) != self.tokenizer(ordinary, add_special_tokens=False)["input_ids"]:
            raise UsageError(
                f"prompt spells the special token {spelled[0]!r}, which the tokenizer of model {self.name!r} cannot "
                "keep as "
                "text between others: take it out, or use --parse-special"
            )
        return self._joined(text, lambda piece: place.sub(lambda match: spelled[int(match[1])], piece))

    def _joined(self, text: str, restored: Callable[[str], str]) -> list[int]:
        """Ids of a rendered text, cut at the special tokens in it; the pieces between are `restored`, then plain "
        "text."""
        ids: list[int] = []
        start = 0
        for match in self._specials.finditer(text):
            ids += self._as_text(restored(text[start : match.start()]))
            ids.append(self.tokenizer.convert_tokens_to_ids(match[0]))
            start = match.end()
        return ids + self._as_text(restored(text[start:]))

    def _as_text(self, text: str) -> list[int]:
        if not text:
            return []
        ids: list[int] = self.tokenizer(text, add_special_tokens=False, split_special_tokens=True)["input_ids"]
        return ids

    @cached_property
    def _specials(self) -> re.Pattern[str]:
        """Every special token that a text can spell, the longest first; never matches without any."""
        added = self.tokenizer.added_tokens_decoder.values()
        named = sorted((token.content for token in added if token.special), key=len, reverse=True)
        return re.compile("|".join(re.escape(token) for token in named) or r"(?!)")

    def _end_of_turn(self) -> int | None:
        """The special token with which the template follows an assistant's words; None when it has none."""
        words = "Yesterday"
        turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": words}]
        try:
            text = self.template.render(turns, "", opened=False)
        except UsageError:
            return None
        _, found, rest = text.rpartition(words)
        if not found:
            return None
        special = set(self.tokenizer.all_special_ids) | set(self.tokenizer.added_tokens_decoder)
        ids = self.tokenizer(rest, add_special_tokens=False)["input_ids"]
        return ids[0] if ids and ids[0] in special else None

    def _unite(self, named: list[tuple[str, Any]]) -> tuple[EndId, ...]:
        ends: dict[int, EndId] = {}
        for source, value in named:
            for token_id in value if isinstance(value, list | tuple) else [value]:
                if isinstance(token_id, int) and token_id >= 0 and token_id not in ends:
                    token = self.tokenizer.convert_ids_to_tokens(token_id) if token_id in self._known else "?"
                    ends[token_id] = EndId(token_id, token, source)
        return tuple(ends.values())
