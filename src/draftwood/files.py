"""How files are written: whole or not at all. And JSON, which has no number that is not finite.

The command line starts with this module, so numpy is imported where it is needed.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from .errors import UsageError

Failure = Callable[[str], Exception]
"""Makes the error to raise from one line: one of our classes, or a function that adds to the line."""


def write_file(path: str | os.PathLike[str], data: str | bytes, error: Failure | None = None) -> None:
    """Write text (UTF-8) or bytes to a temporary name beside `path`, then rename: no half file is ever seen.

    If that fails an earlier file stays as it was, and `error` is raised with one line that names the file; without it,
    what the system raised.
    """
    content = data.encode() if isinstance(data, str) else data
    _replace(Path(path), lambda file: file.write(content), error)


def write_arrays(path: str | os.PathLike[str], arrays: Mapping[str, Any], error: Failure | None = None) -> None:
    """The same for a compressed .npz file of plain arrays, never pickled."""
    import numpy as np

    _replace(Path(path), lambda file: np.savez_compressed(file, allow_pickle=False, **arrays), error)


def _replace(path: Path, fill: Callable[[BinaryIO], object], error: Failure | None) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            fill(file)
        os.replace(part, path)
    except OSError as reason:
        if error is None:
            raise
        raise error(f"{path}: cannot be written ({reason.strerror})") from reason
    finally:
        part.unlink(missing_ok=True)


def check_folder(folder: Path) -> None:
    """Raise UsageError, one line, unless files can be made in `folder`; leaves nothing behind."""
    made: list[Path] = []
    try:
        for path in reversed([folder, *folder.parents]):
            if not path.exists():
                path.mkdir()
                made.append(path)
        probe = folder / f".draftwood-{os.getpid()}"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(f"output folder {folder}: cannot be written ({error.strerror})") from error
    finally:
        for path in reversed(made):
            path.rmdir()


def json_line(value: Any) -> str:
    """One line of JSON, in ASCII, with its line end; numbers that are not finite become null."""
    return json.dumps(finite(value), allow_nan=False) + "\n"


def finite(value: Any) -> Any:
    """The value with every number that is not finite replaced by None."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


_MARKS = {b"\xff\xfe\x00\x00": "UTF-32", b"\x00\x00\xfe\xff": "UTF-32", b"\xff\xfe": "UTF-16", b"\xfe\xff": "UTF-16"}


def decoded(data: bytes, what: str) -> str:
    """Text of bytes, without a byte order mark. Raises UsageError, one line after `what`, if it is not UTF-8."""
    for mark, name in _MARKS.items():
        if data.startswith(mark):
            raise UsageError(
                f"{what}: {name} text (it begins with a byte order mark): expected UTF-8, as iconv makes it"
            )
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        hint = " (NUL bytes: UTF-16?)" if b"\0" in data[:200] else ""
        raise UsageError(
            f"{what}: byte 0x{data[error.start]:02x} at offset {error.start} is not UTF-8{hint}"
        ) from error


def text_of(path: Path) -> str:
    """Text of a file, without a byte order mark. Raises UsageError, one line, for what cannot be read or is no text."""
    try:
        return decoded(path.read_bytes(), str(path))
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from error


def read_object(path: Path, error: Failure) -> dict[str, Any]:
    """The JSON object in a file; numbers must be finite, keys unique. Raises `error`: one line, file and reason."""

    def not_finite(text: str) -> Any:
        raise ValueError(f"the number {text}")

    def number(text: str) -> float:
        return found if math.isfinite(found := float(text)) else not_finite(text)

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        values = dict(pairs)
        for key, value in pairs:  # JSON keeps the last of several in silence
            if values[key] != value:
                raise ValueError(f"the key {key!r} stands in it twice, with different values")
        return values

    try:
        text = path.read_text(encoding="utf-8-sig")
    except IsADirectoryError as reason:
        raise error(f"{path.name} is a folder: expected a file") from reason
    except (OSError, UnicodeDecodeError) as reason:
        raise error(f"{path.name}: {getattr(reason, 'strerror', None) or 'not UTF-8 text'}") from reason
    if text.startswith("version https://git-lfs"):
        raise error(f"{path.name} is a Git LFS pointer, not the file itself; run git lfs pull")
    try:
        found = json.loads(text, parse_constant=not_finite, parse_float=number, object_pairs_hook=unique)
    except (ValueError, RecursionError) as reason:
        raise error(f"{path.name} is not JSON: {reason}") from reason
    if not isinstance(found, dict):
        raise error(f"{path.name}: expected a JSON object, found {type(found).__name__}")
    return found
