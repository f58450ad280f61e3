"""`draftwood simulate`: the width that a policy would choose on hardware that is not here."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ...errors import UsageError
from ..io import write, write_json
from ..options import JsonOption, at_least_one, number
from .profile import integers

if TYPE_CHECKING:
    from ...trace.simulate import SimulationResult

CostsOption = Annotated[str, typer.Option("--costs", metavar="FILE", help="A cost table or profile.")]
MassesOption = Annotated[str, typer.Option("--masses", metavar="FILE", help="A JSON list of mean sorted masses.")]
PolicyOption = Annotated[str, typer.Option("--policy", help="The policy that chooses.")]
GridOption = Annotated[str | None, typer.Option("--grid", metavar="N,N", help="Allowed widths; default: all.")]
DraftOption = Annotated[
    float | None, typer.Option("--draft-ms", parser=number, metavar="MS", help="Milliseconds of a drafter pass.")
]
FitOption = Annotated[
    str | None, typer.Option("--fit-rows", metavar="A,B", help="Rows over which the slope is fitted; default: 16,128.")
]
ContextOption = Annotated[
    int, typer.Option("--context", parser=at_least_one, metavar="L", help="The measured context nearest to it counts.")
]


def simulate(
    costs: CostsOption,
    masses: MassesOption,
    policy: PolicyOption = "auto",
    grid: GridOption = None,
    draft_ms: DraftOption = None,
    fit_rows: FitOption = None,
    context: ContextOption = 1024,
    as_json: JsonOption = False,
) -> None:
    """Predict width and speed from a table of costs and a curve of masses; no model is loaded."""
    from ...cost.profile import CostProfile
    from ...policy.cast import FIT_ROWS
    from ...trace.simulate import load_masses
    from ...trace.simulate import simulate as run

    slope = FIT_ROWS if fit_rows is None else integers(fit_rows, "--fit-rows")
    if len(slope) != 2 or not 1 <= slope[0] < slope[1]:
        raise UsageError(f"--fit-rows {fit_rows!r}: expected two increasing numbers of rows, such as 16,128")
    widths = None if grid is None else integers(grid, "--grid")
    result = run(
        CostProfile.load(costs),
        load_masses(masses),
        policy,
        grid=widths,
        draft_ms=draft_ms,
        fit_rows=(slope[0], slope[1]),
        context=context,
    )
    if as_json:
        write_json(result.to_json())
    else:
        write(table(result, policy))


def table(result: SimulationResult, policy: str) -> str:
    """Expected tokens per second by width, the chosen one marked."""
    lines = [f"{'width':>6}  {'tokens/s':>9}"]
    for width, rate in result.tokens_per_s_by_width.items():
        lines.append(f"{width:>6}  {rate:>9.1f}{'  <- ' + policy if width == result.width else ''}")
    clamped = ", a negative slope counted as 0" if result.slope_clamped else ""
    lines.append(
        f"threshold {result.threshold:.4f} at that width, c1 {result.c1 * 1e6:.1f} microseconds a row{clamped}"
    )
    return "\n".join(lines) + "\n"
