"""An engine that repeats its prompt, for tests of the command line; run as a script it is the `draftwood` command."""

from __future__ import annotations

import time
import warnings
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from draftwood.core import RoundRecord
from draftwood.engine import SamplingParams
from draftwood.errors import NonFiniteLogitsError, RequestError


class Piece(NamedTuple):
    text: str
    token_ids: list[int]
    generation: Any


class FakeEngine:
    """Answers with the prompt itself, one character a token; a few prompts make it misbehave."""

    dtype_name = "float32"
    device_name = "cpu"
    threads = 3
    defaults = SamplingParams()

    def __init__(self) -> None:
        self.codec = SimpleNamespace(
            encode=lambda prompt, *, raw=False, system=None: prompt if system is None else f"{system}: {prompt}",
            ends=lambda *, raw: (SimpleNamespace(token_id=2, token="<|end|>", source="config"),),
        )
        self.requests: list[dict[str, Any]] = []
        self.closed = 0

    def generate(self, prompts: Sequence[str], **request: Any) -> list[Any]:
        self.requests.append({"prompts": list(prompts), **request})
        return [self._answer(prompt, request["policy"]) for prompt in prompts]

    def encode(self, prompt: str) -> str:
        """The prompt itself, so that answers can repeat it."""
        if prompt == "too long":
            raise RequestError("prompt of 9000 tokens: expected at most 8192")
        return prompt

    def generate_unordered(
        self, prompts: Sequence[str], params: Sequence[SamplingParams], **request: Any
    ) -> Iterator[tuple[int, Any]]:
        """The last prompt ends first."""
        self.requests.append({"prompts": list(prompts), "params": list(params), **request})
        try:
            for index in reversed(range(len(prompts))):
                if prompts[index] == "interrupt":
                    raise KeyboardInterrupt
                if prompts[index] == "nan":
                    error = NonFiniteLogitsError("position 7: nan")
                    error.prompt = index
                    raise error
                yield index, self._answer(prompts[index], request["policy"])
        finally:
            self.closed += 1

    def stream(self, prompt: str, **request: Any) -> Iterator[Piece]:
        self.requests.append({"prompts": [prompt], **request})
        generation = self._answer(prompt, request["policy"])
        try:
            if prompt == "endless":
                while True:
                    yield Piece("endless ", [1], None)
                    time.sleep(0.01)
            if prompt == "interrupt":
                yield Piece("half a line", [1], None)
                raise KeyboardInterrupt
            for character in prompt:
                yield Piece(character, [ord(character)], None)
            yield Piece("", [2], generation)
        finally:
            self.closed += 1

    def top_two_gap(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> tuple[float, float]:
        raise AssertionError("outputs are equal")

    def _answer(self, prompt: str, policy: str) -> Any:
        if prompt == "too long":
            raise RequestError("prompt of 9000 tokens: expected at most 8192")
        if prompt == "not finite":
            raise NonFiniteLogitsError("logits at position 7 are not finite")
        print("a library talks")
        warnings.warn("a library warns", stacklevel=1)
        ids = [ord(character) for character in prompt] + [2]
        rounds = [
            RoundRecord(rows=17, committed=1, drafted=True, context=index, accepted=0) for index in range(len(prompt))
        ]
        return SimpleNamespace(
            text=prompt, token_ids=ids, prompt_tokens=len(prompt), finish_reason="stop", policy=policy,
            seed=11, prefill_s=float("nan"), decode_s=0.5, rounds=rounds,
        )  # fmt: skip


def main() -> None:
    """The console script with the fake engine in place of a model."""
    from draftwood import cli
    from draftwood.cli.commands import demo as cli_demo
    from draftwood.cli.commands import generate as cli_generate

    def load_engine(_: object) -> FakeEngine:
        # The loading that this replaces silences the libraries.
        warnings.simplefilter("ignore")
        return FakeEngine()

    cli_generate.load_engine = cli_demo.load_engine = load_engine  # type: ignore[assignment]
    cli.main()


if __name__ == "__main__":
    main()
