"""What a KV pool may take, from faked machines; and memory that is address space until it is written."""

from __future__ import annotations

import gc
import mmap
import resource
from pathlib import Path
from typing import Any

import pytest
import torch

from draftwood import memory
from draftwood.errors import UsageError
from draftwood.memory import budget_bytes, free_bytes, untouched

CPU = torch.device("cpu")
GIB = 2**30


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder in place of the control groups', on a machine with 16 GiB free."""
    monkeypatch.setattr(memory, "_CGROUP", tmp_path)
    machine(tmp_path, monkeypatch, 16 * GIB)
    return tmp_path


def machine(folder: Path, monkeypatch: pytest.MonkeyPatch, free: int) -> None:
    info = folder / "meminfo"
    info.write_text(f"MemTotal:       99999999 kB\nMemFree:  1 kB\nMemAvailable:   {free // 1024} kB\nBuffers: 5 kB\n")
    read = memory._machine_bytes
    monkeypatch.setattr(memory, "_machine_bytes", lambda _: read(info))


def write(folder: Path, **files: object) -> None:
    """Files of a control group; `__` stands for a dot."""
    folder.mkdir(exist_ok=True)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(f"{content}\n")


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        (None, 8 * GIB),
        ("0.5", 8 * GIB),
        (".25", 4 * GIB),
        (0.125, 2 * GIB),
        (1, 16 * GIB),
        ("1.0", 16 * GIB),
        ("50%", 8 * GIB),
        (" 12.5 % ", 2 * GIB),
        ("100%", 16 * GIB),
        ("2", 2),
        ("1b", 1),
        (4096, 4096),
        ("800MB", 800 * 10**6),
        ("800 mb", 800 * 10**6),
        ("2GiB", 2 * GIB),
        ("2gi", 2 * GIB),
        ("1.5k", 1500),
        ("1.5KiB", 1536),
        ("0.01T", 10**10),
        ("0.5G", 5 * 10**8),
        ("0.001 TiB", 2**40 // 1000),
        ("16GiB", 16 * GIB),
    ],
)
def test_shares_and_bytes(root: Path, wanted: str | float | None, expected: int) -> None:
    assert budget_bytes(wanted, CPU) == expected


@pytest.mark.parametrize(
    "wanted",
    ["", "much", "-1", "1GB2", "2 Gigs", "0x10", "1,5G", "1e9", "nan", "inf", "5%%", "5%b", "GiB", ".", "1..5"],
)
def test_nonsense_is_named_with_what_is_allowed(root: Path, wanted: str) -> None:
    with pytest.raises(UsageError) as caught:
        budget_bytes(wanted, CPU)
    assert str(caught.value) == f"kv_memory {wanted!r}: expected a share (0.5, 50%) or bytes (800MB, 2GiB)"


@pytest.mark.parametrize("wanted", [0, 0.0, "0", "0%", "101%", "100.5%"])
def test_shares_out_of_range(root: Path, wanted: str | float) -> None:
    with pytest.raises(UsageError) as caught:
        budget_bytes(wanted, CPU)
    assert str(caught.value) == f"kv_memory {wanted!r}: expected a share above 0 and at most 1 (100%)"


@pytest.mark.parametrize("wanted", ["17GiB", "0B", "0GiB", "1T", 2**60, "0.4b"])
def test_more_than_is_free(root: Path, wanted: str | int) -> None:
    with pytest.raises(UsageError) as caught:
        budget_bytes(wanted, CPU)
    message = f"kv_memory {wanted!r}: expected more than 0 and at most the 16384 MiB that are free"
    assert str(caught.value) == message


def test_a_device_says_itself_what_is_free(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[object] = []
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (asked.append(device), (1000, 4000))[1])
    device = torch.device("cuda", 3)
    assert budget_bytes(None, device) == 850 and budget_bytes("10%", device) == 100
    assert asked == [device] * 2


def test_without_a_control_group_the_machine_decides(root: Path) -> None:
    assert free_bytes(CPU) == 16 * GIB
    write(root, memory__max="max", memory__current=5 * GIB)
    assert free_bytes(CPU) == 16 * GIB


def test_a_control_group_of_version_2(root: Path) -> None:
    write(root, memory__max=4 * GIB, memory__current=GIB)
    assert free_bytes(CPU) == 3 * GIB
    assert budget_bytes("50%", CPU) == 3 * GIB // 2
    with pytest.raises(UsageError, match="at most the 3072 MiB that are free"):
        budget_bytes("4GiB", CPU)
    write(root, memory__max=40 * GIB)
    assert free_bytes(CPU) == 16 * GIB, "the machine has less"
    write(root, memory__max=GIB, memory__current=2 * GIB)
    assert free_bytes(CPU) == 0, "over its limit"


