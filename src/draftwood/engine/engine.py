"""The engine: prompts in, tokens out. The public Python API."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from operator import itemgetter
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from ..core import is_text
from ..cost.profile import CostProfile
from ..errors import RequestError, UsageError
from ..models.base import ReferenceModel
from ..models.text import StreamDecoder
from ..models.threads import default_threads
from ..policy import Policy, make_policy
from .loading import load_parts
from .measuring.probe import probed_profile
from .request import Generation, Piece, Request
from .service import Notify, RequestEngine, RequestOptions, drop_notice
from .state import EngineConfig

DEFAULT_POLICY = "auto"


class Engine(RequestEngine):
    """Decodes requests with a target, a drafter and a policy per request.

    Safe to call from several threads: steps are taken one at a time and advance every request.
    """

    @classmethod
    def load(
        cls,
        model: str,
        drafter: str | None = None,
        *,
        dtype: str = "auto",
        device: str = "cpu",
        threads: int | None = None,
        attention: str = "sdpa",
        cache_dir: Path | None = None,
        notify: Notify | None = None,
        config: EngineConfig | None = None,
        profile: str | Path | CostProfile | None = None,
        allow_stale_profile: bool = False,
        live_costs: bool = True,
    ) -> Engine:
        """Load a target and, when given or bundled, its drafter.

        `model` is a hub id, a local folder, a .gguf file or `demo:smollm2`; `dtype` is auto, float32, bfloat16,
        float16 or float64; `notify` receives one-line notices (default: dropped). `threads` is set for the
        whole process; None: what cores, affinity and cgroup quota allow. `profile` is a measured cost profile
        or its file: one of another machine, setting or pair is refused unless `allow_stale_profile`; without one,
        policies that need costs measure a small one when they are first used. `live_costs` corrects it while decoding.
        Raises ModelError, UnsupportedError, CostError.
        """
        if threads is not None and threads < 1:
            raise UsageError(f"threads {threads}: expected at least 1")
        threads = threads or default_threads()
        torch.set_num_threads(threads)
        costs = CostProfile.load(profile) if isinstance(profile, str | Path) else profile
        cache_dir, notify = cache_dir or Path.home() / ".cache" / "draftwood", notify or drop_notice
        parts = load_parts(
            model, drafter, dtype=dtype, device=device, attention=attention, cache_dir=cache_dir, notify=notify
        )
        if costs is not None:
            for difference in costs.check_identity(parts.identity, allow_stale_profile):
                notify(f"cost profile measured elsewhere: {difference} here")
        engine = cls(
            parts.target,
            parts.drafter,
            codec=parts.codec,
            config=config,
            profile=costs,
            live_costs=live_costs,
            threads=threads,
        )
        engine.identity, engine.cache_dir, engine.notify = parts.identity, cache_dir, notify
        return engine

    def ensure_costs(self, notify: Notify | None = None) -> CostProfile:
        """Return the profile in use; without one take the cached probe of this identity or measure it (20 s at most).

        `notify` (default: the engine's) gets one line when it is measured. Raises UsageError without a drafter.
        """
        with self._lock:
            if self.state.costs is None:
                profile = probed_profile(self, self.cache_dir, notify or self.notify)
                self.use_profile(profile, live_costs=self.live_costs)
            costs = self.state.costs
            assert costs is not None
            return costs.profile

    def generate(
        self,
        prompts: Sequence[str | Sequence[int]],
        *,
        policy: str | Policy = DEFAULT_POLICY,
        raw: bool = False,
        system: str | None = None,
        timing: bool = False,
        max_tokens: int = 256,
        temperature: float = 0.0,
        seed: int | None = None,
        block_size: int | None = None,
        **policy_options: object,
    ) -> list[Generation]:
        """Decode prompts together and return their results in order.

        A prompt is text (the chat template is applied unless `raw`) or a list of token ids. `policy_options` are those
        of the policy (`budget`, `candidates`, ...). `timing` records seconds by stage, at a small cost in speed.
        Raises UsageError before anything runs; NonFiniteLogitsError after all requests have ended.
        """
        ended = self.generate_unordered(
            prompts,
            policy=policy,
            raw=raw,
            system=system,
            timing=timing,
            max_tokens=max_tokens,
            temperature=temperature,
            seed=seed,
            block_size=block_size,
            **policy_options,
        )
        return [generation for _, generation in sorted(ended, key=itemgetter(0))]

    def generate_unordered(
        self,
        prompts: Sequence[str | Sequence[int]],
        *,
        policy: str | Policy = DEFAULT_POLICY,
        raw: bool = False,
        system: str | None = None,
        timing: bool = False,
        max_tokens: int = 256,
        temperature: float = 0.0,
        seed: int | None = None,
        block_size: int | None = None,
        **policy_options: object,
    ) -> Generator[tuple[int, Generation], None, None]:
        """Decode prompts together and yield (index of the prompt, result) as they end.

        Arguments and errors as for `generate`. Closing the iterator aborts what still runs.
        """
        if isinstance(prompts, str):
            raise UsageError("prompts: expected a list of prompts, got one string")
        options = RequestOptions(max_tokens, temperature, seed, block_size=block_size, end_ids=self._end_ids(raw=raw))
        rule = self._policy(policy, policy_options)
        encoded = []
        for index, prompt in enumerate(prompts):
            try:
                encoded.append(self.encode(prompt, raw=raw, system=system))
            except RequestError as error:
                if len(prompts) == 1:
                    raise
                raise RequestError(f"prompts[{index}]: {error}") from error
        return self._as_they_end(encoded, rule, options, timing=timing)

    def stream(
        self,
        prompt: str | Sequence[int],
        *,
        policy: str | Policy = DEFAULT_POLICY,
        raw: bool = False,
        system: str | None = None,
        max_tokens: int = 256,
        temperature: float = 0.0,
        seed: int | None = None,
        block_size: int | None = None,
        **policy_options: object,
    ) -> Generator[Piece, None, None]:
        """Decode one prompt and yield text as it is committed; the last piece carries the Generation.

        Arguments as for `generate`. Closing the iterator aborts the request.
        """
        options = RequestOptions(max_tokens, temperature, seed, block_size=block_size, end_ids=self._end_ids(raw=raw))
        rule = self._policy(policy, policy_options)
        return self._pieces(self._request(self.encode(prompt, raw=raw, system=system), rule, options))

    def encode(self, prompt: str | Sequence[int], *, raw: bool = False, system: str | None = None) -> Sequence[int]:
        """Token ids of a prompt as `generate` takes it. Raises RequestError for one that cannot be decoded."""
        if isinstance(prompt, str):
            if self.codec is None:
                raise UsageError("this engine has no tokenizer: give token ids")
            if not prompt:
                raise RequestError("prompt '': expected at least one character")
            if not is_text(prompt):
                raise RequestError(f"prompt {prompt!r}: half a surrogate pair is no text")
            prompt = self.codec.encode(prompt, raw=raw, system=system)
        elif isinstance(prompt, bytes) or not hasattr(prompt, "__len__"):
            raise RequestError(f"prompt {prompt!r}: expected text or a sequence of token ids")
        self._checked_prompt(prompt)
        return prompt

    def result(self, request: Request) -> Generation:
        """The result of a request that has ended."""
        start_s, end_s = request.submitted_s, request.finished_s or perf_counter()
        first_s = request.first_token_s if request.first_token_s is not None else end_s
        return Generation(
            text=self._text(self._visible_ids(request)),
            token_ids=list(request.token_ids),
            prompt_tokens=len(request.prompt_ids),
            finish_reason=request.finish_reason or "abort",
            policy=request.policy.name,
            seed=request.sampling.seed,
            prefill_s=first_s - start_s,
            decode_s=end_s - first_s,
            rounds=list(request.rounds),
        )

    def top_two_gap(self, prompt_ids: Sequence[int], output_ids: Sequence[int]) -> tuple[float, float]:
        """Gap between the two largest logits after a text, and the largest: by the model's own attention."""
        target = self.state.target
        if not isinstance(target, ReferenceModel):
            raise UsageError("this target has no attention of its own to compare with")
        with self._lock:  # the model's attention is switched meanwhile
            logits = target.native_logits([*prompt_ids, *output_ids], last_rows=1)[0].double()
        top = torch.topk(logits, 2).values
        return float(top[0] - top[1]), float(top[0])

    def _as_they_end(
        self, prompts: Sequence[Sequence[int]], rule: Policy, options: RequestOptions, *, timing: bool
    ) -> Generator[tuple[int, Generation], None, None]:
        """Queue requests and step until all have ended; nothing is queued before the first step is asked for."""
        requests: list[Request] = []
        try:
            requests += [self.submit(ids, rule, options) for ids in prompts]
            running = dict(enumerate(requests))
            while running:
                if not any(request.finished for request in running.values()):
                    self.step(timing=timing)
                for index in [at for at, request in running.items() if request.finished]:
                    request = running.pop(index)
                    if request.error is None:
                        yield index, self.result(request)
        finally:
            for request in requests:
                self.abort(request)
        for request in requests:
            if request.error is not None:
                raise request.error

    def _pieces(self, request: Request) -> Generator[Piece, None, None]:
        """Queue a request and follow it; an iterator that is never started queues nothing."""
        decoder = StreamDecoder(self.codec) if self.codec is not None else None
        sent = 0
        with self._lock:
            request.submitted_s = perf_counter()
            self.state.waiting.append(request)
        try:
            while True:
                # Another thread's steps may advance this request too: look at it between steps only.
                with self._lock:
                    if not request.finished:
                        self.step()
                    fresh, shown = request.token_ids[sent:], self._visible_ids(request)[sent:]
                    ended = request.finished
                sent += len(fresh)
                text = decoder.push(shown) if decoder is not None else ""
                if ended:
                    break
                if fresh:
                    yield Piece(text, fresh)
            if request.error is not None:
                raise request.error
            rest = decoder.finish() if decoder is not None else ""
            yield Piece(text + rest, fresh, self.result(request))
        finally:
            self.abort(request)

    def _visible_ids(self, request: Request) -> list[int]:
        """Output without the end token."""
        return request.token_ids[:-1] if request.finish_reason == "stop" else request.token_ids

    def _text(self, token_ids: Sequence[int]) -> str:
        return self.codec.decode(token_ids) if self.codec is not None else ""

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
