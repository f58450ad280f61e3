"""A picture of a cost profile, readable in black and white (extra `plot`)."""

from __future__ import annotations

import importlib.util
import io
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from ..cost.profile import CAST_CONTEXT, CostProfile
from ..errors import UsageError
from ..files import write_file

DPI = 144
_MARKERS = "osD^vPX*"
_GREYS = ("0.0", "0.35", "0.55", "0.7")


def require_matplotlib() -> None:
    """Raise UsageError naming the extra when matplotlib is not installed."""
    if importlib.util.find_spec("matplotlib") is None:
        raise UsageError("a plot needs matplotlib: pip install 'draftwood[plot]'")


def plot_costs(profile: CostProfile, path: Path, *, width: int | None = None) -> None:
    """Draw seconds of the target's part of a round over rows, one line a context, and write a PNG.

    Points with their spread and the measured curve; the convex regression of the context nearest 1,024; steps;
    drafting as a level; the row count of `width` nodes (that of `cast`). Raises UsageError without matplotlib,
    OSError when the file cannot be written.
    """
    require_matplotlib()
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 5), dpi=DPI, layout="constrained")
    axes = figure.add_subplot()
    last = int(profile.rows[-1])
    every = np.arange(1, last + 1)
    styles = zip(cycle(_MARKERS), cycle(_GREYS), range(len(profile.contexts)), strict=False)
    for marker, grey, at in styles:
        _draw_context(axes, profile, at, every, marker, grey)
    nearest = profile.nearest_context(CAST_CONTEXT)
    convex = _curve(profile, nearest, "convex", last)
    axes.plot(every, convex, linestyle=(0, (6, 3)), color="0.0", linewidth=1.6, label=f"convex fit, context {nearest}")
    row = int(np.flatnonzero(profile.contexts == nearest)[0])
    if profile.draft_s[row, 0] > 0:
        draft_ms = profile.draft_s[row, 0] * 1e3
        axes.axhline(draft_ms, linestyle=(0, (1, 2)), color="0.0", linewidth=1.2, label="drafter pass")
    _draw_marks(axes, profile, width, _curve(profile, nearest, "measured", last))
    axes.set(xlabel="rows verified in one forward", ylabel="target forward and host work (ms)", xlim=(0, last * 1.03))
    axes.set_ylim(bottom=0)
    axes.grid(True, color="0.9")
    axes.legend(loc="upper left", fontsize=8, framealpha=0.9)
    here, title = profile.identity, profile.source or "cost profile"
    if here is not None:
        title = f"{here.device}, threads {here.threads}, {here.dtype}, {here.attention} attention"
    figure.suptitle(title, fontsize=9)
    data = io.BytesIO()
    figure.savefig(data, format="png", metadata={"Title": "Cost profile"})
    write_file(path, data.getvalue())


def _draw_context(axes: Any, profile: CostProfile, at: int, every: np.ndarray, marker: str, grey: str) -> None:
    """Measured points with error bars, and the curve through them."""
    context = int(profile.contexts[at])
    points_ms = (profile.verify_s[at] + profile.host_s) * 1e3
    spread_ms = None if profile.spread_s is None else profile.spread_s[at] * 1e3
    axes.errorbar(
        profile.rows,
        points_ms,
        yerr=spread_ms,
        fmt=marker,
        color=grey,
        markersize=4.5,
        markerfacecolor="white",
        capsize=2,
        linewidth=0.8,
        label=f"context {context}",
    )
    axes.plot(every, _curve(profile, context, "measured", int(every[-1])), color=grey, linewidth=0.9)


def _draw_marks(axes: Any, profile: CostProfile, width: int | None, curve_ms: np.ndarray) -> None:
    for number, step in enumerate(profile.steps):
        label = "step" if number == 0 else None
        axes.axvline(step + 0.5, color="0.0", linestyle=(0, (3, 2, 1, 2)), linewidth=0.8, label=label)
    if width is not None and width + 1 <= len(curve_ms):
        at, seconds_ms = width + 1, curve_ms[width]
        axes.plot([at], [seconds_ms], marker="o", markersize=13, markerfacecolor="none", color="0.0", linewidth=0)
        axes.annotate(
            f"cast: {width} nodes",
            (at, seconds_ms),
            xytext=(14, -22),
            textcoords="offset points",
            fontsize=9,
            arrowprops={"arrowstyle": "-", "color": "0.0", "linewidth": 0.8, "shrinkB": 7},
        )


def _curve(profile: CostProfile, context: int, curve: str, last: int) -> np.ndarray:
    """(last,) milliseconds of 1..last rows of a lone request, drafting left out."""
    costs = profile.round_cost(1, context, max_nodes=last - 1, curve=curve)
    curve_ms: np.ndarray = (costs.round_s - costs.draft_s) * 1e3
    return curve_ms