def test_a_control_group_of_version_1(root: Path) -> None:
    folder = root / "memory"
    write(folder, memory__limit_in_bytes=2**63 - 4096, memory__usage_in_bytes=GIB)
    assert free_bytes(CPU) == 16 * GIB
    write(folder, memory__limit_in_bytes=6 * GIB)
    assert free_bytes(CPU) == 5 * GIB


def test_files_that_a_control_group_only_caches_count_as_free(root: Path) -> None:
    """Weights that were read a moment ago fill a group to its limit, and yield to whoever needs the memory."""
    write(root, memory__max=4 * GIB, memory__current=4 * GIB - 4096)
    write(root, memory__stat=f"anon {GIB}\nfile {3 * GIB}\ninactive_file {2 * GIB}\nactive_file {GIB}\nslab 5")
    assert free_bytes(CPU) == 2 * GIB + 4096
    write(root, memory__max="max")
    folder = root / "memory"
    write(folder, memory__limit_in_bytes=8 * GIB, memory__usage_in_bytes=7 * GIB)
    write(folder, memory__stat=f"inactive_file 7\ntotal_cache {3 * GIB}\ntotal_inactive_file {2 * GIB}")
    assert free_bytes(CPU) == 3 * GIB


def test_a_machine_that_does_not_say(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No /proc: the control group's word counts, else something modest is assumed."""
    (root / "meminfo").unlink()
    assert free_bytes(CPU) == 8 * GIB
    write(root, memory__max=40 * GIB, memory__current=GIB)
    assert free_bytes(CPU) == 39 * GIB
    monkeypatch.setattr(memory, "_CGROUP", root / "none")
    assert free_bytes(CPU) == 8 * GIB


def test_a_machine_too_old_to_say(root: Path) -> None:
    (root / "meminfo").write_text("MemTotal: 99999999 kB\nMemFree: 5 kB\n")
    assert free_bytes(CPU) == 8 * GIB


def test_this_machine_has_something_free() -> None:
    assert free_bytes(CPU) > 2**20


def resident_bytes() -> int:
    """What this process holds in memory now."""
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


needs_statm = pytest.mark.skipif(
    not Path("/proc/self/statm").exists() or Path("/proc/sys/vm/overcommit_memory").read_text().strip() == "2",
    reason="needs Linux that gives address space without backing it",
)


@needs_statm
def test_untouched_memory_costs_nothing_until_it_is_written() -> None:
    before = resident_bytes()
    whole = untouched((4, 5 * GIB // 256, 8, 16), torch.bfloat16, CPU)
    assert whole.numel() * 2 == 20 * GIB and whole.is_contiguous() and whole.dtype is torch.bfloat16
    assert resident_bytes() - before < 8 * 2**20
    for row in (0, 12345, len(whole[0]) - 1):
        assert not whole[:, row].any()
    assert resident_bytes() - before < 8 * 2**20
    before = resident_bytes()
    for number, row in enumerate(range(10_000_000, 11_000_000, 1000), start=1):
        whole[2, row] = number % 100  # a thousand rows far apart; a huge page each would be 2 GB
    grown = (resident_bytes() - before) / 1000
    assert 0.5 * resource.getpagesize() < grown < 3 * resource.getpagesize()
    assert whole[2, 10_003_000].eq(4).all() and not whole[2, 10_003_001].any() and not whole[1, 10_003_000].any()


@needs_statm
def test_what_is_dropped_goes_back() -> None:
    before = resident_bytes()
    held = untouched((64 * 2**20,), torch.uint8, CPU)
    held[:] = 1
    part = held[5:6]
    assert resident_bytes() - before > 60 * 2**20
    del held
    assert resident_bytes() - before > 60 * 2**20 and part.item() == 1, "a view keeps the whole"
    del part
    assert resident_bytes() - before < 8 * 2**20


def test_shapes_and_types() -> None:
    for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.int8):
        made = untouched((3, 2, 5), dtype, CPU)
        assert made.shape == (3, 2, 5) and made.dtype is dtype and not made.any()
        made[1, 1] = 2
        assert made.sum() == 10
    assert untouched((0, 4), torch.float32, CPU).shape == (0, 4)
    assert untouched((3, 0, 4), torch.float32, CPU).numel() == 0


def test_more_than_the_address_space_is_one_line() -> None:
    for rows in (2**50, 2**62, 2**70):
        with pytest.raises(UsageError, match=r"^a KV pool of \d+ MiB cannot be had: give less with --kv-memory$"):
            untouched((rows, 8), torch.float64, CPU)


def test_a_system_without_huge_pages_is_fine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Kernels built without them refuse the advice against them."""

    class Plain(mmap.mmap):
        def madvise(self, *args: Any) -> None:
            raise OSError(22, "Invalid argument")

    monkeypatch.setattr(memory.mmap, "mmap", Plain)
    made = untouched((5, 3), torch.float32, CPU)
    assert not made.any()
    made[4] = 1.0
    assert made.sum() == 3.0
