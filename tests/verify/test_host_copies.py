"""The counter of waits itself: what it counts, and what it lets pass."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from host_copies import HostCopies

ROW = torch.arange(4.0)


@pytest.mark.parametrize(
    "wait",
    [
        lambda: ROW[1].item(),
        lambda: ROW.tolist(),
        lambda: bool(ROW[1] > 0),
        lambda: int(ROW[1]),
        lambda: float(ROW[1]),
        lambda: [0, 1][ROW[1].long()],
        lambda: ROW.numpy(),
        lambda: np.asarray(ROW),
        lambda: ROW[ROW > 1],
        lambda: (ROW > 1).nonzero(),
        lambda: torch.equal(ROW, ROW),
    ],
)
def test_every_wait_is_counted(wait: Callable[[], Any]) -> None:
    with HostCopies() as copies:
        wait()
    assert copies.counts.total() > 0


def test_one_copy_and_what_follows_it_is_one_wait() -> None:
    with HostCopies() as copies:
        both = torch.stack([ROW, ROW.flip(0)])[:, torch.tensor([0, 2])].cpu()
        assert both.numpy().sum() == 6.0 and both.tolist() == [[0.0, 2.0], [3.0, 1.0]]
    assert copies.counts == {"cpu": 1}
