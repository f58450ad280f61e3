"""The settings of the papers' experiments, for any pair.

Widths are those of the papers; what belongs to their drafter (block 16) follows the pair's own block. Prompts are
given by `--prompts`; `limit` is how many the paper takes of a set. Sources: CAST (its tables by number), DDTree
(arXiv 2604.12989), CaDDTree (arXiv 2606.01813).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from ..errors import UsageError
from ..prompts.units import Unit
from .plan import CHAIN, PLAIN, BenchRow, CostNoise, Panel, fixed_row

CAST_K = 8
CAST_WIDTHS = (15, 31, 47, 63, 95, 127)
CAST_TOKENS = {"math500": 512, "math-500": 512, "mbpp": 512}
DDTREE_BUDGETS = (16, 32, 64, 128, 256, 512, 1024)
PREFIXES = (1024, 4096, 8192, 16384)
PROBE_ROWS = (1, 16, 32, 64, 128)
PROBE_TOKENS = 40


@dataclass(frozen=True, slots=True)
class Recipe:
    """A paper's experiment."""

    title: str
    panels: tuple[Panel, ...]
    limit: int | None = 40
    """Prompts a set."""
    timer: str = "paper"
    prefixes: tuple[int, ...] = ()
    """Lengths of random prompts that stand in for prompt sets."""


def _plain_and_chain(block_size: int | None = None) -> tuple[BenchRow, ...]:
    return (BenchRow(PLAIN, PLAIN), BenchRow(CHAIN, CHAIN, block_size=block_size))


def _cast() -> BenchRow:
    return BenchRow("cast", "cast", {"candidates": CAST_K, "max_nodes": CAST_WIDTHS[-1]})


def _cast_trees(widths: tuple[int, ...]) -> tuple[BenchRow, ...]:
    return tuple(fixed_row(width, candidates=CAST_K) for width in widths)


def _cast_table1(block_size: int) -> Recipe:
    rows = (*_plain_and_chain(), _cast())
    greedy = Panel("T=0", rows, 256, set_tokens=CAST_TOKENS)
    sampled = Panel("T=1", rows, 256, temperature=1.0, seeds=(0, 1, 2), set_tokens=CAST_TOKENS)
    return Recipe("CAST, Table 1: the width of the rule against ar and chain, T = 0 and 1", (greedy, sampled))


def _cast_width_sweep(block_size: int) -> Recipe:
    rows = (*_plain_and_chain(), *_cast_trees(CAST_WIDTHS), _cast())
    return Recipe("CAST, Tables 2, 8 and 12: every width of the grid", (Panel("", rows, 256, set_tokens=CAST_TOKENS),))


def _cast_shape16(block_size: int) -> Recipe:
    rows = (*_plain_and_chain(), *_cast_trees((block_size - 1,)))
    return Recipe("CAST, Table 9: tree against chain at as many rows as the block has", (Panel("", rows, 256),))


def _cast_seeds(block_size: int) -> Recipe:
    panel = Panel("T=1", (*_plain_and_chain(), _cast()), 256, temperature=1.0, seeds=(0, 1, 2))
    return Recipe("CAST, Tables 3 and 10: sampling at T = 1 under seeds 0 to 2", (panel,))


def _cast_long(block_size: int) -> Recipe:
    short = (*_plain_and_chain(), *_cast_trees((47, 63, 95, 127)), _cast())
    long = (*_plain_and_chain(), *_cast_trees((63, 127)), _cast())
    panels = (Panel("512 tokens", short, 512), Panel("2048 tokens", long, 2048))
    return Recipe("CAST, Table 14: longer generations", panels)


def _ddtree_budget_sweep(block_size: int) -> Recipe:
    rows = (*_plain_and_chain(), *(fixed_row(budget) for budget in DDTREE_BUDGETS))
    panels = (Panel("T=0", rows, 2048), Panel("T=1", rows, 2048, temperature=1.0))
    return Recipe("DDTree, Table 1 and Figure 3: budgets 16 to 1024", panels, limit=128, timer="decode")


