"""The start-up probe, the identity of a profile, and the engine's use of both."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from clocked import Pair, clocked_pair, toy_codec
from safetensors.torch import save_file

from draftwood.cost import CostProfile, Identity
from draftwood.engine import Engine
from draftwood.engine import engine as engine_module
from draftwood.engine.identity import identity_key, identity_of
from draftwood.engine.loading import Parts
from draftwood.engine.measuring import assemble
from draftwood.engine.measuring.probe import PROBE_SECONDS, PROFILES, probed_profile
from draftwood.errors import CostError, RequestError, UsageError
from draftwood.models.source import ModelSource
from draftwood.policy import make_policy

HERE = Identity("cpu", 1, "float32", "sdpa", "m", "d", {"torch": "1"})


@pytest.fixture
def pair(tmp_path: Path) -> Pair:
    made = clocked_pair(tmp_path, codec=True)
    made.engine.identity = HERE
    return made


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


def probe(pair: Pair, folder: Path | None, said: list[str]) -> CostProfile:
    return probed_profile(pair.engine, folder, said.append, clock=pair.clock)


class TestProbe:
    def test_measures_and_says_so_in_one_line(self, pair: Pair, tmp_path: Path) -> None:
        said: list[str] = []
        profile = probe(pair, tmp_path, said)
        assert len(said) == 1 and "no cost profile: measuring" in said[0]
        assert profile.rows.tolist() == [1, 8, 9, 16, 17, 32, 33, 64, 65]
        np.testing.assert_allclose(profile.verify_s[0], 0.010 + 0.0005 * profile.rows)
        np.testing.assert_allclose(profile.draft_s, [[0.004]])
        assert profile.notes["measured"]["least_repeats"] == 3
        assert profile.mean_gains is not None and len(profile.mean_gains) == 64
        assert make_policy("cast", profile=profile, fit_rows=(16, 64)).max_nodes == 64

    def test_is_kept_and_used_again(self, pair: Pair, tmp_path: Path) -> None:
        said: list[str] = []
        first = probe(pair, tmp_path, said)
        forwards = len(pair.target.batches)
        again = probe(pair, tmp_path, said)
        assert len(said) == 1 and len(pair.target.batches) == forwards
        assert again.to_json() == first.to_json()
        assert [path.name for path in (tmp_path / PROFILES).iterdir()] == [f"{identity_key(HERE)}.json"]

    def test_a_disturbed_hour_is_not_kept(self, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        said: list[str] = []
        with monkeypatch.context() as busy:
            busy.setattr(assemble, "unfit", lambda log, cells: "it was busy")
            first = probe(pair, tmp_path, said)
        assert first.unfit == "it was busy" and len(said) == 2
        assert "disturbed meanwhile (it was busy)" in said[1] and "the next start measures again" in said[1]
        assert not (tmp_path / PROFILES).exists()
        first.save(make_folder(tmp_path / PROFILES) / f"{identity_key(HERE)}.json")  # as an older version kept it
        second = probe(pair, tmp_path, said)
        assert second.unfit is None and "measuring a quick one" in said[2] and len(said) == 3
        assert probe(pair, tmp_path, said).to_json() == second.to_json() and len(said) == 3

    def test_another_identity_measures_again(self, pair: Pair, tmp_path: Path) -> None:
        said: list[str] = []
        probe(pair, tmp_path, said)
        pair.engine.identity = Identity("cpu", 2, "float32", "sdpa", "m", "d", {"torch": "1"})
        assert probe(pair, tmp_path, said).identity == pair.engine.identity
        assert len(said) == 2 and len(list((tmp_path / PROFILES).iterdir())) == 2

    def test_a_broken_file_is_said_and_replaced(self, pair: Pair, tmp_path: Path) -> None:
        said: list[str] = []
        probe(pair, tmp_path, said)
        (file,) = (tmp_path / PROFILES).iterdir()
        file.write_text("{")
        probe(pair, tmp_path, said)
        assert "cannot be used" in said[1] and "measuring" in said[2]
        assert CostProfile.load(file).identity == HERE

    def test_a_cache_that_cannot_be_written(self, pair: Pair, tmp_path: Path) -> None:
        said: list[str] = []
        blocked = tmp_path / "file"
        blocked.write_text("")
        assert probe(pair, blocked, said).identity == HERE
        assert len(said) == 2 and "cannot be kept" in said[1]

    def test_an_engine_without_identity_keeps_nothing(self, pair: Pair, tmp_path: Path) -> None:
        pair.engine.identity = None
        said: list[str] = []
        assert probe(pair, tmp_path, said).identity is None
        assert "for this engine only" in said[0] and not (tmp_path / PROFILES).exists()

    @pytest.mark.parametrize("round_s", [0.05, 0.4, 1.5])
    def test_takes_twenty_seconds_at_most(self, tmp_path: Path, round_s: float) -> None:
        slow = clocked_pair(tmp_path, codec=True, cost=lambda pack: round_s, prefill_chunk=512)
        profile = probe(slow, None, [])
        assert slow.clock.now <= PROBE_SECONDS
        assert profile.rows[0] == 1 and len(profile.rows) >= 2
        assert make_policy("cast", profile=profile).max_nodes > 0  # a drafted round was seen, however slow

    def test_without_a_tokenizer_there_are_no_gains(self, tmp_path: Path) -> None:
        assert probe(clocked_pair(tmp_path), None, []).mean_gains is None


class TestEngine:
    def test_auto_is_the_default_and_measures_once(self, pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
        first = pair.engine.generate([[1, 2, 3]], max_tokens=12)[0]
        assert first.policy == "auto" and sum("measuring" in line for line in caplog.messages) == 1
        plain = pair.engine.generate([[1, 2, 3]], policy="ar", max_tokens=12)[0]
        assert first.token_ids == plain.token_ids
        pair.engine.codec = None
        (last,) = [piece.output for piece in pair.engine.stream([1, 2, 3], max_tokens=12) if piece.output]
        assert last.policy == "auto" and last.token_ids == plain.token_ids
        assert sum("measuring" in line for line in caplog.messages) == 1
        assert all(record.predicted_s is not None for record in last.rounds)

    @pytest.mark.parametrize("policy", ["cast", "caddtree", "ratio", "auto"])
    def test_every_cost_aware_policy_runs_without_a_profile(self, pair: Pair, policy: str) -> None:
        plain = pair.engine.generate([[4, 5, 6]], policy="ar", max_tokens=10)[0]
        assert pair.engine.generate([[4, 5, 6]], policy=policy, max_tokens=10)[0].token_ids == plain.token_ids

    def test_a_policy_object_gets_costs_too(self, pair: Pair) -> None:
        assert pair.engine.generate([[4, 5, 6]], policy=make_policy("auto"), max_tokens=5)[0].policy == "auto"
        assert pair.engine.state.costs is not None

    def test_policies_that_need_no_costs_measure_nothing(self, pair: Pair) -> None:
        for policy in ("ar", "chain", "ddtree"):
            pair.engine.generate([[4, 5, 6]], policy=policy, max_tokens=5)
        assert pair.engine.state.costs is None

    def test_without_a_drafter_the_default_says_what_is_missing(self, tmp_path: Path) -> None:
        engine = clocked_pair(tmp_path, drafter=False).engine
        with pytest.raises(RequestError, match="policy 'auto' needs a drafter"):
            engine.generate([[1, 2]])
        with pytest.raises(UsageError, match="needs a drafter"):
            engine.ensure_costs()

    def test_a_prompt_longer_than_the_grid_warns_of_nothing(self, pair: Pair) -> None:
        """Prefill has no prediction: warnings are errors here, and the chunk exceeds the 65 measured rows."""
        engine = Engine(pair.target, pair.drafter)  # type: ignore[arg-type]
        assert engine.generate([[3] * 90], max_tokens=5)[0].rounds[0].predicted_s is not None

    def test_bad_options_are_refused_before_anything_is_measured(self, pair: Pair) -> None:
        with pytest.raises(UsageError, match="option 'budget' is not used by policy auto"):
            pair.engine.generate([[1, 2]], budget=3)
        assert pair.engine.state.costs is None

    def test_live_costs_can_be_switched_off(self, tmp_path: Path) -> None:
        engine = clocked_pair(tmp_path, codec=True).engine
        engine.live_costs = False
        engine.generate([[1, 2, 3]], max_tokens=4)
        assert engine.state.costs is not None and engine.state.costs.live is None


class TestLoading:
    @pytest.fixture
    def loadable(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> Pair:
        parts = Parts(pair.target, pair.drafter, toy_codec(), HERE)  # type: ignore[arg-type]
        monkeypatch.setattr(engine_module, "load_parts", lambda *_, **__: parts)
        return pair

    def test_a_profile_of_this_identity_is_used(self, loadable: Pair, tmp_path: Path) -> None:
        probe(loadable, None, []).save(tmp_path / "p.json")
        for given in (tmp_path / "p.json", str(tmp_path / "p.json"), CostProfile.load(tmp_path / "p.json")):
            engine = Engine.load("m", profile=given, threads=1, live_costs=False, cache_dir=tmp_path)
            assert engine.state.costs is not None and engine.state.costs.live is None
            assert engine.ensure_costs().identity == engine.identity == HERE
        assert engine.cache_dir == tmp_path

    def test_another_identity_is_refused_by_field(
        self, loadable: Pair, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        document = probe(loadable, None, []).to_json()
        document["identity"]["threads"] = 7
        (tmp_path / "p.json").write_text(json.dumps(document))
        with pytest.raises(CostError, match=r"threads 7 against 1 here.*--allow-stale-profile"):
            Engine.load("m", profile=tmp_path / "p.json", threads=1)
        engine = Engine.load("m", profile=tmp_path / "p.json", threads=1, allow_stale_profile=True)
        assert engine.state.costs is not None
        assert caplog.messages == ["cost profile measured elsewhere: threads 7 against 1 here"]

    def test_a_bad_file_is_refused_before_a_model_is_loaded(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.setattr(engine_module, "load_parts", lambda *_, **__: pytest.fail("a model was loaded"))
        with pytest.raises(CostError, match=r"absent\.json: cannot be read"):
            Engine.load("m", profile=tmp_path / "absent.json", threads=1)


class TestIdentity:
    def checkpoint(self, folder: Path, hidden: int = 4, note: str = "a") -> Path:
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"hidden_size": hidden, "note": note}))
        save_file({"w": torch.zeros(hidden, 2)}, folder / "model.safetensors")
        return folder

    def test_a_retrained_pair_is_another_pair(self, pair: Pair, tmp_path: Path) -> None:
        """One value of the drafter, a few values of the target: same shapes, sizes and headers."""

        def key(target: str, drafter: str) -> str:
            source = ModelSource("folder", "a", tmp_path / target)
            return identity_key(identity_of(source, [tmp_path / drafter], pair.target.spec, attention="sdpa"))

        for name in ("t", "d", "copy", "retrained", "nudged"):
            self.checkpoint(tmp_path / name, hidden=64)
        save_file({"w": torch.eye(64, 2)}, tmp_path / "retrained" / "model.safetensors")
        weights = torch.zeros(64, 2)
        weights[41, 1] = 1e-30
        save_file({"w": weights}, tmp_path / "nudged" / "model.safetensors")
        base = key("t", "d")
        assert key("copy", "copy") == base
        assert len({base, key("t", "nudged"), key("retrained", "d"), key("retrained", "nudged")}) == 4

    def test_the_cached_probe_of_a_retrained_drafter_is_not_used(self, pair: Pair, tmp_path: Path) -> None:
        target = ModelSource("folder", "a", self.checkpoint(tmp_path / "target"))
        drafter = self.checkpoint(tmp_path / "d")
        for measured in (True, False, True):
            if measured:
                save_file({"w": torch.rand(4, 2)}, drafter / "model.safetensors")
            pair.engine.identity = identity_of(target, [drafter], pair.target.spec, attention="sdpa")
            said: list[str] = []
            probe(pair, tmp_path / "cache", said)
            assert bool(said) is measured

    def test_everything_that_changes_costs_is_in_it(self, pair: Pair, tmp_path: Path) -> None:
        folder = self.checkpoint(tmp_path / "a")
        found = identity_of(ModelSource("folder", "a", folder), [folder], pair.target.spec, attention="sdpa")
        assert found.threads == torch.get_num_threads() == 1
        assert (found.dtype, found.attention, found.model) == ("float32", "sdpa", found.drafter)
        both = identity_of(ModelSource("folder", "a", folder), [folder, None], pair.target.spec, attention="sdpa")
        assert both.drafter == f"{found.drafter}+suffix"
        assert found.device and set(found.versions) == {"draftwood", "torch", "transformers"}
        assert identity_key(found) == identity_key(Identity.from_json(json.loads(json.dumps(found.to_json()))))
        assert identity_key(found) != identity_key(HERE)
