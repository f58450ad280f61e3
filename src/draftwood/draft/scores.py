"""The best candidates of each row with log-probabilities over the whole vocabulary, on the device."""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F

_GROUP = 64
_ID_BITS = 32


class TopScores(NamedTuple):
    """Candidates of n rows, best first."""

    logp: torch.Tensor
    """(n, K) float32, descending, at most 0."""
    ids: torch.Tensor
    """(n, K) int64."""


def top_scores(logits: torch.Tensor, candidates: int) -> TopScores:
    """The `candidates` best ids of each row of logits (n, V), equal logits in the order of their ids.

    K = min(candidates, V). Both the order and the normaliser are computed in float32 (dflash.md 4.2); the normaliser
    runs over the whole vocabulary, so the kept probabilities sum to less than 1.
    """
    scores = logits.float()  # (n, V)
    count = min(candidates, scores.shape[1])
    normaliser = torch.logsumexp(scores, dim=1, keepdim=True)
    pool = _group_candidates(scores, count)
    if pool is None:
        ids = torch.arange(scores.shape[1], device=scores.device).expand(scores.shape[0], -1)
        values = scores
    else:
        ids = pool.clamp(max=scores.shape[1] - 1)
        # Ids behind the vocabulary come from the padding of the last group.
        values = scores.gather(1, ids).masked_fill(pool >= scores.shape[1], -torch.inf)
        ids = pool
    order = torch.topk(_ordered(values, ids), count, dim=1).indices
    logp = (values.gather(1, order) - normaliser).clamp(max=0.0)  # rounding may lift a sure candidate above 0
    return TopScores(logp, ids.gather(1, order))


def _group_candidates(scores: torch.Tensor, count: int) -> torch.Tensor | None:
    """Ids (n, count * 64) that contain the `count` best of each row; None when that would not be fewer than V.

    An id outside the `count` best groups (by maximum, then by position) has an id before it in the order in each of
    them, so it cannot be among the best. This reads the vocabulary once where a full ordered top-K is ten times dearer.
    """
    num_rows, vocab = scores.shape
    groups = -(-vocab // _GROUP)
    if groups <= 2 * count:
        return None
    padding = groups * _GROUP - vocab
    padded = F.pad(scores, (0, padding), value=-torch.inf) if padding else scores
    maxima = padded.view(num_rows, groups, _GROUP).amax(dim=2)
    numbers = torch.arange(groups, device=scores.device).expand(num_rows, -1)
    best = torch.topk(_ordered(maxima, numbers), count, dim=1).indices
    inside = torch.arange(_GROUP, device=scores.device)
    return (best[:, :, None] * _GROUP + inside).view(num_rows, count * _GROUP)


def _ordered(values: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    """int64 keys that grow with the float32 value and, among equal values, fall with the id."""
    bits = (values + 0.0).view(torch.int32)  # adding 0 turns -0.0 into 0.0, which compares equal to it
    rising = torch.where(bits >= 0, bits, bits ^ 0x7FFFFFFF).long()
    return (rising << _ID_BITS) - ids
