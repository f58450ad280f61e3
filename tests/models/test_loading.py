"""Settings of a load that are refused before anything is loaded."""

from __future__ import annotations

import pytest
import torch

from draftwood.errors import UsageError
from draftwood.models.loading import DTYPES, check_settings


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.mark.parametrize(
    "device",
    ["mps", "mps:0", "xpu", "meta", "hpu", "vulkan", "privateuseone", "gpu", "", "cpu:1", "cuda:", "cuda:-1", "CPU"],
)
@pytest.mark.usefixtures("two_gpus")
def test_a_device_that_would_break_later_is_refused_by_name(device: str) -> None:
    with pytest.raises(UsageError) as error:
        check_settings("auto", device)
    assert str(error.value) == f"device {device!r}: expected cpu, cuda or cuda:N"


@pytest.mark.parametrize(("device", "index"), [("cpu", None), ("cuda", None), ("cuda:0", 0), ("cuda:1", 1)])
@pytest.mark.usefixtures("two_gpus")
def test_known_devices(device: str, index: int | None) -> None:
    for given in (device, torch.device(device)):
        found = check_settings("auto", given)  # type: ignore[arg-type]
        assert (found.type, found.index) == (device.partition(":")[0], index)


@pytest.mark.usefixtures("two_gpus")
def test_a_device_that_is_not_here() -> None:
    with pytest.raises(UsageError, match=r"^device 'cuda:2': expected cpu, cuda or cuda:N with N from 0 to 1$"):
        check_settings("auto", "cuda:2")


def test_no_cuda_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match=r"^device 'cuda': this torch finds no CUDA device; expected cpu$"):
        check_settings("auto", "cuda")


def test_dtypes() -> None:
    for dtype in ("auto", *DTYPES):
        assert check_settings(dtype, "cpu") == torch.device("cpu")
    with pytest.raises(UsageError, match=r"^dtype 'int8': expected auto or one of float32, bfloat16,"):
        check_settings("int8", "cpu")
