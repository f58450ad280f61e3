"""Makes the tiny pair of the bench tests importable."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
for folder in (TESTS / "bench", TESTS / "engine", TESTS / "draft"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))
