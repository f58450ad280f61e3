"""Costs: what a round takes on this machine, measured once and corrected while decoding."""

from __future__ import annotations

from .identity import Identity
from .live import LiveCosts
from .profile import CostProfile, CostWarning
from .rounds import UNCORRECTED, LiveFactors, RoundCosts

__all__ = ["UNCORRECTED", "CostProfile", "CostWarning", "Identity", "LiveCosts", "LiveFactors", "RoundCosts"]
