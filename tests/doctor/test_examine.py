"""The doctor on the bundled pair, broken in each usual way, and on small made pairs.

Target and drafter are loaded once, and the target reads the baseline's texts once; only the drafter runs in each test.
"""

from __future__ import annotations

import copy
import importlib.util
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from byte_tokenizer import CHAT_TEMPLATE, byte_level
from decoding import random_drafter
from drafter_pair import ask, scores, start
from families import family

from draftwood import Engine
from draftwood.attention import SdpaBackend
from draftwood.doctor import consult as consulting
from draftwood.doctor.baseline import Baseline, baseline_path, read_baseline
from draftwood.doctor.consult import Prescription, consult, measure_baseline, pair_of, with_thinking
from draftwood.doctor.examine import Diagnosis, Gain, examine, needed_layers, paired_gain, spread_positions
from draftwood.doctor.forced import ForcedText, Position, Sample, Scores, Trial, block_positions, read_texts, score
from draftwood.doctor.quantised import quantised_bits
from draftwood.doctor.suspects import PairView, head, mask_id
from draftwood.doctor.thinking import Measured, open_tag
from draftwood.draft.dflash import DFlashDrafter
from draftwood.draft.model import DFlashModel
from draftwood.errors import UsageError
from draftwood.models.hf import HFTarget
from draftwood.models.source import DEMO_INSTALL, DEMO_PACKAGE
from draftwood.models.text import TextCodec

needs_demo = pytest.mark.skipif(
    importlib.util.find_spec(DEMO_PACKAGE) is None, reason=f"the demo's weights are not installed: {DEMO_INSTALL}"
)


@dataclass
class Ward:
    """The bundled pair with what its target says about the baseline's texts."""

    engine: Engine
    baseline: Baseline
    sample: Sample

    @property
    def drafter(self) -> DFlashDrafter:
        found = self.engine.state.drafter
        assert isinstance(found, DFlashDrafter)
        return found

    def patient(self, drafter: DFlashDrafter, baseline: bool = True) -> PairView:
        return replace(pair_of(self.engine, self.baseline if baseline else None), drafter=drafter)

    def broken(self, **changes: Any) -> DFlashDrafter:
        config = replace(self.drafter.config, **changes)
        model = self.drafter.model
        if "rope" in changes:
            model = DFlashModel(config, dict(model.state_dict()))
        return DFlashDrafter(config, model, self.engine.state.target)

    def examine(self, drafter: DFlashDrafter, positions: int, *, baseline: bool = True, texts: int = 8) -> Diagnosis:
        known = self.baseline if baseline else None
        whole = self.sample
        part = Sample(whole.texts[:texts], whole.layers, whole.states[:texts], whole.agrees[:texts], whole.vocabulary)
        return examine(self.patient(drafter, baseline), part, baseline=known, positions=positions)


@pytest.fixture(scope="module")
def ward() -> Iterator[Ward]:
    threads = torch.get_num_threads()
    engine = Engine.load("demo:smollm2", dtype="float32", threads=1)
    drafter = engine.state.drafter
    assert isinstance(drafter, DFlashDrafter)
    baseline = read_baseline(baseline_path(drafter), engine.state.target.spec.vocab_size)
    pair = pair_of(engine, baseline)
    # One more layer on each side, for pairs whose taps are broken.
    layers = sorted({layer + step for layer in pair.layers for step in (-1, 0, 1)} | {0, 27})
    sample = read_texts(engine.state.target, baseline.texts, [*layers, *needed_layers(pair), 3, 16])
    yield Ward(engine, baseline, sample)
    torch.set_num_threads(threads)


@needs_demo
def test_a_good_pair_is_well(ward: Ward) -> None:
    found = ward.examine(ward.drafter, 200)
    assert (found.fault, found.tried) == (None, ())
    assert found.positions >= 200 and found.agreement > 0.99
    assert found.shortfall is not None and abs(found.shortfall.mean) < 1e-3
    assert found.expected is not None and found.hit_rate == pytest.approx(found.expected, abs=0.02)
    assert found.hit_rate[0] > 0.4 > 5 * found.chance and found.hit_rate[0] > 2 * found.hit_rate[3]


@needs_demo
def test_shifted_taps_are_named(ward: Ward) -> None:
    found = ward.examine(ward.broken(target_layer_ids=(2, 15, 28)), 650, texts=99)
    assert found.fault == "taps" and "[1, 14, 27] instead of [2, 15, 28]" in found.detail
    assert found.positions >= 650 and len(found.tried) >= 4
    best = max(found.tried, key=lambda one: one.gain.mean)
    assert best.gain.errors > 3 and best.suspect == "taps"


