"""Inside a round: node logits, the pool after commits, the taps the drafter gets, positions near the context limit."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import pytest
import torch
from decoding import Outcome, Wanted, greedy_wanted, knowing, policy_case, run
from families import CONTEXT_LIMIT, FAMILIES, HIDDEN, LAYERS, VOCAB, Family, family
from stepping import submit
from stub_drafter import KnowingDrafter, Watched
from transformers import DynamicCache

from draftwood.batch import Batch, kv_index
from draftwood.cache import KVPool
from draftwood.core import Visibility
from draftwood.engine import Engine, EngineConfig, SamplingParams
from draftwood.models.base import TargetSpec

SHORT = ((5, 14, 0), (23, 9, 0), (12, 16, 1), (2, 12, 2), (31, 10, 3))


@dataclass
class Spy:
    """A target that keeps what goes through it."""

    made: Family
    batches: list[Batch] = field(default_factory=list)
    logits: list[torch.Tensor] = field(default_factory=list)

    @property
    def spec(self) -> TargetSpec:
        return self.made.target.spec

    def forward(self, batch: Batch, pool: KVPool, tap_layers: Sequence[int], taps: torch.Tensor | None) -> torch.Tensor:
        logits = self.made.target.forward(batch, pool, tap_layers, taps)
        self.batches.append(batch)
        self.logits.append(logits)
        return logits

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        return self.made.target.embed(token_ids)

    def head(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.made.target.head(hidden)


def spied(made: Family) -> tuple[Spy, Family]:
    spy = Spy(made)
    return spy, replace(made, target=spy)  # type: ignore[arg-type]


def path_logits(made: Family, context: list[int], batch: Batch, index: int) -> torch.Tensor:
    """(rows, V): every row's ancestor path behind the context of request `index` of a batch, run alone."""
    tokens = batch.token_ids[batch.rows(index)]
    visible = batch.own_visible(index)
    if visible is None:
        visible = np.tri(len(tokens), dtype=bool)
    out = torch.empty(len(tokens), made.target.spec.vocab_size, dtype=torch.float64)
    lengths = visible.sum(axis=1)
    for length in np.unique(lengths):
        same = np.flatnonzero(lengths == length)
        paths = [context + tokens[visible[row]].tolist() for row in same]
        out[same] = made.logits(paths)[:, -1]
    return out


@pytest.mark.parametrize("name", FAMILIES)
def test_node_logits_equal_their_ancestor_path_run_alone(name: str) -> None:
    spy, made = spied(family(name, "float64"))
    done = run(
        made, knowing(), ["ddtree64", "ddtree7", "chain", "ar", "ddtree64"], greedy_wanted(name, "float64", SHORT)
    )
    texts = {one.request.id: [*one.wanted.prompt, *one.wanted.text] for one in done}
    checked, most_trees = 0, 0
    for batch, logits in zip(spy.batches, spy.logits, strict=True):
        most_trees = max(most_trees, batch.visibility.count(Visibility.ANCESTORS))
        for index, request in enumerate(batch.requests):
            context = texts[request][: batch.prefix_len[index]]
            expected = path_logits(spy.made, context, batch, index)
            # Rows without a wanted logit are those of prefill chunks.
            rows = np.arange(batch.offsets[index], batch.offsets[index + 1])
            wanted = np.isin(rows, batch.logit_rows)
            at = np.searchsorted(batch.logit_rows, rows[wanted])
            error = (logits[at] - expected[wanted]).abs().max() if wanted.any() else torch.tensor(0.0)
            assert error < 1e-9, (batch, index, error)
            checked += int(wanted.sum())
    assert checked > 400 and most_trees >= 3


