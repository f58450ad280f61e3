"""A small cost document that tests change cell by cell."""

from __future__ import annotations

from typing import Any

IDENTITY = {
    "device": "cpu",
    "threads": 2,
    "dtype": "float32",
    "attention": "sdpa",
    "model": "a1",
    "drafter": "b2",
    "versions": {"torch": "2.8.0"},
}


def document(**changes: Any) -> dict[str, Any]:
    """Two contexts, four grid rows, drafting and host time, three request counts."""
    made: dict[str, Any] = {
        "schema": 1,
        "source": "made for tests",
        "dtype": "float32",
        "requests": [1, 2, 4],
        "rows": [1, 4, 8, 16],
        "contexts": [100, 300],
        "verify_s": [[0.010, 0.013, 0.017, 0.025], [0.012, 0.016, 0.022, 0.034]],
        "draft_s": [[0.002, 0.003, 0.005], [0.004, 0.005, 0.007]],
        "host_s": [0.001, 0.001, 0.0012, 0.0016],
        "batch": {
            "rows": [4, 16],
            "contexts": [100, 300],
            "verify_s": [[[0.014, 0.027], [0.018, 0.038]], [[0.016, 0.031], [0.022, 0.046]]],
        },
        "spread_s": [[0.0001] * 4, [0.0002] * 4],
        "steps": [],
        "mean_gains": [0.8, 0.5, 0.2, 0.1],
        "identity": IDENTITY,
    }
    return made | changes
