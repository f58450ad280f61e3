"""`draftwood bench`: policies and outside methods, paired on the same prompts, behind the output gate."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...errors import UsageError
from ...files import check_folder, write_file
from ..evidence import adopt_profile, end_ids, load_profile, names, numbers, prompt_sets, render_units
from ..grids import encoding_of, width_of
from ..io import notice, plural, stdout_for_results, write, write_json
from ..load import LoadOptions, check_pair, load_engine
from ..options import (
    BlockOption,
    BudgetsOption,
    CandidatesOption,
    DeviceOption,
    DrafterOption,
    Dtype,
    DtypeOption,
    JsonOption,
    KvMemoryOption,
    LimitOption,
    LiveCostsOption,
    ModelArgument,
    ProfileOption,
    PromptsOption,
    RawOption,
    StaleOption,
    SystemOption,
    ThreadsOption,
    at_least_one,
    few,
    number,
)
from ..progress import progress, waiting_for

if TYPE_CHECKING:
    from ... import Engine
    from ...bench.methods import Method
    from ...bench.recipes import Recipe
    from ...bench.session import BenchRun
    from ...prompts.sets import PromptSet
    from ...prompts.units import Unit

DEFAULT_POLICIES = "ar,chain,ddtree,caddtree,auto"
DEFAULT_TOKENS = 256

PoliciesOption = Annotated[
    str | None, typer.Option("--policies", metavar="NAMES", help=f"Rows; default: {DEFAULT_POLICIES}.")
]
OutputOption = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="DIR", help="Folder for results, samples and plots.")
]
MaxTokensOption = Annotated[
    int | None, typer.Option("--max-tokens", parser=at_least_one, metavar="N", help="Longest answer; default 256.")
]
TemperatureOption = Annotated[
    float | None, typer.Option("--temperature", parser=number, metavar="T", help="0 is greedy, the default.")
]
SeedsOption = Annotated[
    str | None, typer.Option("--seeds", "--seed", metavar="N,N,...", help="Seeds of sampling; default 0.")
]
RepeatsOption = Annotated[
    int | None, typer.Option("--repeats", parser=few, metavar="N", help="Runs of every prompt; default 1.")
]
TimerOption = Annotated[
    str | None,
    typer.Option(
        "--timer",
        help="decode: from the first token on; paper: from the first verification on, all tokens; wall: everything.",
    ),
]
MethodsOption = Annotated[
    Path | None,
    typer.Option("--methods-from", metavar="FILE.py", help="Outside baselines: functions of (prompt ids, max tokens)."),
]
RecipeOption = Annotated[str | None, typer.Option("--recipe", help="Settings of a paper's experiment.")]
ResumeOption = Annotated[bool, typer.Option("--resume", help="Go on with an interrupted run in the output folder.")]
PlotsOption = Annotated[bool, typer.Option("--plots/--no-plots", help="Draw PNG and SVG plots (extra plot).")]


@dataclass(frozen=True, slots=True)
class _Asked:
    """Options that override a recipe's settings; None: not given."""

    recipe: str | None
    policies: list[str]
    budgets: list[int]
    candidates: int | None
    block_size: int | None
    max_tokens: int | None
    temperature: float | None
    seeds: list[int]
    repeats: int | None
    timer: str | None
    limit: int | None


