"""Integrity of a trace: every message is one line that names the array and the value."""

from __future__ import annotations

import numpy as np

from ..errors import TraceError
from .tables import FINISH_REASONS, RequestTable, RoundTable, TraceMeta, TreeTable

INT = np.dtype(np.int32)
ROUND_COLUMNS = ("request", "position", "pending", "context", "depth", "candidates", "num_nodes", "committed")


def check_requests(meta: TraceMeta, table: RequestTable) -> None:
    """Shapes, dtypes, offsets, finish reasons and output ids of the request table; raises `TraceError`."""
    count = len(table.prompt_len)
    for name in ("request_id", "set_name", "prompt_hash", "finish"):
        column = getattr(table, name)
        _require(column.shape == (count,) and column.dtype.kind == "U", f"requests.{name}: expected {count} strings")
    for name in ("prompt_len", "max_tokens"):
        _integers(f"requests.{name}", getattr(table, name), (count,))
        _at_least(f"requests.{name}", getattr(table, name), 1)
    _offsets("requests.output_offsets", table.output_offsets, count, len(table.output_ids))
    _integers("requests.output_ids", table.output_ids, (len(table.output_ids),))
    _in_vocabulary("requests.output_ids", table.output_ids, meta.vocab_size)
    unknown = sorted(set(table.finish.tolist()) - set(FINISH_REASONS))
    _require(not unknown, f"finish reason {unknown[:1]}: expected one of {', '.join(FINISH_REASONS)}")
    lengths = np.diff(table.output_offsets)
    _require(bool(np.all(lengths >= 1)), "a request has no output token")
    _require(bool(np.all(lengths <= table.max_tokens)), "an output is longer than its max_tokens")


def check_trees(meta: TraceMeta, table: TreeTable, num_rounds: int) -> None:
    """Shapes, dtypes, parents, order and ids of the tree table; raises `TraceError`."""
    count = len(table.parent)
    _offsets("trees.offsets", table.offsets, num_rounds, count)
    for name in ("parent", "token", "rank"):
        _integers(f"trees.{name}", getattr(table, name), (count,))
        _at_least(f"trees.{name}", getattr(table, name), 0)
    _in_vocabulary("trees.token", table.token, meta.vocab_size)
    right = table.logp.shape == (count,) and table.logp.dtype == np.float64
    _require(right, f"trees.logp: {table.logp.dtype} {table.logp.shape}, expected float64 ({count},)")
    _require(bool(np.all(np.isfinite(table.logp) & (table.logp <= 0))), "trees.logp: expected finite numbers <= 0")
    node = 1 + np.arange(count) - np.repeat(table.offsets[:-1], np.diff(table.offsets))
    _require(bool(np.all(table.parent < node)), "trees.parent: a parent does not stand before its child")
    _require(not np.any((np.diff(table.logp) > 0) & (node[1:] > 1)), "trees.logp: a tree is not in descending order")


def check_shapes(meta: TraceMeta, requests: RequestTable, table: RoundTable) -> None:
    """Shapes and dtypes of the round table, and that its requests are there; raises `TraceError`."""
    count = len(table.request)
    for name in ROUND_COLUMNS:
        _integers(f"rounds.{name}", getattr(table, name), (count,))
    _require(
        table.drafted.shape == (count,) and table.drafted.dtype == np.bool_, f"rounds.drafted: expected {count} flags"
    )
    _require(
        table.logp.ndim == 3 and len(table.logp) == count,
        f"rounds.logp: shape {table.logp.shape}, expected ({count}, D, K)",
    )
    _require(table.logp.dtype == np.float32, f"rounds.logp: {table.logp.dtype}, expected float32")
    _integers("rounds.ids", table.ids, table.logp.shape)
    _offsets("rounds.accepted_offsets", table.accepted_offsets, count, len(table.accepted))
    _integers("rounds.accepted", table.accepted, (len(table.accepted),))
    for name, width in (("seconds", len(meta.stages)), ("factors", len(meta.factor_names))):
        column = getattr(table, name)
        right = column.shape == (count, width) and column.dtype == np.float64
        _require(right, f"rounds.{name}: {column.dtype} {column.shape}, expected float64 ({count}, {width})")
        _require(bool(np.all(np.isfinite(column))), f"rounds.{name}: a value is not finite")
        _require(bool(np.all(column >= 0)), f"rounds.{name}: a value is below 0")
    _at_least("rounds.request", table.request, 0)
    last = len(requests) - 1
    _require(not count or int(table.request.max()) <= last, f"rounds.request: expected 0 to {last}")


