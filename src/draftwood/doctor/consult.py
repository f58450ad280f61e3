"""A consultation of the doctor: from an engine to a diagnosis."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ..draft.dflash import DFlashDrafter
from ..engine import Engine
from ..errors import UsageError
from ..models.hf import HFTarget
from ..models.text import TextCodec
from ..prompts.sets import BUNDLED_SETS, in_turn, load_prompts
from .baseline import Baseline, make_baseline
from .examine import ERRORS, POSITIONS, Diagnosis, examine, needed_layers, spread_positions
from .forced import ForcedText, block_positions, read_texts, score, vocabulary_of
from .suspects import PairView
from .thinking import Measured, thinking_finding

ANSWER_TOKENS = 96
PROMPTS_A_SET = 5
BASELINE_PROMPTS_A_SET = 8
THINKING_POSITIONS = 300

Advance = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Prescription:
    """How thorough a consultation is."""

    positions: int = POSITIONS
    answer_tokens: int = ANSWER_TOKENS
    prompts_a_set: int = PROMPTS_A_SET

    def __post_init__(self) -> None:
        if self.positions < 1:
            raise UsageError(f"positions {self.positions}: expected at least 1")
        if self.answer_tokens < 2:
            raise UsageError(f"answer_tokens {self.answer_tokens}: expected at least 2")


def pair_of(engine: Engine, baseline: Baseline | None) -> PairView:
    """The pair of an engine. Raises UsageError without a DFlash drafter."""
    target, drafter = engine.state.target, engine.state.drafter
    if not isinstance(drafter, DFlashDrafter) or not isinstance(target, HFTarget):
        raise UsageError("the doctor examines pairs of a target and a DFlash drafter: name one with --drafter")
    hints = {}
    if baseline is not None:
        hints = {
            "mask_token_id": baseline.mask_token_id,
            "target_layer_ids": baseline.target_layer_ids,
            "rope": dict(baseline.rope),
            "block_size": baseline.block_size,
        }
    return PairView(drafter, target, None if engine.codec is None else engine.codec.tokenizer, hints)


def consult(
    engine: Engine,
    baseline: Baseline | None = None,
    how: Prescription | None = None,
    advance: Advance = lambda what: None,
) -> Diagnosis:
    """Examine the pair of `engine` on the baseline's texts, or on its own answers to bundled prompts."""
    how = how or Prescription()
    pair = pair_of(engine, baseline)
    advance("texts")
    texts = baseline.texts if baseline is not None else answers(engine, how)
    # As many texts as hold twice the positions asked for: neighbours tell less than strangers.
    chosen: list[ForcedText] = []
    while len(chosen) < len(texts) and len(block_positions(chosen, pair.drafter.block_size - 1)) < 2 * how.positions:
        chosen.append(texts[len(chosen)])
    sample = read_texts(pair.target, chosen, needed_layers(pair), vocabulary_of(texts))
    found = examine(pair, sample, baseline=baseline, positions=how.positions, advance=advance)

    def measure(prompts: Sequence[Sequence[int]]) -> Measured:
        advance("thinking mode")
        texts = greedy_texts(engine, prompts, how.answer_tokens)
        sample = read_texts(pair.target, texts, pair.layers)
        places = spread_positions(sample, pair.drafter.block_size - 1, min(how.positions, THINKING_POSITIONS))
        scores = score(pair.as_loaded(), sample, places, pair.drafter.block_size)
        return Measured(scores, np.array([place.text for place in places]))

    return with_thinking(_codec(engine), found, _prompts(how.prompts_a_set), measure)


def measure_baseline(engine: Engine, how: Prescription | None = None) -> Baseline:
    """The baseline of a pair that is taken to be well: every position of its answers to bundled prompts."""
    how = how or Prescription(prompts_a_set=BASELINE_PROMPTS_A_SET)
    pair = pair_of(engine, None)
    texts = answers(engine, how)
    sample = read_texts(pair.target, texts, pair.layers)
    scores = score(
        pair.as_loaded(), sample, block_positions(texts, pair.drafter.block_size - 1), pair.drafter.block_size
    )
    return make_baseline(pair.drafter, pair.target.spec.name, engine.dtype_name, texts, scores)


def answers(engine: Engine, how: Prescription) -> tuple[ForcedText, ...]:
    """The target's own greedy answers to bundled prompts, through its chat template if it has one."""
    codec = _codec(engine)
    return greedy_texts(engine, [codec.encode_own(prompt) for prompt in _prompts(how.prompts_a_set)], how.answer_tokens)


def greedy_texts(engine: Engine, prompts: Sequence[Sequence[int]], tokens: int) -> tuple[ForcedText, ...]:
    """Plain greedy answers, decoded together; those too short for one block are left out."""
    depth = engine.state.drafter.block_size - 1 if engine.state.drafter is not None else 1
    generations = engine.generate([list(ids) for ids in prompts], policy="ar", max_tokens=tokens)
    texts = tuple(
        ForcedText((*ids, *generation.token_ids), len(ids))
        for ids, generation in zip(prompts, generations, strict=True)
        if len(generation.token_ids) > depth
    )
    if not texts:
        raise UsageError(f"the target ends all its answers within {depth} tokens: nothing to measure a drafter on")
    return texts


class _Rendering:
    """The text layer as the thinking suspect sees it."""

    def __init__(self, codec: TextCodec) -> None:
        self._codec = codec

    def encode(self, prompt: str) -> list[int]:
        return self._codec.encode(prompt)

    def encode_plain(self, text: str) -> list[int]:
        ids: list[int] = self._codec.tokenizer(text, add_special_tokens=False)["input_ids"]
        return ids

    def render(self, ids: Sequence[int]) -> str:
        text: str = self._codec.tokenizer.decode(list(ids))
        return text


def with_thinking(
    codec: TextCodec,
    found: Diagnosis,
    prompts: Sequence[str],
    measure: Callable[[Sequence[Sequence[int]]], Measured],
) -> Diagnosis:
    """A diagnosis with the thinking mode tried too: a baseline's texts do not show what the template does now."""
    if codec.tokenizer.chat_template is None:
        return found
    finding = thinking_finding(_Rendering(codec), prompts, measure)
    if finding is None:
        return found
    found = replace(found, tried=(finding, *found.tried))
    rivals = [one.gain.mean for one in found.tried if one.suspect == found.fault]
    if finding.gain.counts and finding.gain.mean > max(rivals, default=0.0):
        detail = f"{finding.repair}: {finding.gain.mean:+.3f} nats a token, {finding.gain.errors:.1f} standard errors"
        return replace(found, fault=finding.suspect, detail=detail)
    note = f"{finding.repair}; closing it gains {finding.gain.mean:+.3f} nats a token, below {ERRORS:g} standard errors"
    return replace(found, notes=(*found.notes, note))


def _prompts(count: int) -> list[str]:
    """The first prompts of each bundled set, in turn."""
    return [prompt.text for _, prompt in in_turn([load_prompts(name, count) for name in BUNDLED_SETS])]


def _codec(engine: Engine) -> TextCodec:
    if engine.codec is None:
        raise UsageError("this model has no tokenizer: the doctor needs answers to prompts")
    return engine.codec
