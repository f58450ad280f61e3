"""Measures this machine and writes docs/results.md, whatever the numbers say: python benchmarks/results.py

Parts, each kept in the work folder as it ends, so that an interrupted run goes on where it stopped:
  trace    every position of every text is drafted: the record that the replays read
  replay   width sweep, cost-aware policies and variants of auto under the cost profile, set by set
  ablate   tree against chain at the block's rows, candidates per depth, fixed shapes, calibration curve
  sweep    the same widths by wall clock, with transformers' own decoding under the same timer
  arms     ar, chain, the best fixed budget of the replay, caddtree and auto, interleaved and repeated
  costs    predicted against measured seconds of the rounds of auto

Without --prompts it takes 20 prompts of each set of the project's own, and the page says so. Shrink it with --limit,
--tokens, --widths, --sweep-prompts, --arm-prompts and --repeats.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import results_page as page
from sections import write_section

from draftwood import Engine
from draftwood.bench.load import LoadWatch
from draftwood.bench.methods import Pair, load_methods
from draftwood.bench.plan import BenchRow, Panel, rows_of
from draftwood.bench.provenance import provenance
from draftwood.bench.results import SampleStore
from draftwood.bench.runner import Sample
from draftwood.bench.session import BenchOptions, BenchRun, reference_answer, run_bench
from draftwood.bench.summary import OVERALL
from draftwood.bench.tables import run_doubts
from draftwood.cost.profile import CostProfile, CostWarning
from draftwood.errors import DraftwoodError
from draftwood.models.quiet import quiet_libraries
from draftwood.policy import make_policy
from draftwood.prompts.hub import load_sets, split_names
from draftwood.prompts.sets import BUNDLED_SETS, PromptSet
from draftwood.prompts.units import Unit, render
from draftwood.trace.arms import arms_of, diagnose, replay_lines, with_gains
from draftwood.trace.diagnosis import diagnosis_markdown
from draftwood.trace.format import Trace, load
from draftwood.trace.grown import Nursery
from draftwood.trace.record import RecordOptions, record

ROOT = Path(__file__).parents[1]
WIDTHS = "1,4,8,12,16,24,32,48,64"
VARIANTS: dict[str, dict[str, Any]] = {
    "auto, local rate": {"rate": "local"},
    "auto, calibrated": {"calibration": True},
    "auto, never skips": {"skipping": False},
}


@dataclass(frozen=True)
class Study:
    """Everything that the parts share."""

    args: argparse.Namespace
    engine: Engine
    profile: CostProfile
    sets: list[PromptSet]
    units: list[Unit]
    widths: list[int]
    work: Path

    def kept(self, name: str, make: Callable[[], Any]) -> Any:
        """The part's JSON: as it was left by an earlier run, or made now."""
        path = self.work / f"{name}.json"
        if not path.exists():
            say(f"part {name}")
            text = json.dumps(make(), allow_nan=False)
            path.write_text(text, encoding="utf-8")
        return json.loads(path.read_text(encoding="utf-8"))


def main() -> int:
    """Measure and write; exit code 2 and one line for bad input."""
    args = _options()
    quiet_libraries()
    warnings.simplefilter("ignore", CostWarning)
    try:
        watch = LoadWatch()
        body = report(prepare(args))
        body += "".join(f"\n\n{doubt}." for doubt in run_doubts(BenchRun([], load=watch.foreign_cores())))
        write_section(args.output, "measured", body)
    except DraftwoodError as error:
        print(f"results: error: {error}", file=sys.stderr)
        return 2
    print(args.output)
    return 0


def prepare(args: argparse.Namespace) -> Study:
    """Load prompts, pair and costs; the work folder remembers what it was made with."""
    limit = args.limit or (None if args.prompts else 20)
    sets = load_sets(split_names(args.prompts) if args.prompts else list(BUNDLED_SETS), limit)
    engine = Engine.load(args.model, args.drafter, dtype=args.dtype, threads=args.threads, device=args.device)
    args.work.mkdir(parents=True, exist_ok=True)
    stored = args.work / "profile.json"
    if args.profile is not None:
        profile = CostProfile.load(args.profile)
    else:
        profile = CostProfile.load(stored) if stored.exists() else engine.ensure_costs()
    if engine.identity is not None:
        profile.check_identity(engine.identity, args.allow_stale_profile)
    profile.save(stored)
    assert engine.codec is not None
    units = render(sets, engine.codec, reference_answer(engine, args.tokens))
    widths = [int(width) for width in args.widths.split(",")]
    study = Study(args, engine, profile, sets, units, widths, args.work)
    made = {
        "model": args.model, "dtype": engine.dtype_name, "threads": engine.threads, "tokens": args.tokens,
        "units": [unit.prompt_hash for unit in units], "widths": widths, "arms": [args.arm_prompts, args.repeats],
        "profile": profile.to_json(),
    }  # fmt: skip
    if study.kept("settings", lambda: made) != json.loads(json.dumps(made)):
        raise DraftwoodError(
            f"work folder {args.work}: made with other settings, prompts or costs; give another --work"
        )
    return study


