"""A bench from engine to lines; the gate's view of near-ties, greedy and sampled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from families import family
from made_samples import sample
from tiny_bench import TOKENS, engine, text_of, units

from draftwood.bench.plan import Panel, rows_of
from draftwood.bench.session import BenchOptions, BenchRun, explain_with, reference_answer, run_bench
from draftwood.bench.tables import markdown, run_doubts, text_tables
from draftwood.engine import Engine, SamplingParams
from draftwood.errors import NonFiniteLogitsError, UsageError
from draftwood.policy import make_policy
from draftwood.verify import chooser

pytestmark = pytest.mark.portable


def test_greedy_gap_is_the_models_own() -> None:
    unit = units()[0]
    shared = text_of(unit.prompt_ids)[:5]
    explain = explain_with(engine(), Panel("", rows_of([], [])), [unit])
    # transformers takes its softmax in float32: what is expected must be computed by the same attention.
    with torch.inference_mode():
        logits = family("llama", "float64").reference(torch.tensor([[*unit.prompt_ids, *shared]])).logits[0, -1]
    top = torch.topk(logits, 2).values.tolist()
    gap, largest = explain(sample("x", "p0", 1.0, set_name="toy"), shared)
    assert gap == pytest.approx(top[0] - top[1], rel=1e-6) and largest == pytest.approx(top[0], rel=1e-6)


def test_sampled_gap_is_how_far_the_logit_must_move() -> None:
    """Lowering the drawn token's logit by a little more than the gap changes the draw; by a little less does not."""
    unit, made = units()[0], engine()
    panel = Panel("", rows_of([], []), temperature=0.7, seeds=(11,))
    shared = text_of(unit.prompt_ids)[:5]
    gap, _ = explain_with(made, panel, [unit])(sample("x", "p0", 1.0, set_name="toy", seed=11), shared)
    ids = [*unit.prompt_ids, *shared]
    logits = family("llama", "float64").logits([ids])[0, -1:]
    draw = chooser(SamplingParams(2, 0.7, 11).sampling())
    position = np.array([len(ids)])
    drawn = int(draw(logits, position)[0])
    moved = logits.clone()
    moved[0, drawn] -= gap * 0.999
    assert int(draw(moved, position)[0]) == drawn
    moved[0, drawn] -= gap * 0.002
    assert int(draw(moved, position)[0]) != drawn


def test_a_broken_row_is_called_different(monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine()
    real = Engine.output

    def broken(self: Engine, request: object) -> object:
        generation = real(self, request)  # type: ignore[arg-type]
        if generation.policy == "chain":
            generation.token_ids[7] = (generation.token_ids[7] + 1) % 64
        return generation

    monkeypatch.setattr(Engine, "output", broken)
    panel = Panel("", rows_of(["chain"], [4]), max_tokens=TOKENS)
    ended: list[int] = []
    run = run_bench(
        made, [panel], units(), BenchOptions(end_ids=frozenset(), measure_floor=False),
        set_ended=lambda found: ended.append(len(found.lines[""])),
    )  # fmt: skip
    found = {line.row.label: line for line in run.lines[""]}
    assert found["chain"].output == "different" and found["chain"].speedup_over_ar is None
    assert found["ddtree 4"].output == "identical" and found["ddtree 4"].speedup_over_ar is not None
    assert found["ddtree 4"].gain_over_chain is None and ended == [6]
    assert run.floor is None and "floor_ms_per_token" not in run.to_json()[0]


def test_reference_answers_are_plain_text() -> None:
    made = engine(codec=True)
    unit = units()[2]
    ids = text_of(unit.prompt_ids)[:TOKENS]
    ids = ids[: ids.index(40)] if 40 in ids else ids
    assert reference_answer(made, TOKENS)(unit.prompt_ids) == "".join(chr(33 + token) for token in ids)
    assert made.state.pool.requests == ()


def test_rows_that_cannot_run_are_refused_before_any_does() -> None:
    panel = Panel("", rows_of(["auto"], []), max_tokens=TOKENS)
    with pytest.raises(UsageError, match="give --profile"):
        run_bench(engine(), [panel], units(), BenchOptions())
    with pytest.raises(UsageError, match="no prompts"):
        run_bench(engine(), [Panel("", rows_of([], []))], [], BenchOptions(measure_floor=False))
    assert make_policy("ar").drafts is False


@pytest.mark.parametrize("row", ["chain", "ar"])
def test_a_row_whose_numbers_are_not_finite_is_marked_and_left_out(row: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made = engine()
    real, first = Engine.output, units()[1].prompt_ids

    def broken(self: Engine, request: Any) -> object:
        generation = real(self, request)
        if generation.policy == row and tuple(request.prompt_ids.tolist()) == tuple(first):
            raise NonFiniteLogitsError("position 7: nan")
        return generation

    monkeypatch.setattr(Engine, "output", broken)
    panel = Panel("", rows_of(["chain"], [4]), max_tokens=TOKENS)
    options = BenchOptions(end_ids=frozenset(), measure_floor=False)
    if row == "ar":
        with pytest.raises(NonFiniteLogitsError, match="row ar, set toy, prompt p1: position 7: nan"):
            run_bench(made, [panel], units(), options)
        return
    run = run_bench(made, [panel], units(), options)
    assert run.failed == {"": {"chain": "set toy, prompt p1: position 7: nan"}}
    assert {line.row.label for line in run.lines[""]} == {"ar", "ddtree 4"}
    assert "row chain was left out: set toy, prompt p1: position 7: nan" in run_doubts(run)
    assert "left out" in text_tables(run, "ascii") and "left out" in markdown(run, {})


def test_other_work_is_said() -> None:
    run = BenchRun([], load=1.25)
    assert any("kept 1.2 cores busy" in line for line in run_doubts(run))
    assert run_doubts(BenchRun([], load=0.1)) == run_doubts(BenchRun([])) == []