def bench(
    model: ModelArgument,
    drafter: DrafterOption = None,
    prompts: PromptsOption = None,
    limit: LimitOption = None,
    policies: PoliciesOption = None,
    budgets: BudgetsOption = None,
    output: OutputOption = None,
    max_tokens: MaxTokensOption = None,
    temperature: TemperatureOption = None,
    seeds: SeedsOption = None,
    repeats: RepeatsOption = None,
    timer: TimerOption = None,
    candidates: CandidatesOption = None,
    block_size: BlockOption = None,
    recipe: RecipeOption = None,
    methods_from: MethodsOption = None,
    profile: ProfileOption = None,
    allow_stale_profile: StaleOption = False,
    live_costs: LiveCostsOption = True,
    resume: ResumeOption = False,
    raw: RawOption = False,
    system: SystemOption = None,
    plots: PlotsOption = True,
    as_json: JsonOption = False,
    dtype: DtypeOption = Dtype.AUTO,
    device: DeviceOption = "cpu",
    threads: ThreadsOption = None,
    kv_memory: KvMemoryOption = None,
) -> None:
    """Measure policies against each other on the same prompts; exit 1 if an output differs beyond near-ties."""
    from ...bench.recipes import prefix_units
    from ...bench.tables import WIDTH, text_tables

    asked = _Asked(
        recipe, names(policies), numbers(budgets, "--budgets"), candidates, block_size, max_tokens, temperature,
        numbers(seeds, "--seeds"), repeats, timer, limit,
    )  # fmt: skip
    load = LoadOptions(model, drafter, dtype.value, device, threads, kv_memory=kv_memory)
    costs = load_profile(profile)
    sets = _check(asked, prompts, load, output, resume, methods_from)
    with stdout_for_results() as results:
        with waiting_for(f"loading {model}"):
            engine = load_engine(load)
        adopt_profile(engine, costs, allow_stale=allow_stale_profile, live_costs=live_costs)
        methods = _methods(engine, load, methods_from)
        plan = _plan(asked, engine.state.drafter.block_size if engine.state.drafter is not None else 2, list(methods))
        spec = engine.state.target.spec
        if plan.prefixes:
            units = prefix_units(plan.prefixes, spec.context_limit, spec.vocab_size)
        else:
            tokens = plan.panels[0].max_tokens
            units = render_units(engine, sets, raw=raw, system=system, history_tokens=tokens)
        settings = {
            "model": model, "drafter": drafter or "", "dtype": engine.dtype_name, "device": engine.device_name,
            "threads": engine.threads, "sets": [prompts.name for prompts in sets], "raw": raw, "system": system,
            "live_costs": live_costs, "profile": None if profile is None else str(profile),
        }  # fmt: skip
        job = _Job(engine, plan, units, methods, settings, output, resume, plots, raw, live_costs)
        run = job.run()
        if as_json:
            write_json({"lines": run.to_json()}, results)
        else:
            write(
                (f"{plan.title}\n" if plan.title else "")
                + text_tables(run, encoding_of(results), width_of(results, WIDTH)),
                results,
            )
    if any(line.output == "different" for lines in run.lines.values() for line in lines):
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class _Job:
    """A bench with everything loaded."""

    engine: Engine
    plan: Recipe
    units: list[Unit]
    methods: dict[str, Method]
    settings: dict[str, Any]
    output: Path | None
    resume: bool
    plots: bool
    raw: bool
    live_costs: bool

    def run(self) -> BenchRun:
        """Measure; results are written after every set, so that an interruption keeps finished rows."""
        from dataclasses import asdict

        from ...bench.provenance import provenance
        from ...bench.results import SampleStore, save_results
        from ...bench.runner import turns
        from ...bench.session import BenchOptions, needs_costs, run_bench

        engine, panels = self.engine, self.plan.panels
        if needs_costs(panels):
            engine.ensure_costs()
        ends: frozenset[int] | None = frozenset() if self.plan.prefixes else end_ids(engine, self.raw)
        stages = self.output is not None and not self.plan.prefixes
        options = BenchOptions(self.plan.timer, self.live_costs, end_ids=ends, stage_pass=stages)
        where = provenance(engine, sys.argv, panels[0].seeds[0])
        total = sum(len(list(turns(panel, self.units))) for panel in panels)
        store = None
        if self.output is not None:
            settings = {
                **self.settings, "panels": [asdict(panel) for panel in panels], "versions": where.versions,
            }  # fmt: skip
            store = SampleStore(self.output, settings, resume=self.resume)
            store.check_prompts({(unit.set_name, unit.prompt_id): unit.prompt_hash for unit in self.units})
            if store.samples:
                notice(f"resuming: {len(store.samples)} of {total} generations are there")

        def set_ended(run: BenchRun) -> None:
            if self.output is not None:
                save_results(self.output, run.to_json(), where.to_json())

        with progress("measuring", total - (len(store.samples) if store is not None else 0)) as bar:
            run = run_bench(
                engine,
                panels,
                self.units,
                options,
                store,
                methods=self.methods,
                advance=bar.advance,
                set_ended=set_ended,
            )
        if self.output is not None and store is not None:
            _write_reports(self, run, where.to_json(), store.samples, self.output)
        return run


