"""The walk: the target's own token at the root, then at its child that carries it, until no child does.

Every visited node yields one token drawn from the target's law at that node's prefix, so the committed tokens follow
plain decoding for any deterministic tree (DDTree, section 3; CAST, appendix C, "direct sampled walk").
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import torch

from ..core import ROOT_NODE, DraftTree, Verdict
from ..errors import NonFiniteLogitsError
from ..tree.layout import descend, find_child
from .processors import History, Processors

Chooser = Callable[[torch.Tensor, np.ndarray], torch.Tensor]
"""(n, V) logits and (n,) int64 absolute positions of the drawn tokens -> (n,) int64 token ids on the logits' device."""


class Controls(NamedTuple):
    """What edits a row before the choice, and the request's history that it reads."""

    processors: Processors
    history: History


class Path(NamedTuple):
    """Where a verifier went: visited nodes, root first, and the token that the last of them decided."""

    nodes: list[int]
    pending: int


def walk(
    tree: DraftTree,
    logits: torch.Tensor,
    choose: Chooser,
    root_pos: int,
    *,
    controls: Controls | None = None,
    want_logp: bool = False,
) -> Verdict:
    """Walk `tree` with the target's choices.

    `logits` (M, V), one row a node; `root_pos` the root's absolute position: a node of depth d decides the token of
    position root_pos + d + 1. On a CPU only visited rows are touched. On an accelerator every row is decided at once,
    and one copy brings the choices to the host; with `controls`, which depend on the path, rows go one by one.
    `want_logp` adds the float64 log-probability of every decided token under the target's own softmax (temperature 1,
    no processors).

    Raises NonFiniteLogitsError if a visited row holds NaN or +inf, or nothing above -inf.
    """
    if logits.device.type != "cpu" and controls is None:
        path = _all_rows(tree, logits, choose, root_pos)
    else:

        def decide(row: torch.Tensor, node: int, pos: int) -> int:
            return int(choose(row[None], np.array([pos], np.int64)))

        path = visit(tree, logits, decide, root_pos, controls)
    return verdict(tree, logits, path, want_logp)


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


def _all_rows(tree: DraftTree, logits: torch.Tensor, choose: Chooser, root_pos: int) -> Path:
    """Decide every row on the device, copy choices and finiteness to the host in one piece, descend there."""
    chosen = choose(logits, tree.depth.astype(np.int64) + root_pos + 1)
    finite = torch.isfinite(logits.amax(dim=-1))  # amax passes NaN on
    choice, is_finite = torch.stack([chosen, finite.to(torch.int64)]).cpu().numpy()  # (2, M) int64
    nodes: list[int] = descend(tree, choice).tolist()
    for steps, node in enumerate(nodes, start=1):
        if not is_finite[node]:
            require_finite(float(logits[node].amax()), root_pos + steps)
    return Path(nodes, int(choice[nodes[-1]]))


def require_finite(largest: float, pos: int) -> None:
    """Raise NonFiniteLogitsError unless the largest logit of a row is a number (the maximum passes NaN on)."""
    if not np.isfinite(largest):
        what = "no token above -inf" if largest == -np.inf else f"{largest}"
        raise NonFiniteLogitsError(f"logits that decide position {pos} contain {what}: expected finite numbers or -inf")


def verdict(tree: DraftTree, logits: torch.Tensor, path: Path, want_logp: bool) -> Verdict:
    """Make the Verdict of a path, with log-probabilities when asked for."""
    nodes = np.array(path.nodes, np.int64)
    logp = None
    if want_logp:
        decided = np.append(tree.token[nodes[1:]], path.pending)
        rows = logits[torch.from_numpy(nodes).to(logits.device)].double()  # (committed, V) fp64
        logp = rows.log_softmax(-1).cpu().numpy()[np.arange(len(nodes)), decided]
    return Verdict(path=nodes, pending=path.pending, logp=logp)
