"""The doctor: how well a pair drafts on the target's own text, and which fault explains it if it does not.

A pair is measured by teacher forcing: hits by depth, and the log-probability that the drafter gives the text. It is
compared with the checkpoint's stored baseline, or with chance. When it falls short, other readings of the checkpoint
are tried; the one whose gain exceeds three standard errors by most is the fault. Standard errors are those of runs of
neighbouring positions, which are alike.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from .baseline import Baseline
from .forced import Position, Sample, Scores, block_positions, score
from .quantised import quantised_bits
from .suspects import SUSPECTS, PairView, Repair

POSITIONS = 1_000
ERRORS = 3.0
"""Standard errors that a gain must exceed."""
MIN_GAIN = 0.01
"""Nats a token: a smaller gain is no fault, however sure it is."""
RUN = 16
"""Neighbouring positions that count as one observation."""
MIN_AGREEMENT = 0.97
"""Share of a baseline's tokens that a target must choose itself to be the baseline's target."""
COARSE_BITS = 3
_FIRST, _SECOND = 12, 4
"""The first look takes a 12th of the positions, the second a quarter."""
_FINALISTS = 3


@dataclass(frozen=True, slots=True)
class Gain:
    """A paired difference of mean log-probabilities, in nats a token."""

    mean: float
    error: float
    """Its standard error."""

    @property
    def errors(self) -> float:
        """The mean in standard errors."""
        return self.mean / self.error if self.error > 0 else 0.0

    @property
    def counts(self) -> bool:
        """Large enough, and sure enough, to name a fault."""
        return self.mean > MIN_GAIN and self.errors > ERRORS


@dataclass(frozen=True, slots=True)
class Finding:
    """What one suspect's best repair is worth."""

    suspect: str
    repair: str
    gain: Gain
    hit_gain: float
    """Gain of the mean hit rate, over the same depths."""
    positions: int


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The result of an examination."""

    fault: str | None
    """Name of a suspect, `unexplained`, or None for a pair that is well."""
    detail: str
    positions: int
    hit_rate: tuple[float, ...]
    """By depth, from 1."""
    expected: tuple[float, ...] | None
    """The baseline's, at the same positions; None without one."""
    chance: float
    """Hit rate of always drafting the commonest token of the texts."""
    shortfall: Gain | None
    """The baseline's log-probability minus this one's; None without a comparable baseline."""
    agreement: float
    """Share of the texts' tokens that the target itself chooses."""
    tried: tuple[Finding, ...]
    notes: tuple[str, ...]


def examine(
    pair: PairView,
    sample: Sample,
    *,
    baseline: Baseline | None = None,
    positions: int = POSITIONS,
    advance: Callable[[str], None] = lambda what: None,
) -> Diagnosis:
    """Measure a pair on `sample` (its layers must hold those of `needed_layers`) and name its fault.

    With a baseline, `sample` is made of the baseline's texts. `advance` is told what is being tried.
    """
    places = spread_positions(sample, pair.drafter.depth, positions)
    advance("as loaded")
    now = score(pair.as_loaded(), sample, places, pair.drafter.block_size)
    agreement = float(np.concatenate(sample.agrees).mean())
    expected, shortfall = _against(baseline, places, now)
    chance = sample.chance()
    well = shortfall is not None and not shortfall.counts
    tried = () if well else tuple(_try_all(pair, sample, places, now, advance))
    target = _target_finding(pair, baseline, agreement, shortfall, places, expected, now)
    if target is not None:
        tried = (target, *tried)
    fault, detail = _verdict(tried, now, chance, shortfall, well=well)
    if fault is None and baseline is not None and pair.drafter.block_size > baseline.block_size:
        # It contradicts the baseline, whether or not the first rows suffer much from it.
        fault, sizes = "block size", f"block_size {baseline.block_size} instead of {pair.drafter.block_size}"
        harm = f", the others lose {shortfall.mean:.3f} nats ({shortfall.errors:.1f} errors)" if shortfall else ""
        detail = f"{sizes}: the checkpoint was measured with {baseline.block_size}; the rows beyond hit "
        detail += f"{now.hit[:, baseline.depth :].mean():.3f}{harm}"
    return Diagnosis(
        fault=fault,
        detail=detail,
        positions=len(places),
        hit_rate=tuple(float(rate) for rate in now.hit.mean(axis=0)),
        expected=None if expected is None else tuple(float(rate) for rate in expected.mean(axis=0)),
        chance=chance,
        shortfall=shortfall,
        agreement=agreement,
        tried=tried,
        notes=_notes(pair, agreement),
    )


def needed_layers(pair: PairView) -> tuple[int, ...]:
    """Layers whose states the suspects want."""
    repairs = [repair for suspect in SUSPECTS for repair in suspect(pair)]
    return tuple(sorted({layer for repair in repairs for layer in repair.trial.layers} | set(pair.layers)))


