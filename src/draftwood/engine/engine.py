"""The engine: prompts in, tokens out. The public Python API."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..cache import warm_up as warm_up_pool
from ..cost.identity import Identity
from ..cost.live import LiveCosts
from ..cost.profile import CostProfile
from ..draft.base import Drafter
from ..errors import CostError, RequestError, UsageError
from ..models.base import ReferenceModel, TargetModel
from ..models.chat import ChatSettings
from ..models.text import TextCodec
from ..policy import Policy, make_policy
from ..tree import warm_up as warm_up_trees
from ..verify import warm_up as warm_up_choosers
from .costs import CostModel
from .encoding import Message, Prompt, checked_block_size, checked_ids, encode, params_of, split_settings
from .handle import RequestHandle, follow, output_of, raise_first
from .loading import default_cache_dir, load_parts, use_threads
from .loop import Loop
from .measuring.probe import probed_profile
from .requests import Limits, Piece, Request, RequestOutput, SamplingParams
from .state import EngineConfig, EngineState, new_state

LOGGER = logging.getLogger("draftwood")
DEFAULT_POLICY = "auto"


class Engine:
    """Decodes requests with a target, a drafter and a policy per request.

    Safe to use from several threads and coroutines: one thread of its own steps all requests together. `close`, or
    a `with` block, ends it; so does forgetting the engine.
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
        identity: Identity | None = None,
        cache_dir: Path | None = None,
        defaults: SamplingParams | None = None,
    ) -> None:
        """Put an engine together from its parts; `load` finds them by name. Raises UsageError without memory."""
        self.state: EngineState = new_state(target, drafter, config or EngineConfig())
        self.loop = Loop(self.state)
        self.codec = codec
        self.live_costs = live_costs
        self.threads = threads or torch.get_num_threads()
        self.identity = identity
        """Whose costs a profile of this engine holds; None for parts of unknown origin."""
        self.cache_dir = cache_dir
        """Where measured costs are kept; None: nowhere."""
        self.defaults = defaults or SamplingParams()
        """Settings of requests that name none."""
        self._ids = itertools.count()
        if profile is not None:
            self.use_profile(profile, live_costs=live_costs)
        for warm_up in (warm_up_trees, warm_up_choosers, warm_up_pool):
            warm_up()

    @classmethod
    def load(
        cls,
        model: str | Path,
        drafter: str | Path | None = None,
        *,
        dtype: str = "auto",
        device: str = "cpu",
        threads: int | None = None,
        attention: str = "sdpa",
        cache_dir: str | Path | None = None,
        config: EngineConfig | None = None,
        profile: str | Path | CostProfile | None = None,
        allow_stale_profile: bool = False,
        live_costs: bool = True,
        generation_config: str | None = None,
        chat: ChatSettings | None = None,
    ) -> Engine:
        """Load a target and, when given or bundled, its drafter.

        `model` is a hub id, a local folder, a .gguf file or `demo:smollm2`; `drafter` a DFlash checkpoint,
        `suffix` (no training, any model) or several joined by `+`; `dtype` is auto, float32, bfloat16, float16
        or float64. `threads` is set for the whole process; None: what cores, affinity, cgroup quota and
        OMP_NUM_THREADS allow. `cache_dir` None: the same folder as the command line's. `profile` is a measured
        cost profile or its file: one of another machine, setting or pair is refused unless
        `allow_stale_profile`; without one, policies that need costs measure a small one when they are first
        used. `live_costs` corrects it while decoding. `generation_config` "model" samples by default as the
        checkpoint's own settings ask (as far as they can be honoured), "none" leaves them aside; None: greedy,
        and settings that would change the text are named. `chat` says how conversations become prompts. Notices
        go to the logger `draftwood`. Raises ModelError, UnsupportedError, CostError, UsageError.
        """
        threads = use_threads(threads, LOGGER.warning)
        costs = CostProfile.load(profile) if isinstance(profile, str | Path) else profile
        place = Path(cache_dir) if cache_dir is not None else default_cache_dir()
        parts = load_parts(
            str(model), None if drafter is None else str(drafter), dtype=dtype, device=device, attention=attention,
            cache_dir=place, notify=LOGGER.warning, generation_config=generation_config, chat=chat,
        )  # fmt: skip
        if costs is not None:
            for difference in costs.check_identity(parts.identity, allow_stale_profile):
                LOGGER.warning("cost profile measured elsewhere: %s here", difference)
        return cls(
            parts.target,
            parts.drafter,
            codec=parts.codec,
            config=config,
            profile=costs,
            live_costs=live_costs,
            threads=threads,
            identity=parts.identity,
            cache_dir=place,
            defaults=SamplingParams(temperature=parts.temperature),
        )

    def __enter__(self) -> Engine:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Abort what still runs and end the loop thread; nothing can be submitted afterwards."""
        self.loop.close()

    @property
    def target(self) -> TargetModel:
        """The model that decides."""
        return self.state.target

    @property
    def drafter(self) -> Drafter | None:
        """What proposes; None: only `ar` can run."""
        return self.state.drafter

    @property
    def costs(self) -> CostModel | None:
        """What rounds are predicted to cost; None until a profile is given or measured."""
        return self.state.costs

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

    def generate(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        policy: str | Policy = DEFAULT_POLICY,
        raw: bool = False,
        system: str | None = None,
        fresh: bool = False,
        **settings: Any,
    ) -> list[RequestOutput]:
        """Decode prompts together and return their results in order.

        A prompt is text (the chat template is applied unless `raw`), a list of token ids or a conversation. `params`
        serve all prompts, or are one for each; `settings` are single fields of them (`max_tokens=...`) or options of
        the policy (`budget=...`). The text of equal greedy calls is equal, the widths of trees need not be: policies
        and costs learn from call to call, unless `fresh`, which forgets what they learned. Raises UsageError before
        anything runs; a request's error after all have ended.
        """
        requests = self._requests(prompts, params, settings, policy=policy, raw=raw, system=system)
        if fresh:
            self.reset_policies()
        for _ in self.loop.run(requests):
            pass
        raise_first(requests)
        return [output_of(request, self.codec) for request in requests]

    def generate_unordered(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        policy: str | Policy = DEFAULT_POLICY,
        raw: bool = False,
        system: str | None = None,
        **settings: Any,
    ) -> Generator[tuple[int, RequestOutput], None, None]:
        """Decode prompts together and yield (index of the prompt, result) as they end.

        Arguments and errors as for `generate`. Closing the iterator aborts what still runs.
        """
        return self._as_they_end(self._requests(prompts, params, settings, policy=policy, raw=raw, system=system))

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        policy: str | Policy = DEFAULT_POLICY,
        **settings: Any,
    ) -> list[RequestOutput]:
        """Answer one conversation, a list of messages with `role` and `content`, or several. See `generate`."""
        conversations: Any = [messages] if messages and isinstance(messages[0], Mapping) else messages
        return self.generate(conversations, params, policy=policy, **settings)

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        policy: str | Policy = DEFAULT_POLICY,
        raw: bool = False,
        system: str | None = None,
        **settings: Any,
    ) -> Generator[Piece, None, None]:
        """Decode one prompt and yield text as it is committed; the last piece carries the output.

        Arguments as for `generate`. Nothing runs before the first piece is asked for; closing the iterator aborts.
        """
        asked, options = split_settings(settings)
        rule, (one,) = self._policy(policy, options), params_of(params, 1, asked, self.defaults)
        return follow(self._request(prompt, rule, one, raw=raw, system=system), self.codec, self.loop)

    def submit(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        *,
        policy: str | Policy = DEFAULT_POLICY,
        raw: bool = False,
        system: str | None = None,
        **settings: Any,
    ) -> RequestHandle:
        """Queue one prompt and return at once; the handle iterates, awaits and aborts. See `generate`."""
        asked, options = split_settings(settings)
        rule, (one,) = self._policy(policy, options), params_of(params, 1, asked, self.defaults)
        handle = RequestHandle(self._request(prompt, rule, one, raw=raw, system=system), self.codec, self.loop.abort)
        self.loop.add(handle.request)
        self.loop.start()
        return handle

    def encode(self, prompt: Prompt, *, raw: bool = False, system: str | None = None) -> Sequence[int]:
        """Token ids of a prompt as `generate` takes it. Raises RequestError for one that cannot be decoded."""
        ids = encode(self.codec, prompt, raw=raw, system=system)
        checked_ids(ids, self.state.target.spec, self.state.context_limit)
        return ids

    def make_request(self, prompt_ids: Sequence[int], policy: Policy, params: SamplingParams) -> Request:
        """A checked request that is not queued yet. Raises RequestError, CostError."""
        if policy.drafts and self.state.drafter is None:
            raise RequestError(f"policy {policy.name!r} needs a drafter: name one with --drafter (drafter=), or use ar")
        if policy.needs_costs and self.state.costs is None:
            raise CostError(f"policy {policy.name!r} needs costs: give a profile, or call ensure_costs first")
        return Request(
            id=next(self._ids),
            prompt_ids=checked_ids(prompt_ids, self.state.target.spec, self.state.context_limit),
            sampling=params.sampling(),
            limits=Limits(
                params.max_tokens, params.end_ids if params.end_ids is not None else self._end_ids(raw=False)
            ),
            policy=policy,
            block_size=checked_block_size(params.block_size, policy, self.state.drafter),
        )

    def run(self, requests: Sequence[Request]) -> Generator[Request, None, None]:
        """Run requests of `make_request` and yield each as it ends, whether well or with an error of its own."""
        yield from self.loop.run(requests)

    def output(self, request: Request) -> RequestOutput:
        """The output of a request that has ended. Raises its error."""
        if request.error is not None:
            raise request.error
        return output_of(request, self.codec)

    def timing(self) -> AbstractContextManager[None]:
        """Give every round of the requests in a `with` block its seconds by stage, at a small cost in speed."""
        return self.loop.watching(lambda stages: stages, timing=True)

    def use_profile(self, profile: CostProfile, *, live_costs: bool = True) -> None:
        """Choose by these costs from now on; `live_costs` follows the machine while decoding."""
        with self.loop.paused():
            self.state.costs = CostModel(profile, LiveCosts() if live_costs else None)

    def ensure_costs(self) -> CostProfile:
        """Return the profile in use; without one take the cached probe of this identity or measure it (20 s at most).

        The log gets one line when it is measured. Raises UsageError without a drafter.
        """
        with self.loop.paused():
            if self.state.costs is None:
                self.use_profile(probed_profile(self, self.cache_dir, LOGGER.warning), live_costs=self.live_costs)
            assert self.state.costs is not None
            return self.state.costs.profile

    def reset_policies(self) -> None:
        """Forget what policies and the live correction learned from earlier requests: the next one starts afresh."""
        with self.loop.paused():
            self.state.policy_shared.clear()
            costs = self.state.costs
            if costs is not None and costs.live is not None:
                costs.live = LiveCosts()

    def top_two_gap(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> tuple[float, float]:
        """Gap between the two largest logits after a text, and the largest: by the model's own attention."""
        target = self.state.target
        if not isinstance(target, ReferenceModel):
            raise UsageError("this target has no attention of its own to compare with")
        with self.loop.paused():  # the model's attention is switched meanwhile
            logits = target.native_logits([*prompt_ids, *output_ids], last_rows=1)[0].double()
        top = torch.topk(logits, 2).values
        return float(top[0] - top[1]), float(top[0])

    def check_integrity(self) -> None:
        """Assert that the pool's bookkeeping is consistent and agrees with the requests."""
        state = self.state
        with self.loop.paused():
            state.pool.check_integrity()
            assert sorted(state.pool.requests) == sorted(request.id for request in state.running)
            for request in state.running:
                assert state.pool.prefix_len(request.id) == request.committed, f"request {request.id} has come apart"

    def _requests(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        settings: dict[str, Any],
        *,
        policy: str | Policy,
        raw: bool,
        system: str | None,
    ) -> list[Request]:
        """A checked request for each prompt, none of them queued."""
        if isinstance(prompts, str):
            raise UsageError("prompts: expected a list of prompts, got one string")
        asked, options = split_settings(settings)
        each = params_of(params, len(prompts), asked, self.defaults)
        rule = self._policy(policy, options)
        requests = []
        for index, (prompt, one) in enumerate(zip(prompts, each, strict=True)):
            try:
                requests.append(self._request(prompt, rule, one, raw=raw, system=system))
            except RequestError as error:
                if len(prompts) == 1:
                    raise
                raise RequestError(f"prompts[{index}]: {error}") from error
        return requests

    def _as_they_end(self, requests: list[Request]) -> Generator[tuple[int, RequestOutput], None, None]:
        """Run requests; nothing is queued before the first result is asked for."""
        index = {request.id: at for at, request in enumerate(requests)}
        for request in self.loop.run(requests):
            if request.error is None:
                yield index[request.id], output_of(request, self.codec)
        raise_first(requests)

    def _request(
        self, prompt: Prompt, rule: Policy, params: SamplingParams, *, raw: bool, system: str | None
    ) -> Request:
        if params.end_ids is None:
            params = replace(params, end_ids=self._end_ids(raw=raw))
        return self.make_request(self.encode(prompt, raw=raw, system=system), rule, params)

    def _end_ids(self, *, raw: bool) -> frozenset[int]:
        codec = self.codec
        return frozenset(() if codec is None else codec.raw_end_ids if raw else codec.end_ids)

    def _policy(self, policy: str | Policy, options: dict[str, Any]) -> Policy:
        if isinstance(policy, str):
            unmeasured = make_policy(policy, **options)
            if not unmeasured.needs_costs or self.state.drafter is None:
                return unmeasured
            return make_policy(policy, profile=self.ensure_costs(), **options)
        if options:
            raise UsageError(f"options {', '.join(options)}: a policy object carries its own")
        if policy.needs_costs and self.state.drafter is not None:
            self.ensure_costs()
        return policy
