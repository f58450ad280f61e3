"""The papers' diagnostics of a trace as tables: the same rows for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ..bench.tables import ABSENT, markdown_table, number, text_grid


class Grid(NamedTuple):
    """One table."""

    title: str
    heads: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]


def diagnosis_text(found: Mapping[str, Any], encoding: str) -> str:
    """All tables of `replays.diagnose` for a terminal."""
    text = "".join(text_grid(grid.title, grid.heads, grid.rows, encoding) for grid in diagnosis_grids(found))
    note = "these rounds are one policy's own: what it did not visit is missing from every table above\n"
    return text + (note if found["biased"] else "")


def diagnosis_markdown(found: Mapping[str, Any]) -> str:
    """The same as Markdown."""
    return "\n\n".join(
        f"**{grid.title}**\n\n{markdown_table(grid.heads, grid.rows)}" for grid in diagnosis_grids(found)
    )


def diagnosis_grids(found: Mapping[str, Any]) -> list[Grid]:
    """Every table, in the order of the papers' figures."""
    makers: tuple[Callable[[Mapping[str, Any]], Grid], ...] = (
        _ranks, _reliability_by_score, _reliability_by_depth, _masses, _caps, _shapes, _regret, _allocation,
    )  # fmt: skip
    return [grid for grid in (make(found) for make in makers) if grid.rows]


def _ranks(found: Mapping[str, Any]) -> Grid:
    value = found["correction_ranks"]
    names = ("share_2_to_4", "share_5_to_8", "share_9_to_32", "share_beyond_32")
    row = (str(value["rounds"]), str(value["events"]), *(_share(value[name]) for name in names))
    heads = ("rounds", "rejections", "rank 2-4", "5-8", "9-32", "beyond")
    return Grid("Rank of the correction where the chain is first rejected", heads, [row])


def _reliability_by_score(found: Mapping[str, Any]) -> Grid:
    """Hit rate by score: everything, the spine, off the spine, and given that the parent was right."""
    value, given = found["reliability"], found["reliability_given_parent"]
    groups = (value["everything"], value["spine"], value["off_spine"], given["everything"])
    edges = value["edges"]
    rows = []
    for at in range(len(edges) - 1):
        shown = [f"{number(group['hit_rate'][at])} ({group['count'][at]})" for group in groups]
        rows.append((f"{edges[at]:.1f}-{edges[at + 1]:.1f}", number(groups[0]["mean_score"][at]), *shown))
    heads = ("score", "mean score", "hit rate (nodes)", "on the spine", "off the spine", "token, given its parent")
    return Grid("Reliability: path scores against hits", heads, rows)


def _reliability_by_depth(found: Mapping[str, Any]) -> Grid:
    rows = []
    for depth, group in enumerate(found["reliability"]["by_depth"], start=1):
        total = sum(group["count"])
        if total:
            rows.append((str(depth), str(total), _mean(group, "mean_score", total), _mean(group, "hit_rate", total)))
    return Grid("Reliability by depth", ("depth", "nodes", "mean score", "hit rate"), rows)


def _masses(found: Mapping[str, Any]) -> Grid:
    value = found["masses"]
    picks = [n for n in (1, 2, 4, 8, 16, 32, 48, 64, 96, 128) if n <= len(value["masses"])]
    threshold = value["threshold"]
    rows = [
        (str(n), f"{value['masses'][n - 1]:.4f}", ABSENT if threshold is None else f"{threshold[n - 1]:.4f}")
        for n in picks
    ]
    width = "" if value["width"] is None else f"; the rule of CAST stops at {value['width']} nodes"
    return Grid(f"Mean sorted masses{width}", ("node", "mass", "threshold"), rows)


def _caps(found: Mapping[str, Any]) -> Grid:
    rows = [
        (str(row["budget"]), str(row["candidates"]), number(row["mean_committed"]), number(row["mean_rows"]),
         _share(row["against_widest"]), _share(row["share_beyond"]))
        for row in found["rank_cap"]
    ]  # fmt: skip
    heads = ("budget", "K", "committed", "rows", "of the widest K", "tokens beyond K")
    return Grid("Candidates per depth", heads, rows)


def _shapes(found: Mapping[str, Any]) -> Grid:
    rows = [
        (str(row["budget"]), row["shape"], number(row["mean_committed"]), number(row["mean_rows"]))
        for row in found["shapes"]
    ]
    return Grid("Best-first trees against fixed shapes", ("budget", "shape", "committed", "rows"), rows)


def _regret(found: Mapping[str, Any]) -> Grid:
    rows = [
        (str(row["budget"]), *(number(row[name]) for name in ("accepted", "plug_in", "bound", "hindsight")),
         _share(row["share_without"]))
        for row in found["regret"]
    ]  # fmt: skip
    heads = ("budget", "accepted", "plug-in regret", "its bound", "against hindsight", "rounds without")
    return Grid("Accepted drafts left behind (CAST, Proposition 1)", heads, rows)


def _allocation(found: Mapping[str, Any]) -> Grid:
    rows = [
        (f"{row['requests']} x {row['nodes_per_request']}",
         *(number(row[name]) for name in ("uniform", "shared", "hindsight")),
         _share(row["shared_gain"]), _share(row["hindsight_gain"]))
        for row in found["shared_allocation"]
    ]  # fmt: skip
    heads = ("batch", "uniform", "shared", "hindsight", "shared gain", "hindsight gain")
    return Grid("Accepted drafts of a batch under one budget", heads, rows)


def _share(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.1%}"


def _mean(group: Mapping[str, Sequence[Any]], name: str, total: int) -> str:
    """Mean over the bins, weighted by nodes."""
    pairs = zip(group["count"], group[name], strict=True)
    return f"{sum(count * value for count, value in pairs if value is not None) / total:.3f}"
