"""What a drafter scored when it was well: texts, hits and log-probabilities, stored beside its checkpoint.

JSON: `schema`, `target`, `dtype`, `block_size`, `mask_token_id`, `target_layer_ids`, `rope`, `hit_rate` by depth,
`positions`, and `texts`, each with `ids`, `prompt_len`, `hits` (a position's depths as bits, depth 1 lowest) and `logp`
(a position's log-probability of the text's tokens, mean over the depths).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..draft.dflash import DFlashDrafter
from ..errors import UsageError
from ..files import write_file
from .forced import ForcedText, Position, Scores

SCHEMA = 1
FILE_NAME = "baseline.json"
LOGP_DIGITS = 3


@dataclass(frozen=True, slots=True)
class Baseline:
    """A stored measurement; rows of a text's arrays are its answer positions from the first on."""

    target: str
    dtype: str
    block_size: int
    mask_token_id: int
    target_layer_ids: tuple[int, ...]
    rope: Mapping[str, Any]
    texts: tuple[ForcedText, ...]
    hits: tuple[np.ndarray, ...]
    """(positions, depths) bool a text."""
    logp: tuple[np.ndarray, ...]
    """(positions,) float64 a text."""

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Baseline:
        """Build from parsed JSON; raises KeyError, TypeError, ValueError or IndexError for a malformed document."""
        block_size = int(document["block_size"])
        texts, hits, logp = [], [], []
        for row in document["texts"]:
            text = ForcedText(tuple(int(token) for token in row["ids"]), int(row["prompt_len"]))
            count = len(text.ids) - (block_size - 1) - text.prompt_len
            bits = np.array(row["hits"], dtype=np.int64)
            values = np.array(row["logp"], dtype=np.float64)
            if text.prompt_len < 1 or count < 1 or bits.shape != (count,) or values.shape != (count,):
                raise ValueError(
                    f"a text of {len(text.ids)} ids with {len(bits)} hits and {len(values)} log-probabilities"
                )
            if not all(math.isfinite(value) and value <= 0 for value in values):
                raise ValueError("a log-probability above 0 or not finite")
            texts.append(text)
            hits.append((bits[:, None] >> np.arange(block_size - 1) & 1).astype(bool))
            logp.append(values)
        if not texts:
            raise ValueError("no texts")
        return cls(
            target=str(document["target"]),
            dtype=str(document["dtype"]),
            block_size=block_size,
            mask_token_id=int(document["mask_token_id"]),
            target_layer_ids=tuple(int(layer) for layer in document["target_layer_ids"]),
            rope=dict(document["rope"]),
            texts=tuple(texts),
            hits=tuple(hits),
            logp=tuple(logp),
        )

    @property
    def depth(self) -> int:
        """Depths that were scored."""
        return self.block_size - 1

    def hit_rate(self) -> np.ndarray:
        """(depths,) share of hits over all positions."""
        rate: np.ndarray = np.concatenate(self.hits).mean(axis=0)
        return rate

    def has(self, place: Position) -> bool:
        """Whether a position was scored."""
        return 0 <= place.start - self.texts[place.text].prompt_len < len(self.logp[place.text])

    def at(self, places: Sequence[Position]) -> tuple[np.ndarray, np.ndarray]:
        """Hits (positions, depths) and mean log-probabilities (positions,) at these places."""
        rows = [(place.text, place.start - self.texts[place.text].prompt_len) for place in places]
        return np.stack([self.hits[t][r] for t, r in rows]), np.array([self.logp[t][r] for t, r in rows])

    def to_json(self) -> dict[str, Any]:
        """The document that `from_json` reads."""
        weights = 1 << np.arange(self.depth)
        return {
            "schema": SCHEMA,
            "target": self.target,
            "dtype": self.dtype,
            "block_size": self.block_size,
            "mask_token_id": self.mask_token_id,
            "target_layer_ids": list(self.target_layer_ids),
            "rope": dict(self.rope),
            "positions": sum(len(logp) for logp in self.logp),
            "hit_rate": [round(float(rate), 4) for rate in self.hit_rate()],
            "texts": [
                {
                    "prompt_len": text.prompt_len,
                    "ids": list(text.ids),
                    "hits": (hits @ weights).tolist(),
                    "logp": logp.tolist(),
                }
                for text, hits, logp in zip(self.texts, self.hits, self.logp, strict=True)
            ],
        }


def baseline_path(drafter: DFlashDrafter) -> Path:
    """Where the baseline of a checkpoint lies, whether or not it is there."""
    return Path(drafter.config.where).with_name(FILE_NAME)


def make_baseline(
    drafter: DFlashDrafter, target: str, dtype: str, texts: Sequence[ForcedText], scores: Scores
) -> Baseline:
    """A baseline of scores at every position of `texts`, in order (`block_positions` with stride 1)."""
    config = drafter.config
    assert config.mask_token_id is not None and config.target_layer_ids is not None
    counts = [len(text.ids) - config.depth - text.prompt_len for text in texts]
    edges = np.cumsum(counts)[:-1]
    return Baseline(
        target=target,
        dtype=dtype,
        block_size=config.block_size,
        mask_token_id=config.mask_token_id,
        target_layer_ids=config.target_layer_ids,
        rope=dict(config.rope),
        texts=tuple(texts),
        hits=tuple(np.split(scores.hit, edges)),
        logp=tuple(np.split(scores.logp.mean(axis=1).round(LOGP_DIGITS), edges)),
    )


def write_baseline(baseline: Baseline, path: Path) -> None:
    """Write the file whole or not at all. Raises UsageError when it cannot be written."""
    write_file(path, json.dumps(baseline.to_json(), allow_nan=False) + "\n", UsageError)


def read_baseline(path: Path, vocab_size: int) -> Baseline:
    """Read a baseline. Raises UsageError, one line with the file's name, for one that is cut, malformed or foreign."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{path}: cannot be read ({error.strerror})") from error
    except (UnicodeDecodeError, ValueError) as error:
        raise UsageError(f"{path}: not a JSON file, expected a baseline of draftwood doctor") from error
    if not isinstance(document, dict) or document.get("schema") != SCHEMA:
        found = document.get("schema") if isinstance(document, dict) else None
        raise UsageError(f"{path}: baseline schema {found!r}, expected {SCHEMA}")
    try:
        baseline = Baseline.from_json(document)
    except (KeyError, TypeError, ValueError, IndexError) as error:
        raise UsageError(f"{path}: malformed baseline ({type(error).__name__}: {error})") from error
    outside = [token for text in baseline.texts for token in text.ids if not 0 <= token < vocab_size]
    if outside:
        raise UsageError(
            f"{path}: token id {outside[0]}, expected 0 to {vocab_size - 1}: the baseline of another model"
        )
    return baseline
