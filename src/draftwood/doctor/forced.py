"""Teacher-forced hits of a drafter: what each row of its block says about each position of a known text.

The text is the target's own greedy text, so that a hit is a draft that the target would accept. At every position the
drafter sees the target's states of all earlier tokens, as in a round, whatever it would have drafted before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F

from ..batch import RequestRows, build
from ..cache import KVPool
from ..core import Visibility
from ..draft.base import Committed, DraftRequest
from ..draft.dflash import DFlashDrafter
from ..models.base import TargetModel
from ..models.hf import HFTarget

MIN_LOGP = -12.0
"""Log-probabilities are cut here, so that a few lost tokens do not decide a comparison."""
_HEAD_ROWS = 256


class ForcedText(NamedTuple):
    """A prompt and the target's greedy answer to it."""

    ids: tuple[int, ...]
    prompt_len: int


@dataclass(frozen=True, slots=True)
class Sample:
    """Texts with the target's states of every token."""

    texts: tuple[ForcedText, ...]
    layers: tuple[int, ...]
    """0-based layers whose outputs are kept, ascending."""
    states: tuple[torch.Tensor, ...]
    """(L, layers, h) a text."""
    agrees: tuple[np.ndarray, ...]
    """(answer tokens,) bool a text: the target, read in one forward, chooses the token that the text has."""
    vocabulary: tuple[int, ...]
    """The tokens among which log-probabilities are taken, ascending; all of the texts' are in it."""

    def taps(self, text: int, layers: Sequence[int], rows: slice) -> torch.Tensor:
        """(rows, taps * h) states of these layers, side by side."""
        columns = [self.layers.index(layer) for layer in layers]
        return self.states[text][rows, columns].flatten(1)


class Position(NamedTuple):
    """Where a block starts: its pending token is `texts[text].ids[start]`."""

    text: int
    start: int


class Trial(NamedTuple):
    """A drafter under one reading of its checkpoint."""

    drafter: DFlashDrafter
    layers: tuple[int, ...]
    """Tapped layers."""
    row_shift: int = 0
    """Row r of a block is taken to predict depth r + `row_shift`; 0 is DFlash's convention, 1 the shifted one."""


class Scores(NamedTuple):
    """What a drafter says about the text, one row a position, one column a depth."""

    hit: np.ndarray
    """(positions, depths) bool: its best token of the whole vocabulary is the text's."""
    logp: np.ndarray
    """(positions, depths) float64 log-probability of the text's token among the sample's vocabulary, at least MIN_LOGP.

    Less noisy than hits: shifted taps show at 600 positions here, and not surely in the hits of 1,000.
    """


def vocabulary_of(texts: Iterable[ForcedText]) -> tuple[int, ...]:
    """The tokens that occur in texts, ascending."""
    return tuple(sorted({token for text in texts for token in text.ids}))


def read_texts(
    target: TargetModel, texts: Sequence[ForcedText], layers: Sequence[int], vocabulary: Sequence[int] | None = None
) -> Sample:
    """Run the target over every text once, and keep the outputs of `layers` and whether it agrees with the text.

    `vocabulary` is that of a larger collection, when log-probabilities are compared with those of all its texts.
    """
    kept = tuple(sorted(set(layers)))
    states, agrees = [], []
    for text in texts:
        read, chosen = _read(target, text, kept)
        states.append(read)
        agrees.append(chosen == np.array(text.ids[text.prompt_len :]))
    known = tuple(vocabulary) if vocabulary is not None else vocabulary_of(texts)
    return Sample(tuple(texts), kept, tuple(states), tuple(agrees), known)


def block_positions(texts: Sequence[ForcedText], depth: int, stride: int = 1) -> list[Position]:
    """Every `stride`-th position of the answers behind which `depth` tokens are known."""
    places = [
        Position(number, start)
        for number, text in enumerate(texts)
        for start in range(text.prompt_len, len(text.ids) - depth)
    ]
    return places[::stride]


def score(trial: Trial, sample: Sample, places: Sequence[Position], block_size: int) -> Scores:
    """Score a drafter at `places` with blocks of `block_size` rows.

    Depths are those that a row predicts under the trial's shift: block_size - 1 of them, one fewer for a shift of -1.
    """
    depths = np.arange(1, block_size)
    depths = depths[depths - trial.row_shift < block_size]
    labels = np.array([[sample.texts[place.text].ids[place.start + depth] for depth in depths] for place in places])
    states = torch.cat(list(_block_states(trial, sample, places, block_size)))  # (positions, B, h)
    return _scores(trial.drafter, states[:, depths - trial.row_shift], labels, sample)


