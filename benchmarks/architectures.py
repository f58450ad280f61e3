"""Every causal language model of the installed transformers, tiny and random: exact here, or refused by name?

    python benchmarks/architectures.py [--output docs/models.md] [MODEL_TYPE ...]

Each is built in float64 with two or four small layers. `ar` and `ddtree` with 64 nodes must give what transformers'
own `generate` gives, on a prompt longer than any window, with drafts that are accepted. The table says what came of it;
"different" must not occur.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import multiprocessing
import sys
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

VOCAB, WINDOW, PROMPT, TOKENS = 64, 8, 22, 16
MAX_PARAMETERS = 8_000_000
TIMEOUT_S = 90.0
EXACT, REFUSED, UNBUILT, DIFFERENT = "exact", "refused", "not built", "different"

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB, "hidden_size": 32, "d_model": 32, "n_embd": 32, "dim": 32, "hidden_dim": 32, "embed_dim": 32,
    "intermediate_size": 48, "ffn_dim": 48, "n_inner": 48, "ffn_hidden_size": 48, "moe_intermediate_size": 16,
    "shared_expert_intermediate_size": 16, "num_hidden_layers": 4, "n_layer": 4, "num_layers": 4, "n_layers": 4,
    "num_attention_heads": 4, "n_head": 4, "num_heads": 4, "n_heads": 4, "encoder_attention_heads": 4,
    "num_key_value_heads": 2, "num_kv_heads": 2, "multi_query_group_num": 2, "head_dim": 8, "kv_channels": 8,
    "max_position_embeddings": 128, "n_positions": 128, "max_seq_len": 128, "seq_length": 128, "n_ctx": 128,
    "sliding_window": WINDOW, "attention_chunk_size": WINDOW, "window_size": WINDOW,
    "num_experts": 4, "num_local_experts": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1,
    "n_group": 1, "topk_group": 1, "moe_num_experts": 4, "moe_k": 2, "first_k_dense_replace": 1,
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 8,
    "vocab_size_per_layer_input": VOCAB, "hidden_size_per_layer_input": 8, "attention_dropout": 0.0,
    "is_decoder": True, "rotary_dim": 8, "expert_capacity": 64,
    "initializer_range": 0.25, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None,
    "tie_word_embeddings": False, "query_pre_attn_scalar": 8, "global_head_dim": 8, "mamba_n_heads": 8,
    "mamba_d_head": 8,
    "mamba_d_state": 8, "mamba_n_groups": 1, "state_size": 8, "mamba_expand": 2, "conv_kernel": 4,
    "word_embed_proj_dim": 32,
}  # fmt: skip
"""Small values for whatever a configuration calls its sizes."""
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"num_key_value_heads": 4, "head_dim": ..., "rotary_dim": 8},
    {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2},
    {"num_hidden_layers": ..., "n_layer": ..., "num_layers": ...},
    {
        "num_key_value_heads": 4,
        "head_dim": ...,
        "rotary_dim": 8,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    {"num_experts_per_tok": 1, "num_key_value_heads": 4},
    {
        "vocab_size": 512,
        "head_dim": ...,
        "num_key_value_heads": ...,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
    },
    {"num_hidden_layers": ..., "num_layers": ..., "head_dim": ..., "num_key_value_heads": 4, "pad_token_id": 0},
)
"""Changes of SIZES to try when a model does not run with them; ... leaves a field at its default."""


class Result(NamedTuple):
    """What came of one architecture."""

    model_type: str
    class_name: str
    verdict: str
    reason: str


def model_types() -> dict[str, str]:
    """Class name by model type, of all causal language models that this transformers knows."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return {
        kind: name if isinstance(name, str) else name[0] for kind, name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.items()
    }


def tiny_config(model_type: str, change: Mapping[str, Any]) -> Any:
    """A configuration of that type with small sizes, its parts likewise, changed by one of VARIANTS."""
    from transformers import CONFIG_MAPPING

    sizes = {name: value for name, value in {**SIZES, **change}.items() if value is not ...}
    declared = CONFIG_MAPPING[model_type]
    parts = {
        name: _small(part, sizes)
        for name, part in getattr(declared, "sub_configs", {}).items()
        if dataclasses.is_dataclass(part)
    }
    return declared(**{**_small(declared, sizes), **parts})


def build(model_type: str) -> Any:
    """The first of VARIANTS that runs. Raises what the first one raised when none does."""
    failure: Exception | None = None
    for change in VARIANTS:
        try:
            model = _built(tiny_config(model_type, change))
            with torch.inference_mode():
                model(input_ids=torch.zeros(1, 3, dtype=torch.int64), use_cache=False)
        except Exception as error:  # noqa: BLE001 (whatever transformers raises)
            failure = failure or error
        else:
            return model
    assert failure is not None
    raise failure


