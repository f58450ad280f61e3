"""Targets from transformers: packed rows against the model's own attention, and what is refused."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from families import CONTEXT_LIMIT, DTYPES, FAMILIES, HIDDEN, LAYERS, VOCAB, Family, family
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig

from draftwood.attention import AttendOptions, SdpaBackend
from draftwood.attention.base import Plan
from draftwood.batch import Batch, BatchTensors, RequestRows, build
from draftwood.cache import KVPool
from draftwood.core import Visibility
from draftwood.errors import ModelError, UnsupportedError, UsageError
from draftwood.models.base import ReferenceModel, TargetModel
from draftwood.models.hf import HFTarget
from draftwood.models.probe import SHRUNK, shrunk_windows

pytestmark = pytest.mark.portable

ARRAYS = ("token_ids", "pos", "kv_rows", "ancestors", "logit_rows", "tap_rows")


def text_of(length: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng([length, seed]).integers(0, VOCAB, length)


def new_pool(made: Family) -> KVPool:
    return KVPool(made.target.spec.layers, kv_rows=128, dtype=made.target.spec.dtype)


def causal(pool: KVPool, request: int, ids: np.ndarray, logits_from: int | None = 0, taps: bool = False) -> RequestRows:
    start = pool.prefix_len(request)
    return RequestRows(
        request,
        ids,
        start + np.arange(len(ids)),
        start,
        pool.prefix(request),
        pool.reserve(request, len(ids)),
        Visibility.CAUSAL,
        logits_from=logits_from,
        taps=taps,
    )


def chunked(made: Family, text: np.ndarray, chunk: int) -> torch.Tensor:
    """(T, V) logits of a text prefilled in chunks."""
    pool = new_pool(made)
    pool.open(0, len(text))
    out = []
    for start in range(0, len(text), chunk):
        ids = text[start : start + chunk]
        out.append(made.target.forward(build([causal(pool, 0, ids)]), pool, (), None))
        pool.advance(0, len(ids))
    return torch.cat(out)


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("chunk", [1, 7, 60])
def test_chunks_equal_the_whole_text_beyond_the_window(name: str, chunk: int) -> None:
    made, text = family(name, "float64"), text_of(60)
    ours = chunked(made, text, chunk)
    assert (ours - made.logits([text.tolist()])[0]).abs().max() < 1e-9
    # transformers takes its softmax in float32, so its own attention is near, not equal.
    own = made.target.native_logits(text.tolist())
    assert (ours - own).abs().max() < 1e-6 * float(own.abs().max())


@pytest.mark.parametrize("name", FAMILIES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_spec(name: str, dtype: str) -> None:
    target = family(name, dtype).target
    spec = target.spec
    assert (spec.num_layers, spec.hidden_size, spec.vocab_size, spec.embedding_rows) == (LAYERS, HIDDEN, VOCAB, VOCAB)
    assert (spec.context_limit, spec.dtype, spec.device.type) == (CONTEXT_LIMIT, DTYPES[dtype], "cpu")
    assert [(layer.kv_heads, layer.k_dim, layer.v_dim) for layer in spec.layers] == [(2, 8, 8)] * LAYERS
    assert isinstance(target, ReferenceModel)
    protocol: TargetModel = target
    assert protocol.spec.name == name


def test_chosen_rows_and_padding() -> None:
    """Logits and taps come for the rows asked for, in their order; padding rows change nothing."""
    made, text, other = family("qwen3", "float64"), text_of(9), text_of(5, seed=1)
    pool = new_pool(made)
    pool.open(0, 16)
    pool.open(1, 16)
    batch = build([causal(pool, 0, text, logits_from=8), causal(pool, 1, other, logits_from=None)], [18])
    assert batch.num_rows == 14
    batch.token_ids[14:], batch.pos[14:] = 3, 99
    chosen = replace(batch, logit_rows=np.array([8, 11, 13]), tap_rows=np.array([0, 4, 10]))
    batch = replace(chosen, buffer=np.concatenate([getattr(chosen, name).ravel() for name in ARRAYS]))
    taps = torch.full((3, 2 * HIDDEN), torch.nan, dtype=torch.float64)
    logits = made.target.forward(batch, pool, (1, 0), taps)
    whole, second = made.logits([text.tolist()])[0], made.logits([other.tolist()])[0]
    assert (logits - torch.stack([whole[8], second[2], second[4]])).abs().max() < 1e-9
    hidden = [
        made.exact(input_ids=torch.from_numpy(part)[None], output_hidden_states=True).hidden_states
        for part in (text, other)
    ]
    for row, (which, at) in enumerate([(0, 0), (0, 4), (1, 1)]):
        expected = torch.cat([hidden[which][layer + 1][0, at] for layer in (1, 0)])
        assert (taps[row] - expected).abs().max() < 1e-9


def test_rows_that_are_asked_for_as_a_round_asks() -> None:
    """Logits of the last row of a chunk and of every row of the next; taps of one request's rows alone."""
    made, text, other = family("qwen3", "float64"), text_of(9), text_of(5, seed=1)
    pool = new_pool(made)
    for request in (0, 1):
        pool.open(request, 16)
    batch = build([causal(pool, 0, text, logits_from=8, taps=True), causal(pool, 1, other)], [16])
    taps = torch.full((9, HIDDEN), torch.nan, dtype=torch.float64)
    logits = made.target.forward(batch, pool, (1,), taps)
    expected = torch.cat([made.logits([text.tolist()])[0, 8:], made.logits([other.tolist()])[0]])
    assert logits.shape == expected.shape and (logits - expected).abs().max() < 1e-9
    hidden = made.exact(input_ids=torch.from_numpy(text)[None], output_hidden_states=True).hidden_states[2][0]
    assert (taps - hidden).abs().max() < 1e-9


