"""The JSON schema of a cost profile: reading with one-line errors, nothing else.

| field         | shape          | what                                                                             |
|---------------|----------------|----------------------------------------------------------------------------------|
| schema        | integer        | 1; fields are only ever added                                                    |
| rows          | [n]            | rows of a forward, increasing, the first is 1                                    |
| contexts      | [c]            | committed context lengths, increasing                                            |
| verify_s      | [c][n]         | median seconds of the target forward of one request                              |
| draft_s       | null, number,  | seconds of a drafter pass; [c][r] has a column for each entry of requests        |
|               | [c] or [c][r]  |                                                                                  |
| host_s        | null or [n]    | seconds of everything else in a round                                            |
| requests      | integer or [r] | request counts measured, increasing, the first is 1                              |
| batch         | null or object | rows [m] (in all), contexts [k], verify_s [r - 1][k][m]: several requests        |
| spread_s      | null or [c][n] | half the spread of verify_s                                                      |
| steps         | null or [s]    | rows s where the cost jumps between s and s + 1                                  |
| mean_gains    | null or [g]    | mean n-th sorted gain over some rounds, for `cast` and for the first rate        |
| identity      | null or object | device, threads, dtype, attention, model, drafter, versions                      |
| dtype, source | text           | precision; where the numbers come from                                           |

null draft_s and host_s count as 0. Other fields are kept as they are and never read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import CostError

SCHEMA = 1
FIELDS = frozenset(
    [
        *("schema", "rows", "contexts", "verify_s", "draft_s", "host_s", "requests", "batch", "spread_s", "steps"),
        *("mean_gains", "identity", "dtype", "source"),
    ]
)
_ROUNDING = 1e-12


def read_json(path: Path) -> Any:
    """Return the parsed file; raises CostError naming the file when it is missing, unreadable or not JSON."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise CostError(f"{path}: cannot be read ({error.strerror})") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise CostError(f"{path}: not a JSON file ({error.__class__.__name__}), expected a cost table") from error


def number(value: object, name: str, low: float = 0.0, above: bool = False) -> float:
    """Return a finite number >= low (> low with `above`); raises CostError naming the cell."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
        raise CostError(f"{name} is {value!r}: expected a finite number")
    if value < low or (above and value == low):
        raise CostError(f"{name} is {value!r}: expected a number {'>' if above else '>='} {low:g}")
    return float(value)


def table(value: object, shape: tuple[int, ...], name: str, above: bool = False) -> np.ndarray:
    """Return nested lists of exactly `shape` as float64; raises CostError naming the cell or the list."""
    if not shape:
        return np.float64(number(value, name, above=above))  # type: ignore[return-value]
    if not isinstance(value, list) or len(value) != shape[0]:
        size = len(value) if isinstance(value, list) else type(value).__name__
        raise CostError(f"{name} has {size} cells: expected a list of {shape[0]}")
    return np.array([table(cell, shape[1:], f"{name}[{i}]", above) for i, cell in enumerate(value)])


def axis(value: object, name: str, low: int) -> np.ndarray:
    """Return a non-empty strictly increasing list of integers >= low as (n,) int64."""
    if not isinstance(value, list) or not value:
        raise CostError(f"{name} is {value!r}: expected a list of increasing integers")
    previous = low - 1
    for i, cell in enumerate(value):
        if isinstance(cell, bool) or not isinstance(cell, int):
            raise CostError(f"{name}[{i}] is {cell!r}: expected an integer")
        if cell <= previous:
            raise CostError(f"{name}[{i}] is {cell}: expected more than {previous}, the list must increase")
        previous = cell
    return np.array(value, np.int64)


def masses(value: object, name: str) -> np.ndarray:
    """Return mean sorted gains, (g,) float64 in [0, 1], non-increasing; raises CostError where they grow."""
    if not isinstance(value, list) or not value:
        raise CostError(f"{name} is {value!r}: expected a list of numbers from 0 to 1")
    found = table(value, (len(value),), name)
    if found.max() > 1:
        at = int(np.argmax(found > 1))
        raise CostError(f"{name}[{at}] is {found[at]:g}: expected 0 to 1")
    grows = np.flatnonzero(np.diff(found) > _ROUNDING)
    if len(grows):
        at = int(grows[0]) + 1
        raise CostError(f"{name}[{at}] is {found[at]:g}, more than the one before: sorted masses never grow")
    return found


def check_schema(document: object) -> Mapping[str, Any]:
    """Return the document as an object of a schema that this version reads."""
    if not isinstance(document, dict):
        raise CostError(f"a {type(document).__name__} instead of an object: expected a cost profile")
    version = document.get("schema")
    if isinstance(version, bool) or not isinstance(version, int) or version < 1:
        raise CostError(f"schema {version!r}: expected {SCHEMA}")
    if version > SCHEMA:
        raise CostError(f"schema {version} is from a newer Draftwood: expected at most {SCHEMA}")
    missing = [name for name in ("rows", "contexts", "verify_s") if name not in document]
    if missing:
        raise CostError(f"{missing[0]} is missing: expected rows, contexts and verify_s")
    return document


def request_counts(value: object) -> np.ndarray:
    """Return (r,) int64 request counts from an integer or a list; the first is 1."""
    counts = axis(value if isinstance(value, list) else [value], "requests", 1)
    if counts[0] != 1:
        raise CostError(f"requests starts at {counts[0]}: expected 1 first")
    return counts


def draft_table(value: object, num_contexts: int, num_counts: int) -> np.ndarray:
    """Return (c, r) float64 drafting seconds; null is 0, a number or a column serves every request count."""
    if value is None:
        return np.zeros((num_contexts, num_counts))
    if not isinstance(value, list):
        return np.full((num_contexts, num_counts), number(value, "draft_s"))
    if value and isinstance(value[0], list):
        return table(value, (num_contexts, num_counts), "draft_s")
    return np.repeat(table(value, (num_contexts,), "draft_s")[:, None], num_counts, axis=1)


def step_rows(value: object, rows: np.ndarray) -> tuple[int, ...]:
    """Return the steps; each lies inside the grid and no gap of the grid holds two."""
    if not value:
        return ()
    steps = axis(value, "steps", 1)
    gaps = np.searchsorted(rows, steps, side="right")
    if steps[-1] >= rows[-1]:
        raise CostError(f"step {steps[-1]}: expected less than the last of rows, {rows[-1]}")
    if len(np.unique(gaps)) < len(gaps):
        raise CostError(f"steps {steps.tolist()}: expected at most one between two neighbouring rows")
    return tuple(int(step) for step in steps)
