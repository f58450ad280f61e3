"""What the engine itself costs, in one run: python benchmarks/engine_costs.py [PART ...] [--dtype float32] [--json].

Parts (all by default):
  grow      microseconds to grow a tree of 64 and of 1024 nodes (15 depths x 64 candidates)
  overhead  share of a 16-node round spent outside the two model forwards, by stage
  plain     `ar` against transformers' own generate on the demo target, interleaved
  speedup   chain and fixed trees against plain decoding, interleaved, with the same-output check
  memory    peak resident memory of a 64-node run against `ar`, same process, after warm-up

Ratios are taken inside one run; absolute times depend on what else the machine is doing.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from draftwood import Engine
from draftwood.core import DraftBlock
from draftwood.models.threads import default_threads
from draftwood.prompts.sets import load_prompts
from draftwood.tree.grow import grow, warm_up

FORWARDS = ("draft", "verify")
PLAIN_PAIRS = 16


def main() -> None:
    """Run the chosen parts and print them as lines or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", default=[], metavar="PART")
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--prompts", default="gsm8k_like", help="bundled set or JSONL file")
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=96)
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result: dict[str, object] = {"machine": platform.processor() or platform.machine(), "threads": args.threads}
    names = args.parts or list(PARTS)
    if unknown := set(names) - set(PARTS):
        parser.error(f"part {sorted(unknown)[0]!r}: expected one of {', '.join(PARTS)}")
    engine = None
    if set(names) - {"grow"}:
        cache = Path.home() / ".cache" / "draftwood"
        engine = Engine.load("demo:smollm2", dtype=args.dtype, threads=args.threads, cache_dir=cache)
        result["dtype"] = engine.dtype_name
        result["capability"] = torch.backends.cpu.get_cpu_capability()
    for name in names:
        result[name] = PARTS[name](engine, args)
    print(json.dumps(result, indent=None if args.json else 2))


def bench_grow(engine: Engine | None, args: argparse.Namespace) -> dict[str, float]:
    """Median and best microseconds over blocks of random scores."""
    warm_up()
    rng = np.random.default_rng(0)
    blocks = []
    for _ in range(50):
        logits = rng.normal(size=(1, 15, 1, 64)) * 2
        logp = -np.sort(-(logits - np.log(np.exp(logits).sum(-1, keepdims=True))), axis=-1)
        ids = np.argsort(rng.random((1, 15, 1, 4096)), axis=-1)[..., :64]
        blocks.append(DraftBlock(logp.astype(np.float32), ids.astype(np.int64), np.array([15])))
    out = {}
    for nodes in (64, 1024):
        spent = []
        for block in blocks * 10:
            start = time.perf_counter()
            grow(block, 0, pending=1, candidates=64, max_nodes=nodes, max_depth=15)
            spent.append((time.perf_counter() - start) * 1e6)
        out[f"{nodes}_median_us"] = statistics.median(spent)
        out[f"{nodes}_best_us"] = min(spent)
    return out


def bench_overhead(engine: Engine, args: argparse.Namespace) -> dict[str, float]:
    """Shares of a round's seconds by stage; `outside` is everything but the two forwards."""
    prompts = _prompts(args)
    engine.generate(prompts[:1], policy="ddtree", budget=16, max_tokens=16)
    seconds: dict[str, float] = {}
    rounds = 0
    for prompt in prompts:
        with engine.timing():
            (output,) = engine.generate([prompt], policy="ddtree", budget=16, max_tokens=args.tokens)
        for record in output.rounds:
            rounds += record.drafted
            if record.drafted:
                for name, value in record.seconds.items():
                    seconds[name] = seconds.get(name, 0.0) + value
    total = sum(seconds.values())
    shares = {name: value / total for name, value in seconds.items()}
    shares["outside"] = sum(share for name, share in shares.items() if name not in FORWARDS)
    return {**shares, "round_ms": total / rounds * 1e3, "rounds": rounds}


def bench_plain(engine: Engine, args: argparse.Namespace) -> dict[str, float]:
    """Milliseconds per token after the first, ours and transformers' own greedy generate, best attention of each.

    Pairs alternate in which comes first, and the first pair is warm-up. The ratio is the median over pairs.
    """
    ids = engine.codec.encode(_prompts(args)[0])
    pairs = []
    for index in range(PLAIN_PAIRS + 1):
        both = {}
        for run in (_our_token_s, _their_token_s)[:: 1 if index % 2 else -1]:
            both[run] = run(engine, ids, args.tokens)
        pairs.append((both[_our_token_s], both[_their_token_s]))
    ours, theirs = zip(*pairs[1:], strict=True)
    ratios = [b / a for a, b in zip(ours, theirs, strict=True)]
    low, _, high = statistics.quantiles(ratios, n=4)
    return {
        "ar_ms": statistics.median(ours) * 1e3,
        "transformers_ms": statistics.median(theirs) * 1e3,
        "transformers_over_ar": statistics.median(ratios),
        "ratio_lower_quartile": low,
        "ratio_upper_quartile": high,
        "ar_won": sum(ratio > 1 for ratio in ratios),
        "pairs": len(ratios),
    }


