"""Requests of token ids: the engine without text."""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from threading import RLock
from time import perf_counter

import numpy as np
import torch

from ..cache import KVPool
from ..core import Sampling
from ..cost.identity import Identity
from ..cost.live import LiveCosts
from ..cost.profile import CostProfile
from ..draft.base import Drafter
from ..errors import CostError, RequestError
from ..models.base import TargetModel
from ..models.text import TextCodec
from ..policy import Policy
from ..tree import warm_up as warm_up_trees
from ..verify import chooser
from ..verify import warm_up as warm_up_choosers
from .costs import CostModel
from .request import Limits, Request
from .scheduler import finish, most_rows
from .stages import STAGE_NAMES, Stages, timed
from .state import EngineConfig, EngineState
from .step import step

Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RequestOptions:
    """How one request is decoded. Raises RequestError or UsageError for values outside their range."""

    max_tokens: int = 256
    temperature: float = 0.0
    seed: int | None = None
    """Makes the draw repeatable; None: a fresh one per request."""
    completion: int = 0
    """Index among several completions of one prompt; each draws its own noise."""
    block_size: int | None = None
    """Rows of a drafter block, 1 (no draft) to the checkpoint's; None: the checkpoint's."""
    end_ids: frozenset[int] | None = None
    """Ids that end the text; None: the model's own, the end of a chat turn included."""

    def __post_init__(self) -> None:
        if not isinstance(self.max_tokens, int | np.integer):
            raise RequestError(f"max_tokens {self.max_tokens!r}: expected a whole number")
        if self.max_tokens < 1:
            raise RequestError(f"max_tokens {self.max_tokens}: expected at least 1")
        self.sampling()

    def sampling(self) -> Sampling:
        """How one request draws; without a seed a fresh one is taken from the system."""
        seed = self.seed if self.seed is not None else secrets.randbits(63)
        return Sampling(self.temperature, seed, self.completion)


