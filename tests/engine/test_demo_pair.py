"""The bundled pair on real prompts: the same text as transformers' own generation of the same weights."""

from __future__ import annotations

import importlib.util
import os
from collections.abc import Iterator

import pytest
import torch

from draftwood import Engine
from draftwood.engine.loading import cache_folder
from draftwood.models.hf import HFTarget
from draftwood.models.source import DEMO_INSTALL, DEMO_PACKAGE

TOKENS = 24
PROMPTS = {
    "maths": "Tom has 3 boxes with 12 apples each and gives away 7 apples. How many are left? Think step by step.",
    "code": "Write a Python function that reverses a list.",
    "chat": "Give me two tips for a good night's sleep.",
}
POLICIES = [("ar", {}), ("chain", {}), ("ddtree", {"budget": 16})]

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec(DEMO_PACKAGE) is None, reason=f"the demo's weights are not installed: {DEMO_INSTALL}"
)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Takes the place of the folder's: this model is large enough for all threads."""


@pytest.fixture(scope="module")
def engine() -> Iterator[Engine]:
    """The demo pair in float32, its conversion cached where the command line keeps it."""
    threads = torch.get_num_threads()
    yield Engine.load("demo:smollm2", dtype="float32", threads=1, cache_dir=cache_folder(os.environ))
    torch.set_num_threads(threads)


@pytest.fixture(scope="module")
def reference(engine: Engine) -> dict[str, list[int]]:
    """Greedy text of every prompt by transformers' generate, with its own attention and cache."""
    target, codec = engine.state.target, engine.codec
    assert isinstance(target, HFTarget) and codec is not None
    ours = target.model.config._attn_implementation
    target.model.set_attn_implementation("sdpa")
    texts = {}
    for name, prompt in PROMPTS.items():
        messages = [{"role": "user", "content": prompt}]
        ids = codec.tokenizer.apply_chat_template(
            messages, add_generation_prompt=True, return_tensors="pt", return_dict=True
        )
        out = target.model.generate(**ids, max_new_tokens=TOKENS, do_sample=False)
        texts[name] = out[0, ids["input_ids"].shape[1] :].tolist()
    target.model.set_attn_implementation(ours)
    return texts


@pytest.mark.parametrize(("policy", "options"), POLICIES, ids=["ar", "chain", "ddtree16"])
def test_same_text_as_transformers(
    engine: Engine, reference: dict[str, list[int]], policy: str, options: dict[str, int]
) -> None:
    for name, prompt in PROMPTS.items():
        (result,) = engine.generate([prompt], policy=policy, max_tokens=TOKENS, **options)
        assert result.token_ids == reference[name]
        assert sum(record.committed for record in result.rounds) == len(result.token_ids) - 1
        if policy == "ar":
            assert result.mean_committed == 1.0


def test_same_texts_in_one_batch(engine: Engine, reference: dict[str, list[int]]) -> None:
    policy, options = POLICIES[-1]
    together = engine.generate(list(PROMPTS.values()), policy=policy, max_tokens=TOKENS, **options)
    assert [result.token_ids for result in together] == list(reference.values())


def test_the_bundled_drafter_is_often_right(engine: Engine) -> None:
    """The chain commits well above one token a round on the maths prompt, and a tree around it no fewer."""
    (chain,) = engine.generate([PROMPTS["maths"]], policy="chain", max_tokens=48)
    (tree,) = engine.generate([PROMPTS["maths"]], policy="ddtree", budget=16, max_tokens=48)
    assert chain.token_ids == tree.token_ids
    assert chain.mean_committed is not None and tree.mean_committed is not None
    assert chain.mean_committed > 1.5
    assert tree.mean_committed > 1.5


def test_stream_and_text_agree(engine: Engine) -> None:
    assert engine.codec is not None
    pieces = list(engine.stream(PROMPTS["chat"], policy="ddtree", budget=16, max_tokens=TOKENS))
    result = pieces[-1].output
    assert result is not None and result.text == "".join(piece.text for piece in pieces)
    assert result.text == engine.codec.tokenizer.decode(result.token_ids, skip_special_tokens=True)
    assert all(piece.text for piece in pieces)