def _built(config: Any, seed: int = 0) -> Any:
    """The tiny model, random, in float64 with its eager attention."""
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        size = sum(weight.numel() for weight in AutoModelForCausalLM.from_config(copy.deepcopy(config)).parameters())
    if size > MAX_PARAMETERS:
        raise ValueError(f"{size} parameters, though all sizes that it names are small")
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(
        config, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
    ).eval()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" in name and weight.ndim == 1:
                weight.add_(0.2 * torch.randn_like(weight))
    return model


def judge(model_type: str, class_name: str = "") -> Result:
    """Build one architecture, load it as a target and compare texts."""
    from draftwood.errors import DraftwoodError

    try:
        model = build(model_type)
    except Exception as error:  # noqa: BLE001 (whatever transformers raises)
        return Result(model_type, class_name, UNBUILT, _line(error))
    try:
        target = _target(copy.deepcopy(model), model_type)
    except DraftwoodError as error:
        return Result(model_type, class_name, REFUSED, _line(error).removeprefix(f"{model_type}: "))
    except Exception as error:  # noqa: BLE001 (a traceback is a fault of ours)
        return Result(model_type, class_name, DIFFERENT, f"{type(error).__name__}: {_line(error)}")
    try:
        prompt, expected = _text(model)
    except Exception as error:  # noqa: BLE001 (whatever transformers raises)
        return Result(model_type, class_name, UNBUILT, f"generate: {_line(error)}")
    try:
        found = dict(_decoded(target, prompt, expected))
    except Exception as error:  # noqa: BLE001 (a traceback is a fault of ours)
        return Result(model_type, class_name, DIFFERENT, f"{type(error).__name__}: {_line(error)}")
    wrong = [policy for policy, (tokens, _) in found.items() if tokens != expected]
    if wrong:
        return Result(model_type, class_name, DIFFERENT, f"other text by {', '.join(wrong)}")
    committed = found["ddtree"][1]
    if committed < 1.5:
        return Result(
            model_type, class_name, DIFFERENT, f"the known text was drafted, yet {committed:.1f} tokens a round"
        )
    return Result(model_type, class_name, EXACT, f"{committed:.1f} tokens a round")


class KnownText:
    """Drafts a text that is known, at the first or second rank, beside wrong tokens; satisfies `Drafter`."""

    block_size, kv_row_bytes = 5, 0
    target_layer_ids: tuple[int, ...] = ()

    def __init__(self, text: Sequence[int]) -> None:
        self.text = list(text)

    def allocate(self, kv_rows: int, requests: int) -> None:
        """Nothing is kept."""

    def open(self, request: int, token_ids: np.ndarray, rows: int) -> None:
        """Nothing is kept."""

    def commit(self, committed: Any) -> None:
        """Nothing is kept."""

    def close(self, request: int) -> None:
        """Nothing is kept."""

    def propose(self, wanted: Sequence[Any]) -> Any:
        """The next tokens, each beside three wrong ones, of which one is likelier at odd positions."""
        from draftwood.core import DraftBlock, Forest
        from draftwood.tree.grow import grow

        trees = []
        for one in wanted:
            known = self.text[one.context_len + 1 : one.context_len + 1 + one.max_depth]
            known += [0] * (one.max_depth - len(known))
            ids = np.array([[token, *((token + shift) % VOCAB for shift in (1, 2, 3))] for token in known], np.int64)
            odd = (one.context_len + np.arange(len(known))) % 2 == 1
            ids[odd] = ids[odd][:, [1, 0, 2, 3]]
            logp = np.tile(np.log([0.4, 0.3, 0.2, 0.05]).astype(np.float32), (len(known), 1))
            block = DraftBlock(logp[None, :, None], ids[None, :, None], np.array([len(known)]))
            limits = {"candidates": min(one.candidates, 4), "max_nodes": one.max_nodes, "max_depth": one.max_depth}
            trees.append(grow(block, 0, pending=one.pending, **limits))
        return Forest.of(trees)


def run(kinds: dict[str, str], workers: int, told: Callable[[Result], None]) -> list[Result]:
    """Judge all, each in a process of its own that is ended after TIMEOUT_S; in order of their names."""
    import transformers  # noqa: F401  (once, before the processes part)

    waiting = sorted(kinds.items())
    running: dict[Connection, tuple[Any, str]] = {}
    context, found = multiprocessing.get_context("fork"), {}
    while waiting or running:
        while waiting and len(running) < workers:
            kind, name = waiting.pop(0)
            ours, theirs = context.Pipe(duplex=False)
            process = context.Process(target=_worker, args=(theirs, kind, name))
            process.start()
            theirs.close()
            running[ours] = process, kind
        for ready in wait(list(running), TIMEOUT_S) or list(running):
            process, kind = running.pop(ready)  # type: ignore[index]
            try:
                result = (
                    ready.recv() if ready.poll() else Result(kind, kinds[kind], UNBUILT, f"no end in {TIMEOUT_S:g} s")
                )
            except EOFError:
                result = Result(kind, kinds[kind], UNBUILT, "the process died")
            process.kill()
            process.join()
            found[kind] = result
            told(result)
    return [found[kind] for kind in sorted(found)]


