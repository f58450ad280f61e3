"""Text to token ids and back, around a transformers tokenizer."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import RequestError, UsageError

REPLACEMENT = "\ufffd"


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
    """

    def __init__(
        self,
        tokenizer: Any,
        *,
        name: str,
        config: Any = None,
        generation_config: Any = None,
        file_end_ids: Sequence[int] = (),
    ) -> None:
        self.tokenizer = tokenizer
        self.name = name
        self._known = frozenset(tokenizer.get_vocab().values())
        named = [
            ("generation_config", getattr(generation_config, "eos_token_id", None)),
            ("config", getattr(config, "eos_token_id", None)),
            ("tokenizer", tokenizer.eos_token_id),
            ("file metadata", list(file_end_ids)),
        ]
        self._raw_ends = self._unite(named)
        self._chat_ends = self._unite([*named, ("chat template", self._end_of_turn())])
        self._context = self._neutral_context()
        self._context_chars = len(self._plain(self._context))

    def encode(self, prompt: str, *, raw: bool = False, system: str | None = None) -> list[int]:
        """Token ids of a prompt, as transformers makes them.

        By default the chat template is applied (one user turn, after `system` if given, open for the assistant's
        answer, thinking off); with `raw` the text is tokenized as it is, a beginning-of-text token in it not doubled.
        Raises RequestError for an empty prompt, UsageError for a template that is absent or refuses.
        """
        if not prompt:
            raise RequestError("prompt is empty: expected at least one character")
        if raw:
            return self._encode_raw(prompt, system)
        if self.tokenizer.chat_template is None:
            raise UsageError(f"model {self.name!r} has no chat template: use --raw (raw=True)")
        user = [{"role": "user", "content": prompt}]
        if system is None:
            return self._render(user, f"use --raw (raw=True) for model {self.name!r}")
        way_out = "leave --system out and put its text into the prompt"
        ids = self._render([{"role": "system", "content": system}, *user], way_out)
        if ids == self._render(user, way_out) and system.strip() not in self.tokenizer.decode(ids):
            raise UsageError(f"the chat template of model {self.name!r} ignores the system role: {way_out}")
        return ids

    def encode_chat(self, messages: Sequence[tuple[str, str]]) -> list[int]:
        """Token ids of a conversation of (role, content), open for the assistant's next answer.

        Raises UsageError for a template that is absent or refuses.
        """
        if self.tokenizer.chat_template is None:
            raise UsageError(f"model {self.name!r} has no chat template: a conversation needs one")
        turns = [{"role": role, "content": content} for role, content in messages]
        return self._render(turns, "its roles or their order do not suit this model")

    def decode(self, ids: Iterable[int]) -> str:
        """Text of token ids: special tokens left out, blanks as they are, ids that the tokenizer lacks skipped.

        Equal to the tokenizer's own decoding and to the joined pieces of a `StreamDecoder`. The one exception is
        broken UTF-8 under byte fallback, where the tokenizer would drop whole characters beside the broken bytes.
        """
        known = self._only_known(ids)
        text = self._plain(known)
        if REPLACEMENT not in text:
            return text
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

    def _encode_raw(self, prompt: str, system: str | None) -> list[int]:
        if system is not None:
            raise UsageError("--system (system=...) needs the chat template: leave out --raw")
        bos = self.tokenizer.bos_token_id
        ids: list[int] = self.tokenizer(prompt)["input_ids"]
        if bos is not None and ids[:2] == [bos, bos] and prompt.startswith(self.tokenizer.bos_token):
            ids = ids[1:]
        if not ids:
            raise RequestError("prompt has no tokens: expected at least one")
        return ids

    def _render(self, messages: list[dict[str, str]], way_out: str) -> list[int]:
        """Ids of a conversation; a template that raises becomes one line with the way out."""
        from jinja2.exceptions import TemplateError

        try:
            encoding = self.tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=True, return_dict=True, enable_thinking=False
            )
        except TemplateError as error:
            reason = " ".join(str(error).split())
            raise UsageError(f"the chat template of model {self.name!r} refuses ({reason}): {way_out}") from error
        ids: list[int] = encoding["input_ids"]
        return ids

    def _end_of_turn(self) -> int | None:
        """The special token with which the template follows an assistant's words; None when it has none."""
        from jinja2.exceptions import TemplateError

        if self.tokenizer.chat_template is None:
            return None
        words = "Yesterday"
        turns = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": words}]
        try:
            text: str = self.tokenizer.apply_chat_template(turns, tokenize=False, enable_thinking=False)
        except TemplateError:
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

    def _only_known(self, ids: Iterable[int]) -> list[int]:
        return [int(token_id) for token_id in ids if int(token_id) in self._known]

    def _plain(self, ids: list[int]) -> str:
        text: str = self.tokenizer.decode(ids, skip_special_tokens=True, clean_up_tokenization_spaces=False)
        return text

    def _neutral_context(self) -> list[int]:
        """One token that decodes to visible text by itself, so that what follows it keeps its leading blank."""
        special = set(self.tokenizer.all_special_ids)
        letters = [self.tokenizer.convert_tokens_to_ids(letter) for letter in "aeot"]
        for token_id in [*letters, *sorted(self._known - special)]:
            if token_id in self._known and token_id not in special:
                text = self._plain([token_id])
                if text and text == text.strip() and REPLACEMENT not in text:
                    return [token_id]
        return []


class StreamDecoder:
    """Turns committed ids into text as they come.

    Nothing is written twice or taken back: a code point split over tokens or rounds is held until it is whole, all
    else is written at once. The pieces, joined, are `TextCodec.decode` of all ids, however they were cut.
    """

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec
        self._pending: list[int] = []
        self._started = False

    def push(self, ids: Iterable[int]) -> str:
        """The text that these ids complete, perhaps empty."""
        known = self._codec._only_known(ids)
        text = self._text(self._pending + known)
        if text and REPLACEMENT not in text:
            return self._write(text)
        # Token by token, so that broken bytes give the same text however the ids were cut into rounds.
        return "".join(self._push_one(token_id) for token_id in known)

    def finish(self) -> str:
        """What was held back: the replacement of an incomplete code point, or nothing."""
        text = self._text(self._pending)
        self._pending = []
        return text

    def _push_one(self, token_id: int) -> str:
        self._pending.append(token_id)
        text = self._text(self._pending)
        # Bytes that do not make a code point yet decode to replacement characters at the end.
        if not text or text.endswith(REPLACEMENT):
            return ""
        return self._write(text)

    def _write(self, text: str) -> str:
        self._pending = []
        self._started = True
        return text

    def _text(self, ids: list[int]) -> str:
        """Text of ids that continue what was written.

        Many tokenizers drop the blank before the first token they decode, which is right at the start of an answer
        only; later a neutral token stands in front and its text is cut off again.
        """
        if not self._started:
            return self._codec._plain(ids)
        return self._codec._plain(self._codec._context + ids)[self._codec._context_chars :]
