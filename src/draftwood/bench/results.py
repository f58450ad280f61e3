"""Files of a bench: samples as they end, and the results made from them.

`samples.jsonl` begins with a header (schema, settings) and gets one line per finished generation, so that an
interrupted run can go on. `results.jsonl` has one line per (set, policy) and one per policy overall, and is always
replaced as a whole. JSON numbers that are not finite become null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ..errors import TraceError, UsageError
from ..files import check_folder, finite, json_line, write_file
from .runner import Key, Sample

SCHEMA = 1
SAMPLES, RESULTS = "samples.jsonl", "results.jsonl"


def save_results(folder: Path, lines: Sequence[Mapping[str, Any]], provenance: Mapping[str, Any]) -> None:
    """Replace `results.jsonl`: every line gets the schema and the provenance. Raises UsageError."""
    text = "".join(json_line({"schema": SCHEMA, **line, **provenance}) for line in lines)
    write_file(folder / RESULTS, text, UsageError)


def load_results(path: Path) -> list[dict[str, Any]]:
    """Read results; raises TraceError, one line, for a file that is cut, no JSON or of another schema."""
    lines = []
    for number, line in enumerate(_text(path).splitlines(), start=1):
        value = _object(line, f"{path}:{number}")
        if value.get("schema") != SCHEMA:
            raise TraceError(f"results {path}:{number}: schema {value.get('schema')!r}, expected {SCHEMA}")
        lines.append(value)
    return lines


class SampleStore:
    """The samples of one output folder. Mutable: `keep` appends to the file and to `samples`."""

    def __init__(self, folder: Path, settings: Mapping[str, Any], *, resume: bool) -> None:
        """Open `folder`, made if absent; with `resume` what an interrupted run left is taken over, else it is dropped.

        Raises TraceError for files of another schema or version, resumed or not, and UsageError when the settings
        differ from those of the run that is to be resumed, or the folder cannot be written.
        """
        check_folder(folder)
        self._path = folder / SAMPLES
        now: dict[str, Any] = json.loads(json.dumps(finite(settings)))
        self.samples: list[Sample] = []
        if (folder / RESULTS).exists():
            load_results(folder / RESULTS)
        if self._path.exists():
            then, samples = _read_samples(self._path)
            if resume:
                for name in dict.fromkeys([*then, *now]):
                    was, new = (json.dumps(settings.get(name)) for settings in (then, now))
                    if was != new:
                        raise UsageError(f"--resume: {name} was {_short(was)}, now {_short(new)}: start afresh")
                self.samples = samples
        folder.mkdir(parents=True, exist_ok=True)
        if not resume:
            (folder / RESULTS).unlink(missing_ok=True)
        header = json_line({"schema": SCHEMA, "settings": now})
        # A line that was cut by a crash is dropped here.
        kept = "".join(json_line(asdict(sample)) for sample in self.samples)
        write_file(self._path, header + kept, UsageError)

    @property
    def done(self) -> frozenset[Key]:
        """Keys of the samples that are there."""
        return frozenset(sample.key for sample in self.samples)

    def keep(self, sample: Sample) -> None:
        """Append a sample; it is on disk when this returns."""
        with self._path.open("a", encoding="utf-8") as file:
            file.write(json_line(asdict(sample)))
        self.samples.append(sample)

    def check_prompts(self, hashes: Mapping[tuple[str, str], str]) -> None:
        """Raise UsageError if a resumed prompt, by (set, prompt id), renders to other ids now than then."""
        for sample in self.samples:
            now = hashes.get((sample.set_name, sample.prompt_id))
            if now != sample.prompt_hash:
                raise UsageError(
                    f"--resume: prompt {sample.prompt_id} of set {sample.set_name} has other token ids than in the "
                    "interrupted run (a template that writes the date, or another file): start afresh"
                )


def _read_samples(path: Path) -> tuple[dict[str, Any], list[Sample]]:
    """Settings and samples of an earlier run; a last line without its end is left out."""
    lines = _text(path).splitlines(keepends=True)
    header = _object(lines[0], f"{path}:1") if lines else {}
    if header.get("schema") != SCHEMA:
        raise TraceError(f"samples {path}: schema {header.get('schema')!r}, expected {SCHEMA}")
    names = {item.name for item in fields(Sample)}
    samples = []
    for number, line in enumerate(lines[1:], start=2):
        if not line.endswith("\n"):
            break
        value = _object(line, f"{path}:{number}")
        if set(value) != names:
            raise TraceError(f"samples {path}:{number}: fields of another version")
        samples.append(Sample(**value))
    return header.get("settings", {}), samples


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise TraceError(f"results {path}: cannot be read ({error})") from error


def _object(line: str, place: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except ValueError as error:
        raise TraceError(f"results {place}: not JSON") from error
    if not isinstance(value, dict):
        raise TraceError(f"results {place}: expected an object")
    return value


def _short(text: str) -> str:
    return text if len(text) <= 60 else text[:57] + "..."
