"""From samples to the lines of the table: speeds with intervals, behind the gate that compares outputs."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..certify.verdict import Same, compare_output, summarise
from ..errors import UsageError
from . import stats
from .plan import CHAIN, FIXED, PLAIN, BenchRow, Panel
from .runner import Sample
from .stats import Bootstrap, Interval, SignTest

OVERALL = "overall"
LOOP_SHARE, LOOP_TOKENS = 0.5, 24
"""An answer of so many tokens is a loop when more than this share of its 4-grams occurred before in it."""


def decoded(sample: Sample) -> tuple[int, float]:
    """(tokens, seconds) without prefill and its token."""
    return len(sample.token_ids) - 1, sample.decode_s


TIMERS: dict[str, Callable[[Sample], tuple[int, float]]] = {
    "decode": decoded,
    "paper": lambda sample: (len(sample.token_ids), sample.decode_s - sample.first_draft_s),
    "wall": lambda sample: (len(sample.token_ids), sample.prefill_s + sample.decode_s),
}
"""(tokens, seconds) that count: without prefill and its token; from the first verification on, all tokens (CAST,
appendix D); everything."""


@dataclass(frozen=True, slots=True)
class Line:
    """Results of one row on one set, or overall. None where there is nothing to say or it would mislead."""

    panel: str
    set_name: str
    row: BenchRow
    timer: str
    prompts: int
    samples: int
    tokens: int
    """Output tokens, prefill's counted."""
    tokens_per_s: float | None
    """(output tokens - 1) / decode seconds, summed over prompts, whatever the timer."""
    ms_per_token: float | None
    """Under the timer, sums over sums; overall: the mean of the sets."""
    speedup_over_ar: float | None
    """Under the timer; overall: the mean of the sets. None when outputs differ beyond near-ties."""
    gain_over_chain: float | None
    """t_chain / t - 1 under the timer; overall: the mean of the sets."""
    mean_committed: float | None
    rounds: int
    skipped_rounds: int
    mean_rows: float | None
    sd_rows: float | None
    ttft_s: float
    """Mean over samples."""
    peak_bytes: int | None
    output: str
    """`identical`, `near-tie` or `different`, against `ar`."""
    near_ties: int
    intervals: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """95 % bootstrap over prompts of `tokens_per_s`, `ms_per_token`, `speedup_over_ar`, `gain_over_chain`."""
    sign_over_ar: SignTest | None = None
    """Of the prompts' speeds."""
    sign_over_chain: SignTest | None = None
    oracle_budget: int | None = None
    """The fastest fixed budget of the panel on this set; with two or more of them."""
    over_oracle: float | None = None
    """Speed over that budget's."""
    stage_s: Mapping[str, float] = field(default_factory=dict)
    """Mean seconds of a round by stage, where they were recorded."""
    loops: int = 0
    """Prompts whose plain answer repeats itself, see `repeated_share`."""
    over_ar_without_loops: float | None = None
    """`speedup_over_ar` of the other prompts."""
    drift: float | None = None
    """Milliseconds per token of `ar` in the later half of its runs over those in the earlier; None for few runs."""


Explain = Callable[[Sample, Sequence[int]], tuple[float, float]]
"""(sample, output ids that both runs share) -> top-two gap and top logit of the plain run there."""


class Verdicts:
    """Compares every sample with the plain one of its prompt and seed; each is judged once."""

    def __init__(self, dtype_name: str, explain: Explain) -> None:
        self._dtype, self._explain = dtype_name, explain
        self._known: dict[tuple[object, ...], Same] = {}

    @property
    def dtype_name(self) -> str:
        """Number type of the target."""
        return self._dtype

    def judge(self, sample: Sample, plain: Sample) -> Same:
        """Verdict on one output."""
        found = self._known.get(sample.key)
        if found is None:

            def explain(_: Sequence[int], shared: Sequence[int]) -> tuple[float, float]:
                return self._explain(sample, shared)

            found = compare_output(sample.token_ids, plain.token_ids, (), self._dtype, explain)
            self._known[sample.key] = found
        return found


