"""What all tests share: tiny models are quickest on one thread; bounds on speed are stated in this machine's own."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def measured_in_units() -> Callable[[Callable[[], object]], float]:
    """CPU time of a call in that of a fixed piece of Python and numpy, about 6 ms on a server of 2023.

    The two take turns and the best of each counts, so neither a slow nor a busy machine decides a test.
    """

    def measure(call: Callable[[], object]) -> float:
        took_s, unit_s = [], []
        for _ in range(5):
            unit_s.append(_cpu_s(_unit))
            took_s.append(_cpu_s(call))
        return min(took_s) / min(unit_s)

    return measure


def _cpu_s(call: Callable[[], object]) -> float:
    start_s = time.process_time()
    call()
    return time.process_time() - start_s


def _unit() -> float:
    values, total = np.linspace(0.0, 1.0, 64), 0.0
    for at in range(2_000):
        total += float(np.cumsum(values)[at % 64])
        for step in range(20):
            total += step * 0.5
    return total
