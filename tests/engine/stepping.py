"""Driving an engine by hand: requests queued without waking its thread, steps taken by the test."""

from __future__ import annotations

from collections.abc import Sequence

from draftwood.engine import Engine, Request, SamplingParams
from draftwood.policy import Policy


def submit(engine: Engine, prompt: Sequence[int], policy: Policy, params: SamplingParams) -> Request:
    """Queue a request for the next step that the test takes."""
    request = engine.make_request(prompt, policy, params)
    engine.loop.add(request)
    return request
