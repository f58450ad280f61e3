"""Recursive speculative sampling without replacement over the retained siblings (CAST, section 2 and Theorem 3).

Exact in law like the walk, and it accepts with the same probability: a child that was tried either has no residual left
or was accepted for certain. Unlike the walk's, its text depends on the tree, because proposals do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from ..core import DraftTree, Verdict
from .uniform import position_key, uniform
from .walk import Controls, verdict, visit

PURPOSE = 1
"""Keeps the recursive verifier's uniforms apart from the walk's noise under one seed."""

Draw = Callable[[np.ndarray, int, int], int]
"""(weights (n,) float64 >= 0, absolute position, number of the draw at that position) -> index, with probability
proportional to its weight."""


@dataclass(frozen=True, slots=True)
class CounterDraw:
    """Draws by inverse CDF from one counter-based uniform each; deterministic per seed."""

    seed: int
    completion: int = 0

    def __call__(self, weights: np.ndarray, pos: int, counter: int) -> int:
        """Return the drawn index, never one of weight 0."""
        mass = np.cumsum(weights)
        u = uniform(position_key(self.seed, self.completion, pos, PURPOSE), counter)
        index = int(np.searchsorted(mass, u * mass[-1], side="right"))
        return min(index, int(np.flatnonzero(weights)[-1]))  # u * mass may round up to the whole mass


def recursive(
    tree: DraftTree,
    logits: torch.Tensor,
    draw: Draw,
    root_pos: int,
    *,
    temperature: float,
    controls: Controls | None = None,
    want_logp: bool = False,
) -> Verdict:
    """Walk `tree` by proposing its siblings; arguments, results and errors as `walk`, `temperature` > 0.

    The proposal at a node is the drafter's own: exp(logp) of its children, renormalised over those not yet tried.
    """

    def decide(row: torch.Tensor, node: int, pos: int) -> int:
        target = torch.softmax(row.double() / temperature, dim=-1).cpu().numpy()  # (V,) fp64
        return _commit(tree, node, target, draw, pos)

    return verdict(tree, logits, visit(tree, logits, decide, root_pos, controls), want_logp)


def _commit(tree: DraftTree, node: int, target: np.ndarray, draw: Draw, pos: int) -> int:
    """The token committed at `node` whose target law is `target` (V,)."""
    left = np.flatnonzero(tree.parent == node)
    residual = target
    counter = 0
    while len(left):
        # Relative to the best child, so that deep paths do not underflow to a proposal of zeros.
        proposal = np.exp(tree.logp[left] - tree.logp[left[0]])
        proposal /= proposal.sum()
        pick = draw(proposal, pos, counter)
        token = int(tree.token[left[pick]])
        accept = min(1.0, residual[token] / proposal[pick])
        if draw(np.array([1.0 - accept, accept]), pos, counter + 1) == 1:
            return token
        onward = residual.copy()
        onward[tree.token[left]] = np.maximum(onward[tree.token[left]] - proposal, 0.0)
        if onward.sum() <= 0.0:  # target and proposal agree up to rounding: a rejection has probability zero
            return token
        residual = onward / onward.sum()
        left = np.delete(left, pick)
        counter += 2
    return draw(residual, pos, counter)
