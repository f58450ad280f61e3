"""Seconds that the engine itself takes in a round of R requests: python benchmarks/batch_costs.py [--json].

For the demo pair and for a tiny random pair, R = 1, 4, 16, 32, 64, a fixed tree of 8 nodes each: the seconds of a step
less those of the models in it (the target's forward, the drafter's states and head), per round, medians over steps in
which all R requests had a round. What is left is scheduling, growth, choice, packing, the walk, commits and records.
Nothing else may run on the machine meanwhile.
"""

from __future__ import annotations

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig

from draftwood import Engine
from draftwood.attention import SdpaBackend
from draftwood.draft.dflash import load_drafter
from draftwood.engine import EngineConfig, SamplingParams
from draftwood.models.hf import HFTarget
from draftwood.models.threads import default_threads
from draftwood.policy import make_policy

REQUESTS = (1, 4, 16, 32, 64)
PROMPT, TOKENS, BUDGET = 24, 24, 8


def main() -> None:
    """Measure both pairs and print a table or one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pair", choices=["tiny", "demo", "both"], default="both")
    parser.add_argument("--threads", type=int, default=default_threads())
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    result: dict[str, Any] = {"threads": args.threads, "capability": torch.backends.cpu.get_cpu_capability()}
    for name, make in (("tiny", tiny_engine), ("demo", demo_engine)):
        if args.pair in (name, "both"):
            result[name] = {str(count): measure(make(), count) for count in REQUESTS}
    print(json.dumps(result, indent=None if args.json else 2))


def measure(engine: Engine, count: int) -> dict[str, float]:
    """Milliseconds of a step outside the models and in all, and the share of the first, for `count` requests."""
    clock = ModelClock()
    clock.watch(engine.state.target, "forward")
    for name in ("block_states", "_scores"):
        clock.watch(engine.state.drafter, name)
    rng = np.random.default_rng(0)
    vocab = engine.state.target.spec.vocab_size
    params = SamplingParams(TOKENS, end_ids=frozenset())
    for _ in range(count):
        prompt = rng.integers(0, vocab - 2, PROMPT).tolist()
        engine.loop.add(engine.make_request(prompt, make_policy("ddtree", budget=BUDGET), params))
    outside, whole = [], []
    while True:
        clock.seconds = 0.0
        start_s = time.perf_counter()
        stepped = engine.loop.step()
        step_s = time.perf_counter() - start_s
        if not stepped:
            break
        if len(stepped) == count and all(request.rounds for request in stepped):
            outside.append(step_s - clock.seconds)
            whole.append(step_s)
    own, step_s = statistics.median(outside), statistics.median(whole)
    return {"own_ms": own * 1e3, "step_ms": step_s * 1e3, "share": own / step_s, "steps": len(whole)}


class ModelClock:
    """Adds up the seconds of watched methods."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self, thing: Any, name: str) -> None:
        """Time a method of `thing` from now on."""
        method: Callable[..., Any] = getattr(thing, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start_s = time.perf_counter()
            try:
                return method(*args, **kwargs)
            finally:
                self.seconds += time.perf_counter() - start_s

        setattr(thing, name, timed)


def demo_engine() -> Engine:
    """The demo pair in the number type that suits the machine."""
    return Engine.load("demo:smollm2", config=EngineConfig(max_requests=max(REQUESTS)))


def tiny_engine() -> Engine:
    """A llama of two layers and a random drafter, float32."""
    torch.manual_seed(0)
    sizes = {"vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4}
    config = LlamaConfig(num_hidden_layers=2, num_key_value_heads=2, max_position_embeddings=1024, **sizes)
    target = HFTarget(AutoModelForCausalLM.from_config(config, dtype=torch.float32), SdpaBackend(), name="tiny")
    with tempfile.TemporaryDirectory() as folder:
        write_drafter(Path(folder))
        drafter = load_drafter(folder, target, dtype=torch.float32, device="cpu", notify=print)
    return Engine(target, drafter, config=EngineConfig(max_requests=max(REQUESTS)))


def write_drafter(folder: Path) -> None:
    """A DFlash checkpoint of one layer with random weights (docs/dflash.md 1)."""
    shapes = {"fc": (64, 64), "q_proj": (64, 64), "k_proj": (32, 64), "v_proj": (32, 64), "o_proj": (64, 64)}
    shapes |= {"gate_proj": (128, 64), "up_proj": (128, 64), "down_proj": (64, 128)}
    norms = {"hidden_norm": 64, "norm": 64, "layers.0.input_layernorm": 64, "layers.0.post_attention_layernorm": 64}
    norms |= {"layers.0.self_attn.q_norm": 16, "layers.0.self_attn.k_norm": 16}
    tensors = {f"{name}.weight": torch.ones(width) for name, width in norms.items()}
    for name, shape in shapes.items():
        place = "" if name == "fc" else "layers.0.self_attn." if name[1] == "_" else "layers.0.mlp."
        tensors[f"{place}{name}.weight"] = 0.1 * torch.randn(shape)
    save_file(tensors, folder / "model.safetensors")
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "block_size": 8,
        "dflash_config": {"mask_token_id": 511, "target_layer_ids": [0]},
        "num_target_layers": 2,
        "num_hidden_layers": 1,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "vocab_size": 512,
        "max_position_embeddings": 1024,
    }
    (folder / "config.json").write_text(json.dumps(config))


if __name__ == "__main__":
    main()
