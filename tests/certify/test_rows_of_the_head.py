"""Whoever asks the model itself about one token pays for one row of logits, not for a text of them."""

from __future__ import annotations

import pytest
import torch
from families import family, rows_through_the_head
from made_samples import sample

from draftwood.bench.plan import Panel, rows_of
from draftwood.bench.session import explain_with
from draftwood.certify.reference import Reference
from draftwood.core import Sampling
from draftwood.engine import Engine
from draftwood.prompts.units import Unit

PROMPT, OUTPUT = (5, 6, 7, 8), [9, 10, 11]


def whole() -> torch.Tensor:
    """(7, V) logits of the text by a second copy of the model."""
    with torch.inference_mode():
        logits: torch.Tensor = family("llama", "float64").reference(torch.tensor([[*PROMPT, *OUTPUT]])).logits[0]
    return logits


def test_a_gap_takes_the_last_row() -> None:
    made, top = family("llama", "float64"), whole()[-1].topk(2).values
    with rows_through_the_head(made) as seen:
        found = Engine(made.target).top_two_gap(PROMPT, OUTPUT)
    assert seen == [1]
    assert found == pytest.approx((float(top[0] - top[1]), float(top[0])), rel=1e-6)


def test_a_sampled_gap_takes_the_last_row() -> None:
    made, unit = family("llama", "float64"), Unit("toy", "p0", PROMPT)
    panel = Panel("", rows_of([], []), temperature=0.7, seeds=(11,))
    with rows_through_the_head(made) as seen:
        _, largest = explain_with(Engine(made.target), panel, [unit])(
            sample("x", "p0", 1.0, set_name="toy", seed=11), OUTPUT
        )
    assert seen == [1] and largest == pytest.approx(float(whole()[-1].max()), rel=1e-6)


def test_a_forced_text_takes_the_rows_of_its_output() -> None:
    made = family("llama", "float64")
    with rows_through_the_head(made) as seen:
        forced = Reference(made.target).forced(PROMPT, OUTPUT, Sampling())
    assert seen == [3]
    judged = whole()[3:6]
    assert forced.top_logit == pytest.approx(judged.amax(1).numpy(), rel=1e-6)
    assert forced.behind == pytest.approx((judged.amax(1) - judged[range(3), OUTPUT]).numpy(), rel=1e-6)