def _our_token_s(engine: Engine, ids: list[int], tokens: int) -> float:
    generation = engine.generate([ids], policy="ar", max_tokens=tokens, raw=True)[0]
    return generation.decode_s / (len(generation.token_ids) - 1)


def _their_token_s(engine: Engine, ids: list[int], tokens: int) -> float:
    with engine.state.target.as_shipped("sdpa") as model:
        first = _timed(lambda: _hf(model, ids, 1))
        whole = _timed(lambda: _hf(model, ids, tokens))
    return (whole.seconds - first.seconds) / (whole.count - 1)


def bench_speedup(engine: Engine, args: argparse.Namespace) -> dict[str, object]:
    """Tokens per second of every row over plain decoding, prompts interleaved; `same` counts equal outputs."""
    rows = {"ar": ("ar", {}), "chain": ("chain", {})}
    rows |= {f"ddtree {n}": ("ddtree", {"budget": n}) for n in (4, 8, 16, 32, 64)}
    seconds = dict.fromkeys(rows, 0.0)
    tokens, rounds, same = dict.fromkeys(rows, 0), dict.fromkeys(rows, 0), dict.fromkeys(rows, 0)
    prompts = _prompts(args)
    for policy, options in rows.values():
        engine.generate(prompts[:1], policy=policy, max_tokens=8, **options)
    for prompt in prompts:
        reference: list[int] = []
        for name, (policy, options) in rows.items():
            generation = engine.generate([prompt], policy=policy, max_tokens=args.tokens, **options)[0]
            reference = reference or generation.token_ids
            same[name] += generation.token_ids == reference
            seconds[name] += generation.decode_s
            tokens[name] += len(generation.token_ids) - 1
            rounds[name] += len(generation.rounds)
    speed = {name: tokens[name] / seconds[name] for name in rows}
    return {
        name: {
            "tokens_per_s": speed[name],
            "over_ar": speed[name] / speed["ar"],
            "over_chain": speed[name] / speed["chain"],
            "mean_committed": tokens[name] / max(1, rounds[name]),
            "same": f"{same[name]}/{len(prompts)}",
        }
        for name in rows
    }


def bench_memory(engine: Engine, args: argparse.Namespace) -> dict[str, float]:
    """Peak resident bytes while decoding, sampled every 2 ms; median of 3 after one warm-up of each."""
    ids = engine.codec.encode(_prompts(args)[0])
    runs: dict[str, list[float]] = {"ar": [], "ddtree 64": []}
    for repeat in range(4):
        for name, options in (("ar", {"policy": "ar"}), ("ddtree 64", {"policy": "ddtree", "budget": 64})):
            gc.collect()
            peak = _peak_bytes(lambda options=options: engine.generate([ids], max_tokens=args.tokens, **options))
            if repeat:
                runs[name].append(peak)
    ar, tree = statistics.median(runs["ar"]), statistics.median(runs["ddtree 64"])
    drafter = sum(p.numel() * p.element_size() for p in engine.state.drafter.model.parameters())
    return {"ar_mb": ar / 1e6, "ddtree_64_mb": tree / 1e6, "drafter_mb": drafter / 1e6, "ratio": tree / (ar + drafter)}


class _Timed:
    def __init__(self, count: int, seconds: float) -> None:
        self.count = count
        self.seconds = seconds


def _timed(run: Callable[[], int]) -> _Timed:
    start = time.perf_counter()
    count = run()
    return _Timed(count, time.perf_counter() - start)


@torch.inference_mode()
def _hf(model: object, ids: list[int], tokens: int) -> int:
    prompt = torch.tensor([ids])
    output = model.generate(
        prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=tokens, do_sample=False, pad_token_id=2
    )
    return output.shape[1] - len(ids)


def _peak_bytes(run: Callable[[], object]) -> float:
    done = threading.Event()
    peak = 0

    def watch() -> None:
        nonlocal peak
        while not done.is_set():
            peak = max(peak, _resident_bytes())
            time.sleep(0.002)

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        run()
    finally:
        done.set()
        thread.join()
    return peak


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def _prompts(args: argparse.Namespace) -> list[str]:
    return [prompt.text for prompt in load_prompts(args.prompts, args.limit).prompts]


PARTS = {
    "grow": bench_grow,
    "overhead": bench_overhead,
    "plain": bench_plain,
    "speedup": bench_speedup,
    "memory": bench_memory,
}

if __name__ == "__main__":
    main()
