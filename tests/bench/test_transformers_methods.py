"""The shipped baselines on a tiny pair: all of them say what transformers' own greedy generation says."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest
import torch
from decoding import random_drafter
from families import family, healthy

from draftwood.bench.methods import Pair, load_methods

FILE = Path(__file__).parents[2] / "examples" / "transformers_methods.py"
TOKENS = 24


@pytest.mark.parametrize("end", [None, 9])
def test_outputs_are_the_greedy_text(end: int | None, tmp_path: Path) -> None:
    made = family("llama", "float64")
    random_drafter(tmp_path, made)
    model = made.target.model
    pair = Pair("tiny", str(tmp_path), model, None, "float64", "cpu", () if end is None else (end,))
    attention = model.config._attn_implementation
    methods = load_methods(FILE, pair)
    assert list(methods) == ["transformers", "prompt-lookup", "transformers-dflash"]
    assert model.config._attn_implementation == attention  # the engine's own handle is left alone
    prompt, text = healthy("llama", "float64", 12, TOKENS)
    if end is not None and end in text:
        text = text[: text.index(end) + 1]
    for name, method in methods.items():
        assert list(method(list(prompt), TOKENS)) == text, name
        assert list(method(list(prompt), 1)) == text[:1], name


def test_second_handle_shares_the_weights() -> None:
    spec = importlib.util.spec_from_file_location("shipped_methods", FILE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    model = family("llama", "float64").target.model
    handle = module.second_handle(model)
    mine, theirs = dict(model.named_parameters()), dict(handle.named_parameters())
    assert mine.keys() == theirs.keys() and all(mine[name].data_ptr() == theirs[name].data_ptr() for name in mine)
    assert handle.config._attn_implementation == "sdpa"


def test_without_a_drafter_the_dflash_path_is_left_out(capsys: pytest.CaptureFixture[str]) -> None:
    made = family("llama", "float64")
    methods = load_methods(FILE, Pair("tiny", None, made.target.model, None, "float64", "cpu", ()))
    assert list(methods) == ["transformers", "prompt-lookup"]
    assert "DFlash path is left out" in capsys.readouterr().out
    assert torch.get_num_threads() >= 1