def report(study: Study) -> str:
    """All parts as Markdown, in order."""
    args, engine = study.args, study.engine
    trace = _trace(study)
    profile = with_gains(study.profile, trace)
    nursery = Nursery(trace)
    replays = study.kept("replay", lambda: _replays(study, trace, profile, nursery))
    found = study.kept("ablate", lambda: diagnose(trace, profile, (trace.rounds.logp.shape[1], 47)))
    best = _best_budget(replays["lines"])
    engine.use_profile(profile)
    adaptive = ["ar", "chain", "caddtree", "auto"]
    some = _some(study, args.sweep_prompts)
    sweep, _ = _bench(study, profile, "sweep", rows_of(adaptive, study.widths), some)
    few = _some(study, args.arm_prompts)
    arms, arm_samples = _bench(study, profile, "arms", rows_of(adaptive, [best]), few, args.repeats)
    costs = study.kept("costs", lambda: _cost_errors(study, profile))
    where = provenance(engine, sys.argv, 0)
    own = "" if args.prompts else f" Prompts: {args.limit or 20} a set of the project's own, no public benchmark."
    parts = [
        "## Measured on this machine",
        f"`python benchmarks/results.py{' ' + ' '.join(sys.argv[1:]) if sys.argv[1:] else ''}`.{own}",
        page.facts(where.to_json(), args.model, {item.name: len(item.prompts) for item in study.sets}, args.tokens),
        page.replay_text(replays, best),
        "### Ablations by replay",
        page.shape_alone(replays["lines"], trace.rounds.logp.shape[1]),
        diagnosis_markdown(found),
        f"### Width sweep by wall clock: {len(some)} prompts x {args.tokens} tokens",
        page.bench_text(sweep),
        f"### Five arms, interleaved: {args.repeats} repeats x {len(few)} prompts x {args.tokens} tokens",
        page.bench_text(arms, overall_only=True),
        page.spread(arm_samples),
        "### Predicted against measured seconds of a round",
        page.cost_text(costs),
    ]
    return "\n\n".join(parts)


def _trace(study: Study) -> Trace:
    path = study.work / "trace.npz"
    if not path.exists():
        say("part trace")
        done = iter(range(1, len(study.units) + 1))
        how = RecordOptions(study.args.tokens, batch=8)
        trace = record(
            study.engine, study.units, None, how, model=study.args.model, drafter=study.args.drafter or "",
            advance=lambda: say(f"recorded {next(done)} of {len(study.units)}"),
        )  # fmt: skip
        trace.save(path)
    return load(path)


def _replays(study: Study, trace: Trace, profile: CostProfile, nursery: Nursery) -> dict[str, Any]:
    # The oracle must know where the measured steps end, or a rule that finds them would win by that alone.
    edges = {int(rows) - 1 for rows in profile.rows if 1 < rows <= max(study.widths) + 1}
    budgets = sorted({*study.widths, *edges, trace.rounds.logp.shape[1]})
    arms = arms_of(None, budgets, (), trace, profile)
    arms |= {label: make_policy("auto", profile=profile, **options) for label, options in VARIANTS.items()}
    lines, _ = replay_lines(trace, arms, profile, nursery=nursery)
    return {"lines": [asdict(line) for line in lines]}


def _best_budget(lines: Sequence[dict[str, Any]]) -> int:
    swept = [line for line in lines if line["set"] == OVERALL and line["budget"] is not None]
    return int(max(swept, key=lambda line: line["tokens_per_s"])["budget"])


