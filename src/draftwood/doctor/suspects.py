"""The usual suspects of a pair that drafts badly: other readings of the same checkpoint, to be tried on known text.

Each suspect is a function from a pair to its possible repairs, most likely first; what a repair is worth is measured
elsewhere. A new suspect is a function and a line in SUSPECTS.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F

from ..draft.base import TargetHead, TargetSizes
from ..draft.config import default_target_layers
from ..draft.dflash import DFlashDrafter
from ..draft.model import DFlashModel
from ..models.hf import HFTarget
from .forced import Trial

MASK_TOKENS = ("<|MASK|>", "<mask>", "[MASK]")
ROPE_BASES = (1e4, 1e5, 5e5, 1e6, 1e7)
BLOCK_SIZES = (4, 8, 10, 16)
SAME_EMBEDDING = 0.2
"""Relative distance: tokens that never occur in training keep almost the same embedding, and serve equally."""


@dataclass(frozen=True, slots=True)
class PairView:
    """What suspects may look at."""

    drafter: DFlashDrafter
    target: HFTarget
    tokenizer: Any = None
    hints: Mapping[str, Any] = field(default_factory=dict)
    """`mask_token_id`, `target_layer_ids`, `rope` of a stored baseline: tried first."""

    @property
    def layers(self) -> tuple[int, ...]:
        """Tapped layers by the checkpoint."""
        return self.drafter.target_layer_ids

    def as_loaded(self) -> Trial:
        """The pair's own reading, with contexts apart from the engine's."""
        return Trial(self.rebuilt(), self.layers)

    def rebuilt(self, head: TargetHead | None = None, **changes: Any) -> DFlashDrafter:
        """The drafter with changed config fields, or with another target's head; weights are shared."""
        config = replace(self.drafter.config, **changes)
        model = self.drafter.model
        if "rope" in changes:
            model = DFlashModel(config, dict(model.state_dict()))
        return DFlashDrafter(config, model, head or self.drafter.target)


@dataclass(frozen=True, slots=True)
class Repair:
    """One other reading of the pair."""

    suspect: str
    what: str
    """What is read differently, for people."""
    trial: Trial
    block_size: int | None = None
    """Rows of a block; None: the checkpoint's."""


@dataclass(frozen=True, slots=True)
class TiedHead:
    """A target whose head is its embedding matrix."""

    target: HFTarget

    @property
    def spec(self) -> TargetSizes:
        """The target's sizes."""
        return self.target.spec

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """The target's own."""
        return self.target.embed(token_ids)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        """Logits (T, V) by the embedding matrix."""
        weight: torch.Tensor = self.target.model.get_input_embeddings().weight
        return F.linear(hidden, weight[: self.target.spec.vocab_size])


def taps(pair: PairView) -> list[Repair]:
    """Layers counted from 1, or from the embedding; the usual formula; ascending order."""
    now, last = pair.layers, pair.target.spec.num_layers - 2
    usual = default_target_layers(len(now), pair.target.spec.num_layers)
    options = [
        tuple(pair.hints.get("target_layer_ids", now)),
        tuple(layer - 1 for layer in now),
        tuple(layer + 1 for layer in now),
        usual,
        tuple(sorted(now)),
    ]
    return [
        Repair("taps", f"target_layer_ids {list(layers)} instead of {list(now)}", Trial(pair.rebuilt(), layers))
        for layers in dict.fromkeys(options)
        if layers != now and len(layers) == len(now) and all(0 <= layer <= last for layer in layers)
    ]


