"""Conversations as prompts: a model's chat template, and proof that what was said has reached the prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import UsageError
from ..files import text_of

DEFAULT = "default"
Message = dict[str, str]


@dataclass(frozen=True, slots=True)
class ChatSettings:
    """How conversations become prompts."""

    template: str | None = None
    """Name of one of the model's templates, or a file that holds one; None: the model's own."""
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    """What the template is told beside the messages. Thinking is off unless `enable_thinking` is given."""
    parse_special: bool = False
    """Whether text of a user that spells a special token becomes that token."""


class ChatTemplate:
    """One template of a tokenizer. Errors of the template become one line when it is used, not before."""

    def __init__(self, tokenizer: Any, name: str, settings: ChatSettings) -> None:
        """Choose the template that `settings` name. Raises UsageError for a name that the model does not have."""
        self._tokenizer, self._name, self._settings = tokenizer, name, settings
        found = tokenizer.chat_template
        named = found if isinstance(found, dict) else {}
        self._choices = ", ".join(sorted(named))
        self.source: str | None = named.get(DEFAULT) if isinstance(found, dict) else found
        """The template itself; None without one, or where several have names and none was chosen."""
        if settings.template is not None:
            self.source = self._chosen(settings.template, named)

    def require(self) -> None:
        """Raise UsageError, with the way out, where there is no template to use."""
        if self.source is None and self._choices:
            raise UsageError(
                f"model {self._name!r} has several chat templates and no default: choose one with --chat-template "
                f"(chat_template=...): {self._choices}; or use --raw (raw=True)"
            )
        if self.source is None:
            raise UsageError(f"model {self._name!r} has no chat template: use --raw (raw=True)")

    def render(self, messages: Sequence[Message], way_out: str, *, opened: bool = True) -> str:
        """The text of a conversation, open for the assistant's answer unless not `opened`.

        Contents go in as text, and as a list of parts where only that works. Raises UsageError, ending in `way_out`,
        for a template that fails, and for a system's or user's words that do not reach the text.
        """
        self.require()
        failure: UsageError | None = None
        for parts in (False, True):
            try:
                text = self._apply(messages, opened, parts)
            except Exception as error:  # noqa: BLE001 (a template is a program of the checkpoint's)
                reason = " ".join(str(error).split()) or type(error).__name__
                failure = failure or UsageError(
                    f"the chat template of model {self._name!r} refuses ({reason}): {way_out}"
                )
                continue
            lost = _lost(messages, text)
            if parts and "{'type'" in text and lost is None:
                continue  # the list itself was written out
            if lost is None:
                return text
            failure = failure or UsageError(
                f"the chat template of model {self._name!r} ignores the {lost['role']} role: {lost['content'][:40]!r} "
                f"does not reach the prompt; {way_out}"
            )
        assert failure is not None
        raise failure

    def _chosen(self, asked: str, named: Mapping[str, str]) -> str:
        if asked in named:
            return named[asked]
        path = Path(asked).expanduser()
        if path.is_file():
            return text_of(path)
        listed = f"one of {self._choices}, or a file" if named else "a file, for this model has no named ones"
        raise UsageError(f"chat template {asked!r}: expected {listed}")

    def _apply(self, messages: Sequence[Message], opened: bool, parts: bool) -> str:
        said = [
            {**message, "content": [{"type": "text", "text": message["content"]}] if parts else message["content"]}
            for message in messages
        ]
        text: str = self._tokenizer.apply_chat_template(
            said,
            chat_template=self.source,
            add_generation_prompt=opened,
            tokenize=False,
            **{"enable_thinking": False, **self._settings.kwargs},
        )
        return text


def _lost(messages: Sequence[Message], text: str) -> Message | None:
    """The first message of a system or user whose words do not stand in the text, blanks aside; None for none."""
    words = " ".join(text.split())
    for message in messages:
        if message["role"] in ("system", "user") and " ".join(message["content"].split()) not in words:
            return message
    return None