@dataclass(frozen=True, slots=True)
class _Cell:
    """One row on one set."""

    samples: Sequence[Sample]
    verdicts: Sequence[Same]
    same: Same
    tokens: np.ndarray
    """(prompts,) under the timer."""
    seconds: np.ndarray
    """(prompts,)."""
    loops: np.ndarray
    """(prompts,) bool: the plain answer repeats itself."""

    @property
    def comparable(self) -> bool:
        return self.same is not Same.DIFFERENT and bool(self.seconds.sum() > 0 and self.tokens.sum() > 0)

    @property
    def columns(self) -> tuple[np.ndarray, np.ndarray]:
        return self.tokens, self.seconds

    @property
    def speed(self) -> float:
        return float(self.tokens.sum() / self.seconds.sum())


def summarise_panel(
    panel: Panel, samples: Sequence[Sample], verdicts: Verdicts, *, timer: str = "decode", how: Bootstrap | None = None
) -> list[Line]:
    """The lines of every finished set, one a row, then the overall lines; empty while no set is finished.

    A set is finished when every row has all its samples. Raises UsageError for an unknown timer.
    """
    if timer not in TIMERS:
        raise UsageError(f"timer {timer!r}: expected one of {', '.join(TIMERS)}")
    names = list(dict.fromkeys(sample.set_name for sample in samples))
    sets: dict[str, dict[str, _Cell]] = {}
    for name in names:
        cells = _cells(panel, [sample for sample in samples if sample.set_name == name], verdicts, timer)
        if cells is not None:
            sets[name] = cells
    how = how or Bootstrap()
    groups = {name: [cells] for name, cells in sets.items()} | ({OVERALL: list(sets.values())} if sets else {})
    tables = [_Table(panel, name, cells, timer, verdicts.dtype_name, how) for name, cells in groups.items()]
    return [line for table in tables for line in table.lines()]


def _cells(panel: Panel, samples: Sequence[Sample], verdicts: Verdicts, timer: str) -> dict[str, _Cell] | None:
    """The set's rows; None while one of them lacks a sample."""
    prompts = list(dict.fromkeys(sample.prompt_id for sample in samples))
    expected = len(prompts) * len(panel.seeds) * panel.repeats
    by_row = {row.label: [sample for sample in samples if sample.row == row.label] for row in panel.rows}
    if any(len(own) != expected for own in by_row.values()):
        return None
    plain = {(sample.prompt_id, sample.seed): sample for sample in reversed(by_row[PLAIN])}
    cells = {}
    for label, own in by_row.items():
        judged = [verdicts.judge(sample, plain[sample.prompt_id, sample.seed]) for sample in own]
        tokens, seconds = np.zeros(len(prompts)), np.zeros(len(prompts))
        place = {prompt: index for index, prompt in enumerate(prompts)}
        for sample in own:
            counted, spent = TIMERS[timer](sample)
            tokens[place[sample.prompt_id]] += counted
            seconds[place[sample.prompt_id]] += spent
        loops = np.array([is_loop(plain[prompt, panel.seeds[0]].token_ids) for prompt in prompts])
        cells[label] = _Cell(own, judged, summarise(judged, verdicts.dtype_name), tokens, seconds, loops)
    return cells


def repeated_share(token_ids: Sequence[int], size: int = 4) -> float:
    """Share of the `size`-grams of a text that occurred before in it."""
    grams = [tuple(token_ids[at : at + size]) for at in range(len(token_ids) - size + 1)]
    return 1.0 - len(set(grams)) / len(grams) if grams else 0.0


def is_loop(token_ids: Sequence[int]) -> bool:
    """Whether an answer goes round in circles: what drafts well there says little about other text."""
    return len(token_ids) >= LOOP_TOKENS and repeated_share(token_ids) > LOOP_SHARE


def drift(samples: Sequence[Sample]) -> float | None:
    """Median milliseconds per token of the later half of runs over the earlier half's; None below eight runs."""
    times = [seconds / tokens for tokens, seconds in map(decoded, samples) if tokens > 0]
    half = len(times) // 2
    return float(np.median(times[-half:]) / np.median(times[:half])) if half >= 4 else None