def spread_positions(sample: Sample, depth: int, count: int) -> list[Position]:
    """At least `count` positions, evenly spread over the texts, or all that there are."""
    every = block_positions(sample.texts, depth)
    return every[:: max(1, len(every) // count)]


def paired_gain(better: np.ndarray, worse: np.ndarray, places: Sequence[Position]) -> Gain:
    """Mean of better - worse, (positions,) each, with the standard error of means of runs of neighbouring positions."""
    difference = better - worse
    runs: list[float] = []
    texts = np.array([place.text for place in places])
    for text in np.unique(texts):
        own = difference[texts == text]
        runs += [float(part.mean()) for part in np.array_split(own, max(1, len(own) // RUN))]
    spread = float(np.std(runs, ddof=1)) / len(runs) ** 0.5 if len(runs) > 1 else float("inf")
    return Gain(float(difference.mean()), spread)


def compare(repaired: Scores, now: Scores, places: Sequence[Position]) -> Gain:
    """Gain of one scoring over another, over the depths that both have."""
    depth = min(repaired.logp.shape[1], now.logp.shape[1])
    return paired_gain(repaired.logp[:, :depth].mean(axis=1), now.logp[:, :depth].mean(axis=1), places)


def _try_all(
    pair: PairView, sample: Sample, places: Sequence[Position], now: Scores, advance: Callable[[str], None]
) -> list[Finding]:
    """The best repair of each suspect: all of them at a few positions, the most promising at all."""

    def measured(repair: Repair, step: int) -> tuple[Scores, Gain]:
        size = repair.block_size or pair.drafter.block_size
        found = score(repair.trial, sample, places[::step], size)
        return found, compare(found, Scores(now.hit[::step], now.logp[::step]), places[::step])

    seconds: list[list[tuple[Gain, Repair]]] = []
    for suspect in SUSPECTS:
        repairs = suspect(pair)
        if not repairs:
            continue
        advance(repairs[0].suspect)
        if len(repairs) > 2:
            firsts = [(measured(repair, _FIRST)[1].mean, -order, repair) for order, repair in enumerate(repairs)]
            repairs = [repair for *_, repair in sorted(firsts, key=lambda first: first[:2], reverse=True)[:2]]
        looks = [(measured(repair, _SECOND)[1], repair) for repair in repairs]
        seconds.append(sorted(looks, key=lambda look: look[0].errors, reverse=True))
    seconds.sort(key=lambda looks: looks[0][0].errors, reverse=True)
    findings = []
    for rank, looks in enumerate(seconds):
        gain, repair = looks[0]
        if rank >= _FINALISTS or gain.mean <= 0:
            findings.append(Finding(repair.suspect, repair.what, gain, float("nan"), len(places[::_SECOND])))
            continue
        advance(repair.what)
        # Of the prime suspect both repairs, because close ones (two rope bases) look alike at few positions.
        full = [(*measured(repair, 1), repair) for _, repair in (looks if rank == 0 else looks[:1])]
        found, gain, repair = max(full, key=lambda one: one[1].mean)
        depth = min(found.hit.shape[1], now.hit.shape[1])
        hit_gain = float(found.hit[:, :depth].mean() - now.hit[:, :depth].mean())
        findings.append(Finding(repair.suspect, repair.what, gain, hit_gain, len(places)))
    return findings


def _against(
    baseline: Baseline | None, places: Sequence[Position], now: Scores
) -> tuple[np.ndarray | None, Gain | None]:
    """The baseline's hits at these positions, and how far this scoring falls short of it."""
    if baseline is None:
        return None, None
    known = [at for at, place in enumerate(places) if baseline.has(place)]
    shared = [places[at] for at in known]
    hits, logp = baseline.at(shared)
    depth = min(hits.shape[1], now.hit.shape[1])
    if now.logp.shape[1] < hits.shape[1]:
        # Log-probabilities are stored as means over the depths: a shorter block compares by hits.
        return hits[:, :depth], paired_gain(hits[:, :depth].mean(axis=1), now.hit[known, :depth].mean(axis=1), shared)
    return hits, paired_gain(logp, now.logp[known, :depth].mean(axis=1), shared)


def _target_finding(
    pair: PairView,
    baseline: Baseline | None,
    agreement: float,
    shortfall: Gain | None,
    places: Sequence[Position],
    expected: np.ndarray | None,
    now: Scores,
) -> Finding | None:
    """A target that no longer says its own text: the repair is the target of the baseline, whose scores are stored."""
    if baseline is None or shortfall is None or expected is None or agreement >= MIN_AGREEMENT:
        return None
    bits = quantised_bits(pair.target.model)
    coarse = bits is not None and bits <= COARSE_BITS
    name = "quantised target" if coarse else "other target"
    state = f"stored in {bits} bits" if coarse else "with other weights"
    depth = expected.shape[1]
    return Finding(
        suspect=name,
        repair=f"the target of the baseline ({baseline.target}) instead of one {state}, which chooses "
        f"{agreement:.0%} of its tokens",
        gain=shortfall,
        hit_gain=float(expected.mean() - now.hit[:, :depth].mean()),
        positions=len(places),
    )


def _verdict(
    tried: Sequence[Finding], now: Scores, chance: float, shortfall: Gain | None, *, well: bool
) -> tuple[str | None, str]:
    if well:
        return None, "hits by depth are those of the stored baseline"
    named = [finding for finding in tried if finding.gain.counts]
    if named:
        fault = max(named, key=lambda finding: finding.gain.mean)
        return fault.suspect, (
            f"{fault.repair}: {fault.gain.mean:+.3f} nats a token, {fault.gain.errors:.1f} standard errors"
        )
    if shortfall is not None:
        return "unexplained", f"{shortfall.mean:.3f} nats a token below the baseline, and no suspect explains it"
    first = now.hit[:, 0]
    error = float(np.sqrt(max(first.mean() * (1 - first.mean()), 1e-9) / len(first)))
    if first.mean() - chance <= ERRORS * error:
        return "unexplained", f"no better than chance ({first.mean():.3f} at depth 1), and no suspect explains it"
    return None, "better than chance, and no other reading of the checkpoint does better"


def _notes(pair: PairView, agreement: float) -> tuple[str, ...]:
    bits = quantised_bits(pair.target.model)
    notes = []
    if bits is not None and bits <= COARSE_BITS:
        notes.append(f"the target's weights take {bits} bits: a drafter made for finer ones loses hits")
    if agreement < 1.0:
        notes.append(f"the target chooses {agreement:.1%} of the texts' tokens when it reads them in one forward")
    return tuple(notes)