def _caddtree_table(block_size: int) -> Recipe:
    rows = (
        *_plain_and_chain(),
        *(fixed_row(budget) for budget in DDTREE_BUDGETS),
        BenchRow("caddtree", "caddtree", {"max_nodes": 1024, "candidates": 64}),
        BenchRow("auto", "auto", {"max_nodes": 1024, "candidates": 64}),
    )
    title = "CaDDTree, main table: the budget of every round against the oracle of a grid"
    return Recipe(title, (Panel("", rows, 2048),), limit=128, timer="decode")


def _caddtree_cost_noise(block_size: int) -> Recipe:
    # The summary of the paper gives no sizes of the disturbances: half to double, one at a time and together.
    noise = [CostNoise()]
    for factor in (0.5, 0.8, 1.25, 2.0):
        noise += [CostNoise(slope=factor), CostNoise(draft=factor), CostNoise(factor, factor)]
    rows = (
        *_plain_and_chain(),
        *(BenchRow(f"caddtree slope x{item.slope:g} draft x{item.draft:g}", "caddtree", noise=item) for item in noise),
    )
    return Recipe("CaDDTree, ablation: wrong cost parameters", (Panel("", rows, 256),), timer="decode")


def _block_shrink(block_size: int) -> Recipe:
    half = max(2, block_size // 2)
    rows = (
        BenchRow(PLAIN, PLAIN),
        BenchRow(f"chain, block {half}", CHAIN, block_size=half),
        BenchRow(
            f"tree {half - 1}, block {half}", "ddtree", {"budget": half - 1, "candidates": CAST_K}, half - 1, half
        ),
        BenchRow(f"tree {half - 1}, block {block_size}", "ddtree", {"budget": half - 1, "candidates": CAST_K}),
        BenchRow(CHAIN, CHAIN),
        BenchRow(
            f"tree {block_size - 1}, block {block_size}", "ddtree", {"budget": block_size - 1, "candidates": CAST_K}
        ),
    )
    return Recipe("CAST, Table 15: a shorter block against a narrower tree", (Panel("", rows, 256),))


def _probe_prefix(block_size: int) -> Recipe:
    trees = tuple(fixed_row(rows - 1, candidates=64) for rows in PROBE_ROWS if rows > 1)
    panel = Panel("", (BenchRow(PLAIN, PLAIN), *trees), PROBE_TOKENS, timing=True)
    title = "CAST, Table 6: seconds of a verification by rows and prefix (see stage_s.verify)"
    return Recipe(title, (panel,), limit=None, timer="decode", prefixes=PREFIXES)


RECIPES: dict[str, Callable[[int], Recipe]] = {
    "cast-table1": _cast_table1,
    "cast-width-sweep": _cast_width_sweep,
    "cast-shape16": _cast_shape16,
    "cast-seeds": _cast_seeds,
    "cast-long": _cast_long,
    "ddtree-budget-sweep": _ddtree_budget_sweep,
    "caddtree-table": _caddtree_table,
    "caddtree-cost-noise": _caddtree_cost_noise,
    "block-shrink": _block_shrink,
    "probe-prefix": _probe_prefix,
}
"""Name -> recipe for a pair whose drafter has so many rows in a block."""


def check_recipe(name: str) -> str:
    """Return `name`; raises UsageError, with the names there are, for another."""
    if name not in RECIPES:
        raise UsageError(f"recipe {name!r}: expected one of {', '.join(RECIPES)}")
    return name


def prefix_units(prefixes: tuple[int, ...], context_limit: int, vocab_size: int) -> list[Unit]:
    """Random prompts of the wanted lengths, those that leave no room for the probe's tokens left out.

    Raises UsageError when none fits.
    """
    units = []
    for length in prefixes:
        if length + PROBE_TOKENS <= context_limit:
            ids = [(index * 7919 + 13) % vocab_size for index in range(length)]
            units.append(Unit(f"prefix-{length}", "0", tuple(ids)))
    if not units:
        raise UsageError(f"context limit {context_limit}: shorter than the shortest prefix, {prefixes[0]}")
    return units
