"""The settings of the papers' experiments, for any pair.

Widths are those of the papers; what belongs to their drafter (block 16) follows the pair's own block. Prompts are
given by `--prompts`; `limit` is how many the paper takes of a set. Sources: CAST (its tables by number), DDTree
(arXiv 2604.12989), CaDDTree (arXiv 2606.01813).
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from ..errors import UsageError
from ..prompts.units import Unit
from .plan import CHAIN, FIXED, PLAIN, BenchRow, CostNoise, Panel, fixed_row

CAST_K = 8
CAST_SEEDS = (0, 1, 2)
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


PLAIN_AND_CHAIN = (BenchRow(PLAIN, PLAIN), BenchRow(CHAIN, CHAIN))
CAST = BenchRow("cast", "cast", {"candidates": CAST_K, "max_nodes": CAST_WIDTHS[-1]})


def _trees(*widths: int) -> tuple[BenchRow, ...]:
    return (*PLAIN_AND_CHAIN, *(fixed_row(width, candidates=CAST_K) for width in widths))


def make_recipe(name: str, block_size: int) -> Recipe:
    """The recipe for a pair whose drafter has `block_size` rows in a block.

    Raises UsageError, with the names there are, for an unknown one.
    """
    if name not in RECIPES:
        raise UsageError(f"recipe {name!r}: expected one of {', '.join(RECIPES)}")
    if name == SHRINK:
        return shrink_recipe(block_size)
    return (cast_recipes() | budget_recipes() | block_recipes(block_size))[name]


def cast_recipes() -> dict[str, Recipe]:
    """CAST: its rule and a grid of widths."""
    rule = (*PLAIN_AND_CHAIN, CAST)
    long = Panel("512 tokens", _trees(47, 63, 95, 127), 512), Panel("2048 tokens", _trees(63, 127), 2048)
    return {
        "cast-table1": Recipe(
            "CAST, Table 1: the width of the rule against ar and chain, T = 0 and 1",
            (
                Panel("T=0", rule, set_tokens=CAST_TOKENS),
                Panel("T=1", rule, temperature=1.0, seeds=CAST_SEEDS, set_tokens=CAST_TOKENS),
            ),
        ),
        "cast-width-sweep": Recipe(
            "CAST, Tables 2, 8 and 12: every width of the grid",
            (Panel("", (*_trees(*CAST_WIDTHS), CAST), set_tokens=CAST_TOKENS),),
        ),
        "cast-seeds": Recipe(
            "CAST, Tables 3 and 10: sampling at T = 1 under seeds 0 to 2",
            (Panel("T=1", rule, temperature=1.0, seeds=CAST_SEEDS),),
        ),
        "cast-long": Recipe(
            "CAST, Table 14: longer generations",
            tuple(replace(panel, rows=(*panel.rows, CAST)) for panel in long),
        ),
    }


def block_recipes(block_size: int) -> dict[str, Recipe]:
    """CAST: as many rows as a block has, and what a verification costs by rows."""
    probe = (BenchRow(PLAIN, PLAIN), *(fixed_row(rows - 1, candidates=64) for rows in PROBE_ROWS if rows > 1))
    return {
        "cast-shape16": Recipe(
            "CAST, Table 9: tree against chain at as many rows as the block has", (Panel("", _trees(block_size - 1)),)
        ),
        "probe-prefix": Recipe(
            "CAST, Table 6: seconds of a verification by rows and prefix (see stage_s.verify)",
            (Panel("", probe, PROBE_TOKENS, timing=True),),
            limit=None,
            timer="decode",
            prefixes=PREFIXES,
        ),
    }


def budget_recipes() -> dict[str, Recipe]:
    """DDTree and CaDDTree: fixed budgets, and budgets chosen round by round."""
    sweep = (*PLAIN_AND_CHAIN, *(fixed_row(budget) for budget in DDTREE_BUDGETS))
    adaptive = tuple(BenchRow(name, name, {"max_nodes": 1024, "candidates": 64}) for name in ("caddtree", "auto"))
    # The summary of the paper gives no sizes of the disturbances: half to double, one at a time and together.
    noise = [CostNoise()]
    for factor in (0.5, 0.8, 1.25, 2.0):
        noise += [CostNoise(slope=factor), CostNoise(draft=factor), CostNoise(factor, factor)]
    noisy = (
        BenchRow(f"caddtree slope x{item.slope:g} draft x{item.draft:g}", "caddtree", noise=item) for item in noise
    )
    return {
        "ddtree-budget-sweep": Recipe(
            "DDTree, Table 1 and Figure 3: budgets 16 to 1024",
            (Panel("T=0", sweep, 2048), Panel("T=1", sweep, 2048, temperature=1.0)),
            limit=128,
            timer="decode",
        ),
        "caddtree-table": Recipe(
            "CaDDTree, main table: the budget of every round against the oracle of a grid",
            (Panel("", (*sweep, *adaptive), 2048),),
            limit=128,
            timer="decode",
        ),
        "caddtree-cost-noise": Recipe(
            "CaDDTree, ablation: wrong cost parameters",
            (Panel("", (*PLAIN_AND_CHAIN, *noisy)),),
            timer="decode",
        ),
    }


def shrink_recipe(block_size: int) -> Recipe:
    """CAST: a shorter block or a narrower tree. Raises UsageError for a block that cannot be halved."""
    half = max(2, block_size // 2)

    def tree(nodes: int, block: int) -> BenchRow:
        return BenchRow(f"tree {nodes}, block {block}", FIXED, {"budget": nodes, "candidates": CAST_K})

    shrink = (
        BenchRow(PLAIN, PLAIN),
        BenchRow(f"chain, block {half}", CHAIN, block_size=half),
        replace(tree(half - 1, half), budget=half - 1, block_size=half),
        tree(half - 1, block_size),
        BenchRow(CHAIN, CHAIN),
        tree(block_size - 1, block_size),
    )
    return Recipe("CAST, Table 15: a shorter block against a narrower tree", (Panel("", shrink),))


SHRINK = "block-shrink"
RECIPES = (*cast_recipes(), *budget_recipes(), *block_recipes(2), SHRINK)
"""Names."""


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
