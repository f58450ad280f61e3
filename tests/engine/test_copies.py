"""What comes back from a device in a round: the drafter's scores and the target's verdicts, one copy each."""

from __future__ import annotations

from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from decoding import policy_case, random_drafter
from families import VOCAB, family
from stepping import submit

from draftwood.core import Sampling
from draftwood.engine import Engine, EngineConfig, SamplingParams
from draftwood.verify import walk_forest

HOST = ("cpu", "item", "tolist", "__bool__", "__int__", "__float__", "__index__", "nonzero")
"""Ways in which a tensor's values reach the host, each of which waits for the device."""


@pytest.fixture
def copies(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """Counts them; the walk takes the accelerator's way."""
    found: Counter[str] = Counter()

    def counted(name: str) -> Any:
        method = getattr(torch.Tensor, name)

        def call(self: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
            found[name] += 1
            return method(self, *args, **kwargs)

        return call

    for name in HOST:
        monkeypatch.setattr(torch.Tensor, name, counted(name))
    to = torch.Tensor.to

    def moved(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
        found["to cpu"] += bool(args and args[0] == "cpu")
        return to(self, *args, **kwargs)

    monkeypatch.setattr(torch.Tensor, "to", moved)
    monkeypatch.setattr("draftwood.engine.outcome.walk_forest", partial(walk_forest, everywhere=True))
    return found


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, 3)], ids=["greedy", "seeded"])
@pytest.mark.parametrize("count", [1, 8])
@pytest.mark.parametrize("case", ["ddtree7", "ar"])
def test_copies_of_a_round(case: str, count: int, sampling: Sampling, copies: Counter[str], tmp_path: Path) -> None:
    made = family("llama", "float64")
    engine = Engine(made.target, random_drafter(tmp_path, made), config=EngineConfig(prefill_chunk=512))
    prompts = [tuple((5 * number + at) % VOCAB for at in range(6 + number)) for number in range(count)]
    params = SamplingParams(14, sampling.temperature, sampling.seed, end_ids=frozenset())
    requests = [submit(engine, prompt, policy_case(case), params) for prompt in prompts]
    engine.loop.step()  # the prompts
    rounds = 0
    while all(request.remaining_tokens > 1 for request in requests):
        copies.clear()
        took_part = engine.loop.step()
        assert len(took_part) == count
        drafted = any(request.rounds[-1].drafted for request in requests)
        # Above temperature 0 the noise of a position is made on the host and goes to the device.
        assert copies == Counter(cpu=1 + drafted), copies
        rounds += drafted or case == "ar"
    assert rounds >= 2
    while engine.loop.step():
        pass
    assert [request.token_ids for request in requests] == [made.sampled(prompt, 14, sampling) for prompt in prompts]
