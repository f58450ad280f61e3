"""Who steps: one thread owns the loop, any thread may submit, read and abort."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from time import perf_counter

import torch

from ..errors import DraftwoodError
from .mailbox import Mailbox
from .requests import Request
from .schedule import finish
from .state import EngineState
from .step import STAGE_NAMES, Stages, step, timed

LOGGER = logging.getLogger("draftwood")
Change = Callable[[Stages], Stages]


class Loop:
    """Steps an engine's requests until none is left, then sleeps.

    `add` and `abort` never wait for a step. Whoever needs the models or the state for something else takes them
    between two steps with `paused`.
    """

    def __init__(self, state: EngineState) -> None:
        self.state = state
        self._stages, self._timing = Stages(), False
        self._stepping = False
        self._lock = threading.RLock()
        self._bell = _Bell()
        self._thread: threading.Thread | None = None
        weakref.finalize(self, self._bell.close)

    def add(self, request: Request) -> None:
        """Queue a request for the next step; `start` lets the thread take it."""
        request.submitted_s = perf_counter()
        with self._bell.changed:  # or it could arrive behind the sweep of `close`
            if self._bell.closed:
                raise DraftwoodError("the engine is closed")
            self.state.inbox.append(request)

    def start(self) -> None:
        """Wake the loop thread, which is made when it is first needed."""
        with self._bell.changed:
            if self._thread is None:
                target, name = _serve, "draftwood-loop"
                self._thread = threading.Thread(
                    target=target, args=(weakref.ref(self), self._bell), name=name, daemon=True
                )
                self._thread.start()
        self._bell.ring()

    def run(self, requests: Sequence[Request]) -> Iterator[Request]:
        """Run `requests` and yield each as it ends; what still runs when the iterator is closed is aborted."""
        mailbox = Mailbox()
        try:
            for request in requests:
                request.mailbox = mailbox
                self.add(request)
            self.start()
            left = len(requests)
            while left:
                event = mailbox.get()
                if event.ended:
                    left -= 1
                    yield event.request
        finally:
            for request in requests:
                self.abort(request)

    def abort(self, request: Request) -> None:
        """End a request as soon as no step is under way; does nothing when it has ended."""
        if request.finished:
            return
        request.abort_wanted = True
        if self._lock.acquire(blocking=False):
            try:
                # A stream that is forgotten may be closed by the collector inside this very thread's step, which
                # sweeps when it has done its work.
                if not self._stepping:
                    self._sweep()
            finally:
                self._lock.release()
        else:
            self._bell.ring()

    def step(self) -> list[Request]:
        """Advance every running request; returns those that took part (none when idle).

        An error of one request ends that request. Any other ends every running one with it, so that pools and
        requests never part; it is not raised here but where each request is read. An interrupt does the same, and
        goes on to whoever steps by hand.
        """
        with self._lock:
            self._sweep()
            if not self.state.busy:
                return []
            known = [*self.state.running, *self.state.waiting, *self.state.inbox]
            seconds: dict[str, float] = {}
            names = STAGE_NAMES if self._timing else ("draft",)
            stages = timed(self._stages, seconds, names, wait=self._wait if self._timing else lambda: None)
            self._stepping = True
            start_s = perf_counter()
            try:
                requests = step(self.state, stages)
                self._learn(seconds, perf_counter() - start_s)
                for request in requests:
                    request.announce()
            except BaseException as error:
                failed = self._fail(known, error)
                if isinstance(error, Exception) or threading.current_thread() is self._thread:
                    return failed
                raise
            finally:
                self._stepping = False
            self._sweep()
            return requests

    @contextmanager
    def paused(self) -> Iterator[None]:
        """No step runs inside: for whoever needs the models, the pool or the state."""
        with self._bell.held(), self._lock:
            yield

    @contextmanager
    def watching(self, change: Change, *, timing: bool = False) -> Iterator[None]:
        """Run steps with `change(stages)` instead of the stages: how a recorder or a clock looks inside a step.

        With `timing` every recorded round gets its seconds by stage; on a device this waits after every stage.
        """
        with self.paused():
            former = self._stages, self._timing
            self._stages, self._timing = change(self._stages), timing
        try:
            yield
        finally:
            with self.paused():
                self._stages, self._timing = former

    def close(self) -> None:
        """End every request and the thread. Closing again changes nothing."""
        self._bell.close()
        with self.paused():
            for request in [*self.state.running, *self.state.waiting, *self.state.inbox]:
                request.abort_wanted = True
            self._sweep()
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            thread.join()

    def _sweep(self) -> None:
        """End what shall be aborted."""
        state = self.state
        for request in [*state.inbox, *state.waiting, *state.running]:
            if request.abort_wanted:
                if request in state.inbox:
                    state.inbox.remove(request)
                self._end(request, "abort")
                request.announce()

    def _end(self, request: Request, reason: str, error: BaseException | None = None) -> None:
        """`finish`, which may fail in its turn: the others must be closed all the same."""
        try:
            finish(self.state, request, reason, error)
        except Exception as second:  # noqa: BLE001 - as above
            LOGGER.error("request %d could not be closed: %s", request.id, second)

    def _fail(self, known: list[Request], error: BaseException) -> list[Request]:
        """End every running request with `error`; whatever the failed step left half done is given back with it.

        A step that fails before anything runs ends the oldest request that waits, or it would fail for ever.
        """
        state = self.state
        for request in [*state.running] or [*state.waiting, *state.inbox][:1]:
            if request in state.inbox:
                state.inbox.remove(request)
            self._end(request, "error", error)
        for request in known:
            request.announce()
        return [request for request in known if request.finished]

    def _learn(self, seconds: dict[str, float], step_s: float) -> None:
        """Let the live correction see a step in which every request had a round, and the rounds their seconds."""
        facts, costs, load = self.state.facts, self.state.costs, self.state.load
        if facts is None:
            return
        if costs is not None and load is not None and facts.complete:
            costs.learn(load, facts.rows, facts.drafted, draft_s=seconds.get("draft", 0.0), step_s=step_s)
        if self._timing:
            for request in facts.recorded:
                request.rounds[-1] = replace(request.rounds[-1], seconds=dict(seconds))

    def _wait(self) -> None:
        device = self.state.target.spec.device
        if device.type == "cuda":
            torch.cuda.synchronize(device)


class _Bell:
    """Wakes the loop thread. Apart from the loop, so that a sleeping thread does not keep its loop alive."""

    def __init__(self) -> None:
        self.changed = threading.Condition()
        self.closed = False
        self._ringing = False
        self._holders = 0

    def ring(self) -> None:
        with self.changed:
            self._ringing = True
            self.changed.notify_all()

    def close(self) -> None:
        with self.changed:
            self.closed = True
            self.changed.notify_all()

    def wait(self) -> bool:
        """Sleep until it rings; False once it is closed."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed or self._ringing)
            self._ringing = False
            return not self.closed

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keep the loop thread from its next step: it would take the lock again before anybody else could."""
        with self.changed:
            self._holders += 1
        try:
            yield
        finally:
            with self.changed:
                self._holders -= 1
                self.changed.notify_all()

    def pass_by(self) -> bool:
        """Wait while anybody holds it; False once it is closed."""
        with self.changed:
            self.changed.wait_for(lambda: self.closed or not self._holders)
            return not self.closed


def _serve(reference: weakref.ref[Loop], bell: _Bell) -> None:
    """The loop thread. It ends when its loop is closed or gone."""
    while bell.wait():
        loop = reference()
        while loop is not None and loop.state.busy and bell.pass_by():
            loop.step()
        del loop
