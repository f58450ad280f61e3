"""Where a reader waits for what the loop thread delivers, in a thread or in a coroutine."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple


class Event(NamedTuple):
    """News of one request."""

    request: Any
    """The request; its type would make a circle of imports."""
    token_ids: list[int]
    """Delivered since the last event."""
    ended: bool


class Mailbox:
    """A queue with one reader; several requests may share one. `put` never waits."""

    def __init__(self) -> None:
        self._events: deque[Event] = deque()
        self._filled = threading.Condition()
        self._wake: Callable[[], None] | None = None

    def put(self, event: Event) -> None:
        """Add an event and wake the reader, if one waits."""
        with self._filled:
            self._events.append(event)
            self._filled.notify()
            wake, self._wake = self._wake, None
        if wake is not None:
            wake()

    def get(self, timeout_s: float | None = None) -> Event:
        """The next event, waiting for it. Raises TimeoutError."""
        with self._filled:
            if not self._filled.wait_for(lambda: self._events, timeout_s):
                raise TimeoutError(f"no news for {timeout_s} s")
            return self._events.popleft()

    async def aget(self) -> Event:
        """The next event, without holding up the coroutine's loop."""
        while True:
            filled = asyncio.Event()
            with self._filled:
                if self._events:
                    return self._events.popleft()
                self._wake = partial(_set_soon, asyncio.get_running_loop(), filled)
            await filled.wait()


def _set_soon(loop: asyncio.AbstractEventLoop, filled: asyncio.Event) -> None:
    """From another thread; a loop that has been closed meanwhile has no reader to wake."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(filled.set)
