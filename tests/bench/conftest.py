"""Makes the helpers of this folder and of its neighbours importable; tiny models are quickest on one thread."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

HERE = Path(__file__).parent
for folder in (HERE, HERE.parent / "engine", HERE.parent / "draft", HERE.parent / "cost", HERE.parent / "target"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
