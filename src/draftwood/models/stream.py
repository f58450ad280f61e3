"""Text of an answer that arrives in pieces: nothing is written twice or taken back."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Protocol

REPLACEMENT = "\ufffd"


class PlainText(Protocol):
    """What a stream needs of a codec."""

    @property
    def context(self) -> list[int]:
        """A token that decodes to visible text by itself, so that what follows it keeps its leading blank; or none."""
        ...

    def known(self, ids: Iterable[int]) -> list[int]:
        """The ids that the tokenizer has."""
        ...

    def plain(self, ids: Sequence[int]) -> str:
        """Text of ids, special tokens left out, nothing cleaned."""
        ...

    def clean(self, text: str) -> str:
        """The text as the tokenizer's own decoding cleans it up; the same text for most."""
        ...

    @property
    def cleans(self) -> bool:
        """Whether `clean` changes texts at all."""
        ...


class StreamDecoder:
    """Turns committed ids into text as they come.

    A code point split over tokens or rounds is held until it is whole, all else is written at once; where the
    tokenizer cleans up blanks, the last word is held until a blank follows. The pieces, joined, are
    `TextCodec.decode` of all ids, however they were cut.
    """

    def __init__(self, codec: PlainText) -> None:
        self._codec = codec
        self._pending: list[int] = []
        self._started = False
        self._uncleaned = ""

    def push(self, ids: Iterable[int]) -> str:
        """The text that these ids complete, perhaps empty."""
        return self._cleaned(self._push(self._codec.known(ids)))

    def finish(self) -> str:
        """What was held back: the replacement of an incomplete code point, an uncleaned word, or nothing."""
        text = self._uncleaned + self._text(self._pending)
        self._pending, self._uncleaned = [], ""
        return self._codec.clean(text)

    def _push(self, known: list[int]) -> str:
        text = self._text(self._pending + known)
        if text and REPLACEMENT not in text:
            return self._write(text)
        # Token by token, so that broken bytes give the same text however the ids were cut into rounds.
        return "".join(self._push_one(token_id) for token_id in known)

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

    def _cleaned(self, text: str) -> str:
        """Clean-up changes blanks before signs: all behind the last letter that a blank follows may still change."""
        if not self._codec.cleans:
            return text
        text = self._uncleaned + text
        cut = max((at for at in range(1, len(text)) if text[at] == " " and text[at - 1].isalnum()), default=0)
        self._uncleaned = text[cut:]
        return self._codec.clean(text[:cut])

    def _text(self, ids: list[int]) -> str:
        """Text of ids that continue what was written.

        Many tokenizers drop the blank before the first token they decode, which is right at the start of an answer
        only; later a neutral token stands in front and its text is cut off again.
        """
        if not self._started:
            return self._codec.plain(ids)
        return self._codec.plain(self._codec.context + ids)[len(self._codec.plain(self._codec.context)) :]