def mask_id(pair: PairView) -> list[Repair]:
    """Other tokens that could stand for an unknown one; of those with nearly one embedding the first."""
    now, target = pair.drafter.config.mask_token_id, pair.target
    assert now is not None
    seen = [target.embed(torch.tensor([now], device=target.spec.device))]
    repairs = []
    for token in _mask_candidates(pair, now):
        if not 0 <= token < target.spec.embedding_rows:
            continue
        row = target.embed(torch.tensor([token], device=target.spec.device))
        if any(float((row - other).norm()) < SAME_EMBEDDING * float(other.norm()) for other in seen):
            continue
        seen.append(row)
        drafter = pair.rebuilt(mask_token_id=token)
        repairs.append(Repair("mask id", f"mask_token_id {token} instead of {now}", Trial(drafter, pair.layers)))
    return repairs


def rope(pair: PairView) -> list[Repair]:
    """The baseline's rotation, the target's own, usual bases, and the present base without scaling."""
    now = dict(pair.drafter.config.rope)
    own = getattr(pair.target.model.config, "rope_parameters", None)
    options: list[dict[str, Any]] = [dict(pair.hints.get("rope", now))]
    if isinstance(own, dict) and "rope_theta" in own:
        options.append({"rope_type": "default", **own})
    options += [{"rope_type": "default", "rope_theta": base} for base in (now["rope_theta"], *ROPE_BASES)]
    distinct = [option for at, option in enumerate(options) if option not in options[:at] and option != now]
    return [
        Repair("rope", f"rope {_short(option)} instead of {_short(now)}", Trial(pair.rebuilt(rope=option), pair.layers))
        for option in distinct
    ]


def row_convention(pair: PairView) -> list[Repair]:
    """Block row i predicts position start + i here; in shifted dialects start + 1 + i."""
    names = {1: "block row i predicts position start + i + 1", -1: "block row i predicts position start + i - 1"}
    return [
        Repair("row convention", f"{name} instead of start + i", Trial(pair.rebuilt(), pair.layers, shift))
        for shift, name in names.items()
    ]


def head(pair: PairView) -> list[Repair]:
    """The head of the target that decodes, where the drafter uses another; a tied head, where the two differ."""
    repairs = []
    if pair.drafter.target is not pair.target:
        drafter = pair.rebuilt(head=pair.target)
        repairs.append(Repair("head", "the target's own output matrix", Trial(drafter, pair.layers)))
    embedding = pair.target.model.get_input_embeddings().weight
    output = pair.target.model.get_output_embeddings().weight
    if embedding.shape == output.shape and not torch.equal(embedding, output):
        drafter = pair.rebuilt(head=TiedHead(pair.target))
        repairs.append(Repair("head", "the target's embedding matrix as head", Trial(drafter, pair.layers)))
    return repairs


def block_size(pair: PairView) -> list[Repair]:
    """Smaller blocks: rows beyond those that were trained mislead the others."""
    now = pair.drafter.block_size
    sizes = {size for size in (*BLOCK_SIZES, now // 2, pair.hints.get("block_size", now)) if 2 <= size < now}
    return [
        Repair("block size", f"block_size {size} instead of {now}", pair.as_loaded(), size)
        for size in sorted(sizes, reverse=True)
    ]


SUSPECTS: tuple[Callable[[PairView], list[Repair]], ...] = (taps, mask_id, rope, row_convention, head, block_size)


def _mask_candidates(pair: PairView, now: int) -> Iterable[int]:
    tokenizer = pair.tokenizer
    found: list[int | None] = [pair.hints.get("mask_token_id")]
    if tokenizer is not None:
        vocabulary = tokenizer.get_vocab()
        found += [tokenizer.mask_token_id, *(vocabulary.get(token) for token in MASK_TOKENS), len(tokenizer)]
        found += [tokenizer.pad_token_id, tokenizer.unk_token_id, tokenizer.eos_token_id, tokenizer.bos_token_id]
    found += [now - 1, now + 1, 0, pair.target.spec.embedding_rows - 1]
    return dict.fromkeys(token for token in found if token is not None)


def _short(parameters: Mapping[str, Any]) -> str:
    kind = parameters.get("rope_type", "default")
    return f"base {parameters['rope_theta']:g}" + ("" if kind == "default" else f" ({kind})")
