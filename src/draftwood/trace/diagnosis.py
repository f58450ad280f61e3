"""The papers' diagnostics of a trace as tables: the same rows for the terminal and for Markdown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ..bench.tables import ABSENT, markdown_table, number, text_grid

RANK_HEADS = ("rounds", "rejections", "rank 2-4", "5-8", "9-32", "beyond")
RELIABILITY_HEADS = (
    "score", "mean score", "hit rate (nodes)", "on the spine", "off the spine", "token, given its parent",
)  # fmt: skip
CAP_HEADS = ("budget", "K", "committed", "rows", "of the widest K", "tokens beyond K")
REGRET_HEADS = ("budget", "accepted", "plug-in regret", "its bound", "against hindsight", "rounds without")
SPLIT_HEADS = ("batch", "uniform", "shared", "hindsight", "shared gain", "hindsight gain")


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
    return [grid for grid in (*score_grids(found), *tree_grids(found)) if grid.rows]


def score_grids(found: Mapping[str, Any]) -> list[Grid]:
    """What the drafter's scores are worth: ranks of corrections, hits by score and by depth, sorted masses."""
    ranks, value, given = (found[name] for name in ("correction_ranks", "reliability", "reliability_given_parent"))
    beyond = ("share_2_to_4", "share_5_to_8", "share_9_to_32", "share_beyond_32")
    rank_row = (str(ranks["rounds"]), str(ranks["events"]), *(_share(ranks[name]) for name in beyond))
    groups = (value["everything"], value["spine"], value["off_spine"], given["everything"])
    edges, by_score, by_depth = value["edges"], [], []
    for at in range(len(edges) - 1):
        shown = [f"{number(group['hit_rate'][at])} ({group['count'][at]})" for group in groups]
        by_score.append((f"{edges[at]:.1f}-{edges[at + 1]:.1f}", number(groups[0]["mean_score"][at]), *shown))
    for depth, group in enumerate(value["by_depth"], start=1):
        total = sum(group["count"])
        if total:
            means = (_mean(group, "mean_score", total), _mean(group, "hit_rate", total))
            by_depth.append((str(depth), str(total), *means))
    masses, threshold, width = (found["masses"][name] for name in ("masses", "threshold", "width"))
    picks = [n for n in (1, 2, 4, 8, 16, 32, 48, 64, 96, 128) if n <= len(masses)]
    needed = {n: ABSENT if threshold is None else f"{threshold[n - 1]:.4f}" for n in picks}
    stops = "" if width is None else f"; the rule of CAST stops at {width} nodes"
    return [
        Grid("Rank of the correction where the chain is first rejected", RANK_HEADS, [rank_row]),
        Grid("Reliability: path scores against hits", RELIABILITY_HEADS, by_score),
        Grid("Reliability by depth", ("depth", "nodes", "mean score", "hit rate"), by_depth),
        Grid(
            f"Mean sorted masses{stops}",
            ("node", "mass", "threshold"),
            [(str(n), f"{masses[n - 1]:.4f}", needed[n]) for n in picks],
        ),
    ]


def tree_grids(found: Mapping[str, Any]) -> list[Grid]:
    """What K, shape and budget are worth, and what hindsight would have chosen."""

    def numbers(row: Mapping[str, Any], *names: str) -> tuple[str, ...]:
        return tuple(number(row[name]) for name in names)

    def shares(row: Mapping[str, Any], *names: str) -> tuple[str, ...]:
        return tuple(_share(row[name]) for name in names)

    caps = [
        (str(row["budget"]), str(row["candidates"]), *numbers(row, "mean_committed", "mean_rows"),
         *shares(row, "against_widest", "share_beyond"))
        for row in found["rank_cap"]
    ]  # fmt: skip
    shapes = [
        (str(row["budget"]), row["shape"], *numbers(row, "mean_committed", "mean_rows")) for row in found["shapes"]
    ]
    regret = [
        (str(row["budget"]), *numbers(row, "accepted", "plug_in", "bound", "hindsight"), *shares(row, "share_without"))
        for row in found["regret"]
    ]
    split = [
        (f"{row['requests']} x {row['nodes_per_request']}", *numbers(row, "uniform", "shared", "hindsight"),
         *shares(row, "shared_gain", "hindsight_gain"))
        for row in found["shared_allocation"]
    ]  # fmt: skip
    return [
        Grid("Candidates per depth", CAP_HEADS, caps),
        Grid("Best-first trees against fixed shapes", ("budget", "shape", "committed", "rows"), shapes),
        Grid("Accepted drafts left behind (CAST, Proposition 1)", REGRET_HEADS, regret),
        Grid("Accepted drafts of a batch under one budget", SPLIT_HEADS, split),
    ]


def _share(value: float | None) -> str:
    return ABSENT if value is None else f"{value:.1%}"


def _mean(group: Mapping[str, Sequence[Any]], name: str, total: int) -> str:
    """Mean over the bins, weighted by nodes."""
    pairs = zip(group["count"], group[name], strict=True)
    return f"{sum(count * value for count, value in pairs if value is not None) / total:.3f}"