@torch.inference_mode()
def _read(target: TargetModel, text: ForcedText, layers: Sequence[int]) -> tuple[torch.Tensor, np.ndarray]:
    """States (L, layers, h), and the target's choice for every answer token."""
    spec, rows = target.spec, len(text.ids)
    pool = KVPool(spec.layers, kv_rows=rows, dtype=spec.dtype, device=spec.device)
    pool.open(0, rows)
    ids, staged, answer = np.array(text.ids, np.int64), pool.reserve(0, rows), text.prompt_len - 1
    whole = RequestRows(0, ids, np.arange(rows), 0, (), staged, Visibility.CAUSAL, logits_from=answer, taps=True)
    taps = torch.empty(rows, len(layers) * spec.hidden_size, dtype=spec.dtype, device=spec.device)
    logits = target.forward(build([whole]), pool, layers, taps)
    return taps.view(rows, len(layers), -1), logits[:-1].argmax(dim=-1).cpu().numpy()


def _block_states(trial: Trial, sample: Sample, places: Sequence[Position], block_size: int) -> Iterator[torch.Tensor]:
    """(1, B, h) states of each block, in the order of `places`; texts advance side by side, each context once."""
    drafter = trial.drafter
    found: dict[Position, torch.Tensor] = {}
    waiting = {number: [place for place in places if place.text == number] for number in range(len(sample.texts))}
    drafter.allocate(sum(len(text.ids) for text in sample.texts), len(sample.texts))
    for number, text in enumerate(sample.texts):
        drafter.open(number, np.array(text.ids, np.int64), len(text.ids))
    try:
        while any(waiting.values()):
            group = [queue.pop(0) for queue in waiting.values() if queue]
            for place in group:
                known = slice(drafter.context_len(place.text), place.start)
                tokens = np.array(sample.texts[place.text].ids[known], np.int64)
                taps = sample.taps(place.text, trial.layers, known)
                drafter.commit(Committed((place.text,), np.array([0, len(tokens)]), tokens, taps))
            requests = [_asked(place, sample.texts[place.text], block_size) for place in group]
            states = drafter.block_states(requests).view(len(group), block_size, -1)
            found.update(zip(group, torch.split(states, 1), strict=True))
    finally:
        for number in range(len(sample.texts)):
            drafter.close(number)
    return (found[place] for place in places)


def _asked(place: Position, text: ForcedText, block_size: int) -> DraftRequest:
    """A request for the block behind a place."""
    return DraftRequest(place.text, text.ids[place.start], place.start, block_size, 1, block_size - 1, block_size - 1)


@torch.inference_mode()
def _scores(drafter: DFlashDrafter, states: torch.Tensor, labels: np.ndarray, sample: Sample) -> Scores:
    """Hits and log-probabilities of labels (positions, depths) from states (positions, depths, h).

    A label that loses against another token of the texts cannot be the best of the vocabulary, so the whole head is
    run only for the others: exact, at a fraction of the products. Multipliers and soft-caps keep the order.
    """
    flat = states.flatten(0, 1)
    wanted = torch.from_numpy(labels.ravel()).to(flat.device)
    seen = torch.tensor(sample.vocabulary, device=flat.device)
    column = torch.searchsorted(seen, wanted)[:, None]
    target = drafter.target  # the head that it really uses, whoever else it may belong to
    if isinstance(target, HFTarget):
        logits = _head_columns(target, flat, seen)  # (n, seen)
    else:
        logits = torch.cat([target.head(part)[:, seen] for part in torch.split(flat, _HEAD_ROWS)])
    logits = logits.float()
    logp = logits.log_softmax(dim=-1).gather(1, column)[:, 0].clamp(min=MIN_LOGP)
    hit = logits.argmax(dim=-1) == column[:, 0]
    for part in torch.split(torch.nonzero(hit)[:, 0], _HEAD_ROWS):
        hit[part] = target.head(flat[part]).argmax(dim=-1) == wanted[part]
    return Scores(hit.view(labels.shape).cpu().numpy(), logp.view(labels.shape).double().cpu().numpy())


def _head_columns(target: HFTarget, flat: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
    """Logits (n, seen) of a few tokens: the rows of the output matrix that belong to them."""
    output = target.model.get_output_embeddings()
    bias = None if output.bias is None else output.bias[seen]
    return F.linear(flat.to(output.weight.dtype), output.weight[seen], bias)
