"""The certificate on laws: does a verifier commit tokens with the target's own probabilities?

At a few prefixes one round is drafted and verified, and its node logits are kept. Each verifier then decides that round
many thousand times, and what it commits is compared with the exact law by total variation (CAST, appendix D.2, made a
test with a stated false-alarm rate). Each node's law keeps its likeliest tokens and one cell for all others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
import torch

from ..core import ROOT_NODE, DraftTree, Forest, Verdict, Verdicts
from ..engine import Engine, SamplingParams
from ..engine.round import Forward
from ..engine.schedule import Job
from ..engine.step import Stages
from ..errors import UsageError
from ..policy import Policy, make_policy
from ..prompts.units import Unit
from ..tree.layout import find_child
from ..verify import Gumbel, recursive, walk
from ..verify.oracle import Pick, branching_chooser

CELLS = 64
"""Largest tokens of a node that keep a cell of their own."""
ROUNDS = 200_000
"""Rounds of each verifier over all prefixes; a round commits at least one token."""
PREFIXES = 8
LAW_BUDGET = 8
"""Nodes of a round's tree: wide enough for siblings on several levels. The recursive verifier can make as many
different runs as siblings have orders."""
SAMPLES = 1_000
QUANTILE = 0.999

Outcome = TypeVar("Outcome", bound=Hashable)
Decide = Callable[[DraftTree, torch.Tensor, Pick, float], Verdict]
"""(tree, logits (M, V), source of chance, temperature) -> what is committed."""


@dataclass(frozen=True, slots=True)
class LawSettings:
    """How much is drawn. Raises UsageError for values out of range."""

    temperature: float = 1.0
    rounds: int = ROUNDS
    """Over all prefixes."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature > 0:
            raise UsageError(f"temperature {self.temperature}: a law needs one above 0")
        if self.rounds < 1:
            raise UsageError(f"rounds {self.rounds}: expected at least 1")


class LawCase(NamedTuple):
    """One drafted round."""

    tree: DraftTree
    logits: torch.Tensor
    """(M, V) of its nodes."""


@dataclass(frozen=True, slots=True)
class LawCheck:
    """What one verifier committed against the exact law. Pooled = mean over the prefixes."""

    verifier: str
    temperature: float
    prefixes: int
    rounds: int
    """Over all prefixes."""
    committed_tokens: int
    tv: float
    """Pooled total variation of whole rounds: the accepted path and the token behind it."""
    limit: float
    """99.9 % quantile of the same number for 1,000 multinomial samples of the exact law."""
    largest_tv: float
    """At the worst prefix."""
    passed: bool


def walk_round(tree: DraftTree, logits: torch.Tensor, pick: Pick, temperature: float) -> Verdict:
    """The default verifier with `pick` as its chooser."""
    return walk(tree, logits, branching_chooser(pick, temperature), 0)


def recursive_round(tree: DraftTree, logits: torch.Tensor, pick: Pick, temperature: float) -> Verdict:
    """CAST's recursive verifier with `pick` as its source of chance."""
    return recursive(tree, logits, lambda weights, pos, counter: pick(weights), 0, temperature=temperature)


VERIFIERS: Mapping[str, Decide] = {"walk": walk_round, "recursive": recursive_round}


def record_cases(engine: Engine, units: Sequence[Unit], count: int = PREFIXES) -> list[LawCase]:
    """One round at each of `count` fixed prefixes: a prompt and the first tokens of its greedy text.

    Prompts are used in turn, each time with more of their text; plain decoding makes it.
    """
    if engine.state.drafter is None:
        raise UsageError("a law needs a tree to verify: this model has no drafter, name one with --drafter")
    policy = make_policy("ddtree", budget=LAW_BUDGET)
    chosen = [units[number % len(units)] for number in range(count)]
    texts = engine.generate([unit.prompt_ids for unit in chosen], policy="ar", max_tokens=count)
    return [
        record_case(engine, [*unit.prompt_ids, *text.token_ids[:number]], policy)
        for number, (unit, text) in enumerate(zip(chosen, texts, strict=True))
    ]


