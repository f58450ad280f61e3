"""Traces made of a seeded random text, for the replay tests; decoding here is written anew, token by token."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from draftwood.trace.builder import TraceBuilder, TraceRound
from draftwood.trace.format import Trace
from draftwood.trace.tables import TraceMeta

VOCAB = 40
DEPTH = 4


def meta(**changes: object) -> TraceMeta:
    values: dict[str, object] = {
        "policy": "", "options": {}, "model": "made", "drafter": "made", "dtype": "float32", "vocab_size": VOCAB,
        "every_position": True,
    }  # fmt: skip
    return TraceMeta(**(values | changes))  # type: ignore[arg-type]


def scores(rng: np.random.Generator, truth: np.ndarray, depth: int, hit: float = 0.7) -> tuple[np.ndarray, np.ndarray]:
    """(depth, VOCAB) descending log-probabilities and ids; the true token leads with probability `hit`."""
    logp = np.zeros((depth, VOCAB), dtype=np.float32)
    ids = np.zeros((depth, VOCAB), dtype=np.int32)
    for d in range(depth):
        logits = np.sort(rng.normal(size=VOCAB) * 2)[::-1]
        order = rng.permutation(VOCAB)
        if d < len(truth):
            rank = 0 if rng.random() < hit else int(rng.integers(1, 6))
            where = int(np.flatnonzero(order == truth[d])[0])
            order[[rank, where]] = order[[where, rank]]
        logp[d] = logits - np.log(np.exp(logits).sum())
        ids[d] = order
    return logp, ids


def calibrated_scores(rng: np.random.Generator, truth: np.ndarray, depth: int) -> tuple[np.ndarray, np.ndarray]:
    """Like `scores`, but the true token's rank is drawn from the scores themselves, sharp in some rounds."""
    logp = np.zeros((depth, VOCAB), dtype=np.float32)
    ids = np.zeros((depth, VOCAB), dtype=np.int32)
    sharpness = rng.uniform(0.5, 5.0)
    for d in range(depth):
        logits = np.sort(rng.normal(size=VOCAB) * sharpness)[::-1]
        logp[d] = logits - np.log(np.exp(logits).sum())
        order = rng.permutation(VOCAB)
        if d < len(truth):
            prob = np.exp(logp[d].astype(np.float64))
            rank = int(rng.choice(VOCAB, p=prob / prob.sum()))
            where = int(np.flatnonzero(order == truth[d])[0])
            order[[rank, where]] = order[[where, rank]]
        ids[d] = order
    return logp, ids


def every_position(
    lengths: list[int], seed: int = 0, finish: str = "length", slack: int = 0, calibrated: bool = False
) -> Trace:
    """One request per length; `slack` tokens of max_tokens are left when the request ends."""
    rng = np.random.default_rng(seed)
    builder = TraceBuilder(meta(seed=seed), depth=DEPTH)
    for number, length in enumerate(lengths):
        output = rng.integers(0, VOCAB, size=length)
        request = builder.add_request(
            request_id=str(number), set_name="made", prompt_hash="00", prompt_len=5 + number, max_tokens=length + slack
        )
        for position in range(length - 1):
            logp, ids = (calibrated_scores if calibrated else scores)(rng, output[position + 1 :], DEPTH)
            builder.add_round(
                request,
                TraceRound(position, int(output[position]), 5 + number + position, logp, ids),
            )
        builder.finish_request(request, output, finish)
    return builder.build()


def best_first(logp: np.ndarray, max_nodes: int, candidates: int, max_depth: int) -> list[tuple[int, ...]]:
    """The likeliest rank paths, by enumeration: descending sum, ties by the rank tuple."""
    kept = min(candidates, logp.shape[1])
    paths = [path for d in range(1, max_depth + 1) for path in itertools.product(range(kept), repeat=d)]
    total = {path: float(sum(np.float64(logp[d, rank]) for d, rank in enumerate(path))) for path in paths}
    return sorted(paths, key=lambda path: (-total[path], path))[:max_nodes]


def decode(
    trace: Trace, width: Callable[[int], int], candidates: int, max_nodes: int
) -> list[tuple[list[int], list[int]]]:
    """(committed, rows) lists of each request when `width(round index)` nodes are verified; plain Python."""
    result = []
    for request in range(trace.num_requests):
        output = [int(token) for token in trace.output(request)]
        first = trace.rounds_of(request).start
        cap = int(trace.requests.max_tokens[request])
        position, committed, rows = 0, [], []
        while position < len(output) - 1:
            index = first + position
            remaining = cap - position - 1
            depth = min(int(trace.rounds.depth[index]), remaining - 1)
            logp, ids = trace.rounds.logp[index], trace.rounds.ids[index]
            tree = best_first(logp, max_nodes, candidates, depth) if depth > 0 else []
            tree = tree[: width(index)]
            accepted, path = 0, ()
            truth = output[position + 1 :]
            while accepted < len(truth):
                children = {
                    int(ids[accepted, node[-1]]): node
                    for node in tree
                    if node[:-1] == path and len(node) == accepted + 1
                }
                if truth[accepted] not in children:
                    break
                path = children[truth[accepted]]
                accepted += 1
            step = min(accepted + 1, len(truth))
            committed.append(step)
            rows.append(len(tree) + 1)
            position += step
        result.append((committed, rows))
    return result


def narrowed(trace: Trace, candidates: int) -> Trace:
    """The same trace with only the first candidates of every depth."""
    rounds = replace(trace.rounds, logp=trace.rounds.logp[..., :candidates], ids=trace.rounds.ids[..., :candidates])
    return replace(trace, rounds=rounds)