@pytest.mark.parametrize("name", FAMILIES)
def test_pool_and_taps_equal_a_sequential_run(name: str) -> None:
    made = family(name, "float64")
    drafter = knowing()
    compared = 0

    def compare(engine: Engine, done: list[Outcome]) -> None:
        nonlocal compared
        for one in done:
            if one.request.finished or one.request.in_prefill or not one.request.rounds:
                continue
            length = one.request.committed
            text = [*one.wanted.prompt, *one.wanted.text][:length]
            keys, values, hidden = sequential(made, text)
            rows_kv = torch.from_numpy(kv_index(engine.state.pool.prefix(one.request.id)))
            assert len(rows_kv) == length
            for layer in range(LAYERS):
                assert (engine.state.pool.k(layer)[rows_kv] - keys[layer]).abs().max() < 1e-9
                assert (engine.state.pool.v(layer)[rows_kv] - values[layer]).abs().max() < 1e-9
            taps = torch.cat(drafter.taps[one.request.id])
            expected = torch.cat([hidden[layer + 1] for layer in drafter.target_layer_ids], dim=1)
            assert taps.shape == (length, 2 * HIDDEN)
            assert (taps - expected).abs().max() < 1e-9
            compared += 1

    done = run(made, drafter, ["ddtree64"], greedy_wanted(name, "float64", SHORT), after_step=compare)
    assert compared >= 10
    # Paths that are no prefix of their rows, with more rounds behind them, are what can go wrong.
    paths = [outcome.path for one in done for outcome in one.outcomes[:-1]]
    assert sum(not np.array_equal(path, np.arange(len(path))) for path in paths) >= 3


@torch.inference_mode()
def sequential(made: Family, text: list[int]) -> tuple[list[torch.Tensor], list[torch.Tensor], list[torch.Tensor]]:
    """Keys and values (T, G, E) per layer and hidden states (T, h), one token at a time through transformers' cache."""
    cache = DynamicCache()
    hidden: list[list[torch.Tensor]] = []
    for token in text:
        out = made.exact(
            input_ids=torch.tensor([[token]]), past_key_values=cache, use_cache=True, output_hidden_states=True
        )
        hidden.append([states[0] for states in out.hidden_states])
    keys = [layer.keys[0].transpose(0, 1) for layer in cache.layers]
    values = [layer.values[0].transpose(0, 1) for layer in cache.layers]
    return keys, values, [torch.cat(states) for states in zip(*hidden, strict=True)]


@pytest.mark.parametrize("case", ["ar", "chain", "ddtree64"])
def test_never_a_position_beyond_the_context_limit(case: str) -> None:
    made = family("mistral", "float64")
    spy, watched = spied(made)
    wanted = []
    for length in range(CONTEXT_LIMIT - 20, CONTEXT_LIMIT + 1):
        # The last token of a full context is decided at position limit - 1 and stands at position limit.
        wanted.append(long_wanted(made, length, CONTEXT_LIMIT - length + 1))
    drafter = knowing()
    done = run_unbounded(watched, drafter, case, wanted)
    assert [one.request.token_ids for one in done] == [one.text for one in wanted]
    assert {one.request.finish_reason for one in done} == {"length"}
    assert max(int(batch.pos.max()) for batch in spy.batches) == CONTEXT_LIMIT - 1
    assert all(one.context_len + one.block_size <= CONTEXT_LIMIT for one in drafter.asked)
    if case != "ar":
        assert {one.block_size for one in drafter.asked} >= set(range(2, 9))
        assert any(record.committed > 1 for one in done for record in one.request.rounds)


def run_unbounded(made: Family, drafter: KnowingDrafter, case: str, wanted: list[Wanted]) -> list[Outcome]:
    """`run` with max_tokens far beyond the context, so that the context alone ends the texts."""
    engine = Engine(made.target, drafter, config=EngineConfig(prefill_chunk=64))
    done = []
    for one in wanted:
        policy = Watched(policy_case(case))
        request = submit(engine, one.prompt, policy, SamplingParams(1000, end_ids=frozenset()))
        drafter.know(request.id, [*one.prompt, *one.text], one.dice)
        done.append(Outcome(request, one, policy.outcomes))
    while engine.loop.step():
        engine.check_integrity()
    return done


def long_wanted(made: Family, length: int, tokens: int) -> Wanted:
    """A prompt near the limit with its greedy text; float64 needs no healthy gap."""
    prompt = tuple(int(token) for token in np.random.default_rng(length).integers(0, VOCAB, length))
    return Wanted(prompt, made.greedy(prompt, tokens)[0], 0, length)
