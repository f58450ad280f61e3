"""The bandwidth floor and peak memory."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import numpy as np
import torch
from families import family

from draftwood.bench.bandwidth import Floor, bandwidth, floor, weight_bytes
from draftwood.bench.memory import PeakMemory

CPU = torch.device("cpu")


def test_weights_read_per_token_leave_an_own_embedding_out() -> None:
    model = family("llama", "float64").target.model
    total = sum(weight.numel() for weight in model.parameters()) * 8
    assert weight_bytes(model) == total - 64 * 32 * 8
    tied = copy.deepcopy(model)
    tied.get_output_embeddings().weight = tied.get_input_embeddings().weight
    assert weight_bytes(tied) == total - 64 * 32 * 8  # the shared table is read by the head


def test_floor_is_bytes_over_bandwidth() -> None:
    assert Floor(5_000_000, 1e9).ms_per_token == 5.0
    assert floor(SimpleNamespace(), CPU) is None
    assert 1e8 < bandwidth(CPU, size_bytes=1 << 22, repeats=2) < 1e13


def test_peak_memory_is_that_of_the_run() -> None:
    peak = PeakMemory(CPU)
    peak.start()
    before = peak.read()
    if before is None:  # the system does not tell
        return
    block = np.ones(40_000_000)
    during = peak.read()
    assert during is not None and during - before > 250e6
    del block
    peak.start()
    after = peak.read()
    assert after is not None and after < during - 250e6