class _Table:
    """The rows of a panel on some sets: what is said of one of them, alone and against another."""

    def __init__(
        self, panel: Panel, name: str, sets: Sequence[Mapping[str, _Cell]], timer: str, dtype_name: str, how: Bootstrap
    ) -> None:
        self._panel, self._name, self._sets = panel, name, sets
        self._timer, self._dtype, self._how = timer, dtype_name, how

    def lines(self) -> list[Line]:
        """One line a row."""
        oracle = self.oracle()
        return [self.line(row, oracle) for row in self._panel.rows]

    def line(self, row: BenchRow, oracle: BenchRow | None) -> Line:
        """The line of a row; `oracle` is the fastest fixed budget, if there is one."""
        own = [cells[row.label] for cells in self._sets]
        samples = [sample for cell in own for sample in cell.samples]
        verdicts = [same for cell in own for same in cell.verdicts]
        worst = [summarise(verdicts, self._dtype), *(cell.same for cell in own)]
        rows = [rows for sample in samples for rows in sample.rows]
        committed = [count for sample in samples for count in sample.committed]
        decode = np.sum([decoded(sample) for sample in samples], axis=0)
        intervals = {
            "tokens_per_s": self.speed(row.label),
            "ms_per_token": self.time(row.label),
            "speedup_over_ar": self.against(row.label, PLAIN),
            "gain_over_chain": self.against(row.label, CHAIN, minus=1.0),
        }
        means = {name: found.value for name, found in intervals.items() if found is not None}
        over_oracle = None if oracle is None else self.against(row.label, oracle.label)
        return Line(
            panel=self._panel.name,
            set_name=self._name,
            row=row,
            timer=self._timer,
            prompts=sum(len(cell.tokens) for cell in own),
            samples=len(samples),
            tokens=sum(len(sample.token_ids) for sample in samples),
            tokens_per_s=stats.ratio(*decode.tolist()),
            ms_per_token=means.get("ms_per_token"),
            speedup_over_ar=means.get("speedup_over_ar"),
            gain_over_chain=means.get("gain_over_chain"),
            mean_committed=stats.ratio(sum(committed), len(committed)),
            rounds=len(committed),
            skipped_rounds=sum(sample.drafted.count(False) for sample in samples),
            mean_rows=statistics.fmean(rows) if rows else None,
            sd_rows=statistics.pstdev(rows) if rows else None,
            ttft_s=statistics.fmean(sample.prefill_s for sample in samples),
            peak_bytes=max((sample.peak_bytes for sample in samples if sample.peak_bytes is not None), default=None),
            output=(Same.DIFFERENT if Same.DIFFERENT in worst else worst[0]).value,
            near_ties=verdicts.count(Same.NEAR_TIE),
            intervals={
                name: (found.low, found.high)
                for name, found in intervals.items()
                if found is not None and found.num_prompts > 1
            },
            sign_over_ar=self.sign(row.label, PLAIN),
            sign_over_chain=self.sign(row.label, CHAIN),
            oracle_budget=None if oracle is None else oracle.budget,
            over_oracle=None if over_oracle is None else over_oracle.value,
            stage_s=stage_means(samples),
            loops=sum(int(cell.loops.sum()) for cell in own),
            over_ar_without_loops=without.value if (without := self.against(row.label, PLAIN, loops=False)) else None,
            drift=drift([sample for cells in self._sets for sample in cells[PLAIN].samples]),
        )

    def speed(self, label: str) -> Interval | None:
        """Tokens per second under the decode timer, all prompts pooled."""
        columns: list[np.ndarray] = []
        for cells in self._sets:
            samples = cells[label].samples
            prompts = list(dict.fromkeys(sample.prompt_id for sample in samples))
            sums = np.zeros((2, len(prompts)))
            for sample in samples:
                sums[:, prompts.index(sample.prompt_id)] += decoded(sample)
            columns.append(sums)
        tokens, seconds = counted(np.concatenate(columns, axis=1))
        return stats.ratio_of_sums(tokens, seconds, self._how) if len(tokens) else None

    def time(self, label: str) -> Interval | None:
        """Milliseconds per token; the mean of the sets."""
        columns = [tuple(counted(np.stack(cells[label].columns))) for cells in self._sets]
        if not all(len(tokens) for tokens, _ in columns):
            return None
        return stats.mean_over_sets(lambda sums: 1e3 * sums[1] / sums[0], columns, self._how)

    def comparable(self, label: str, base: str) -> bool:
        """Whether both rows are there and say the same everywhere."""
        return all(base in cells and cells[label].comparable and cells[base].comparable for cells in self._sets)

    def against(self, label: str, base: str, minus: float = 0.0, loops: bool = True) -> Interval | None:
        """Speed over that of the row `base`, minus `minus`; the mean of the sets; None unless all outputs agree.

        Without `loops` only of prompts whose answer is none.
        """
        if not self.comparable(label, base):
            return None
        pairs = []
        for cells in self._sets:
            columns = np.stack([*cells[label].columns, *cells[base].columns])
            pairs.append(tuple(counted(columns if loops else columns[:, ~cells[base].loops])))
        if not all(len(columns[0]) for columns in pairs):
            return None
        return stats.mean_over_sets(lambda sums: (sums[0] / sums[1]) / (sums[2] / sums[3]) - minus, pairs, self._how)

    def sign(self, label: str, base: str) -> SignTest | None:
        """Sign test of the prompts' speeds."""
        if label == base or not self.comparable(label, base):
            return None
        speeds = []
        for name in (label, base):
            tokens = np.concatenate([cells[name].tokens for cells in self._sets])
            seconds = np.concatenate([cells[name].seconds for cells in self._sets])
            speeds.append(np.divide(tokens, seconds, out=np.zeros_like(tokens), where=seconds > 0))
        return stats.sign_test(speeds[0], speeds[1])

    def oracle(self) -> BenchRow | None:
        """The fastest of two or more fixed budgets: mean of the sets' speeds relative to `ar`."""
        fixed = [row for row in self._panel.rows if row.policy == FIXED and row.block_size is None]
        swept = [row for row in fixed if row.budget is not None]
        found = [row for row in swept if self.comparable(row.label, PLAIN)]
        if len(swept) < 2 or not found:
            return None

        def score(row: BenchRow) -> float:
            return statistics.fmean(cells[row.label].speed / cells[PLAIN].speed for cells in self._sets)

        return max(found, key=score)


