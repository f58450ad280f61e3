"""The papers' settings, as they are printed."""

from __future__ import annotations

import pytest

from draftwood.bench.plan import Panel
from draftwood.bench.recipes import Recipe, make_recipe, prefix_units
from draftwood.errors import UsageError


def recipe(name: str) -> Recipe:
    return make_recipe(name, 16)


def budgets(panel: Panel) -> list[int]:
    return [row.budget for row in panel.rows if row.budget is not None]


def test_widths_and_caps_of_cast() -> None:
    """Tables 1, 8, 9, 10, 14 and 15 with the protocol of appendices D and E."""
    sweep = recipe("cast-width-sweep")
    assert budgets(sweep.panels[0]) == [15, 31, 47, 63, 95, 127]
    assert all(row.options["candidates"] == 8 for row in sweep.panels[0].rows if row.budget is not None)
    assert sweep.limit == 40 and sweep.timer == "paper"
    greedy, sampled = recipe("cast-table1").panels
    assert [greedy.tokens_for(name) for name in ("gsm8k", "math500", "mbpp", "mt_bench")] == [256, 512, 512, 256]
    assert (sampled.temperature, sampled.seeds) == (1.0, (0, 1, 2))
    assert budgets(recipe("cast-shape16").panels[0]) == [15]
    assert [panel.seeds for panel in recipe("cast-seeds").panels] == [(0, 1, 2)]
    assert [(panel.max_tokens, budgets(panel)) for panel in recipe("cast-long").panels] == [
        (512, [47, 63, 95, 127]), (2048, [63, 127]),
    ]  # fmt: skip
    shrink = {row.label: (row.options.get("budget"), row.block_size) for row in recipe("block-shrink").panels[0].rows}
    assert shrink == {
        "ar": (None, None), "chain, block 8": (None, 8), "tree 7, block 8": (7, 8), "tree 7, block 16": (7, None),
        "chain": (None, None), "tree 15, block 16": (15, None),
    }  # fmt: skip


def test_budgets_of_ddtree_and_caddtree() -> None:
    panels = recipe("ddtree-budget-sweep").panels
    assert [panel.temperature for panel in panels] == [0.0, 1.0] and {panel.max_tokens for panel in panels} == {2048}
    assert budgets(panels[0]) == [16, 32, 64, 128, 256, 512, 1024]
    table = recipe("caddtree-table").panels[0]
    assert "caddtree" in [row.policy for row in table.rows] and budgets(table) == budgets(panels[0])
    noisy = [row.noise for row in recipe("caddtree-cost-noise").panels[0].rows if row.noise is not None]
    assert (noisy[0].slope, noisy[0].draft) == (1.0, 1.0) and len(noisy) == 13


def test_shape_follows_the_pairs_own_block() -> None:
    assert budgets(make_recipe("cast-shape16", 8).panels[0]) == [7]


def test_prefix_probe() -> None:
    probe = recipe("probe-prefix")
    assert probe.prefixes == (1024, 4096, 8192, 16384) and probe.panels[0].timing
    assert [row.options.get("budget", 0) + 1 for row in probe.panels[0].rows] == [1, 16, 32, 64, 128]
    units = prefix_units((64, 128, 500), 256, 50)
    assert [(unit.set_name, len(unit.prompt_ids)) for unit in units] == [("prefix-64", 64), ("prefix-128", 128)]
    assert max(max(unit.prompt_ids) for unit in units) < 50
    with pytest.raises(UsageError, match="context limit 100"):
        prefix_units((64,), 100, 50)


def test_unknown_name() -> None:
    with pytest.raises(UsageError, match="expected one of cast-table1"):
        make_recipe("cast-table2", 16)
