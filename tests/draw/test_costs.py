"""The picture of a cost profile: what is on it, and that it needs no colour."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from draftwood.cost import CostProfile
from draftwood.draw import costs as plot_costs
from draftwood.errors import UsageError

DOCUMENT: dict[str, Any] = {
    "schema": 1,
    "rows": [1, 8, 9, 32, 64],
    "contexts": [128, 1024],
    "verify_s": [[0.010, 0.012, 0.020, 0.025, 0.033], [0.012, 0.015, 0.022, 0.031, 0.042]],
    "draft_s": [0.004, 0.005],
    "host_s": [0.001] * 5,
    "spread_s": [[0.0005] * 5] * 2,
    "steps": [8],
    "identity": {
        "device": "A Processor", "threads": 2, "dtype": "float32", "attention": "sdpa",
        "model": "a", "drafter": "b", "versions": {},
    },
}  # fmt: skip


def drawn(monkeypatch: pytest.MonkeyPatch, path: Path, profile: CostProfile, width: int | None) -> Any:
    """The axes of the picture, caught when it is saved."""
    figure_module = pytest.importorskip("matplotlib.figure", reason="matplotlib is not installed")
    figures: list[Any] = []
    save = figure_module.Figure.savefig

    def keep(figure: Any, *arguments: Any, **options: Any) -> None:
        figures.append(figure)
        save(figure, *arguments, **options)

    monkeypatch.setattr(figure_module.Figure, "savefig", keep)
    plot_costs.plot_costs(profile, path, width=width)
    return figures[0].axes[0]


def test_points_curves_steps_and_width(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    axes = drawn(monkeypatch, tmp_path / "p.png", CostProfile.from_json(DOCUMENT), 20)
    assert axes.get_xlabel() == "rows verified in one forward"
    assert axes.get_ylabel().endswith("(ms)")
    points = [container.lines[0] for container in axes.containers]
    np.testing.assert_allclose(points[0].get_ydata(), [11.0, 13.0, 21.0, 26.0, 34.0])
    np.testing.assert_allclose(points[1].get_ydata(), [13.0, 16.0, 23.0, 32.0, 43.0])
    assert points[0].get_marker() != points[1].get_marker()
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert {"context 128", "context 1024", "convex fit, context 1024", "drafter pass", "step"} <= set(labels)
    convex = next(line for line in axes.lines if line.get_label().startswith("convex"))
    assert np.all(np.diff(convex.get_ydata(), 2) >= -1e-9) and len(convex.get_ydata()) == 64
    (said,) = axes.texts
    assert said.get_text() == "cast: 20 nodes" and said.xy[0] == 21
    assert said.xy[1] == pytest.approx(23.0 + 12 / 23 * 9.0)
    assert (tmp_path / "p.png").read_bytes()[:4] == b"\x89PNG"


def test_it_is_readable_without_colour(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from matplotlib.colors import to_rgb

    axes = drawn(monkeypatch, tmp_path / "p.png", CostProfile.from_json(DOCUMENT), 20)
    for line in axes.lines:
        red, green, blue = to_rgb(line.get_color())
        assert red == green == blue


def test_a_published_table_without_spread_or_draft(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    bare = {name: DOCUMENT[name] for name in ("schema", "rows", "contexts", "verify_s")}
    axes = drawn(monkeypatch, tmp_path / "p.png", CostProfile.from_json(bare), None)
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert "drafter pass" not in labels and "step" not in labels and not axes.texts


def test_without_matplotlib_the_extra_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UsageError, match=r"draftwood\[plot\]"):
        plot_costs.plot_costs(CostProfile.from_json(DOCUMENT), tmp_path / "p.png")
    assert list(tmp_path.iterdir()) == []


def test_nothing_is_imported_early() -> None:
    assert "matplotlib.pyplot" not in sys.modules