def _check(
    asked: _Asked,
    prompts: list[str] | None,
    load: LoadOptions,
    output: Path | None,
    resume: bool,
    methods_from: Path | None,
) -> list[PromptSet]:
    """Refuse what can be refused before a model is loaded; returns the prompt sets."""
    from ...bench.summary import TIMERS
    from ...policy import POLICIES

    if asked.timer is not None and asked.timer not in TIMERS:
        raise UsageError(f"timer {asked.timer!r}: expected one of {', '.join(TIMERS)}")
    if resume and output is None:
        raise UsageError("--resume needs the output folder of the interrupted run: give -o DIR")
    if methods_from is not None and not methods_from.is_file():
        raise UsageError(f"--methods-from {methods_from}: no such file")
    plan = _plan(asked, 16, [])
    drafting = next((row.policy for panel in plan.panels for row in panel.rows if POLICIES[row.policy].drafts), None)
    check_pair(load, drafting or "ar")
    if output is not None:
        check_folder(output)
    if plan.prefixes:
        if prompts is not None or asked.limit is not None:
            raise UsageError(f"--recipe {asked.recipe}: makes its own prompts, leave out --prompts and --limit")
        return []
    return prompt_sets(prompts, asked.limit if asked.limit is not None else plan.limit)


def _plan(asked: _Asked, block_size: int, methods: Sequence[str]) -> Recipe:
    """Rows and settings: a recipe's, overridden by what was asked for, or those of the options alone."""
    from ...bench.plan import BenchRow, Panel, rows_of
    from ...bench.recipes import Recipe, make_recipe
    from ...core import Sampling

    if asked.recipe is not None:
        if asked.policies or asked.budgets or asked.candidates is not None or asked.block_size is not None:
            raise UsageError(
                f"--recipe {asked.recipe}: sets the rows, leave out --policies, --budgets and their options"
            )
        plan = make_recipe(asked.recipe, block_size)
    else:
        chosen = asked.policies or (names(DEFAULT_POLICIES) if not asked.budgets else ["ar", "chain", "auto"])
        rows = rows_of(chosen, asked.budgets, asked.candidates)
        if asked.block_size is not None:
            rows = tuple(replace(row, block_size=asked.block_size) if row.policy != "ar" else row for row in rows)
        plan = Recipe("", (Panel("", rows, asked.max_tokens or DEFAULT_TOKENS),), limit=None, timer="decode")
    Sampling(asked.temperature or 0.0, max(asked.seeds, default=0))
    panels = []
    for panel in plan.panels:
        outside = tuple(BenchRow(name, name, method=True) for name in methods if panel.temperature == 0)
        panels.append(
            replace(
                panel,
                rows=(*panel.rows, *outside),
                max_tokens=asked.max_tokens or panel.max_tokens,
                set_tokens={} if asked.max_tokens else panel.set_tokens,
                temperature=panel.temperature if asked.temperature is None else asked.temperature,
                seeds=tuple(asked.seeds) or panel.seeds,
                repeats=asked.repeats or panel.repeats,
            )
        )
    return replace(plan, panels=tuple(panels), timer=asked.timer or plan.timer)


def _methods(engine: Engine, load: LoadOptions, path: Path | None) -> dict[str, Method]:
    from ...bench.methods import Pair, load_methods

    if path is None:
        return {}
    from ...models.source import fetch_folder, resolve_model

    folder = resolve_model(load.model).drafter
    if load.drafter is not None:
        folder = fetch_folder(resolve_model(load.drafter), "drafter")
    codec = engine.codec
    pair = Pair(
        model=load.model,
        drafter=None if folder is None else str(folder),
        target=getattr(engine.state.target, "model", None),
        tokenizer=None if codec is None else codec.tokenizer,
        dtype=engine.dtype_name,
        device=engine.device_name,
        end_ids=() if codec is None else tuple(codec.end_ids),
    )
    return load_methods(path, pair)


def _write_reports(job: _Job, run: BenchRun, where: dict[str, Any], samples: Sequence[Any], folder: Path) -> None:
    """Markdown and plots beside the results."""
    from ...bench.tables import markdown
    from ...draw.bench_plots import plots_available, save_plots

    hardware = where["hardware"]
    facts = {
        "command": " ".join(where["argv"]),
        "machine": f"{hardware['device_name']}, {plural(hardware['threads'], 'thread')}, {hardware['dtype']}",
        "revision": f"{where['git']['revision']}{' (dirty)' if where['git']['dirty'] else ''}",
        "versions": ", ".join(f"{name} {version}" for name, version in where["versions"].items()),
    }
    write_file(folder / "results.md", markdown(run, facts), UsageError)
    if not job.plots:
        return
    if not plots_available():
        notice("no plots: they need matplotlib, pip install 'draftwood[plot]'")
        return
    save_plots(run, samples, folder, facts["machine"])