def record_case(engine: Engine, prefix_ids: Sequence[int], policy: Policy) -> LawCase:
    """The first round after a prefix: its tree and the target's logits of all nodes."""
    kept: list[LawCase] = []

    def keeping(stages: Stages) -> Stages:
        def look(jobs: list[Job], forest: Forest, forward: Forward) -> Verdicts:
            if jobs[0].is_round and not kept:
                kept.append(LawCase(forest[0], forward.logits.double().cpu().clone()))
            found: Verdicts = stages.walk(jobs, forest, forward)
            return found

        return replace(stages, walk=look)

    depth = engine.state.drafter.block_size if engine.state.drafter is not None else 1
    request = engine.make_request(prefix_ids, policy, SamplingParams(max_tokens=depth + 2, end_ids=frozenset()))
    with engine.loop.watching(keeping):
        (request,) = engine.run([request])
    engine.output(request)
    if not kept:
        raise UsageError(f"prefix of {len(prefix_ids)} tokens: no round fits behind it, expected a shorter one")
    return kept[0]


def reduced(case: LawCase, temperature: float, cells: int = CELLS) -> LawCase:
    """The same round over a small vocabulary: each node keeps its `cells` likeliest tokens and one cell for the rest.

    Tokens are renumbered; the last id is the rest, which no child carries. A child outside its parent's cells can then
    never be accepted, which makes it another law, but one as good for testing a verifier. At `temperature` the softmax
    of the new logits is the reduced law.
    """
    laws = torch.softmax(case.logits / temperature, dim=-1)  # (M, V) fp64
    kept, ids = laws.topk(min(cells, laws.shape[1]), dim=-1)
    names = np.unique(np.concatenate([ids.numpy().ravel(), case.tree.token]))
    small = torch.zeros(len(laws), len(names) + 1, dtype=torch.float64)
    small.scatter_(1, torch.from_numpy(np.searchsorted(names, ids.numpy())), kept)
    small[:, -1] = (1.0 - kept.sum(dim=-1)).clamp(min=0.0)
    tokens = np.searchsorted(names, case.tree.token).astype(np.int64)
    return LawCase(replace(case.tree, token=tokens), temperature * small.log())


def round_law(case: LawCase, temperature: float) -> dict[tuple[int, int], float]:
    """The exact law of a round: (last accepted node, token decided there) -> probability.

    A node is reached with the product of the probabilities of its path; what ends a round is no child of its node.
    """
    tree = case.tree
    laws = torch.softmax(case.logits / temperature, dim=-1).numpy()  # (M, V) fp64
    reach = np.ones(tree.num_rows)
    law: dict[tuple[int, int], float] = {}
    for node in range(tree.num_rows):
        if node != ROOT_NODE:
            reach[node] = reach[tree.parent[node]] * laws[tree.parent[node], tree.token[node]]
        for token in np.flatnonzero(laws[node]):
            if find_child(tree, node, int(token)) < 0:
                law[node, int(token)] = float(reach[node] * laws[node, token])
    return law


def sample_counts(procedure: Callable[[Pick], Outcome], rounds: int, rng: np.random.Generator) -> Counter[Outcome]:
    """How often each outcome occurs in `rounds` independent runs of `procedure`.

    Runs that made the same picks so far are carried as one with a count, which every further pick divides among its
    possibilities by a multinomial draw. The counts follow the same law as separate runs, for as many calls of the
    procedure as there are different sequences of picks.
    """
    counts: Counter[Outcome] = Counter()
    waiting: list[tuple[tuple[int, ...], int]] = [((), rounds)]
    while waiting:
        crowd = _Crowd(*waiting.pop(), rng)
        outcome = procedure(crowd.pick)
        counts[outcome] += crowd.count
        waiting += crowd.left_behind
    return counts


class _Crowd:
    """`count` runs whose first picks are `script`; behind it the crowd splits, and one part goes on."""

    def __init__(self, script: tuple[int, ...], count: int, rng: np.random.Generator) -> None:
        self.script, self.count, self._rng = script, count, rng
        self.taken: tuple[int, ...] = ()
        self.left_behind: list[tuple[tuple[int, ...], int]] = []

    def pick(self, weights: np.ndarray) -> int:
        if len(self.taken) < len(self.script):
            choice = self.script[len(self.taken)]
        else:
            possible = np.flatnonzero(weights)
            parts = self._rng.multinomial(self.count, weights[possible] / weights[possible].sum())
            choice, *others = (int(index) for index in np.flatnonzero(parts))
            self.left_behind += [((*self.taken, int(possible[other])), int(parts[other])) for other in others]
            self.count, choice = int(parts[choice]), int(possible[choice])
        self.taken += (choice,)
        return choice


