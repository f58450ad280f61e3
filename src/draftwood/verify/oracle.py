"""Exact output laws on toy targets: run a randomised procedure down every branch of its draws."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch

from ..core import DraftTree, Verdict
from .walk import Chooser

Outcome = TypeVar("Outcome")
Prefix = tuple[int, ...]
Pick = Callable[[np.ndarray], int]
"""(n,) probabilities -> index. The only source of chance of a procedure under study."""
Target = Callable[[Prefix], np.ndarray]
"""Tokens so far -> (V,) law of the next one."""


class _Branch:
    """One run: picks follow `script`, then take the first possibility and queue the others in `scripts`."""

    def __init__(self, script: list[int], scripts: list[list[int]]) -> None:
        self.script, self.scripts = script, scripts
        self.taken: list[int] = []
        self.prob = 1.0

    def pick(self, weights: np.ndarray) -> int:
        if len(self.taken) < len(self.script):
            choice = self.script[len(self.taken)]
        else:
            choice, *others = (int(i) for i in np.flatnonzero(weights))
            self.scripts.extend([*self.taken, other] for other in others)
        self.taken.append(choice)
        self.prob *= float(weights[choice]) / float(np.sum(weights))
        return choice


def enumerate_law(procedure: Callable[[Pick], Outcome]) -> dict[Outcome, float]:
    """The law of `procedure`'s outcome: it is run once for every sequence of picks of positive probability."""
    law: dict[Outcome, float] = {}
    scripts: list[list[int]] = [[]]
    while scripts:
        branch = _Branch(scripts.pop(), scripts)
        outcome = procedure(branch.pick)
        law[outcome] = law.get(outcome, 0.0) + branch.prob
    return law


def branching_chooser(pick: Pick, temperature: float = 1.0) -> Chooser:
    """A chooser whose draws are picks from softmax(logits / temperature)."""

    def choose(logits: torch.Tensor, pos: np.ndarray) -> torch.Tensor:
        laws = torch.softmax(logits.double() / temperature, dim=-1).numpy()
        return torch.tensor([pick(law) for law in laws])

    return choose


def tree_logits(tree: DraftTree, target: Target, prefix: Prefix) -> torch.Tensor:
    """(M, V) float64 log-laws of every node: the target after `prefix` (root included) and the node's path."""
    paths: list[Prefix] = [prefix]
    for node in range(1, tree.num_rows):
        paths.append((*paths[tree.parent[node]], int(tree.token[node])))
    return torch.from_numpy(np.log(np.stack([target(path) for path in paths])))


def plain_law(target: Target, num_tokens: int) -> dict[Prefix, float]:
    """The law of the first `num_tokens` tokens, one at a time."""
    law: dict[Prefix, float] = {(): 1.0}
    for _ in range(num_tokens):
        law = {(*out, v): p * q for out, p in law.items() for v, q in enumerate(target(out).tolist()) if q > 0}
    return law


def decoded_law(
    target: Target,
    make_tree: Callable[[Prefix, Pick], DraftTree],
    verify: Callable[[DraftTree, torch.Tensor, Pick, int], Verdict],
    num_tokens: int,
) -> dict[Prefix, float]:
    """The law of the first `num_tokens` tokens of a round-by-round decode.

    `make_tree(prefix, pick)` drafts after `prefix`, whose last token is pending; `verify(tree, logits, pick, root_pos)`
    gives the verdict. The first token is the target's own, as after a prefill.
    """

    def decode(pick: Pick) -> Prefix:
        out: Prefix = (pick(target(())),)
        while len(out) < num_tokens:
            tree = make_tree(out, pick)
            found = verify(tree, tree_logits(tree, target, out), pick, len(out) - 1)
            out = (*out, *(int(t) for t in tree.token[found.path[1:]]), found.pending)
        return out[:num_tokens]

    return enumerate_law(decode)
