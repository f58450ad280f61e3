"""The walk: the target's own token at the root, then at its child that carries it, until no child does.

Every visited node yields one token drawn from the target's law at that node's prefix, so the committed tokens follow
plain decoding for any deterministic tree (DDTree, section 3; CAST, appendix C, "direct sampled walk"). All trees of a
round are walked together.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from ..core import ROOT_NODE, DraftTree, Forest, Verdict, Verdicts
from ..errors import DraftwoodError
from ..tree.layout import children, descend, find_child
from .choose import RowsChooser
from .faults import FINITE, fault, kinds, require_finite
from .greedy import walk_greedily
from .processors import History, Processors

Chooser = Callable[[torch.Tensor, np.ndarray], torch.Tensor]
"""(n, V) logits and (n,) int64 absolute positions of the drawn tokens -> (n,) int64 token ids on the logits' device."""
RowChooser = Callable[[torch.Tensor, np.ndarray, np.ndarray], torch.Tensor]
"""As `Chooser`, with (n,) int64 tree of each row between the two; -> (2, n) int64: token ids, and what the largest
logit of the row is: one of FINITE, NOT_A_NUMBER, POSITIVE, NOTHING."""


class Controls(NamedTuple):
    """What edits a row before the choice, and the request's history that it reads."""

    processors: Processors
    history: History


class Path(NamedTuple):
    """Where a verifier went: visited nodes, root first, and the token that the last of them decided."""

    nodes: list[int]
    pending: int


def walk_forest(
    forest: Forest, logits: torch.Tensor, choose: RowChooser, root_pos: np.ndarray, *, everywhere: bool | None = None
) -> Verdicts:
    """Walk every tree of `forest` with the target's choices.

    `logits` (T, V), one row for each of the forest's; `root_pos` (R,) absolute positions of the roots: a node of depth
    d decides the token of position root_pos + d + 1. `everywhere` (default: on an accelerator) decides all rows at
    once, and one copy brings the choices to the host; else only visited rows are touched, those of all trees at one
    depth together. A visited row that holds NaN or +inf, or nothing above -inf, is a fault of its tree.
    """
    on_cpu = logits.device.type == "cpu"
    if len(forest) and (not on_cpu if everywhere is None else everywhere):
        return _all_rows(forest, logits, choose, root_pos)
    if on_cpu and isinstance(choose, RowsChooser) and choose.greedy:
        return walk_greedily(forest, logits, root_pos)
    return _visited_rows(forest, logits, choose, root_pos)


def walk(
    tree: DraftTree,
    logits: torch.Tensor,
    choose: Chooser,
    root_pos: int,
    *,
    controls: Controls | None = None,
    want_logp: bool = False,
    everywhere: bool | None = None,
) -> Verdict:
    """Walk one tree, as `walk_forest`; with `controls`, which depend on the path, node by node.

    `want_logp` adds the float64 log-probability of every decided token under the target's own softmax (temperature 1,
    no processors). Raises NonFiniteLogitsError where `walk_forest` has a fault.
    """
    if controls is not None:

        def decide(row: torch.Tensor, node: int, pos: int) -> int:
            return int(choose(row[None], np.array([pos], np.int64)))

        return verdict(tree, logits, visit(tree, logits, decide, root_pos, controls), want_logp)
    forest = Forest.of([tree])

    def decide_rows(rows: torch.Tensor, tree: np.ndarray, pos: np.ndarray) -> torch.Tensor:
        return judged(rows, choose(rows, pos))

    found = walk_forest(forest, logits, decide_rows, np.array([root_pos]), everywhere=everywhere)
    for error in found.faults.values():
        raise error
    return verdict(tree, logits, Path(found.path(0, forest).tolist(), int(found.pending[0])), want_logp)