def test_embedding_and_head_are_the_bare_matrices() -> None:
    made = family("gemma3", "float64")  # scales its embeddings inside the model
    ids = torch.tensor([3, 5])
    assert torch.equal(made.target.embed(ids), made.reference.get_input_embeddings().weight[ids])
    hidden = torch.randn(2, HIDDEN, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    assert torch.allclose(made.target.head(hidden), hidden @ made.reference.lm_head.weight.T)
    capped = family("gemma2", "float64")  # the soft-cap of the logits is not part of the head
    assert capped.target.head(1000 * hidden).abs().max() > 20.0 > made_logits(capped).abs().max()


def made_logits(made: Family) -> torch.Tensor:
    return chunked(made, text_of(5), 5)


@dataclass
class Planted:
    """A backend with a fault: it changes the options of every layer, or the batch."""

    options: Callable[[AttendOptions], AttendOptions] = lambda given: given
    batch: Callable[[Batch], Batch] = lambda given: given
    name = "planted"

    def plan(self, batch: Batch, tensors: BatchTensors, pool: KVPool, dtype: torch.dtype) -> Plan:
        inner = SdpaBackend().plan(self.batch(batch), tensors, pool, dtype)
        change = self.options

        class Changed:
            def attend(self, layer: int, q: Any, k: Any, v: Any, options: AttendOptions) -> torch.Tensor:
                return inner.attend(layer, q, k, v, change(options))

        return Changed()


def as_chain(batch: Batch) -> Batch:
    seen = tuple(Visibility.CAUSAL if kind is Visibility.ANCESTORS else kind for kind in batch.visibility)
    return replace(batch, visibility=seen)


def without_prefix(batch: Batch) -> Batch:
    return replace(batch, prefix=((),) * len(batch.requests), prefix_len=np.zeros_like(batch.prefix_len))


FAULTS = {
    "scale": ("llama", Planted(options=lambda o: replace(o, scaling=1.01 * o.scaling))),
    "window": ("mistral", Planted(options=lambda o: replace(o, window=None))),
    "window off by one": ("mistral", Planted(options=lambda o: replace(o, window=9))),
    "softcap": ("gemma2", Planted(options=lambda o: replace(o, softcap=None))),
    "sinks": ("gpt_oss", Planted(options=lambda o: replace(o, sinks=None))),
    "tree as chain": ("qwen3", Planted(batch=as_chain)),
    "prefix lost": ("qwen3", Planted(batch=without_prefix)),
    "looks ahead": ("llama", Planted(batch=lambda b: replace(b, visibility=(Visibility.FULL,) * len(b.requests)))),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_probe_catches_a_wrong_attention(fault: str, dtype: str) -> None:
    name, backend = FAULTS[fault]
    model = copy.deepcopy(family(name, dtype).reference)
    with pytest.raises(ModelError, match=rf"{name}: attention probe differs .* of the largest logit"):
        HFTarget(model, backend, name=name)


def test_the_probe_catches_a_model_that_ignores_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(family("llama", "float64").reference)
    inner = model.model.rotary_emb.forward
    rows = lambda x: torch.arange(x.shape[1])[None]  # noqa: E731
    monkeypatch.setattr(model.model.rotary_emb, "forward", lambda x, position_ids: inner(x, position_ids=rows(x)))
    with pytest.raises(ModelError, match="attention probe differs"):
        HFTarget(model, SdpaBackend(), name="rows for positions")


def test_the_probe_catches_a_layer_that_attends_twice() -> None:
    """DiffLlama stages two value tensors for one layer: prefill is right, all that follows is not."""
    with pytest.raises(ModelError, match="attention probe differs"):
        HFTarget(tiny("diffllama"), SdpaBackend(), name="diffllama")


def test_native_attention_is_put_back_after_an_error() -> None:
    target = family("llama", "float32").target
    with pytest.raises(IndexError):
        target.native_logits([VOCAB + 1])
    assert (chunked(family("llama", "float32"), text_of(5), 5)).isfinite().all()


def tiny(model_type: str, **changes: Any) -> Any:
    """A random model of a type, four layers."""
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": 32,
        "intermediate_size": 48,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 128,
        "initializer_range": 0.25,
    }
    torch.manual_seed(0)
    config = AutoConfig.for_model(model_type, **{**sizes, **changes})
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


@pytest.mark.parametrize(
    ("model_type", "reason"),
    [
        ("qwen3_next", "layer type linear_attention: expected full_attention or sliding_attention"),
        ("recurrent_gemma", "layer type linear_attention"),
        ("falcon_h1", "layer type hybrid"),
        ("llama4_text", "layer type chunked_attention"),
        ("mamba", "layer type linear_attention"),
        ("jamba", "layer type linear_attention"),
        ("gptj", "GPTJForCausalLM does not use transformers' attention interface"),
    ],
)
def test_layers_that_are_no_attention_are_refused_by_name(model_type: str, reason: str) -> None:
    with pytest.raises(UnsupportedError, match=f"{model_type}: {reason}") as caught:
        HFTarget(tiny(model_type), SdpaBackend(), name=model_type)
    assert "\n" not in str(caught.value) and isinstance(caught.value, UsageError)


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4},
        {
            "rope_type": "longrope",
            "rope_theta": 1e4,
            "factor": 4.0,
            "short_factor": [1.0] * 4,
            "long_factor": [2.0] * 4,
            "original_max_position_embeddings": 32,
        },
    ],
    ids=["dynamic", "longrope"],
)
def test_ropes_that_look_at_the_longest_position_are_refused(rope: dict[str, Any]) -> None:
    """Crossing the boundary inside a tree would turn the rows before it differently from plain decoding."""
    model = tiny("llama", rope_parameters=rope)
    with pytest.raises(UnsupportedError, match=f"rope type '{rope['rope_type']}' depends on the longest position"):
        HFTarget(model, SdpaBackend(), name="long")


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "linear", "factor": 2.0, "rope_theta": 1e4},
        {
            "rope_type": "llama3",
            "rope_theta": 1e4,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 32,
        },
    ],
    ids=["linear", "llama3"],
)
def test_ropes_of_a_row_alone_are_accepted(rope: dict[str, Any]) -> None:
    model = tiny("llama", rope_parameters=rope)
    target = HFTarget(model, SdpaBackend(), name="rope")
    made = Family("rope", target, model, model)
    text = text_of(60)
    own = target.native_logits(text.tolist())
    assert (chunked(made, text, 7) - own).abs().max() < 1e-4 * float(own.abs().max())


