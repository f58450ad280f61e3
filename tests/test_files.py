"""Files are whole or not there: what a failure leaves behind, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from draftwood.errors import CostError, TraceError, UsageError
from draftwood.files import check_folder, decoded, finite, json_line, text_of, write_arrays, write_file


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_text_and_bytes_are_written_and_replaced(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_file(path, "ä\n")
    assert path.read_bytes() == b"\xc3\xa4\n"
    write_file(str(path), b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert names_in(tmp_path) == ["a.txt"]


def test_arrays_come_back(tmp_path: Path) -> None:
    write_arrays(tmp_path / "a.npz", {"x": np.arange(3), "names": np.array(["a", "b"])})
    with np.load(tmp_path / "a.npz", allow_pickle=False) as archive:
        assert archive["x"].tolist() == [0, 1, 2] and archive["names"].tolist() == ["a", "b"]
    assert names_in(tmp_path) == ["a.npz"]


@pytest.mark.parametrize("error", [CostError, UsageError])
def test_a_folder_that_is_not_there_is_the_error_asked_for(tmp_path: Path, error: type[Exception]) -> None:
    path = tmp_path / "nowhere" / "a.txt"
    with pytest.raises(error) as caught:
        write_file(path, "text", error)
    assert str(caught.value) == f"{path}: cannot be written (No such file or directory)"


def test_the_error_may_be_made_by_a_function(tmp_path: Path) -> None:
    with pytest.raises(TraceError, match=r"^trace .*a\.npz: cannot be written"):
        write_arrays(tmp_path / "no" / "a.npz", {}, lambda line: TraceError(f"trace {line}"))


def test_without_an_error_the_systems_own_is_raised(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        write_file(tmp_path / "nowhere" / "a.txt", "text")


def test_a_failure_halfway_leaves_the_earlier_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.npz"
    write_arrays(path, {"x": np.zeros(2)})
    before = path.read_bytes()
    with pytest.raises(ValueError, match=r"allow_pickle"):
        write_arrays(path, {"x": np.zeros(2), "bad": np.array([object()])})
    assert path.read_bytes() == before
    assert names_in(tmp_path) == ["a.npz"]


def test_a_file_cannot_take_the_place_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "a" / "inside").mkdir(parents=True)
    with pytest.raises(UsageError, match="cannot be written"):
        write_file(tmp_path / "a", "text", UsageError)
    assert names_in(tmp_path) == ["a"]


def test_a_folder_is_checked_without_a_trace(tmp_path: Path) -> None:
    check_folder(tmp_path / "new" / "deep")
    assert names_in(tmp_path) == []
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match=r"output folder .*file/below: cannot be written"):
        check_folder(tmp_path / "file" / "below")
    assert names_in(tmp_path) == ["file"]


def test_json_has_no_number_that_is_not_finite() -> None:
    value = {"a": [1.0, float("nan")], "b": (float("inf"), {"c": -float("inf")}), "d": "ä", "e": 3}
    assert finite(value) == {"a": [1.0, None], "b": [None, {"c": None}], "d": "ä", "e": 3}
    line = json_line(value)
    assert line.endswith("\n") and line.count("\n") == 1 and line.isascii()
    assert json.loads(line) == finite(value)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    (tmp_path / "t").write_bytes(b"\xef\xbb\xbfna\xc3\xafve")
    assert text_of(tmp_path / "t") == decoded(b"na\xc3\xafve", "x") == "naïve"


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-16-be", "utf-32", "latin-1"])
def test_other_encodings_are_named(encoding: str) -> None:
    data = "naïve".encode(encoding)
    with pytest.raises(UsageError, match=r"^what: ") as error:
        decoded(data, "what")
    line = str(error.value)
    assert "UTF-8" in line and "\n" not in line
    assert ("byte order mark" in line) == (encoding in ("utf-16", "utf-32"))
    assert ("UTF-16?" in line) == encoding.startswith("utf-16-")


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nosuch: No such file"):
        text_of(tmp_path / "nosuch")
    with pytest.raises(UsageError, match="Is a directory"):
        text_of(tmp_path)