def check_scores(meta: TraceMeta, table: RoundTable) -> None:
    """Log-probabilities in order, none beyond the round's depth, and ids of the vocabulary; raises `TraceError`."""
    _at_least("rounds.depth", table.depth, 0)
    depths = table.logp.shape[1]
    _require(not len(table) or int(table.depth.max()) <= depths, f"rounds.depth: expected 0 to {depths}")
    _require(not np.any(np.isnan(table.logp)), "rounds.logp: NaN")
    _require(not np.any(table.logp > 0), "rounds.logp: a log-probability above 0")
    used = np.arange(depths)[None, :] < table.depth[:, None]  # (B, D)
    _require(not np.any(table.logp[:, :, 1:] > table.logp[:, :, :-1]), "rounds.logp: a row is not in descending order")
    _require(bool(np.all(np.isneginf(table.logp[~used]))), "rounds.logp: a score beyond the round's depth")
    _in_vocabulary("rounds.ids", table.ids, meta.vocab_size)


def check_order(requests: RequestTable, table: RoundTable) -> None:
    """Rounds follow each other through the outputs, to their ends; raises `TraceError`."""
    lengths = np.diff(requests.output_offsets)
    same = table.request[1:] == table.request[:-1]
    _require(bool(np.all(table.request[1:] >= table.request[:-1])), "rounds are not ordered by request")
    follows = table.position[1:] == table.position[:-1] + table.committed[:-1]
    _require(bool(np.all(follows | ~same)), "rounds.position does not follow from rounds.committed")
    first = np.ones(len(table), dtype=bool)
    first[1:] = ~same
    _require(not np.any(table.position[first]), "a request's first round is not at position 0")
    sums = np.zeros(len(requests), dtype=np.int64)
    np.add.at(sums, table.request, table.committed)
    _require(bool(np.array_equal(sums, lengths - 1)), "committed lengths do not sum to the output tokens minus 1")
    where = requests.output_offsets[table.request] + table.position
    _require(bool(np.array_equal(table.pending, requests.output_ids[where])), "rounds.pending differs from the output")
    context = requests.prompt_len[table.request] + table.position
    _require(bool(np.array_equal(table.context, context)), "rounds.context differs from prompt length + position")


def check_choices(meta: TraceMeta, table: RoundTable) -> None:
    """What was drafted, verified, accepted and committed fits together; raises `TraceError`."""
    _at_least("rounds.committed", table.committed, 1)
    _at_least("rounds.num_nodes", table.num_nodes, 0)
    _at_least("rounds.candidates", table.candidates, 0)
    idle = ~table.drafted
    quiet = not np.any(table.depth[idle]) and not np.any(table.num_nodes[idle])
    _require(quiet, "a round that drafted nothing has scores or nodes")
    accepted = np.diff(table.accepted_offsets)
    owner = np.repeat(np.arange(len(table)), accepted)
    inside = (table.accepted >= 1) & (table.accepted <= table.num_nodes[owner])
    _require(bool(np.all(inside)), "rounds.accepted: a node outside the round's tree")
    if meta.every_position:
        alone = bool(np.all(table.committed == 1)) and not np.any(table.num_nodes)
        _require(alone, "an every-position trace commits one token per round and chooses nothing")
    else:
        _require(bool(np.all(table.committed <= accepted + 1)), "rounds.committed exceeds the accepted path + 1")


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise TraceError(message)


def _integers(name: str, column: np.ndarray, shape: tuple[int, ...]) -> None:
    right = column.shape == shape and column.dtype == INT
    _require(right, f"{name}: {column.dtype} {column.shape}, expected int32 {shape}")


def _at_least(name: str, column: np.ndarray, low: int) -> None:
    _require(not len(column) or int(column.min()) >= low, f"{name}: a value below {low}")


def _in_vocabulary(name: str, ids: np.ndarray, vocab_size: int) -> None:
    outside = ids[(ids < 0) | (ids >= vocab_size)]
    _require(not outside.size, f"{name}: id {outside.flat[0] if outside.size else ''} outside 0 to {vocab_size - 1}")


def _offsets(name: str, offsets: np.ndarray, count: int, total: int) -> None:
    right = offsets.shape == (count + 1,) and offsets.dtype == np.int64
    right = right and offsets[0] == 0 and offsets[-1] == total and bool(np.all(np.diff(offsets) >= 0))
    _require(right, f"{name}: expected {count + 1} rising int64 values from 0 to {total}")
