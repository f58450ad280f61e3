"""What `submit` returns: one request, read as it is decoded, in a thread or in a coroutine."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Generator, Iterator, Sequence
from time import perf_counter

from ..errors import DraftwoodError
from ..models.stream import StreamDecoder
from ..models.text import TextCodec
from .loop import Loop
from .mailbox import Event
from .requests import Piece, Request, RequestOutput


class RequestHandle:
    """A submitted request. Iterate over its pieces, `await` its output or ask for its `result`; one reader at a time.

    What was read is not given again: `result` after some pieces still returns the whole output.
    """

    def __init__(self, request: Request, codec: TextCodec | None, abort: Callable[[Request], None]) -> None:
        self.request = request
        self._codec, self._abort = codec, abort
        self._decoder = StreamDecoder(codec) if codec is not None else None
        self._output: RequestOutput | None = None
        self._ended = False

    @property
    def id(self) -> int:
        """Its number in the engine."""
        return self.request.id

    def abort(self) -> None:
        """End it as soon as no step is under way; its output then has the finish reason `abort`."""
        self._abort(self.request)

    def result(self, timeout_s: float | None = None) -> RequestOutput:
        """Wait for the output. Raises the request's error, or TimeoutError for `timeout_s` without news."""
        while self._output is None:
            self._raise_error()
            self._piece(self.request.mailbox.get(timeout_s))
        return self._output

    def __iter__(self) -> Iterator[Piece]:
        while self._output is None:
            self._raise_error()
            yield self._piece(self.request.mailbox.get())

    async def __aiter__(self) -> AsyncIterator[Piece]:
        while self._output is None:
            self._raise_error()
            yield self._piece(await self.request.mailbox.aget())

    def __await__(self) -> Generator[None, None, RequestOutput]:
        return self._wait().__await__()

    async def _wait(self) -> RequestOutput:
        while self._output is None:
            self._raise_error()
            self._piece(await self.request.mailbox.aget())
        return self._output

    def _raise_error(self) -> None:
        """An error is told once by the loop, behind what came before it, and raised as often as somebody asks."""
        if self._ended and self.request.error is not None:
            raise self.request.error

    def _piece(self, event: Event) -> Piece:
        """Text and ids of an event; the last one sets the output."""
        request = self.request
        self._ended = event.ended
        self._raise_error()
        shown = event.token_ids
        if event.ended and request.finish_reason == "stop":
            shown = shown[:-1]
        text = self._decoder.push(shown) if self._decoder is not None else ""
        if not event.ended:
            return Piece(text, event.token_ids)
        self._output = output_of(request, self._codec)
        rest = self._decoder.finish() if self._decoder is not None else ""
        return Piece(text + rest, event.token_ids, self._output)


def raise_first(requests: Sequence[Request]) -> None:
    """Raise the first error among requests that have ended; it tells the index of its request."""
    for index, request in enumerate(requests):
        if request.error is not None:
            if isinstance(request.error, DraftwoodError):
                request.error.prompt = index
            raise request.error


def follow(request: Request, codec: TextCodec | None, loop: Loop) -> Generator[Piece, None, None]:
    """Queue a request and follow it; an iterator that is never started queues nothing, one that is closed aborts."""
    handle = RequestHandle(request, codec, loop.abort)
    loop.add(request)
    loop.start()
    try:
        yield from handle
    finally:
        handle.abort()


def output_of(request: Request, codec: TextCodec | None) -> RequestOutput:
    """The output of a request that has ended."""
    start_s, end_s = request.submitted_s, request.finished_s or perf_counter()
    first_s = request.first_token_s if request.first_token_s is not None else end_s
    return RequestOutput(
        text=codec.decode(visible_ids(request)) if codec is not None else "",
        token_ids=list(request.token_ids),
        prompt_tokens=len(request.prompt_ids),
        finish_reason=request.finish_reason or "abort",
        policy=request.policy.name,
        seed=request.sampling.seed,
        prefill_s=first_s - start_s,
        decode_s=end_s - first_s,
        rounds=list(request.rounds),
        faulty_drafts=request.faulty_drafts,
        preemptions=request.preemptions,
    )


def visible_ids(request: Request) -> Sequence[int]:
    """Output without the end token."""
    return request.token_ids[:-1] if request.finish_reason == "stop" else request.token_ids
