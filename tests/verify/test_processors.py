"""Processors against a plain-Python oracle of each control, and inside a walk."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from draftwood.core import DraftBlock, Sampling
from draftwood.errors import NonFiniteLogitsError, UsageError
from draftwood.tree.grow import grow
from draftwood.verify import Controls, CounterDraw, History, Processors, chooser, greedy, recursive, walk

VOCABULARY = 9
NONE = np.zeros(0, np.int64)
SHAPES = [(1, 0), (1, 99), (3, 7), (9, 60)]


def plain(row: list[float], prompt: list[int], generated: list[int], options: dict[str, Any]) -> list[float]:
    """Every control written out with lists and loops."""
    out = [float(value) for value in row]
    for token, bias in options.get("logit_bias", {}).items():
        out[token] += bias
    for token in range(len(out)):
        if token in prompt or token in generated:
            penalty = options.get("repetition_penalty", 1.0)
            out[token] = out[token] * penalty if out[token] < 0 else out[token] / penalty
        times = generated.count(token)
        if times:
            out[token] -= options.get("presence_penalty", 0.0) + options.get("frequency_penalty", 0.0) * times
    if len(generated) < options.get("min_tokens", 0):
        for token in options.get("end_ids", ()):
            out[token] = -math.inf
    temperature = options.get("temperature", 0.0)
    if not temperature:
        return out
    top = max(out)
    weight = [math.exp((value - top) / temperature) for value in out]
    order = sorted(range(len(out)), key=lambda token: (-weight[token], token))
    order = order[: options.get("top_k", 0) or len(order)]
    total, before, kept = sum(weight[token] for token in order), 0.0, []
    for token in order:
        if before < options.get("top_p", 1.0) * total:
            kept.append(token)
        before += weight[token]
    kept = [token for token in kept if weight[token] >= options.get("min_p", 0.0) * weight[order[0]]]
    return [value if token in kept else -math.inf for token, value in enumerate(out)]


CASES: list[dict[str, Any]] = [
    {},
    {"logit_bias": {2: -100.0, 5: 3.5}},
    {"repetition_penalty": 1.7},
    {"repetition_penalty": 0.6},
    {"presence_penalty": 0.8},
    {"frequency_penalty": 0.5},
    {"presence_penalty": -0.4, "frequency_penalty": -0.3},
    {"min_tokens": 4, "end_ids": (1, 7)},
    {"temperature": 1.0, "top_k": 3},
    {"temperature": 0.7, "top_k": 100},
    {"temperature": 1.4, "top_p": 0.6},
    {"temperature": 1.0, "top_p": 1e-9},
    {"temperature": 0.8, "min_p": 0.2},
    {"temperature": 1.0, "min_p": 1.0},
    {"temperature": 1.1, "top_k": 5, "top_p": 0.8, "min_p": 0.1, "repetition_penalty": 1.3,
     "presence_penalty": 0.2, "frequency_penalty": 0.1, "logit_bias": {0: 1.0}, "min_tokens": 3, "end_ids": (4,)},
]  # fmt: skip


@pytest.mark.parametrize("options", CASES)
def test_equals_the_plain_version(options: dict[str, Any]) -> None:
    rng = np.random.default_rng(1)
    processors = Processors(VOCABULARY, **options)
    for case in range(60):
        row = torch.from_numpy(rng.normal(0, 2, VOCABULARY))
        if case % 3 == 0:
            row = row.round()  # ties
        if case % 5 == 0:
            row[3] = -torch.inf
        prompt = rng.integers(0, VOCABULARY, 3)
        generated = rng.integers(0, VOCABULARY, case % 7)
        before = row.clone()
        edited = processors.apply(row, History(prompt, generated))
        expected = plain(row.tolist(), prompt.tolist(), generated.tolist(), options)
        np.testing.assert_allclose(edited.numpy(), expected, rtol=0, atol=1e-12)
        assert torch.equal(row, before)


def test_ties_in_top_k_and_top_p_go_to_the_lower_id() -> None:
    row = torch.tensor([1.0, 2.0, 2.0, 2.0, 1.0])
    kept = Processors(5, temperature=1.0, top_k=2).apply(row, History(NONE, NONE))
    assert torch.isfinite(kept).nonzero().flatten().tolist() == [1, 2]
    equal = Processors(4, temperature=1.0, top_p=0.5).apply(torch.zeros(4), History(NONE, NONE))
    assert torch.isfinite(equal).nonzero().flatten().tolist() == [0, 1]


def target_row(tokens: list[int]) -> np.ndarray:
    return np.random.default_rng([4, *tokens]).normal(0, 1.5, VOCABULARY)


def decode(options: dict[str, Any], shape: tuple[int, int], sampling: Sampling, num_tokens: int = 16) -> list[int]:
    """Output ids of a round-by-round decode; the drafter sees the raw target one step ahead."""
    processors, choose = Processors(VOCABULARY, **options), chooser(sampling)
    prompt = [2, 6, 2]
    out: list[int] = []

    def law(path: list[int]) -> np.ndarray:
        return target_row(prompt + path)

    first = processors.apply(torch.from_numpy(law([])), History(np.array(prompt), NONE))
    out.append(int(choose(first[None], np.array([len(prompt)]))))
    while len(out) < num_tokens:
        scores = np.stack([law(out), *(target_row([depth, len(out)]) for depth in range(3))])
        logp = scores - np.log(np.exp(scores).sum(-1, keepdims=True))
        order = np.argsort(-logp, axis=-1)
        block = DraftBlock(
            np.take_along_axis(logp, order, -1)[None, :, None].astype(np.float32), order[None, :, None], np.array([4])
        )
        tree = grow(block, 0, pending=out[-1], candidates=shape[0], max_nodes=shape[1], max_depth=4)
        paths = [out]
        for node in range(1, tree.num_rows):
            paths.append([*paths[tree.parent[node]], int(tree.token[node])])
        logits = torch.from_numpy(np.stack([law(path) for path in paths]))
        controls = Controls(processors, History(np.array(prompt), np.array(out)))
        found = walk(tree, logits, choose, len(prompt) + len(out) - 1, controls=controls)
        out += [*tree.token[found.path[1:]].tolist(), found.pending]
    return out[:num_tokens]


@pytest.mark.parametrize("options", CASES)
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0, seed=8)])
def test_controls_do_not_depend_on_the_tree(options: dict[str, Any], sampling: Sampling) -> None:
    """Penalties see committed tokens and ancestors, so a tree changes nothing: equal to one token at a time."""
    choose = chooser(sampling)
    prompt, out = [2, 6, 2], list[int]()
    for _ in range(16):
        row = plain(target_row(prompt + out).tolist(), prompt, out, options)
        out.append(int(choose(torch.tensor([row], dtype=torch.float64), np.array([len(prompt) + len(out)]))))
    for shape in SHAPES:
        assert decode(options, shape, sampling) == out


def test_penalties_change_the_text_and_depend_on_ancestors() -> None:
    """Or the test above would show nothing."""
    plain_text = decode({}, (9, 60), Sampling())
    assert decode({"frequency_penalty": 2.0}, (9, 60), Sampling()) != plain_text


def test_a_banned_favourite_never_appears() -> None:
    favourite = max(range(VOCABULARY), key=decode({}, (9, 60), Sampling(1.0, seed=1), 60).count)
    for shape in SHAPES:
        assert favourite not in decode({"logit_bias": {favourite: -100.0}}, shape, Sampling(1.0, seed=1), 60)


@pytest.mark.parametrize("least", [0, 1, 2, 5])
def test_exactly_min_tokens_come_before_the_favourite_end_token(least: int) -> None:
    end = 4
    for shape in SHAPES:
        out = decode({"logit_bias": {end: 50.0}, "min_tokens": least, "end_ids": (end,)}, shape, Sampling())
        assert out.index(end) == least and set(out[least:]) == {end}


def test_recursive_takes_controls_too() -> None:
    processors = Processors(4, logit_bias={1: -200.0})
    controls = Controls(processors, History(NONE, np.array([0])))
    block = DraftBlock(np.log([[[[0.6, 0.3]]]]).astype(np.float32), np.array([[[[1, 2]]]]), np.array([1]))
    tree = grow(block, 0, pending=0, candidates=2, max_nodes=2, max_depth=1)
    logits = torch.zeros(3, 4, dtype=torch.float64)
    for seed in range(60):
        found = recursive(tree, logits, CounterDraw(seed), 0, temperature=1.0, controls=controls)
        assert 1 not in [*tree.token[found.path].tolist(), found.pending]


def test_banning_everything_is_an_error_that_names_the_position() -> None:
    controls = Controls(Processors(2, min_tokens=3, end_ids=(0, 1)), History(NONE, NONE))
    block = DraftBlock(np.zeros((1, 0, 1, 1), np.float32), np.zeros((1, 0, 1, 1), np.int64), np.array([0]))
    tree = grow(block, 0, pending=0, candidates=1, max_nodes=0, max_depth=0)
    with pytest.raises(NonFiniteLogitsError, match="position 6 contain no token above -inf"):
        walk(tree, torch.zeros(1, 2), greedy, 5, controls=controls)


@pytest.mark.parametrize(
    ("options", "idle"),
    [
        ({}, True),
        ({"temperature": 1.0}, True),
        ({"top_k": 3}, True),
        ({"temperature": 1.0, "top_k": VOCABULARY}, True),
        ({"min_tokens": 5}, True),
        ({"end_ids": (1,)}, True),
        ({"temperature": 1.0, "top_k": 3}, False),
        ({"temperature": 1.0, "min_p": 0.1}, False),
        ({"temperature": 1.0, "top_p": 0.9}, False),
        ({"logit_bias": {1: 1.0}}, False),
        ({"presence_penalty": 0.1}, False),
        ({"min_tokens": 5, "end_ids": (1,)}, False),
    ],
)
def test_idle(options: dict[str, Any], idle: bool) -> None:
    processors = Processors(VOCABULARY, **options)
    assert processors.idle == idle
    if idle:
        row = torch.randn(VOCABULARY, generator=torch.Generator().manual_seed(1)).double()
        assert torch.equal(processors.apply(row, History(np.array([1, 1]), np.array([2]))), row)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"logit_bias": {9: 1.0}}, "logit_bias id 9: expected 0 to 8"),
        ({"logit_bias": {-1: 1.0}}, "logit_bias id -1: expected 0 to 8"),
        ({"end_ids": (3, 200)}, "end_ids id 200: expected 0 to 8"),
        ({"logit_bias": {1: math.nan}}, "logit_bias of id 1 nan: expected a finite number"),
        ({"repetition_penalty": 0.0}, "repetition_penalty 0.0: expected a finite number > 0"),
        ({"presence_penalty": math.inf}, "presence_penalty inf: expected a finite number"),
        ({"frequency_penalty": math.nan}, "frequency_penalty nan: expected a finite number"),
        ({"min_tokens": -1}, "min_tokens -1: expected 0 or more"),
        ({"temperature": -1.0}, "temperature -1.0: expected a finite number >= 0"),
        ({"top_k": -2}, r"top_k -2: expected 0 \(all\) or more"),
        ({"top_p": 0.0}, "top_p 0.0: expected above 0, up to 1"),
        ({"top_p": math.nan}, "top_p nan: expected above 0, up to 1"),
        ({"min_p": 1.5}, "min_p 1.5: expected 0 to 1"),
    ],
)
def test_wrong_controls_are_one_line(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=f"^{message}$"):
        Processors(VOCABULARY, **options)


def test_vocabulary_must_exist() -> None:
    with pytest.raises(UsageError, match=r"^vocab_size 0: expected at least 1$"):
        Processors(0)
