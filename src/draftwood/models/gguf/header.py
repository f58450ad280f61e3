"""The scalar metadata of a GGUF file, read without unpacking anything else.

The full readers parse the vocabulary into Python objects, which takes seconds; here arrays are stepped over.
Layout (all little-endian): magic, version, number of tensors, number of pairs, then the pairs: key, type, value.
"""

from __future__ import annotations

import mmap
import struct
from pathlib import Path

from ...errors import ModelError

Scalar = int | float | bool | str

MAGIC = b"GGUF"
VERSIONS = (2, 3)
LFS_PREFIX = b"version https://git-lfs"

_FORMATS = {0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d"}
_STRING = 8
_ARRAY = 9


def read_header(path: Path) -> dict[str, Scalar]:
    """All scalar pairs of the file's metadata, by key; arrays are left out.

    Raises ModelError in one line for a file that is empty, cut, a Git LFS pointer, not GGUF, or of another version.
    """
    with path.open("rb") as file:
        start = file.read(len(LFS_PREFIX))
        if start == LFS_PREFIX:
            raise ModelError(f"model {str(path)!r}: a Git LFS pointer, not the file itself; run git lfs pull")
        if start[:4] != MAGIC:
            raise ModelError(f"model {str(path)!r}: not a GGUF file")
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            try:
                return _Cursor(data).metadata()
            except (struct.error, IndexError, UnicodeDecodeError, KeyError) as error:
                raise ModelError(f"model {str(path)!r}: the GGUF metadata is cut or broken") from error
            except ValueError as error:
                raise ModelError(f"model {str(path)!r}: {error}") from error


class _Cursor:
    """A reading position in the mapped file."""

    def __init__(self, data: mmap.mmap) -> None:
        self.data = data
        self.offset = len(MAGIC)

    def metadata(self) -> dict[str, Scalar]:
        version = self.number("<I")
        if version not in VERSIONS:
            raise ValueError(f"GGUF version {version}; expected one of {', '.join(map(str, VERSIONS))}")
        self.offset += 8  # the number of tensors
        pairs: dict[str, Scalar] = {}
        for _ in range(int(self.number("<Q"))):
            key = self.string()
            value = self.value(int(self.number("<I")))
            if value is not None:
                pairs[key] = value
        return pairs

    def value(self, kind: int) -> Scalar | None:
        """One value; None for an array, which is stepped over."""
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.number(_FORMATS[kind])
        item, count = int(self.number("<I")), int(self.number("<Q"))
        if item in _FORMATS:
            self.offset += count * struct.calcsize(_FORMATS[item])
            return None
        for _ in range(count):
            if item == _STRING:
                length = int(self.number("<Q"))
                self.offset += length
            else:
                self.value(item)
        return None

    def number(self, pattern: str) -> int | float | bool:
        (value,) = struct.unpack_from(pattern, self.data, self.offset)
        self.offset += struct.calcsize(pattern)
        number: int | float | bool = value
        return number

    def string(self) -> str:
        length = int(self.number("<Q"))
        text = self.data[self.offset : self.offset + length]
        if len(text) < length:
            raise IndexError
        self.offset += length
        return text.decode("utf-8")
