"""Round traces: what a replay needs to score any policy without a model.

A trace is one ``.npz`` file (schema 2) of plain arrays, never pickled. B rounds, D depths, K candidates, S stages,
F cost factors, Q requests; rounds are ordered by (request, position).

| key                       | shape, dtype       | what                                                                |
|---------------------------|--------------------|---------------------------------------------------------------------|
| `meta`                    | (bytes,) uint8     | UTF-8 JSON object, the fields of `TraceMeta` and `schema`           |
| `rounds.request`          | (B,) int32         | index of the request                                                |
| `rounds.position`         | (B,) int32         | index of the pending token in the request's output                  |
| `rounds.pending`          | (B,) int32         | id of the pending token, `output[position]`                         |
| `rounds.context`          | (B,) int32         | L, committed context length: prompt length + position               |
| `rounds.drafted`          | (B,) bool          | False where the round skipped drafting                              |
| `rounds.depth`            | (B,) int32         | usable depths of the block, 0 where nothing was drafted             |
| `rounds.logp`             | (B, D, K) float32  | candidates' log-probabilities, descending; -inf beyond `depth`      |
| `rounds.ids`              | (B, D, K) integer  | token ids of the candidates; 0 beyond `depth`                       |
| `rounds.candidates`       | (B,) int32         | candidates per depth of the tree that was grown, 0 without one      |
| `rounds.num_nodes`        | (B,) int32         | nodes verified, the root excluded                                   |
| `rounds.committed`        | (B,) int32         | tokens delivered by the round                                       |
| `rounds.accepted`         | (sum,) int32       | accepted nodes of all rounds, root excluded, one after the other    |
| `rounds.accepted_offsets` | (B + 1,) int64     | round b owns `accepted[offsets[b]:offsets[b + 1]]`                  |
| `rounds.seconds`          | (B, S) float64     | measured seconds by stage, names in `meta.stages`                   |
| `rounds.factors`          | (B, F) float64     | live cost factors a choice used, names in `meta.factor_names`       |
| `trees.offsets`           | (B + 1,) int64     | round b owns entries [offsets[b], offsets[b + 1]) of `trees.*`      |
| `trees.parent`            | (sum,) int32       | parent of a node in its tree, 0 = root; the root has no entry       |
| `trees.token`             | (sum,) int32       | its token id                                                        |
| `trees.rank`              | (sum,) int32       | its rank among its siblings                                         |
| `trees.logp`              | (sum,) float64     | log-probability of its path, descending in each tree                |
| `requests.request_id`     | (Q,) str           | id of the prompt in its set                                         |
| `requests.set_name`       | (Q,) str           | name of the prompt set                                              |
| `requests.prompt_hash`    | (Q,) str           | SHA-256 of the rendered prompt ids, see `prompts.units`             |
| `requests.prompt_len`     | (Q,) int32         | prompt tokens                                                       |
| `requests.max_tokens`     | (Q,) int32         | the request's cap on output tokens                                  |
| `requests.finish`         | (Q,) str           | `stop`, `length` or `abort`                                         |
| `requests.output_ids`     | (sum,) int32       | output tokens of all requests, prefill's token first, end token kept|
| `requests.output_offsets` | (Q + 1,) int64     | request q owns `output_ids[offsets[q]:offsets[q + 1]]`              |

A drafter that scores positions leaves its scores, one that scores paths (`suffix`) its tree, as wide as it has it, and
a union both: `part` gives a trace of one of them alone. Schema 1 had no trees.

The realised continuation of a round is ``output[position + 1:]``. Committed lengths of a request sum to its output
length minus 1, for the token that prefill yields belongs to no round. With `meta.every_position` there is one drafted
round at every position but the last, each committing its one token, and nothing was chosen.
"""

from __future__ import annotations

