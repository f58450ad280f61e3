"""Samples typed in by hand."""

from __future__ import annotations

from typing import Any

from draftwood.bench.runner import Sample


def sample(row: str, prompt: str, decode_s: float, tokens: list[int] | None = None, **changes: Any) -> Sample:
    """Four tokens unless given, `decode_s` seconds, 0.5 s of prefill, 0.1 s before the first verification."""
    ids = [1, 2, 3, 4] if tokens is None else tokens
    values: dict[str, Any] = {
        "panel": "", "set_name": "a", "prompt_id": prompt, "row": row, "seed": 0, "repeat": 0, "prompt_hash": "h",
        "token_ids": ids, "finish": "length", "prefill_s": 0.5, "decode_s": decode_s, "first_draft_s": 0.1,
        "peak_bytes": 1000, "committed": [1] * (len(ids) - 1), "rows": [1] * (len(ids) - 1),
        "drafted": [False] * (len(ids) - 1), "predicted_s": [None] * (len(ids) - 1),
    }  # fmt: skip
    return Sample(**(values | changes))