def test_a_model_that_looks_both_ways_is_refused() -> None:
    model = AutoModelForCausalLM.from_config(LlamaConfig(num_hidden_layers=2, hidden_size=16, num_attention_heads=2))
    model.model.layers[1].self_attn.is_causal = False
    with pytest.raises(UnsupportedError, match="layer 1 attends in both directions"):
        HFTarget(model, SdpaBackend(), name="both")


def test_windows_are_put_back() -> None:
    model = copy.deepcopy(family("mistral", "float64").reference)
    before = model.config.sliding_window
    model.model.layers[0].self_attn.sliding_window = 100
    with shrunk_windows(model):
        assert model.config.sliding_window == model.model.layers[0].self_attn.sliding_window == SHRUNK < before
    assert model.config.sliding_window == before and model.model.layers[0].self_attn.sliding_window == 100


def test_the_probe_sees_a_large_window_that_only_the_mask_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As some models do: the mask is cut by the configuration, the attention call says nothing."""
    from transformers.masking_utils import create_sliding_window_causal_mask
    from transformers.models.llama import modeling_llama

    model = copy.deepcopy(family("llama", "float64").reference)
    monkeypatch.setattr(modeling_llama, "create_causal_mask", create_sliding_window_causal_mask)
    model.config.sliding_window = 200
    with pytest.raises(ModelError, match="attention probe differs"):
        HFTarget(model, SdpaBackend(), name="window in the mask")


def test_the_probe_looks_where_the_rotation_changes_its_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy.deepcopy(family("llama", "float64").reference)
    model.config.rope_parameters = {**model.config.rope_parameters, "original_max_position_embeddings": 64}
    inner = model.model.rotary_emb.forward
    # Wrong beyond the original length, and only in packs: there a longer position stands beside.
    monkeypatch.setattr(
        model.model.rotary_emb,
        "forward",
        lambda x, position_ids: inner(x, position_ids=position_ids + (model.plan_seen and position_ids > 64)),
    )
    model.plan_seen = 0
    call = model.forward
    monkeypatch.setattr(
        model, "forward", lambda *a, **k: (setattr(model, "plan_seen", int("plan" in k)), call(*a, **k))[1]
    )
    with pytest.raises(ModelError, match=r"differs .* at positions 52 to 75"):
        HFTarget(model, SdpaBackend(), name="late rule")


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_model_whose_own_logits_are_not_finite_is_said_to_be_that(value: float) -> None:
    model = copy.deepcopy(family("llama", "float32").reference)
    with torch.no_grad():
        model.model.layers[0].mlp.down_proj.weight[0, 0] = value
    with pytest.raises(ModelError, match="the model's own logits are not finite in float32") as error:
        HFTarget(model, SdpaBackend(), name="broken")
    assert "attention feature" not in str(error.value)