@needs_demo
@pytest.mark.parametrize("baseline", [True, False])
def test_a_wrong_mask_token_is_named(ward: Ward, baseline: bool) -> None:
    found = ward.examine(ward.broken(mask_token_id=300), 120, baseline=baseline)
    assert found.fault == "mask id" and "instead of 300" in found.detail
    assert (found.shortfall is not None) == baseline
    if baseline:
        assert "mask_token_id 16 instead" in found.detail


@needs_demo
def test_a_wrong_rope_is_named(ward: Ward) -> None:
    found = ward.examine(ward.broken(rope={"rope_theta": 1e7, "rope_type": "default"}), 150)
    assert found.fault == "rope" and "base 100000 instead of base 1e+07" in found.detail


@needs_demo
def test_a_replaced_head_is_named(ward: Ward) -> None:
    target = ward.engine.state.target

    class Replaced:
        spec = target.spec
        embed = staticmethod(target.embed)

        @staticmethod
        def head(hidden: torch.Tensor) -> torch.Tensor:
            return target.head(hidden.flip(-1))

    drafter = DFlashDrafter(ward.drafter.config, ward.drafter.model, Replaced())
    found = ward.examine(drafter, 100)
    assert found.fault == "head" and "the target's own output matrix" in found.detail
    assert found.hit_rate[0] < 0.1


@needs_demo
def test_a_block_above_the_checkpoints_is_named(ward: Ward) -> None:
    found = ward.examine(ward.broken(block_size=16), 120)
    assert found.fault == "block size" and "block_size 8 instead of 16" in found.detail
    assert len(found.hit_rate) == 15
    smaller = ward.examine(ward.broken(block_size=6), 120)
    assert smaller.fault is None and len(smaller.hit_rate) == 5, "a smaller block is a choice, not a fault"


@needs_demo
def test_a_coarsely_quantised_target_is_named(ward: Ward) -> None:
    target = ward.engine.state.target
    assert isinstance(target, HFTarget) and quantised_bits(target.model) is None
    model = copy.deepcopy(target.model)
    quantise(model, 3)
    coarse = HFTarget(model, SdpaBackend(), name="three bits")
    config = ward.drafter.config
    pair = replace(ward.patient(DFlashDrafter(config, ward.drafter.model, coarse)), target=coarse)
    sample = read_texts(coarse, ward.baseline.texts[:5], needed_layers(pair), ward.sample.vocabulary)
    found = examine(pair, sample, baseline=ward.baseline, positions=150)
    assert found.fault == "quantised target" and "stored in 3 bits" in found.detail
    assert found.agreement < 0.9 and any("3 bits" in note for note in found.notes)


def quantise(model: torch.nn.Module, bits: int, block: int = 32) -> None:
    """Round the weights of all layers to 2**bits levels between the extremes of each block."""
    with torch.no_grad():
        for name, module in model.named_modules():
            if isinstance(module, torch.nn.Linear) and "lm_head" not in name:
                blocks = module.weight.view(-1, block)
                low = blocks.amin(1, keepdim=True)
                step = ((blocks.amax(1, keepdim=True) - low) / (2**bits - 1)).clamp(min=1e-9)
                blocks.copy_(low + ((blocks - low) / step).round() * step)


