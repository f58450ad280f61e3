"""What a model computes here, compared with what it computes by itself, before it is used.

A model may cut, scale or rotate in code of its own that no keyword of the attention call shows. So the short text of
the probe is longer than every window and chunk, which are shrunk for it, and it is tried where the rotation changes
its rule, too.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np
import torch

from ..batch import Batch, RequestRows, build
from ..cache import KVPool
from ..core import Visibility
from ..errors import ModelError
from .base import TargetSpec

ROWS = 24
"""Rows of the text: half are prefilled, the others are a path of a tree. Bits of a word hold twice as many nodes."""
SHRUNK = 5
"""Length of windows and chunks while the probe runs: less than either half."""
WINDOWS = (
    "sliding_window",
    "attention_chunk_size",
    "window_size",
    "attention_window_size",
    "local_attention",
    "local_window",
)
"""Attributes of configurations and layers that limit how far a row sees."""
# Largest difference between our attention and the model's own, as a share of the largest logit.
TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-4, torch.bfloat16: 0.1, torch.float16: 0.02}


class Probed(Protocol):
    """What the probe needs of a target."""

    model: Any
    spec: TargetSpec

    def forward(self, batch: Batch, pool: KVPool, tap_layers: Any, taps: Any) -> torch.Tensor:
        """See `TargetModel.forward`."""
        ...

    def own_logits(self, token_ids: torch.Tensor, position_ids: torch.Tensor) -> torch.Tensor:
        """Logits (T, V) of the model as it was shipped, the rows at the given positions."""
        ...


def check(target: Probed) -> None:
    """Compare prefill and a tree on a short text with the model's own attention. Raises ModelError.

    A model whose own logits are not finite is said to be that.
    """
    spec = target.spec
    rows = min(ROWS, spec.context_limit)
    ids = (np.arange(rows, dtype=np.int64) * 7919 + 13) % spec.vocab_size
    for start in _starts(target.model.config.get_text_config(decoder=True), spec, rows):
        with shrunk_windows(target.model):
            ours = (_prefill_logits(target, ids, start) if start else _tree_logits(target, ids)).double()
            position_ids = torch.arange(start, start + rows, device=spec.device)
            theirs = target.own_logits(torch.from_numpy(ids).to(spec.device), position_ids).double()
        place = f" at positions {start} to {start + rows - 1}" if start else ""
        if not torch.isfinite(theirs).all():
            number = str(spec.dtype).removeprefix("torch.")
            raise ModelError(
                f"{spec.name}: the model's own logits are not finite in {number}{place}: its weights, or this number "
                "type, are at fault (--dtype chooses another)"
            )
        error = float((ours - theirs).abs().max() / theirs.abs().max().clamp(min=1.0))
        if not error <= TOLERANCE[spec.dtype]:
            raise ModelError(
                f"{spec.name}: attention probe differs from the model's own by {error:.2g} of the largest logit{place} "
                f"(at most {TOLERANCE[spec.dtype]:.2g} allowed); this model needs an attention feature that Draftwood "
                "lacks"
            )


def _starts(config: Any, spec: TargetSpec, rows: int) -> list[int]:
    """First positions of the texts to try: 0, and around every length at which a rotation may change its rule."""
    parameters = getattr(config, "rope_parameters", None) or {}
    kinds = [parameters, *(value for value in parameters.values() if isinstance(value, Mapping))]
    lengths = {kind.get("original_max_position_embeddings") for kind in kinds}
    starts = {int(length) - rows // 2 for length in lengths if isinstance(length, int | float)}
    return [0, *sorted(start for start in starts if 0 < start <= spec.context_limit - rows)]


@contextmanager
def shrunk_windows(model: Any) -> Iterator[None]:
    """Every window and chunk of the model at most SHRUNK rows, for the length of a `with` block."""
    configs = {id(part): part for part in (model.config, model.config.get_text_config(decoder=True))}.values()
    changed: list[tuple[Any, str, int]] = []
    try:
        for owner in (*configs, *model.modules()):
            for name in WINDOWS:
                value = getattr(owner, name, None)
                if isinstance(value, int) and not isinstance(value, bool) and value > SHRUNK:
                    changed.append((owner, name, value))
                    setattr(owner, name, SHRUNK)
        yield
    finally:
        for owner, name, value in changed:
            setattr(owner, name, value)


def _prefill_logits(target: Probed, ids: np.ndarray, start: int) -> torch.Tensor:
    """Logits (T, V) of a text at position `start`, with nothing before it. A prefix always begins at position 0."""
    spec = target.spec
    pool = KVPool(spec.layers, kv_rows=len(ids), dtype=spec.dtype, device=spec.device)
    pool.open(0, len(ids))
    pos = start + np.arange(len(ids), dtype=np.int64)
    rows = RequestRows(0, ids, pos, 0, (), pool.reserve(0, len(ids)), Visibility.CAUSAL, logits_from=0)
    return target.forward(build([rows]), pool, (), None)


def _tree_logits(target: Probed, ids: np.ndarray) -> torch.Tensor:
    """Logits (T, V) of a text whose first half is prefilled and whose rest is a path of a tree.

    Beside each node of the path stands a sibling. A model that ignores positions, carries a state from row to row
    or keeps in its cache what is not a key or a value gives other logits here, though it prefills rightly.
    """
    spec, half = target.spec, len(ids) // 2
    path = ids[half:]
    pool = KVPool(spec.layers, kv_rows=2 * len(ids), dtype=spec.dtype, device=spec.device)
    pool.open(0, 2 * len(ids))
    first = np.arange(half, dtype=np.int64)
    chunk = RequestRows(0, ids[:half], first, 0, (), pool.reserve(0, half), Visibility.CAUSAL, logits_from=0)
    prefilled = target.forward(build([chunk]), pool, (), None)
    pool.advance(0, half)
    # Rows 2i and 2i + 1 are the sibling and the node of depth i; nodes are seen by what is deeper.
    num_rows = 2 * len(path)
    depth = np.arange(num_rows, dtype=np.int64) // 2
    nodes = np.arange(1, num_rows, 2, dtype=np.int64)
    visible = np.eye(num_rows, dtype=bool)
    visible[:, nodes] |= depth[:, None] > depth[nodes]
    tokens = np.stack([(path + 1) % spec.vocab_size, path], axis=1).reshape(-1)
    words = (visible @ (np.int64(1) << np.arange(num_rows)))[:, None]
    staged, prefix = pool.reserve(0, num_rows), pool.prefix(0)
    pos = half + depth
    tree = RequestRows(0, tokens, pos, half, prefix, staged, Visibility.ANCESTORS, words, logits_from=0)
    return torch.cat([prefilled, target.forward(build([tree]), pool, (), None)[nodes]])
