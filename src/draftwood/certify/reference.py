"""The reference of a certificate: transformers' own forward, products, attention and cache, a token at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch

from ..core import Sampling
from ..errors import UsageError
from ..models.base import TargetModel
from ..models.hf import HFTarget
from ..verify import chooser
from ..verify.uniform import position_key, uniforms
from .verdict import near_tie_tolerance


class ForcedScores(NamedTuple):
    """What the plain target says about every token of a given output, (n,) float64 each."""

    gap: np.ndarray
    """Largest score minus second largest."""
    behind: np.ndarray
    """Largest score minus that of the output's own token; 0 where the output follows the target."""
    top_logit: np.ndarray
    """Largest logit, before any noise."""

    def first_stray(self, start: int, dtype_name: str) -> int | None:
        """The first position from `start` on whose token is further behind the target's choice than rounding is."""
        for at in range(start, len(self.behind)):
            if self.behind[at] > 0.0 and not self.behind[at] < near_tie_tolerance(dtype_name, self.top_logit[at]):
                return at
        return None


@dataclass(frozen=True, slots=True)
class Reference:
    """A target by itself: nothing of Draftwood runs between its layers, and its cache is transformers'."""

    target: HFTarget

    @classmethod
    def of(cls, target: TargetModel) -> Reference:
        """The reference of a target; UsageError for one that has no attention of its own."""
        if not isinstance(target, HFTarget):
            raise UsageError(f"{target.spec.name}: this target has no attention of its own to compare with")
        return cls(target)

    @torch.inference_mode()
    def decode(
        self, prompt_ids: Sequence[int], max_tokens: int, end_ids: frozenset[int], sampling: Sampling
    ) -> list[int]:
        """Plain decoding of one prompt: output ids with the end token, at most `max_tokens` and the context limit."""
        choose = chooser(sampling)
        device = self.target.spec.device
        room = self.target.spec.context_limit - len(prompt_ids) + 1
        text, output, cache = list(prompt_ids), list[int](), None
        step_ids = torch.tensor([text], device=device)
        with self.target.as_shipped() as model:
            while len(output) < min(max_tokens, room):
                found = model(
                    input_ids=step_ids, past_key_values=cache, use_cache=True, logits_to_keep=1, return_dict=True
                )
                cache = found.past_key_values
                token = int(choose(found.logits[0, -1:], np.array([len(text)], np.int64))[0])
                text.append(token)
                output.append(token)
                if token in end_ids:
                    break
                step_ids = torch.tensor([[token]], device=device)
        return output

    @torch.inference_mode()
    def forced(self, prompt_ids: Sequence[int], output: Sequence[int], sampling: Sampling) -> ForcedScores:
        """Teacher-force `output` and compare its tokens with the target's own choices, in one forward.

        At temperature T the score of a token is its logit plus T times the position's Gumbel noise, so that the
        largest score is the seeded draw and a gap means the same as at temperature 0.
        """
        first = len(prompt_ids)
        ids, judged = [*prompt_ids, *output[:-1]], max(1, len(output))
        logits = self.target.native_logits(ids, last_rows=judged).double()  # (n, V)
        scores = logits
        if not sampling.greedy:
            keys = [position_key(sampling.seed, sampling.completion, first + index) for index in range(len(output))]
            noise = -torch.log(-torch.log(uniforms(keys, logits.shape[1], logits.device)))
            scores = logits + sampling.temperature * noise
        top = scores.topk(2, dim=-1).values  # (n, 2)
        own = scores.gather(1, torch.tensor(output, device=scores.device)[:, None])[:, 0]
        parts = (top[:, 0] - top[:, 1], top[:, 0] - own, logits.amax(dim=-1))
        return ForcedScores(*(part.cpu().numpy() for part in parts))
