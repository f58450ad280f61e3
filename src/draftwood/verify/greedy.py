"""The target's token at temperature 0, and the walk of greedy requests on a CPU."""

from __future__ import annotations

from functools import partial

import numpy as np
import torch

from ..core import Forest, Verdicts
from ..errors import DraftwoodError
from ..kernel import compiled, first_call
from ..tree.grow import root_forest
from .faults import FINITE, NOT_A_NUMBER, NOTHING, POSITIVE, fault

_BLOCK = 1024
"""Logits looked at together: their keys stay in the first cache, and the search for a maximum has one block to read."""
_INTEGERS = {
    torch.float16: (torch.int16, 0x7C00),
    torch.bfloat16: (torch.int16, 0x7F80),
    torch.float32: (torch.int32, 0x7F800000),
    torch.float64: (torch.int64, 0x7FF0000000000000),
}
"""The integer type of the same width, and the bits of +inf."""


def greedy(logits: torch.Tensor, pos: np.ndarray) -> torch.Tensor:
    """Argmax of every row, ties to the lower id: (n, V) -> (n,) int64 on the same device. `pos` plays no part.

    On a CPU numpy finds the first maximum of a row about ten times as fast as torch does; 16-bit rows are widened,
    which changes no order.
    """
    if logits.device.type != "cpu":
        return logits.argmax(dim=-1)
    rows = logits if logits.dtype in (torch.float32, torch.float64) else logits.float()
    return torch.from_numpy(rows.detach().numpy().argmax(axis=-1))


@compiled
def _likeliest(bits: np.ndarray, infinite: int, keys: np.ndarray) -> tuple[int, int]:
    """(token, kind) of a row of logits (V,), given as integers of their own width; `keys` (block,) is workspace.

    Sign and magnitude become one integer that orders as the numbers do, so a block is searched without branches. A
    NaN lies beyond the infinities on the side of its sign; -0, at -1, is as large as 0.
    """
    best, start, smallest = -infinite - 2, 0, 0
    shift = 8 * bits.itemsize - 1
    mask = (1 << shift) - 1 if shift < 63 else 0x7FFFFFFFFFFFFFFF
    for left in range(0, len(bits), len(keys)):
        part = bits[left : left + len(keys)]
        own = keys[: len(part)]  # slices, or the compiler would use no vector instructions
        for at in range(len(part)):
            own[at] = part[at] ^ ((part[at] >> shift) & mask)
        top = bottom = own[0]
        for at in range(len(own)):
            top, bottom = max(top, own[at]), min(bottom, own[at])
        smallest = min(smallest, int(bottom))
        above = 0 if top == -1 else int(top)
        if above > best:
            best, start = above, left
    if best > infinite or smallest < -infinite - 1:
        return -1, NOT_A_NUMBER
    if best == infinite:
        return -1, POSITIVE
    if best <= -infinite - 1:
        return -1, NOTHING
    wanted = best if best != 0 else -1
    token = start
    while np.int64(bits[token] ^ ((bits[token] >> shift) & mask)) < wanted:
        token += 1
    return token, FINITE


@compiled
def _walk(
    bits: np.ndarray,
    infinite: int,
    keys: np.ndarray,
    offsets: np.ndarray,
    parent: np.ndarray,
    token: np.ndarray,
    ends: np.ndarray,
    rows: np.ndarray,
    verdicts: np.ndarray,
) -> bool:
    """Fill `ends` (R + 1,), `rows` (T,) and `verdicts` (3, R): pending token, kind and visited rows of each tree.

    Returns whether any row was no number.
    """
    count, faulty = 0, False
    for tree in range(len(offsets) - 1):
        row, first, steps = offsets[tree], count, 0
        while True:
            rows[count] = row
            count, steps = count + 1, steps + 1
            choice, kind = _likeliest(bits[row], infinite, keys)
            below = row + 1
            while below < offsets[tree + 1] and not (parent[below] == row - offsets[tree] and token[below] == choice):
                below += 1
            if kind != FINITE or below == offsets[tree + 1]:
                break
            row = below
        if kind != FINITE:
            count, faulty = first, True
        verdicts[0, tree], verdicts[1, tree], verdicts[2, tree] = choice, kind, steps
        ends[tree + 1] = count
    return faulty


def walk_greedily(forest: Forest, logits: torch.Tensor, root_pos: np.ndarray) -> Verdicts:
    """As `walk_forest`, with the argmax of every visited row, for `logits` (T, V) on a CPU.

    One compiled pass: behind a forward each small call of numpy or torch is cold and costs more than all of it.
    """
    integers, infinite = _INTEGERS[logits.dtype]
    bits = logits.contiguous().view(integers).numpy()
    ends, rows = np.zeros(len(forest) + 1, np.int64), np.empty(len(forest.parent), np.int64)
    verdicts = np.empty((3, len(forest)), np.int64)
    keys = np.empty(_BLOCK, bits.dtype)
    faults: dict[int, DraftwoodError] = {}
    if _walk(bits, infinite, keys, forest.offsets, forest.parent, forest.token, ends, rows, verdicts):
        for tree in np.flatnonzero(verdicts[1]).tolist():
            _, kind, steps = verdicts[:, tree].tolist()
            faults[tree] = fault(kind, int(root_pos[tree]) + steps)
    return Verdicts(ends, rows[: ends[-1]], verdicts[0], faults)


def warm_up() -> None:
    """Compile the walk for every number type, so that loading pays for it and not the first round."""
    for dtype in _INTEGERS:
        logits = torch.zeros(1, 2, dtype=dtype)
        first_call(partial(walk_greedily, root_forest([0]), logits, np.zeros(1, np.int64)))