def table(results: Sequence[Result]) -> str:
    """The page docs/models.md."""
    import transformers

    counts = ", ".join(
        f"{sum(one.verdict == kind for one in results)} {kind}" for kind in (EXACT, REFUSED, UNBUILT, DIFFERENT)
    )
    lines = [
        "# Architectures",
        "",
        f"Made by `make models` with transformers {transformers.__version__}: {counts}.",
        "",
        "Every causal language model of transformers, tiny and random, in float64: `ar` and `ddtree` with 64 nodes "
        "against",
        "transformers' own `generate`, on a prompt longer than any window, with drafts that are accepted. *exact*: "
        "the same",
        "text. *refused*: the load says why. *not built*: no tiny model could be made, so nothing is known.",
        "",
        "| model type | class | verdict | reason |",
        "|---|---|---|---|",
    ]
    return "\n".join(
        [*lines, *(f"| {one.model_type} | {one.class_name} | {one.verdict} | {one.reason} |" for one in results), ""]
    )


def _small(declared: Any, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `sizes` that a configuration declares under that name."""
    if not dataclasses.is_dataclass(declared):
        return {}
    names = {field.name for field in dataclasses.fields(declared)} | set(getattr(declared, "attribute_map", {}))
    return {name: value for name, value in sizes.items() if name in names}


def _text(model: Any) -> tuple[list[int], list[int]]:
    """A prompt and what `generate` appends to it, varied and never near a tie."""
    for seed in range(8):
        prompt = np.random.default_rng(seed).integers(0, VOCAB, PROMPT).tolist()
        ids = torch.tensor([prompt])
        with torch.inference_mode():
            out = model.generate(
                ids, attention_mask=torch.ones_like(ids), max_new_tokens=TOKENS, do_sample=False, pad_token_id=0,
                eos_token_id=None, output_logits=True, return_dict_in_generate=True,
            )  # fmt: skip
        top = torch.stack(out.logits)[:, 0].double().topk(2).values
        text = out.sequences[0, PROMPT:].tolist()
        if (
            len(text) == TOKENS
            and len(set(text)) > 3
            and float(((top[:, 0] - top[:, 1]) / top.abs().max()).min()) > 1e-6
        ):
            return prompt, text
    raise ValueError("no varied text without near-ties in 8 prompts")


def _target(model: Any, name: str) -> Any:
    from draftwood.attention import SdpaBackend
    from draftwood.models.checkpoint import context_limit
    from draftwood.models.hf import HFTarget

    limit = context_limit(model.config.get_text_config(decoder=True), name, lambda line: None)
    return HFTarget(model, SdpaBackend(), name=name, context_limit=limit)


def _decoded(target: Any, prompt: list[int], expected: list[int]) -> Iterator[tuple[str, tuple[list[int], float]]]:
    """(policy, (text, tokens a round)) by Draftwood."""
    from draftwood.engine import Engine, EngineConfig

    with Engine(
        target, KnownText([*prompt, *expected]), config=EngineConfig(prefill_chunk=9, max_kv_rows=512)
    ) as engine:
        for policy, options in (("ar", {}), ("ddtree", {"budget": 64})):
            (output,) = engine.generate([prompt], policy=policy, max_tokens=TOKENS, end_ids=frozenset(), **options)
            rounds = output.rounds
            yield policy, (list(output.token_ids), sum(one.committed for one in rounds) / max(len(rounds), 1))


def _worker(pipe: Connection, kind: str, name: str) -> None:
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    sys.stderr = open("/dev/null", "w", encoding="utf-8")  # noqa: SIM115
    pipe.send(judge(kind, name))


def _line(error: BaseException) -> str:
    text = " ".join(str(error).split()).replace("|", "/") or type(error).__name__
    return text if len(text) <= 200 else text[:197] + "..."


def main() -> int:
    """Judge the named architectures, or all, and write or print the table; 1 if any differs."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("model_types", nargs="*", metavar="MODEL_TYPE")
    parser.add_argument("--output", type=Path)
    parser.add_argument("--workers", type=int, default=2)
    asked = parser.parse_args()
    known = model_types()
    unknown = [kind for kind in asked.model_types if kind not in known]
    if unknown:
        parser.error(f"model type {unknown[0]!r}: expected one of {', '.join(sorted(known))}")
    kinds = {kind: known[kind] for kind in asked.model_types or known}
    results = run(kinds, asked.workers, lambda one: print(*one[::2], one.reason, sep="  ", flush=True))
    if asked.output is not None:
        asked.output.write_text(table(results), encoding="utf-8")
    return int(any(one.verdict == DIFFERENT for one in results))


if __name__ == "__main__":
    sys.exit(main())
