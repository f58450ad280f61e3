"""What the pool costs: memory follows the tokens that are there, and tensors stay where they are."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from families import FAMILIES
from scripted import ScriptedTarget
from transformers import AutoModelForCausalLM

from draftwood.attention import SdpaBackend
from draftwood.batch import Batch
from draftwood.cache import KVPool, LayerSpec, row_bytes
from draftwood.engine import Engine, EngineConfig
from draftwood.models.base import TargetSpec
from draftwood.models.hf import HFTarget

STATM = Path("/proc/self/statm")
MB = 10**6

pytestmark = pytest.mark.skipif(not STATM.exists(), reason="resident memory is read from /proc")


def resident_bytes() -> int:
    return int(STATM.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def places(pool: KVPool) -> list[int]:
    layers = range(len(pool.specs))
    return [pool.k(layer).data_ptr() for layer in layers] + [pool.v(layer).data_ptr() for layer in layers]


def test_limits_cost_nothing() -> None:
    """Four short answers that were allowed 900,000 tokens each."""
    config = FAMILIES["llama"]()
    config.max_position_embeddings = 1_000_000
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    target = HFTarget(model, SdpaBackend(), name="long")
    prompts = [[(7 * number + at) % 64 for at in range(12)] for number in range(4)]
    before = resident_bytes()
    engine = Engine(target, config=EngineConfig(max_kv_rows=4_000_000))
    where = places(engine.state.pool)
    plain = engine.generate(prompts, policy="ar", max_tokens=5)
    ends = frozenset(output.token_ids[-1] for output in plain)
    outputs = engine.generate(prompts, policy="ar", max_tokens=900_000, end_ids=ends)
    assert all(len(output.token_ids) <= 5 and output.finish_reason == "stop" for output in outputs)
    assert resident_bytes() - before < 64 * MB
    assert places(engine.state.pool) == where
    engine.close()


@dataclass
class WritingTarget(ScriptedTarget):
    """Says token 1 for ever, and writes rows of the demo's shape."""

    def __post_init__(self) -> None:
        layers = (LayerSpec(3, 64, 64),) * 30
        self.spec = TargetSpec("wide", 30, 1, self.vocab, self.vocab, 8192, layers, torch.bfloat16, torch.device("cpu"))

    def forward(self, batch: Batch, pool: KVPool, tap_layers: Sequence[int], taps: torch.Tensor | None) -> torch.Tensor:
        rows = torch.from_numpy(batch.kv_rows)
        for layer in range(30):
            pool.k(layer)[rows] = 1.0
            pool.v(layer)[rows] = 1.0
        return torch.eye(self.vocab)[torch.ones(len(batch.logit_rows), dtype=torch.long)]


def test_rows_cost_their_bytes() -> None:
    """64 requests of 512 rows in a pool for many times as many."""
    target = WritingTarget(4)
    engine = Engine(target, config=EngineConfig(prefill_chunk=4096, max_kv_rows=1_000_000))
    where = places(engine.state.pool)
    engine.generate([[1, 2]], policy="ar", max_tokens=2)  # what a first step takes once
    rows = 64 * 512
    expected = rows * row_bytes(target.spec.layers, torch.bfloat16)
    assert expected == rows * 30 * 2 * 3 * 64 * 2
    before = resident_bytes()
    most = 0
    with engine.loop.paused():
        handles = [engine.submit([1] * 493, policy="ar", max_tokens=20) for _ in range(64)]
    for handle in handles:
        handle.result()
        most = max(most, resident_bytes() - before)
    assert abs(most - expected) < 0.05 * expected + 8 * MB
    assert places(engine.state.pool) == where
    engine.close()


def test_rows_that_were_given_back_are_used_again() -> None:
    target = WritingTarget(4)
    engine = Engine(target, config=EngineConfig(max_kv_rows=1_000_000))
    engine.generate([[1] * 100] * 4, policy="ar", max_tokens=20)
    before = resident_bytes()
    for _ in range(10):
        engine.generate([[1] * 100] * 4, policy="ar", max_tokens=20)
    assert resident_bytes() - before < 4 * MB
    engine.close()