def _bench(
    study: Study,
    profile: CostProfile,
    name: str,
    rows: tuple[BenchRow, ...],
    units: Sequence[Unit],
    repeats: int | None = None,
) -> tuple[BenchRun, list[Sample]]:
    """A panel by wall clock, with outside methods unless it is repeated; samples are kept as they end."""
    methods = load_methods(study.args.methods, _pair(study)) if repeats is None and study.args.methods else {}
    rows = (*rows, *(BenchRow(label, label, method=True) for label in methods))
    panel = Panel("", rows, study.args.tokens, repeats=repeats or 1)
    store = SampleStore(study.work / name, {"panel": asdict(panel)}, resume=True)
    say(f"part {name}: {len(store.samples)} generations are there")
    run = run_bench(
        study.engine, [panel], units, BenchOptions(profile=profile), store, methods=methods,
        advance=lambda: say(f"{name}: {len(store.samples)} generations"),
    )  # fmt: skip
    return run, store.samples


def _pair(study: Study) -> Pair:
    from draftwood.models.source import fetch_folder, resolve_model

    engine, args = study.engine, study.args
    assert engine.codec is not None
    folder = resolve_model(args.model).drafter
    if args.drafter is not None:
        folder = fetch_folder(resolve_model(args.drafter), "drafter")
    return Pair(
        args.model, None if folder is None else str(folder), getattr(engine.state.target, "model", None),
        engine.codec.tokenizer, engine.dtype_name, engine.device_name, tuple(engine.codec.end_ids),
    )  # fmt: skip


def _some(study: Study, total: int) -> list[Unit]:
    """The first prompts of every set, `total` in all."""
    return [unit for prompts in study.sets for unit in _first(study.units, prompts.name, total, study.sets)]


def _first(units: Sequence[Unit], name: str, total: int, sets: Sequence[PromptSet]) -> list[Unit]:
    """This set's share of `total` prompts."""
    own = [unit for unit in units if unit.set_name == name]
    return own[: max(1, total // len(sets))]


def _cost_errors(study: Study, profile: CostProfile) -> dict[str, Any]:
    """Relative errors of predicted round seconds: by the profile alone and with the live correction."""
    rule = make_policy("auto", profile=profile)
    units = _some(study, 2 * len(study.sets))
    trace = record(study.engine, units, rule, RecordOptions(study.args.tokens), model=study.args.model)
    errors = []
    for at in range(trace.num_rounds):
        rounds = trace.rounds
        seconds, drafted = float(rounds.seconds[at].sum()), bool(rounds.drafted[at])
        rows, context = int(rounds.num_nodes[at]) + 1, int(rounds.context[at])
        base, slope, draft = rounds.factors[at].tolist()
        single, all_rows = profile.target_s(1, context), profile.target_s(rows, context)
        draft_s = profile.draft_cost_s(context) if drafted else 0.0
        corrected = base * single + slope * (all_rows - single) + draft * draft_s
        errors.append([(all_rows + draft_s) / seconds - 1, corrected / seconds - 1])
    table = np.array(errors)
    names = ("profile alone", "with live correction")
    return {
        "rounds": len(errors),
        **{
            name: {
                "median_abs": float(np.median(np.abs(column))),
                "p90_abs": float(np.quantile(np.abs(column), 0.9)),
                "median": float(np.median(column)),
            }
            for name, column in zip(names, table.T, strict=True)
        },
    }


def say(message: str) -> None:
    """Progress, on standard error."""
    print(message, file=sys.stderr, flush=True)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="demo:smollm2")
    parser.add_argument("--drafter", default=None)
    parser.add_argument("--prompts", action="append", help="JSONL files or set names; again for more")
    parser.add_argument("--limit", type=int, default=None, help="prompts a set")
    parser.add_argument("--tokens", type=int, default=96, help="tokens a prompt")
    parser.add_argument("--widths", default=WIDTHS, help="fixed budgets of the sweep")
    parser.add_argument("--sweep-prompts", type=int, default=12, help="prompts of the timed sweep, all sets together")
    parser.add_argument("--arm-prompts", type=int, default=12, help="prompts of the five arms, all sets together")
    parser.add_argument("--repeats", type=int, default=3, help="repeats of the five arms")
    parser.add_argument("--profile", type=Path, default=None, help="cost profile; default: the start-up probe")
    parser.add_argument("--allow-stale-profile", action="store_true")
    parser.add_argument("--methods", default=ROOT / "examples" / "transformers_methods.py")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--work", type=Path, default=ROOT / "build" / "results", help="where parts are kept")
    parser.add_argument("--output", type=Path, default=ROOT / "docs" / "results.md")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