def judged(logits: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    """(2, n) int64: `tokens` (n,) and what the largest logit of each row (n, V) is. `RowChooser` from a `Chooser`."""
    largest = logits.amax(dim=-1)  # amax passes NaN on
    return torch.stack([tokens.to(torch.int64), kinds(largest)])


def _visited_rows(forest: Forest, logits: torch.Tensor, choose: RowChooser, root_pos: np.ndarray) -> Verdicts:
    rows, trees = forest.offsets[:-1], np.arange(len(forest))
    pending, kind = np.full(len(forest), -1, np.int64), np.zeros(len(forest), np.int64)
    visited, depth = [rows], 0
    while len(rows):
        depth += 1
        tokens, kinds_now = choose(_rows(logits, rows), trees, root_pos[trees] + depth).numpy()
        pending[trees], kind[trees] = tokens, kinds_now
        below = children(forest, rows, trees, tokens)
        onward = (below >= 0) & (kinds_now == FINITE)
        rows, trees = below[onward], trees[onward]
        visited.append(rows)
    return _verdicts(forest, np.sort(np.concatenate(visited)), pending, kind, root_pos)


def _rows(logits: torch.Tensor, rows: np.ndarray) -> torch.Tensor:
    """Some rows of (T, V) logits, without a copy where they are one row or all."""
    if len(rows) == 1:
        return logits[rows[0] : rows[0] + 1]
    return logits if len(rows) == len(logits) else logits[torch.from_numpy(rows)]


def _all_rows(forest: Forest, logits: torch.Tensor, choose: RowChooser, root_pos: np.ndarray) -> Verdicts:
    trees = np.repeat(np.arange(len(forest)), forest.num_rows)
    choice, kind = choose(logits, trees, root_pos[trees] + forest.depth + 1).cpu().numpy()  # (T,) int64 each
    rows = descend(forest, np.where(kind == FINITE, choice, -1))  # no child carries -1: a bad row ends its path
    last = rows[np.searchsorted(rows, forest.offsets[1:]) - 1]
    return _verdicts(forest, rows, choice[last], kind[last], root_pos)


def _verdicts(
    forest: Forest, rows: np.ndarray, pending: np.ndarray, kind: np.ndarray, root_pos: np.ndarray
) -> Verdicts:
    """`rows` (n,) visited, increasing; `kind` (R,) of the last visited row of each tree."""
    tree_of = np.searchsorted(forest.offsets, rows, side="right") - 1
    steps = np.bincount(tree_of, minlength=len(forest))
    faults: dict[int, DraftwoodError] = {}
    for tree in np.flatnonzero(kind).tolist():
        faults[tree] = fault(int(kind[tree]), int(root_pos[tree] + steps[tree]))
        pending[tree] = -1
        steps[tree] = 0
    if faults:
        rows = rows[kind[tree_of] == FINITE]
    return Verdicts(np.concatenate([[0], np.cumsum(steps)]), rows, pending, faults)


def visit(
    tree: DraftTree,
    logits: torch.Tensor,
    decide: Callable[[torch.Tensor, int, int], int],
    root_pos: int,
    controls: Controls | None,
) -> Path:
    """Walk node by node; `decide` maps (row (V,), node, position of the decided token) to a token."""
    nodes = [ROOT_NODE]
    while True:
        node = nodes[-1]
        at = root_pos + len(nodes)
        row = logits[node]  # (V,)
        require_finite(float(row.amax()), at)
        if controls is not None:
            row = controls.processors.apply(row, controls.history.after(tree.token[nodes[1:]]))
            require_finite(float(row.amax()), at)
        token = decide(row, node, at)
        child = find_child(tree, node, token)
        if child < 0:
            return Path(nodes, token)
        nodes.append(child)


def verdict(tree: DraftTree, logits: torch.Tensor, path: Path, want_logp: bool) -> Verdict:
    """Make the Verdict of a path, with log-probabilities when asked for."""
    nodes = np.array(path.nodes, np.int64)
    logp = None
    if want_logp:
        decided = np.append(tree.token[nodes[1:]], path.pending)
        rows = logits[torch.from_numpy(nodes).to(logits.device)].double()  # (committed, V) fp64
        logp = rows.log_softmax(-1).cpu().numpy()[np.arange(len(nodes)), decided]
    return Verdict(path=nodes, pending=path.pending, logp=logp)
