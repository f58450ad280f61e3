"""Digests of model files: of every byte, of a sample, and remembered ones.

What is read of a file, when only a sample is:

    safetensors   size, header, and of each tensor its first, middle and last BLOCK bytes (all of a small one)
    any other     size, the first HEAD bytes, and BLOCKS blocks at even distances, the last at the end of the file

A file of at most WHOLE_BYTES is read whole. A tensor that was trained on differs nearly everywhere, so a sample sees
it; a few edited values in a large file it may miss.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, NamedTuple

WHOLE_BYTES = 64 << 20
HEAD = 1 << 20
BLOCK = 4096
BLOCKS = 2048
WEIGHTS = ("*.safetensors", "*.bin", "*.pt")
# A file that was changed this shortly before its digest was taken may be changed again within a tick of its clock.
SETTLED_NS = 2_000_000_000

_CHUNK = 1 << 20
_LENGTH_BYTES = 8


class Span(NamedTuple):
    """A run of bytes of a file."""

    start: int
    length: int


def whole_digest(file: Path) -> str:
    """sha256 of every byte."""
    digest = hashlib.sha256()
    with file.open("rb") as data:
        while chunk := data.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


def sampled_digest(file: Path) -> str:
    """A digest of the size and of a sample, see the table above; of every byte if the file is small."""
    if file.stat().st_size <= WHOLE_BYTES:
        return whole_digest(file)
    digest = hashlib.sha256()
    with file.open("rb") as data:
        for span in sample(file, data):
            digest.update(f"{span.start}:{span.length}:".encode())
            data.seek(span.start)
            digest.update(data.read(span.length))
    return digest.hexdigest()


def sample(file: Path, data: BinaryIO) -> Iterator[Span]:
    """The runs of `file`, open as `data`, that stand for all of it."""
    size = file.stat().st_size
    header, tensors = _tensors(data, size) if file.suffix == ".safetensors" else (min(HEAD, size), [])
    yield Span(0, header)
    if not tensors:
        last = max(size - BLOCK, 0)
        yield from (Span(last * at // (BLOCKS - 1), BLOCK) for at in range(BLOCKS))
    for tensor in tensors:
        if tensor.length <= 3 * BLOCK:
            yield tensor
        else:
            last = tensor.start + tensor.length - BLOCK
            yield from (Span(start, BLOCK) for start in (tensor.start, (tensor.start + last) // 2, last))
    yield Span(size, 0)


def folder_digest(folder: Path, *, whole: bool) -> str:
    """Digest of a checkpoint folder: its config.json and its weights, every byte of them or (`whole` False) samples."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    of_file = whole_digest if whole else sampled_digest
    for file in sorted({found for pattern in WEIGHTS for found in folder.glob(pattern)}):
        digest.update(f"{file.name} {file.stat().st_size} {of_file(file)}".encode())
    return digest.hexdigest()[:32]


def remembered_digest(file: Path, memory: Path) -> str:
    """`whole_digest(file)`, kept in the folder `memory` for the next call.

    It is used again while size, inode, times of content and of metadata, and the sample are the same: setting the
    time of the content back after an edit changes that of the metadata. Where `memory` cannot be written the file is
    read again each time, as a small one always is.
    """
    if file.stat().st_size <= WHOLE_BYTES:
        return whole_digest(file)
    note = memory / f"{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:32]}.json"
    state = _state(file)
    known = _read(note)
    if known is not None and known.get("state") == state and isinstance(known.get("digest"), str):
        return str(known["digest"])
    digest = whole_digest(file)
    changed_ns = max(file.stat().st_mtime_ns, file.stat().st_ctime_ns)
    if state == _state(file) and time.time_ns() - changed_ns > SETTLED_NS:
        _write(note, {"state": state, "digest": digest})
    return digest


def _tensors(data: BinaryIO, size: int) -> tuple[int, list[Span]]:
    """(bytes of the header, where the tensors lie) of a safetensors file; no tensors if its header cannot be read."""
    length = int.from_bytes(data.read(_LENGTH_BYTES), "little")
    start = _LENGTH_BYTES + length
    try:
        header = json.loads(data.read(min(length, size)))
        offsets = sorted(item["data_offsets"] for name, item in header.items() if name != "__metadata__")
        return start, [Span(start + low, high - low) for low, high in offsets]
    except (ValueError, KeyError, TypeError, AttributeError):
        return min(HEAD, size), []


def _state(file: Path) -> list[int | str]:
    found = file.stat()
    return [found.st_size, found.st_ino, found.st_mtime_ns, found.st_ctime_ns, sampled_digest(file)]


def _read(note: Path) -> dict[str, object] | None:
    try:
        found = json.loads(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _write(note: Path, known: dict[str, object]) -> None:
    partial = note.with_name(f"{note.name}.{os.getpid()}.part")
    try:
        note.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(json.dumps(known), encoding="utf-8")
        os.replace(partial, note)
    except OSError:
        with suppress(OSError):
            partial.unlink()