@needs_demo
def test_scores_are_the_drafters_own(ward: Ward) -> None:
    """The short way to hits agrees with `propose`, position by position."""
    places = block_positions(ward.sample.texts[:2], 7, stride=17)
    drafter = ward.broken()
    found = score(Trial(drafter, drafter.target_layer_ids), ward.sample, places, 8)
    for place, hit in zip(places, found.hit, strict=True):
        text = ward.sample.texts[place.text].ids
        start(drafter, 9, ward.sample.taps(place.text, drafter.target_layer_ids, slice(0, place.start)))
        block = scores(drafter, [ask(9, text[place.start], place.start, 8)], 1)
        drafter.close(9)
        expected = block.ids[0, :, 0, 0] == np.array(text[place.start + 1 : place.start + 8])
        assert np.array_equal(hit, expected)
    assert found.hit.any() and not found.hit.all() and (found.logp <= 0).all()


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The tiny Llama with an untrained drafter."""
    made = family("llama", "float32")
    return Engine(made.target, random_drafter(tmp_path_factory.mktemp("drafter"), made))


def tiny_texts(engine: Engine, count: int = 6) -> tuple[ForcedText, ...]:
    prompts = [[(7 * i + j) % 60 for j in range(5 + i)] for i in range(count)]
    return consulting.greedy_texts(engine, prompts, 30)


def test_an_untrained_drafter_is_unexplained(tiny: Engine) -> None:
    pair = pair_of(tiny, None)
    sample = read_texts(pair.target, tiny_texts(tiny), needed_layers(pair))
    assert all(agrees.all() for agrees in sample.agrees)
    found = examine(pair, sample, positions=100)
    assert found.fault == "unexplained" and "no better than chance" in found.detail
    assert found.expected is None and found.shortfall is None and found.positions >= 100
    assert {one.suspect for one in found.tried} >= {"taps", "mask id", "rope", "row convention", "head", "block size"}


def test_a_shifted_convention_is_scored_by_its_rows(tiny: Engine) -> None:
    """Under shift s depth d is read off row d - s: compared with the states of the rows themselves."""
    pair = pair_of(tiny, None)
    texts = tiny_texts(tiny, 2)
    sample = read_texts(pair.target, texts, pair.layers)
    places = [Position(0, texts[0].prompt_len + 3), Position(1, texts[1].prompt_len)]
    for shift in (-1, 0, 1):
        trial = Trial(pair.rebuilt(), pair.layers, shift)
        found = score(trial, sample, places, 8)
        assert found.hit.shape == found.logp.shape == (2, 6 if shift < 0 else 7)
        for index, place in enumerate(places):
            drafter = pair.rebuilt()
            drafter.allocate(256, 1)
            start(drafter, 0, sample.taps(place.text, pair.layers, slice(0, place.start)))
            ids = sample.texts[place.text].ids
            states = drafter.block_states([ask(0, ids[place.start], place.start, 8)])
            best = pair.target.head(states).argmax(dim=-1)
            for depth in range(1, found.hit.shape[1] + 1):
                assert found.hit[index, depth - 1] == (int(best[depth - shift]) == ids[place.start + depth])


def test_gains_by_hand() -> None:
    places = [Position(0, start) for start in range(32)] + [Position(1, start) for start in range(16)]
    worse = np.zeros(48)
    better = np.concatenate([np.full(16, 0.1), np.full(16, 0.2), np.full(16, 0.6)])
    gain = paired_gain(better, worse, places)
    assert gain.mean == pytest.approx(0.3)
    assert gain.error == pytest.approx(np.std([0.1, 0.2, 0.6], ddof=1) / 3**0.5)
    assert not gain.counts and Gain(0.3, 0.09).counts
    assert not Gain(0.005, 0.0001).counts, "too small to be a fault"
    assert not Gain(-0.3, 0.01).counts


def test_positions_are_spread_and_leave_room_for_a_block() -> None:
    texts = (ForcedText(tuple(range(30)), 10), ForcedText(tuple(range(25)), 5))
    every = block_positions(texts, 7)
    assert every[0] == Position(0, 10) and every[-1] == Position(1, 17) and len(every) == 13 + 13
    sample = Sample(texts, (), (), (), ())
    assert spread_positions(sample, 7, 100) == every
    assert spread_positions(sample, 7, 13) == every[::2]


def test_bits_are_read_off_the_weights() -> None:
    torch.manual_seed(1)
    for bits, expected in ((1, 1), (2, 2), (3, 3), (4, None), (5, None)):
        model = torch.nn.Sequential(*(torch.nn.Linear(64, 96) for _ in range(3)))
        quantise(model, bits)
        assert quantised_bits(model) == expected
    assert quantised_bits(torch.nn.Linear(64, 64)) is None
    assert quantised_bits(torch.nn.ReLU()) is None


def test_candidates_are_other_tokens_of_the_vocabulary(tiny: Engine) -> None:
    pair = pair_of(tiny, None)
    now = pair.drafter.config.mask_token_id
    masks = {repair.trial.drafter.config.mask_token_id for repair in mask_id(pair)}
    assert masks and now not in masks and all(0 <= mask < 64 for mask in masks if mask is not None)
    twin = pair.target.model.get_input_embeddings().weight
    with torch.no_grad():
        kept, twin[0] = twin[0].clone(), twin[now]
        same = {repair.trial.drafter.config.mask_token_id for repair in mask_id(pair)}
        twin[0] = kept
    assert 0 in masks and 0 not in same, "a token with the same embedding is no other reading"
    (tied,) = head(pair)
    hidden = torch.randn(3, 32)
    expected = hidden @ pair.target.model.get_input_embeddings().weight.T
    assert torch.allclose(tied.trial.drafter.target.head(hidden), expected)


class TestThinking:
    """A made template that opens a thought, on a real tokenizer; answers are scored by whether it is closed."""

    OPENS = CHAT_TEMPLATE.replace("<|assistant|>{% endif %}", "<|assistant|><think>\n{% endif %}")
    OBEYS = CHAT_TEMPLATE.replace(
        "<|assistant|>{% endif %}",
        "<|assistant|>{% if not enable_thinking %}<think>\n\n</think>\n\n{% endif %}{% endif %}",
    )
    PROMPTS = ("one", "two", "three", "four")
    WELL = Diagnosis(None, "", 1, (0.5,), None, 0.1, None, 1.0, (), ())

    def run(self, template: str | None, loss: float) -> tuple[Diagnosis, list[str]]:
        codec = TextCodec(byte_level(template), name="made")
        rendered: list[str] = []

        def measure(prompts: Sequence[Sequence[int]]) -> Measured:
            texts = [codec.tokenizer.decode(list(ids)) for ids in prompts]
            rendered.extend(texts)
            level = np.array(
                [-1.0 - loss * (open_tag(text) is not None) - 0.1 * (at % 2) for at, text in enumerate(texts)]
            )
            scores = Scores(np.zeros((len(texts) * 5, 3), bool), np.repeat(level, 5)[:, None].repeat(3, 1))
            return Measured(scores, np.repeat(np.arange(len(texts)), 5))

        return with_thinking(codec, self.WELL, self.PROMPTS, measure), rendered

    def test_an_open_thought_is_named(self) -> None:
        found, rendered = self.run(self.OPENS, loss=1.0)
        assert found.fault == "thinking mode" and "thinking is off" in found.detail
        assert found.tried[0].gain.mean == pytest.approx(1.0) and found.tried[0].gain.errors > 3
        assert rendered[0] == "<|user|>one<|turn|><|assistant|><think>\n"
        assert rendered[4] == "<|user|>one<|turn|><|assistant|><think>\n\n</think>\n\n"

    def test_one_without_effect_is_noted(self) -> None:
        found, _ = self.run(self.OPENS, loss=0.0)
        assert found.fault is None and "below 3 standard errors" in found.notes[0]

    def test_a_template_that_obeys_is_not_suspected(self) -> None:
        for template in (self.OBEYS, CHAT_TEMPLATE, None):
            found, rendered = self.run(template, loss=1.0)
            assert found is self.WELL and rendered == []


def test_open_tags() -> None:
    assert open_tag("a <think>\n") == ("<think>", "</think>")
    assert open_tag("<think></think>") is None
    assert open_tag("<think></think> <think>") == ("<think>", "</think>")
    assert open_tag("plain") is None


class WordCodec(TextCodec):
    """Real text layer of a byte tokenizer whose ids are folded into the tiny vocabulary."""

    def encode(self, prompt: str, *, raw: bool = False, system: str | None = None) -> list[int]:
        return [token % 60 for token in super().encode(prompt, raw=raw, system=system)][:20]


def test_a_consultation_from_end_to_end(tiny: Engine) -> None:
    """The tiny pair answers bundled prompts; against its own baseline it is well, with another mask it is not."""
    tiny.codec = WordCodec(byte_level(), name="tiny")
    tiny.codec._chat_ends = tiny.codec._raw_ends = ()
    how = Prescription(positions=60, answer_tokens=24, prompts_a_set=2)
    told: list[str] = []
    first = consult(tiny, None, how, told.append)
    assert first.positions >= 60 and told[:2] == ["texts", "as loaded"] and "rope" in told
    baseline = measure_baseline(tiny, how)
    assert len(baseline.texts) == 6
    second = consult(tiny, baseline, how)
    assert second.fault is None and second.shortfall is not None and abs(second.shortfall.mean) < 1e-3
    assert second.hit_rate == pytest.approx(second.expected)


def test_bad_use_is_named(tiny: Engine) -> None:
    with pytest.raises(UsageError, match="positions 0"):
        Prescription(positions=0)
    with pytest.raises(UsageError, match="answer_tokens 1"):
        Prescription(answer_tokens=1)
    with pytest.raises(UsageError, match="DFlash drafter"):
        pair_of(Engine(family("llama", "float32").target), None)
    with pytest.raises(UsageError, match="ends all its answers"):
        consulting.greedy_texts(tiny, [[1, 2]], 3)
    with pytest.raises(UsageError, match="no tokenizer"):
        consult(Engine(tiny.state.target, tiny.state.drafter))
