"""Block drafters: the contract. `draft.dflash` has the DFlash drafter and imports transformers; this does not."""

from __future__ import annotations

from .base import Committed, Drafter, DraftRequest, TargetHead, TargetSizes

__all__ = ["Committed", "DraftRequest", "Drafter", "TargetHead", "TargetSizes"]
