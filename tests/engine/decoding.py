"""Runs of the tiny families: five requests of different lengths that arrive while others run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from drafter_pair import tiny_config, tiny_tensors, write_checkpoint
from families import HIDDEN, LAYERS, VOCAB, Family, family, healthy
from stepping import submit
from stub_drafter import KnowingDrafter, Watched

from draftwood.core import Sampling
from draftwood.draft.base import Drafter
from draftwood.draft.dflash import DFlashDrafter, load_drafter
from draftwood.engine import Engine, EngineConfig, Request, SamplingParams
from draftwood.policy import Policy, RoundOutcome, make_policy

POLICY_CASES: dict[str, tuple[str, dict[str, int]]] = {
    "ar": ("ar", {}),
    "chain": ("chain", {}),
    "ddtree1": ("ddtree", {"budget": 1}),
    "ddtree7": ("ddtree", {"budget": 7}),
    "ddtree64": ("ddtree", {"budget": 64}),
}
# (prompt tokens, output tokens, engine steps before it arrives)
RAGGED = ((5, 40, 0), (23, 12, 0), (12, 33, 2), (2, 40, 3), (31, 25, 6))
SOLO = ((12, 48, 0),)
SAMPLED = ((5, 28, 0), (23, 12, 0), (12, 30, 2), (2, 24, 3), (31, 16, 6))
GREEDY = Sampling()


def policy_case(case: str) -> Policy:
    name, options = POLICY_CASES[case]
    return make_policy(name, **options)


@dataclass
class Wanted:
    """One request of a run: what goes in and what must come out."""

    prompt: tuple[int, ...]
    text: list[int]
    arrival: int
    dice: int


@dataclass
class Outcome:
    """One request after a run."""

    request: Request
    wanted: Wanted
    outcomes: list[RoundOutcome]

    @property
    def mean_committed(self) -> float:
        return float(np.mean([record.committed for record in self.request.rounds]))


def greedy_wanted(name: str, dtype: str, shape: Sequence[tuple[int, int, int]]) -> list[Wanted]:
    """Requests of `shape` whose texts are transformers' own greedy ones."""
    wanted = []
    for dice, (length, tokens, arrival) in enumerate(shape):
        wanted.append(Wanted(*healthy(name, dtype, length, tokens), arrival, dice))
    return wanted


def sampled_wanted(name: str, shape: Sequence[tuple[int, int, int]], sampling: Sampling) -> list[Wanted]:
    """Random prompts in float64 with texts drawn from the model one token at a time."""
    made = family(name, "float64")
    wanted = []
    for dice, (length, tokens, arrival) in enumerate(shape):
        prompt = tuple(int(token) for token in np.random.default_rng([length, 1]).integers(0, VOCAB, length))
        wanted.append(Wanted(prompt, made.sampled(prompt, tokens, sampling), arrival, dice))
    return wanted


def knowing() -> KnowingDrafter:
    return KnowingDrafter(VOCAB)


def random_drafter(folder: Path, made: Family) -> DFlashDrafter:
    """A real DFlash drafter with random weights for a tiny family; `folder` receives its checkpoint."""
    config = tiny_config(
        hidden_size=HIDDEN,
        vocab_size=VOCAB,
        num_target_layers=LAYERS,
        block_size=8,
        dflash_config={"mask_token_id": VOCAB - 1, "target_layer_ids": [0, 1]},
    )
    write_checkpoint(folder, config, tiny_tensors(config, taps=2))
    spec = made.target.spec
    return load_drafter(folder, made.target, dtype=spec.dtype, device="cpu", notify=lambda line: None)


def run(
    made: Family,
    drafter: Drafter,
    cases: Sequence[str],
    wanted: Sequence[Wanted],
    *,
    config: EngineConfig | None = None,
    sampling: Sampling = GREEDY,
    after_step: Callable[[Engine, list[Outcome]], None] | None = None,
) -> list[Outcome]:
    """Decode `wanted` on one engine; request i runs under case i modulo their number. Pools end empty."""
    engine = Engine(made.target, drafter, config=config or EngineConfig(prefill_chunk=16))
    done: list[Outcome] = []
    steps = 0
    while len(done) < len(wanted) or not all(one.request.finished for one in done):
        for index in range(len(done), len(wanted)):
            if wanted[index].arrival <= steps:
                done.append(_submit(engine, drafter, cases[index % len(cases)], wanted[index], sampling))
        engine.loop.step()
        engine.check_integrity()
        if after_step is not None:
            after_step(engine, done)
        steps += 1
    assert engine.loop.step() == []
    assert engine.state.pool.requests == ()
    return done


def _submit(engine: Engine, drafter: Drafter, case: str, one: Wanted, sampling: Sampling) -> Outcome:
    policy = Watched(policy_case(case))
    options = SamplingParams(len(one.text), sampling.temperature, sampling.seed, end_ids=frozenset())
    request = submit(engine, one.prompt, policy, options)
    if isinstance(drafter, KnowingDrafter):
        drafter.know(request.id, [*one.prompt, *one.text], one.dice)
    return Outcome(request, one, policy.outcomes)