class RequestEngine:
    """Runs requests of token ids, a step at a time; `Engine` adds loading, text and measured costs.

    Safe to call from several threads: steps are taken one at a time and advance every request.
    """

    def __init__(
        self,
        target: TargetModel,
        drafter: Drafter | None = None,
        *,
        codec: TextCodec | None = None,
        config: EngineConfig | None = None,
        profile: CostProfile | None = None,
        live_costs: bool = True,
        threads: int | None = None,
    ) -> None:
        spec = target.spec
        config = config or EngineConfig()
        pool = KVPool(spec.layers, dtype=spec.dtype, device=spec.device, max_kv_rows=config.max_kv_rows)
        self.state = EngineState(target, drafter, pool, config)
        self.live_costs = live_costs
        if profile is not None:
            self.use_profile(profile, live_costs=live_costs)
        self.identity: Identity | None = None
        """Whose costs a profile of this engine holds; known after `load`."""
        self.cache_dir: Path | None = None
        """Where measured costs are kept; None: nowhere."""
        self.notify: Notify = drop_notice
        """Receives one-line notices."""
        self.codec = codec
        self.threads = threads or torch.get_num_threads()
        self._stages = Stages()
        self._ids = itertools.count()
        self._lock = RLock()
        warm_up_trees()
        warm_up_choosers()

    @property
    def has_drafter(self) -> bool:
        """True when policies that draft can run."""
        return self.state.drafter is not None

    @property
    def dtype_name(self) -> str:
        """`float32`, `bfloat16`, ..."""
        return str(self.state.target.spec.dtype).removeprefix("torch.")

    @property
    def device_name(self) -> str:
        """Device of the target."""
        return str(self.state.target.spec.device)

    def use_profile(self, profile: CostProfile, *, live_costs: bool = True) -> None:
        """Choose by these costs from now on; `live_costs` follows the machine while decoding."""
        self.state.costs = CostModel(profile, LiveCosts() if live_costs else None)

    def reset_policies(self) -> None:
        """Forget what policies and the live correction learned from earlier requests: the next one starts afresh."""
        with self._lock:
            self.state.policy_shared.clear()
            costs = self.state.costs
            if costs is not None and costs.live is not None:
                costs.live = LiveCosts()

    @contextmanager
    def replacing_stages(self, change: Callable[[Stages], Stages]) -> Iterator[None]:
        """Run steps with `change(stages)` instead of the stages: how a recorder or a clock looks inside a step."""
        with self._lock:
            former = self._stages
            self._stages = change(former)
        try:
            yield
        finally:
            with self._lock:
                self._stages = former

    def submit(self, prompt_ids: Sequence[int], policy: Policy, options: RequestOptions) -> Request:
        """Queue a request of token ids. Raises RequestError; other requests are untouched."""
        request = self._request(prompt_ids, policy, options)
        with self._lock:
            self.state.waiting.append(request)
        return request

    def step(self, *, timing: bool = False) -> list[Request]:
        """Advance every running request; returns those that took part (none when idle).

        With `timing` the last round of each gets its seconds by stage; on a device this waits after every stage.
        """
        with self._lock:
            if not (self.state.running or self.state.waiting):
                return []
            seconds: dict[str, float] = {}
            stages = timed(self._stages, seconds, STAGE_NAMES if timing else ("draft",))
            start_s = perf_counter()
            requests = step(self.state, stages)
            self._learn_costs(requests, seconds.get("draft", 0.0), perf_counter() - start_s)
            for request in requests:
                if timing and request.rounds and not request.rounds[-1].seconds:
                    request.rounds[-1] = replace(request.rounds[-1], seconds=dict(seconds))
            return requests

    def abort(self, request: Request) -> None:
        """End a request now and free what it owns; does nothing when it has ended."""
        with self._lock:
            if request.finished:
                return
            request.finish_reason = "abort"
            request.finished_s = perf_counter()
            if request in self.state.waiting:
                self.state.waiting.remove(request)
            else:
                finish(self.state, request)

    def check_integrity(self) -> None:
        """Assert that the pools' bookkeeping is consistent."""
        self.state.pool.check_integrity()

    def _request(self, prompt_ids: Sequence[int], policy: Policy, options: RequestOptions) -> Request:
        """A checked request that is not queued yet."""
        prompt = self._checked_prompt(prompt_ids)
        drafter = self.state.drafter
        if policy.drafts and drafter is None:
            raise RequestError(f"policy {policy.name!r} needs a drafter: name one with --drafter (drafter=), or use ar")
        if policy.needs_costs and self.state.costs is None:
            raise CostError(f"policy {policy.name!r} needs costs: give a profile, or call ensure_costs first")
        end_ids = options.end_ids if options.end_ids is not None else self._end_ids(raw=False)
        sampling = options.sampling()
        request = Request(
            id=next(self._ids),
            prompt_ids=prompt,
            sampling=sampling,
            limits=Limits(options.max_tokens, end_ids),
            policy=policy,
            choose=chooser(sampling),
            block_size=self._block_size(options.block_size, policy),
            submitted_s=perf_counter(),
        )
        rows, limit = most_rows(self.state, request), self.state.config.max_kv_rows
        if limit is not None and rows >= limit:
            raise RequestError(f"request may need {rows} KV rows: expected at most {limit - 1}, the size of the pool")
        return request

    def _learn_costs(self, requests: Sequence[Request], draft_s: float, step_s: float) -> None:
        """Let the live correction see a step in which every request had a round."""
        costs, load = self.state.costs, self.state.load
        last = [request.rounds[-1] for request in requests if request.rounds]
        if costs is None or load is None or len(last) < load.requests:
            return
        rows, drafted = sum(record.rows for record in last), sum(record.drafted for record in last)
        costs.learn(load, rows, drafted, draft_s=draft_s, step_s=step_s)

    def _end_ids(self, *, raw: bool) -> frozenset[int]:
        if self.codec is None:
            return frozenset()
        return frozenset(self.codec.raw_end_ids if raw else self.codec.end_ids)

    def _checked_prompt(self, prompt_ids: Sequence[int]) -> np.ndarray:
        spec = self.state.target.spec
        if len(prompt_ids) == 0:
            raise RequestError("prompt of 0 tokens: expected at least one")
        if len(prompt_ids) > spec.context_limit:
            raise RequestError(f"prompt of {len(prompt_ids)} tokens: expected at most {spec.context_limit}")
        for token in prompt_ids:
            if not isinstance(token, int | np.integer):
                raise RequestError(f"prompt token id {token!r}: expected an integer")
            if not 0 <= token < spec.embedding_rows:
                raise RequestError(f"prompt token id {token}: expected 0 to {spec.embedding_rows - 1}")
        return np.array(prompt_ids, dtype=np.int64)

    def _block_size(self, block_size: int | None, policy: Policy) -> int:
        drafter = self.state.drafter
        if drafter is None:
            if block_size is not None:
                raise RequestError(f"block_size {block_size}: there is no drafter to use it")
            return 1
        if block_size is None:
            return drafter.block_size
        if not policy.drafts:
            raise RequestError(f"block_size {block_size}: policy {policy.name!r} does not use it")
        if not 1 <= block_size <= drafter.block_size:
            raise RequestError(f"block_size {block_size}: expected 1 to {drafter.block_size}")
        return block_size


def drop_notice(message: str) -> None:
    """A notice that nobody asked for."""
