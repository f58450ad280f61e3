"""Rows of logits that decide nothing: NaN or +inf among them, or no token above -inf."""

from __future__ import annotations

import numpy as np
import torch

from ..errors import NonFiniteLogitsError

FINITE, NOT_A_NUMBER, POSITIVE, NOTHING = range(4)
"""What the largest logit of a row is."""
_WORDS = {NOT_A_NUMBER: "nan", POSITIVE: "inf", NOTHING: "no token above -inf"}


def kinds(largest: torch.Tensor) -> torch.Tensor:
    """(n,) int64, one of FINITE, NOT_A_NUMBER, POSITIVE, NOTHING for the largest logit of each row (n,)."""
    kind = torch.isnan(largest) * NOT_A_NUMBER + torch.isposinf(largest) * POSITIVE + torch.isneginf(largest) * NOTHING
    return kind.to(torch.int64)


def fault(kind: int, pos: int) -> NonFiniteLogitsError:
    """The error of a row of this kind that should decide the token of position `pos`."""
    return NonFiniteLogitsError(
        f"logits that decide position {pos} contain {_WORDS[kind]}: expected finite numbers or -inf"
    )


def require_finite(largest: float, pos: int) -> None:
    """Raise NonFiniteLogitsError unless the largest logit of a row is a number (the maximum passes NaN on)."""
    if not np.isfinite(largest):
        raise fault(NOT_A_NUMBER if np.isnan(largest) else POSITIVE if largest > 0 else NOTHING, pos)
