"""`draftwood replay`: policies, budgets and shapes on a trace, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..evidence import load_profile, names, numbers
from ..grids import encoding_of
from ..io import stdout_for_results, write, write_json
from ..options import JsonOption

if TYPE_CHECKING:
    from ...trace.arms import ReplayLine

TraceArgument = Annotated[Path, typer.Argument(metavar="TRACE", help="A trace of draftwood record (.npz).")]
PoliciesOption = Annotated[
    str | None, typer.Option("--policies", metavar="NAMES", help="Policies; default: all, by cost only with --profile.")
]
BudgetsOption = Annotated[
    str | None,
    typer.Option("--budgets", metavar="N,N,...", help="One ddtree row, and one of each shape, for each of these."),
]
ProfileOption = Annotated[
    Path | None, typer.Option("--profile", metavar="FILE", help="Costs of a round, as `draftwood profile` writes them.")
]
ShapesOption = Annotated[
    str | None, typer.Option("--shapes", metavar="NAMES", help="Fixed shapes: medusa, binary, chain.")
]
PartOption = Annotated[
    str | None,
    typer.Option(
        "--part", metavar="PART", help="Of a union's trace: only its scores, or only its trees; default: both."
    ),
]
BySetOption = Annotated[bool, typer.Option("--by-set", help="A table for every prompt set too.")]
DiagnosticsOption = Annotated[
    bool, typer.Option("--diagnostics", help="Print the papers' diagnostics of the drafter too.")
]


def replay(
    trace: TraceArgument,
    policies: PoliciesOption = None,
    budgets: BudgetsOption = None,
    shapes: ShapesOption = None,
    profile: ProfileOption = None,
    part: PartOption = None,
    by_set: BySetOption = False,
    diagnostics: DiagnosticsOption = False,
    as_json: JsonOption = False,
) -> None:
    """Score policies on recorded rounds: committed length, and tokens/s under a cost profile."""
    costs = load_profile(profile)
    sizes = numbers(budgets, "--budgets")
    from ...bench.summary import OVERALL
    from ...trace.arms import arms_of, diagnose, replay_lines, with_gains
    from ...trace.format import load

    with stdout_for_results() as results:
        recorded = load(trace)
        recorded = recorded if part is None else recorded.part(part)
        if costs is not None:
            costs = with_gains(costs, recorded)
        chosen = None if policies is None else names(policies)
        arms = arms_of(chosen, sizes, names(shapes), recorded, costs)
        lines, notes = replay_lines(recorded, arms, costs)
        shown = [line for line in lines if by_set or line.set == OVERALL]
        found = diagnose(recorded, costs, sizes) if diagnostics else None
        if as_json:
            head = {"trace": str(trace), "every_position": recorded.meta.every_position, "policy": recorded.meta.policy}
            body: dict[str, Any] = {"lines": [asdict(line) for line in shown], "notes": notes}
            write_json(head | body | ({} if found is None else {"diagnostics": found}), results)
            return
        encoding = encoding_of(results)
        write(_tables(shown, notes, encoding), results)
        if found is not None:
            from ...trace.diagnosis import diagnosis_text

            write(diagnosis_text(found, encoding), results)


def _tables(lines: Sequence[ReplayLine], notes: Sequence[str], encoding: str) -> str:
    from ...bench.tables import number, text_grid

    heads = ("arm", "tokens/s", "committed", "rows (sd)", "skipped", "rounds", "")
    parts = []
    for name in dict.fromkeys(line.set for line in lines):
        rows = [
            (
                line.arm,
                number(line.tokens_per_s),
                number(line.mean_committed),
                "-" if line.mean_rows is None else f"{line.mean_rows:.1f} ({line.sd_rows:.1f})",
                str(line.skipped_rounds),
                str(line.rounds),
                "biased" if line.biased else "",
            )
            for line in lines
            if line.set == name
        ]
        parts.append(text_grid(name, heads, rows, encoding))
    return "".join(parts) + "".join(f"{note}\n" for note in notes)