import json
import lzma
import os
import struct
import zipfile
import zlib
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import TraceError
from ..files import write_arrays
from .check import check_choices, check_order, check_requests, check_scores, check_shapes, check_trees
from .tables import RequestTable, RoundTable, TraceMeta, TreeTable

SCHEMA = 2
PARTS = ("scores", "trees")
MAX_CANDIDATES = 64


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """A recorded run; see the module's docstring for the schema."""

    meta: TraceMeta
    rounds: RoundTable
    requests: RequestTable
    trees: TreeTable

    @property
    def num_rounds(self) -> int:
        """B."""
        return len(self.rounds)

    @property
    def num_requests(self) -> int:
        """Q."""
        return len(self.requests)

    def output(self, request: int) -> np.ndarray:
        """(tokens,) int32 output ids of a request, prefill's token first."""
        offsets = self.requests.output_offsets
        out: np.ndarray = self.requests.output_ids[offsets[request] : offsets[request + 1]]
        return out

    def rounds_of(self, request: int) -> range:
        """Indices of a request's rounds, in order of position."""
        start, stop = np.searchsorted(self.rounds.request, [request, request + 1])
        return range(int(start), int(stop))

    def realised(self, round_index: int) -> np.ndarray:
        """(tokens,) int32 the tokens that really followed the round's pending token."""
        request = int(self.rounds.request[round_index])
        return self.output(request)[int(self.rounds.position[round_index]) + 1 :]

    def accepted_path(self, round_index: int) -> np.ndarray:
        """(accepted,) int32 accepted nodes of a round, the root excluded."""
        offsets = self.rounds.accepted_offsets
        path: np.ndarray = self.rounds.accepted[offsets[round_index] : offsets[round_index + 1]]
        return path

    def max_depth(self) -> np.ndarray:
        """(B,) int64 deepest node a tree of each round may have: what was scored or stored, and one token less than
        the request may still deliver, for the verified round adds the target's own token."""
        remaining = self.requests.max_tokens[self.rounds.request].astype(np.int64) - self.rounds.position - 1
        stored = np.diff(self.trees.offsets)  # a tree has no more depths than nodes
        proposed = np.maximum(self.rounds.depth.astype(np.int64), stored)
        depth: np.ndarray = np.minimum(proposed, np.maximum(remaining - 1, 0))
        return depth

    @property
    def is_union(self) -> bool:
        """Whether a drafter that scores positions and one that scores paths both proposed."""
        return bool(self.rounds.depth.any() and self.trees.offsets[-1])

    def part(self, name: str) -> Trace:
        """What one part of the drafter says: only the "scores", or only the "trees"; what was chosen stays."""
        if name not in PARTS:
            raise TraceError(f"part {name!r}: expected one of {', '.join(PARTS)}")
        if name == "scores":
            return replace(self, trees=TreeTable.empty(self.num_rounds))
        rounds = self.rounds
        without = replace(
            rounds,
            depth=np.zeros_like(rounds.depth),
            logp=np.full_like(rounds.logp, -np.inf),
            ids=np.zeros_like(rounds.ids),
        )
        return replace(self, rounds=without)

    def check_integrity(self) -> None:
        """Raise `TraceError`, one line, if a length, an id, a number or an order is wrong."""
        check_requests(self.meta, self.requests)
        check_shapes(self.meta, self.requests, self.rounds)
        check_scores(self.meta, self.rounds)
        check_order(self.requests, self.rounds)
        check_choices(self.meta, self.rounds)
        check_trees(self.meta, self.trees, self.num_rounds)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the trace atomically; a failure leaves an earlier file as it was.

        Raises `TraceError` if the folder cannot be written.
        """
        meta = json.dumps({"schema": SCHEMA, **asdict(self.meta)}, allow_nan=False, sort_keys=True)
        arrays = {"meta": np.frombuffer(meta.encode(), dtype=np.uint8)}
        for prefix, table in (("rounds", self.rounds), ("requests", self.requests), ("trees", self.trees)):
            arrays |= {f"{prefix}.{item.name}": getattr(table, item.name) for item in fields(table)}
        if self.meta.vocab_size <= 2**16:
            arrays["rounds.ids"] = self.rounds.ids.astype(np.uint16)
        write_arrays(path, arrays, lambda reason: TraceError(f"trace {reason}"))


def load(path: str | os.PathLike[str]) -> Trace:
    """Read and check a trace.

    Raises `TraceError`, one line, for a file that is missing, cut, of another schema, pickled, or whose contents do
    not fit together.
    """
    try:
        trace = _read(Path(path))
        trace.check_integrity()
    except TraceError as error:
        raise TraceError(f"trace {path}: {error}") from error
    return trace


def _read(path: Path) -> Trace:
    try:
        if not zipfile.is_zipfile(path):
            if not path.is_file():
                raise TraceError("no such file")
            raise TraceError("cut short or not a trace (expected an .npz file)")
        # Opened here: numpy leaves the file open when the archive is damaged.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            arrays = {key: archive[key] for key in archive.files}
    except OSError as error:
        raise TraceError(f"cannot be read ({error.strerror or error})") from error
    except (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, IndexError, struct.error) as error:
        raise TraceError("cut short or damaged") from error
    except (NotImplementedError, RuntimeError) as error:  # of zipfile: a compression or an encryption that it lacks
        reason = " ".join(str(error).split())
        raise TraceError(
            f"a member cannot be unpacked ({reason}): expected what numpy.savez_compressed writes"
        ) from error
    except MemoryError as error:
        raise TraceError("damaged array (its shape asks for more memory than there is)") from error
    except ValueError as error:
        reason = "holds pickled objects, which are never loaded" if "pickle" in str(error) else "damaged array"
        raise TraceError(reason) from error
    meta, schema = _parse_meta(arrays)
    kinds: list[tuple[Any, str]] = [(RoundTable, "rounds"), (RequestTable, "requests"), (TreeTable, "trees")]
    tables: list[Any] = []
    for kind, prefix in kinds[: 2 if schema == 1 else 3]:
        names = [item.name for item in fields(kind)]
        missing = [name for name in names if f"{prefix}.{name}" not in arrays]
        if missing:
            raise TraceError(f"{prefix}.{missing[0]} is missing")
        columns = {name: arrays[f"{prefix}.{name}"] for name in names}
        if "ids" in columns and columns["ids"].dtype == np.uint16:
            columns["ids"] = columns["ids"].astype(np.int32)
        tables.append(kind(**columns))
    known = 1 + sum(len(fields(table)) for table in tables)
    if len(arrays) != known:
        raise TraceError(f"{len(arrays)} arrays, expected the {known} of schema {schema}")
    if schema == 1:
        tables.append(TreeTable.empty(len(tables[0])))
    return Trace(meta, *tables)


def _parse_meta(arrays: dict[str, np.ndarray]) -> tuple[TraceMeta, int]:
    raw = arrays.get("meta")
    if raw is None or raw.dtype != np.uint8:
        raise TraceError("no meta entry (not a trace)")
    try:
        values = json.loads(raw.tobytes())
    except ValueError as error:
        raise TraceError("meta is not JSON") from error
    schema = values.pop("schema", None) if isinstance(values, dict) else None
    if isinstance(schema, bool) or not isinstance(schema, int) or not 1 <= schema <= SCHEMA:
        raise TraceError(f"schema {schema!r}, expected 1 to {SCHEMA}")
    names = {item.name for item in fields(TraceMeta)}
    if set(values) != names:
        raise TraceError(f"meta fields {sorted(set(values) ^ names)} missing or unknown")
    values |= {key: tuple(values[key]) for key in ("stages", "factor_names")}
    if not isinstance(values["vocab_size"], int) or values["vocab_size"] < 1:
        raise TraceError(f"vocab_size {values['vocab_size']!r}, expected a positive integer")
    return TraceMeta(**values), schema
