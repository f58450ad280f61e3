"""benchmarks/results.py on the tiny pair: every part ends up on the page, and a second run measures nothing again."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tiny_bench import engine, profile

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import results
import results_page

TITLES = (
    "Width sweep by replay",
    "Tree against chain at 8 rows",
    "Candidates per depth",
    "Reliability by depth",
    "Best-first trees against fixed shapes",
    "Width sweep by wall clock",
    "Five arms, interleaved: 2 repeats",
    "auto over ar: ",
    "Predicted against measured",
    "| spread |",
    "dtype float64",
)


@pytest.fixture
def arguments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    rows = {"first": ["p0", "p1"], "second": ["p2"]}
    for name, prompts in rows.items():
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"prompt": text}) + "\n" for text in prompts))
    profile().save(tmp_path / "profile.json")
    monkeypatch.setattr(results.Engine, "load", lambda *names, **options: engine(codec=True))
    sets = [word for name in rows for word in ("--prompts", str(tmp_path / f"{name}.jsonl"))]
    sizes = ["--tokens", "24", "--widths", "1,4,7", "--arm-prompts", "4", "--repeats", "2"]
    where = ["--work", str(tmp_path / "work"), "--output", str(tmp_path / "docs" / "results.md")]
    return ["results.py", *sets, *sizes, *where, "--profile", str(tmp_path / "profile.json"), "--methods", ""]


def test_page_and_resumption(arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", arguments)
    page = tmp_path / "docs" / "results.md"
    page.parent.mkdir()
    page.write_text("# Results\n\nKept.\n")
    assert results.main() == 0
    first = page.read_text()
    assert first.startswith("# Results\n\nKept.\n")
    for title in TITLES:
        assert title in first, title
    assert "project's own" not in first

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("measured again")

    monkeypatch.setattr(results, "record", refuse)
    monkeypatch.setattr(results, "replay_lines", refuse)
    assert results.main() == 0
    again = page.read_text()
    assert again.count("<!-- measured: begin -->") == 1 and again.startswith("# Results\n\nKept.\n")
    monkeypatch.setattr(sys, "argv", [*arguments, "--tokens", "23"])
    assert results.main() == 2


def test_oracle_and_best_budget_come_from_the_lines() -> None:
    def line(arm: str, budget: int | None, speed: float) -> dict[str, Any]:
        return {
            "set": "overall", "arm": arm, "budget": budget, "rounds": 1, "tokens": 1, "mean_committed": 1.0,
            "mean_rows": 1.0, "sd_rows": 0.0, "skipped_rounds": 0, "predicted_s": 1.0, "tokens_per_s": speed,
            "biased": False,
        }  # fmt: skip

    lines = [line("ar", None, 10.0), line("ddtree 4", 4, 15.0), line("ddtree 8", 8, 20.0), line("auto", None, 19.0)]
    assert results._best_budget(lines) == 8
    text = results_page.replay_text({"lines": lines}, 8)
    assert "| auto | 1.900 | 0.950 |" in text and "Oracle budgets: overall 8" in text