def check_verifiers(
    cases: Sequence[LawCase], settings: LawSettings, verifiers: Mapping[str, Decide] = VERIFIERS
) -> list[LawCheck]:
    """Run every verifier on the reduced rounds and compare what they commit with the exact law."""
    temperature, rounds = settings.temperature, _share(settings, cases)
    small = [reduced(case, temperature) for case in cases]
    laws = [round_law(case, temperature) for case in small]
    limit = variation_limit([np.array(list(law.values())) for law in laws], rounds, settings.seed)
    checks = []
    for name, decide in verifiers.items():
        rng = np.random.default_rng([settings.seed, 1])
        variations, committed = [], 0
        for case, law in zip(small, laws, strict=True):
            counts = sample_counts(partial(_run, decide, case, temperature), rounds, rng)
            committed += sum(count * (int(case.tree.depth[node]) + 1) for (node, _), count in counts.items())
            variations.append(total_variation(counts, law, rounds))
        checks.append(_law_check(name, settings, rounds, committed, variations, limit))
    return checks


def check_gumbel(cases: Sequence[LawCase], settings: LawSettings) -> LawCheck:
    """Draw by Gumbel-max from each root's likeliest tokens alone and compare with their law.

    The chooser is the one that requests use, its noise that of consecutive positions; `rounds` draws in all.
    """
    draws = _share(settings, cases)
    laws, variations = [], []
    for number, case in enumerate(cases):
        logits = case.logits[ROOT_NODE].topk(min(CELLS, case.logits.shape[1])).values[None]
        law = torch.softmax(logits[0] / settings.temperature, dim=-1).numpy()
        choose = Gumbel(settings.temperature, settings.seed, number)
        tokens = choose(logits.expand(draws, -1), np.arange(draws)).numpy()
        counts = np.bincount(tokens, minlength=len(law))
        variations.append(0.5 * float(np.abs(counts / draws - law).sum()))
        laws.append(law)
    limit = variation_limit(laws, draws, settings.seed)
    return _law_check("gumbel chooser", settings, draws, draws * len(cases), variations, limit)


def total_variation(counts: Mapping[Outcome, int], law: Mapping[Outcome, float], rounds: int) -> float:
    """Half the summed distance between shares and probabilities, outcomes that the law excludes included."""
    outcomes = law.keys() | counts.keys()
    return 0.5 * sum(abs(counts.get(outcome, 0) / rounds - law.get(outcome, 0.0)) for outcome in outcomes)


def variation_limit(laws: Sequence[np.ndarray], rounds: int, seed: int) -> float:
    """The 99.9 % quantile, over 1,000 draws, of the mean total variation of multinomial samples from `laws`."""
    rng = np.random.default_rng([seed, 0])
    pooled = np.zeros(SAMPLES)
    for law in laws:
        law = law / law.sum()
        shares = rng.multinomial(rounds, law, size=SAMPLES) / rounds  # (SAMPLES, cells)
        pooled += 0.5 * np.abs(shares - law).sum(axis=1)
    return float(np.quantile(pooled / len(laws), QUANTILE))


def _share(settings: LawSettings, cases: Sequence[LawCase]) -> int:
    """Rounds of one prefix."""
    if not cases:
        raise UsageError("no prefixes to test a law at: expected at least one")
    return max(1, settings.rounds // len(cases))


def _run(decide: Decide, case: LawCase, temperature: float, pick: Pick) -> tuple[int, int]:
    verdict = decide(case.tree, case.logits, pick, temperature)
    return int(verdict.path[-1]), verdict.pending


def _law_check(
    name: str, settings: LawSettings, rounds: int, committed: int, variations: Sequence[float], limit: float
) -> LawCheck:
    tv = float(np.mean(variations))
    return LawCheck(
        verifier=name,
        temperature=settings.temperature,
        prefixes=len(variations),
        rounds=rounds * len(variations),
        committed_tokens=committed,
        tv=tv,
        limit=limit,
        largest_tv=max(variations),
        passed=tv < limit,
    )
