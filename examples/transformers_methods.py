"""transformers' own decoding as rows of a bench, under the same timer and the same output gate:

    draftwood bench MODEL --drafter D --methods-from examples/transformers_methods.py

Rows: plain `generate`, prompt lookup, and the DFlash path where this transformers has one and the drafter fits it. They
run on a second handle of the target with transformers' own attention; the handle shares the weights.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import GenerationConfig

from draftwood.bench.methods import Method, Pair
from draftwood.linear import use_plain

LOOKUP_TOKENS = 10
# Names in a DFlash checkpoint -> names in transformers' class; all others agree.
RENAMED = {"fc.weight": "encoder.fc.weight", "hidden_norm.weight": "encoder.output_norm_enc.weight"}


def prepare(pair: Pair) -> dict[str, Method]:
    """The methods that this pair allows; what is left out is said."""
    handle = second_handle(pair.target)
    methods = {
        "transformers": decoder(handle, pair),
        "prompt-lookup": decoder(handle, pair, prompt_lookup_num_tokens=LOOKUP_TOKENS),
    }
    assistant = dflash_assistant(pair)
    if assistant is None:
        print("transformers' DFlash path is left out: it does not fit this drafter, or this version has none")
    else:
        methods["transformers-dflash"] = decoder(handle, pair, speculation_type="dflash", assistant_model=assistant)
    return methods


def second_handle(model: Any) -> Any:
    """A copy of the modules around the same weights, with transformers' sdpa attention and torch's own products."""
    shared = {id(tensor): tensor for tensor in (*model.parameters(), *model.buffers())}
    handle = copy.deepcopy(model, shared)
    handle.set_attn_implementation("sdpa")
    use_plain(handle)
    return handle


def decoder(model: Any, pair: Pair, assistant_model: Any = None, **options: Any) -> Method:
    """Greedy `generate` with these options as a method."""
    ends = list(pair.end_ids) or None
    more = {} if assistant_model is None else {"assistant_model": assistant_model}

    @torch.inference_mode()
    def decode(prompt_ids: list[int], max_tokens: int) -> list[int]:
        ids = torch.tensor([prompt_ids], device=model.device)
        config = GenerationConfig(
            do_sample=False, max_new_tokens=max_tokens, eos_token_id=ends, pad_token_id=ends[0] if ends else None,
            **options,
        )  # fmt: skip
        output = model.generate(ids, attention_mask=torch.ones_like(ids), generation_config=config, **more)
        return output[0, len(prompt_ids) :].tolist()

    return decode


def dflash_assistant(pair: Pair) -> Any | None:
    """The drafter as the module that transformers' DFlash path expects; None where there is none or it does not fit."""
    try:
        from transformers import MuseGlimmerAssistantConfig, MuseGlimmerAssistantModel
    except ImportError:
        return None
    if pair.drafter is None:
        return None
    folder = Path(pair.drafter)
    raw = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    own = {**raw, **raw.get("dflash_config", {})}
    if own.get("attention_bias") or own.get("rope_scaling"):
        return None
    kinds = own.get("layer_types") or ["full_attention"] * own["num_hidden_layers"]
    names = (
        "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads",
        "head_dim", "rms_norm_eps", "max_position_embeddings", "block_size", "mask_token_id", "target_layer_ids",
    )  # fmt: skip
    config = MuseGlimmerAssistantConfig(
        **{name: own[name] for name in names},
        layer_types=kinds,
        sliding_window=own.get("sliding_window") or own["max_position_embeddings"],
        rope_parameters={"rope_type": "default", "rope_theta": own["rope_theta"]},
    )
    config._attn_implementation = "sdpa"
    model = MuseGlimmerAssistantModel(config)
    tensors = {RENAMED.get(name, name): tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    if model.state_dict().keys() != tensors.keys():
        return None
    model.load_state_dict(tensors)
    return model.to(device=pair.device, dtype=getattr(torch, pair.dtype)).eval()