def counted(columns: np.ndarray) -> np.ndarray:
    """(columns, prompts) without the prompts that decoded nothing: prefill's token ended their text."""
    kept: np.ndarray = columns[:, np.all(columns > 0, axis=0)]
    return kept


def stage_means(samples: Sequence[Sample]) -> dict[str, float]:
    """Mean seconds of a round by stage, over all rounds that were timed."""
    values: dict[str, list[float]] = {}
    for sample in samples:
        for name, seconds in sample.stage_s.items():
            values.setdefault(name, []).extend(seconds)
    return {name: statistics.fmean(seconds) for name, seconds in values.items() if seconds}


def line_json(line: Line, panel: Panel) -> dict[str, Any]:
    """The line as a JSON object, without provenance."""
    row = line.row
    signs = {
        name: None
        if test is None
        else {"wins": test.wins, "losses": test.losses, "ties": test.ties, "p_value": test.p_value}
        for name, test in (("sign_over_ar", line.sign_over_ar), ("sign_over_chain", line.sign_over_chain))
    }
    plain = {name: getattr(line, name) for name in _PLAIN_FIELDS}
    return {
        "panel": line.panel,
        "set": line.set_name,
        "policy": row.policy,
        "label": row.label,
        "budget": row.budget,
        "options": dict(row.options),
        "block_size": row.block_size,
        "temperature": panel.temperature,
        "seeds": list(panel.seeds),
        "repeats": panel.repeats,
        "max_tokens": panel.max_tokens if line.set_name == OVERALL else panel.tokens_for(line.set_name),
        **plain,
        "intervals": {name: list(pair) for name, pair in line.intervals.items()},
        **signs,
        "stage_s": dict(line.stage_s),
    }


_PLAIN_FIELDS = (
    "timer", "prompts", "samples", "tokens", "tokens_per_s", "ms_per_token", "speedup_over_ar", "gain_over_chain",
    "mean_committed", "rounds", "skipped_rounds", "mean_rows", "sd_rows", "ttft_s", "peak_bytes", "output",
    "near_ties", "oracle_budget", "over_oracle", "loops", "over_ar_without_loops", "drift",
)  # fmt: skip
