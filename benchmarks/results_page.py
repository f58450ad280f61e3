"""The page that `results.py` writes: the numbers of its parts as Markdown, and nothing that is not in them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from draftwood.bench.runner import Sample
from draftwood.bench.session import BenchRun
from draftwood.bench.stats import rate_ratio
from draftwood.bench.summary import OVERALL, counted
from draftwood.bench.tables import cells, groups, headings, markdown_table, notes, number
from draftwood.trace.arms import ReplayLine


def facts(where: Mapping[str, Any], model: str, sets: Mapping[str, int], tokens: int) -> str:
    """Machine, settings, versions: what the numbers belong to."""
    machine, git = where["hardware"], where["git"]
    sizes = ", ".join(f"{name} {count}" for name, count in sets.items())
    versions = ", ".join(f"{name} {version}" for name, version in where["versions"].items())
    lines = [
        f"machine: {machine['device_name']}, {machine['cores']} cores, {machine.get('capability', '')}",
        f"dtype {machine['dtype']}, {machine['threads']} threads, greedy, {tokens} tokens a prompt",
        f"prompts: {sizes}",
        f"pair: {model}; revision {git['revision']}{' (dirty)' if git['dirty'] else ''}; {versions}",
        "intervals: 95 %, paired bootstrap over prompts, 10,000 resamples",
    ]
    return "\n".join(f"- {line}" for line in lines)


def replay_text(replays: dict[str, Any], best: int) -> str:
    """The sweep set by set, and every adaptive policy beside the oracle of its set."""
    lines = [ReplayLine(**line) for line in replays["lines"]]
    names = list(dict.fromkeys(line.set for line in lines))
    plain = {line.set: line.tokens_per_s for line in lines if line.arm == "ar"}
    oracle = {
        name: max(
            (line for line in lines if line.set == name and line.budget is not None),
            key=lambda line: line.tokens_per_s or 0,
        )
        for name in names
    }
    rows = []
    for arm in dict.fromkeys(line.arm for line in lines):
        own = {line.set: line for line in lines if line.arm == arm}
        shown = [f"{own[name].tokens_per_s / plain[name]:.3f}" for name in names]  # type: ignore[operator]
        against = [f"{own[name].tokens_per_s / oracle[name].tokens_per_s:.3f}" for name in names]  # type: ignore[operator]
        whole = own[OVERALL]
        rows.append(
            (arm, *shown, *against, number(whole.mean_committed), number(whole.mean_rows), number(whole.sd_rows))
        )
    heads = (
        "arm", *(f"{name}: over ar" for name in names), *(f"{name}: over its oracle" for name in names), "committed",
        "rows", "sd",
    )  # fmt: skip
    chosen = ", ".join(f"{name} {line.budget}" for name, line in oracle.items())
    text = (
        "Every position of the texts was drafted, so each arm is replayed exactly; seconds are those of the cost "
        "profile, not of this run. Budgets: those asked for, and every measured number of rows without its root. "
        f"Oracle budgets: {chosen}. The five arms below use {best}."
    )
    return f"### Width sweep by replay\n\n{text}\n\n{markdown_table(heads, rows)}"


def shape_alone(lines: Sequence[dict[str, Any]], depth: int) -> str:
    """Tree against chain at as many rows as the block has: only the shape differs (CAST, Table 9)."""
    rows = []
    for name in dict.fromkeys(line["set"] for line in lines):
        own = {line["arm"]: line for line in lines if line["set"] == name}
        chain, tree = own["chain"], own[f"ddtree {depth}"]
        gain = tree["tokens_per_s"] / chain["tokens_per_s"] - 1
        rows.append((name, number(chain["mean_committed"]), number(tree["mean_committed"]), f"{gain:+.1%}"))
    heads = ("set", "chain committed", f"tree of {depth} committed", "gain of the shape")
    return f"**Tree against chain at {depth + 1} rows**\n\n{markdown_table(heads, rows)}"


def bench_text(run: BenchRun, *, overall_only: bool = False) -> str:
    """The tables of a run, set by set or overall alone."""
    parts = []
    for title, lines in groups(run):
        if overall_only and lines[0].set_name != OVERALL and len(groups(run)) > 1:
            continue
        table = markdown_table(headings(lines[0].timer), [cells(line) for line in lines])
        parts.append(f"**{title}**\n\n{table}\n\n" + "\n".join(f"- {note}" for note in notes(lines, run.floor)))
    return "\n\n".join(parts)


def spread(samples: Sequence[Sample]) -> str:
    """Speeds of every repeat: how much the machine itself moved. Bounds of auto over the best fixed budget."""
    rows = []
    for label in dict.fromkeys(sample.row for sample in samples):
        speeds = []
        for repeat in sorted({sample.repeat for sample in samples}):
            own = [sample for sample in samples if (sample.row, sample.repeat) == (label, repeat)]
            speeds.append(sum(len(s.token_ids) - 1 for s in own) / sum(s.decode_s for s in own))
        rows.append((label, *(f"{speed:.2f}" for speed in speeds), f"{max(speeds) / min(speeds) - 1:.1%}"))
    heads = ("row", *(f"repeat {at + 1}, tokens/s" for at in range(len(rows[0]) - 2)), "spread")
    return f"{markdown_table(heads, rows)}\n\n{_auto_bounds(samples)}"


def _auto_bounds(samples: Sequence[Sample]) -> str:
    def columns(label: str) -> tuple[np.ndarray, np.ndarray]:
        prompts = list(dict.fromkeys((s.set_name, s.prompt_id) for s in samples))
        own = [[s for s in samples if s.row == label and (s.set_name, s.prompt_id) == at] for at in prompts]
        tokens = np.array([sum(len(s.token_ids) - 1 for s in runs) for runs in own], dtype=float)
        return tokens, np.array([sum(s.decode_s for s in runs) for runs in own])

    fixed = next(sample.row for sample in samples if sample.row.startswith("ddtree"))
    parts = []
    for base in (fixed, "ar", "chain"):
        tokens, seconds, base_tokens, base_s = counted(np.stack([*columns("auto"), *columns(base)]))
        if not len(tokens):
            continue
        found = rate_ratio((tokens, seconds), (base_tokens, base_s))
        parts.append(f"auto over {base}: {found.value:.3f}, 95 % {found.low:.3f} to {found.high:.3f}")
    return "- " + "\n- ".join(parts)


def cost_text(costs: Mapping[str, Any]) -> str:
    """Errors of predicted round seconds."""
    rows = [
        (name, f"{value['median_abs']:.1%}", f"{value['p90_abs']:.1%}", f"{value['median']:+.1%}")
        for name, value in costs.items()
        if isinstance(value, dict)
    ]
    heads = ("prediction", "median error", "90th percentile", "median with sign")
    note = f"{costs['rounds']} rounds of auto, stages timed one by one; error = predicted / measured - 1."
    return f"{note}\n\n{markdown_table(heads, rows)}"
