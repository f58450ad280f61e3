"""What is measured: grids of rows, contexts and request counts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...core import MAX_NODES
from ...errors import UsageError
from .stand import Cell, largest_context

TILE_ROWS = (1, 2, 4, 8, 9, 16, 17, 32, 33, 48, 64, 65, 96, 97, 128, 129, 192, 256, 257, 384, 512, 768, 1024)
PROBE_ROWS = (1, 8, 9, 16, 17, 32, 33, 64, 65)
CONTEXTS = (128, 512, 1024, 2048)
QUICK_CONTEXTS = (128, 512)
PROBE_CONTEXT = 256
REQUESTS = (1, 2, 4, 8)
_BATCH_ROWS = (16, 64)


@dataclass(frozen=True, slots=True)
class Plan:
    """Which rounds are measured, and how often."""

    rows: tuple[int, ...]
    """Increasing, the first is 1."""
    contexts: tuple[int, ...]
    """Increasing."""
    repeats: int
    """Measurements of each cell."""
    requests: tuple[int, ...] = (1,)
    """R, increasing, the first is 1."""
    batch_rows: tuple[int, ...] = ()
    """Rows in all, for several requests."""
    batch_contexts: tuple[int, ...] = ()
    """Contexts for several requests, some of `contexts`."""
    bisect: bool = True
    """Look for the row at which a gap jumps."""

    def cells(self) -> list[Cell]:
        """All cells, in an order that makes the best of being cut short: short contexts first, coarse rows first."""
        single = [Cell(rows, context) for context in self.contexts for rows in coarse_first(self.rows)]
        several = [
            Cell(rows, context, count)
            for context in self.batch_contexts
            for count in self.requests[1:]
            for rows in self.batch_rows
        ]
        return single + several

    @property
    def reference(self) -> Cell:
        """The round that is measured again and again, to see whether the machine changes."""
        return Cell(self.rows[len(self.rows) // 3], self.contexts[0])


def coarse_first(rows: Sequence[int]) -> list[int]:
    """The two ends, then the middles of what is left: any beginning of it spans the grid."""
    order = [rows[0], rows[-1]] if len(rows) > 1 else [rows[0]]
    spans = [(0, len(rows) - 1)]
    while spans:
        low, high = spans.pop(0)
        middle = (low + high) // 2
        if low < middle < high:
            order.append(rows[middle])
            spans += [(low, middle), (middle, high)]
    return order


def grid_rows(max_nodes: int, tiles: Sequence[int] = TILE_ROWS) -> tuple[int, ...]:
    """Both sides of tile edges up to `max_nodes` + 1, which is the last."""
    last = max_nodes + 1
    return (*(row for row in tiles if row < last), last)


def check_max_nodes(max_nodes: int) -> int:
    """Return it; raises UsageError outside 1..MAX_NODES."""
    if not 1 <= max_nodes <= MAX_NODES:
        raise UsageError(f"max_nodes {max_nodes}: expected 1 to {MAX_NODES}")
    return max_nodes


def fitting_contexts(
    wanted: Sequence[int] | None, default: Sequence[int], context_limit: int, block_size: int
) -> tuple[int, ...]:
    """The contexts to measure: `wanted`, or what fits of `default`, at least one.

    Raises UsageError for a wanted one that does not fit.
    """
    longest = largest_context(context_limit, block_size)
    if longest < 1:
        raise UsageError(f"context limit {context_limit}: expected room for blocks of {block_size} and their drift")
    if wanted is None:
        return tuple(context for context in default if context <= longest) or (longest,)
    for context in wanted:
        if not 1 <= context <= longest:
            raise UsageError(f"context {context}: expected 1 to {longest} for this model")
    return tuple(sorted(set(wanted)))


def full_plan(max_nodes: int, contexts: tuple[int, ...]) -> Plan:
    """The whole grid of `draftwood profile`."""
    rows = grid_rows(max_nodes)
    return Plan(rows, contexts, 7, *_batch(rows, contexts[:2], REQUESTS))


def quick_plan(max_nodes: int, contexts: tuple[int, ...]) -> Plan:
    """The same rows with fewer repeats, several requests at the shortest context only."""
    rows = grid_rows(max_nodes)
    return Plan(rows, contexts, 3, *_batch(rows, contexts[:1], REQUESTS))


def probe_plan(max_nodes: int, contexts: tuple[int, ...]) -> Plan:
    """What a start without a profile can afford."""
    return Plan(grid_rows(max_nodes, PROBE_ROWS), contexts, 3, bisect=False)


def _batch(
    rows: tuple[int, ...], contexts: tuple[int, ...], requests: tuple[int, ...]
) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Request counts, rows and contexts of the batch cells: two sizes that are rows of the grid too."""
    top = 256 if rows[-1] > 256 else _BATCH_ROWS[-1]
    sizes = tuple(row for row in (_BATCH_ROWS[0], top) if row in rows)
    counts = tuple(count for count in requests if not sizes or count <= sizes[0])
    return (counts, sizes, contexts) if sizes else ((1,), (), ())
