"""`draftwood bench` on the tiny pair: files, resuming, interruption, bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from evidence_cli import DEMO, error_line, refuse_loading, tiny_commands, write_profile, write_sets
from tiny_bench import text_of, units

from draftwood import cli
from draftwood.bench import runner
from draftwood.bench.recipes import RECIPES
from draftwood.bench.results import load_results
from draftwood.engine import Engine

pytestmark = pytest.mark.filterwarnings("ignore::draftwood.cost.profile.CostWarning")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    return tiny_commands(monkeypatch)


def arguments(folder: Path, *more: str, sets: str | None = None) -> list[str]:
    names = sets if sets is not None else ",".join(write_sets(folder))
    base = ["bench", DEMO, "--prompts", names, "--max-tokens", "24", "--profile", write_profile(folder)]
    return [*base, "-o", str(folder / "out"), "--raw", *more]


def results(folder: Path) -> list[dict[str, Any]]:
    return load_results(folder / "out" / "results.jsonl")


def speedup_by_hand(samples: list[dict[str, Any]], label: str) -> float:
    """The mean over sets of a row's tokens per second, prefill left out, over those of `ar`."""

    def speed(set_name: str, row: str) -> float:
        own = [item for item in samples if (item["set_name"], item["row"]) == (set_name, row)]
        return sum(len(item["token_ids"]) - 1 for item in own) / sum(item["decode_s"] for item in own)

    names = {item["set_name"] for item in samples}
    return sum(speed(name, label) / speed(name, "ar") for name in names) / len(names)


@pytest.mark.usefixtures("loaded")
class TestRun:
    def test_files_and_fields(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        line = arguments(tmp_path, "--policies", "ar,chain,auto", "--budgets", "4,8", "--no-live-costs")
        assert cli.run(line) == 0
        found = results(tmp_path)
        labels = ["ar", "chain", "auto", "ddtree 4", "ddtree 8"]
        assert [(item["set"], item["label"]) for item in found] == [
            (name, label) for name in ("first", "second", "overall") for label in labels
        ]
        first = found[0]
        assert first["git"].keys() == {"revision", "dirty"} and first["argv"] and first["seed"] == 0
        assert first["hardware"]["threads"] == 1 and first["versions"]["torch"]
        assert first["floor_ms_per_token"] > 0 and first["speedup_over_ar"] == 1.0
        by_label = {item["label"]: item for item in found if item["set"] == "overall"}
        assert {item["output"] for item in found} == {"identical"}
        assert [by_label[label]["budget"] for label in labels] == [None, None, None, 4, 8]
        assert by_label["chain"]["mean_committed"] > 1.5 and by_label["chain"]["gain_over_chain"] == 0.0
        assert by_label["auto"]["oracle_budget"] in (4, 8)
        assert by_label["auto"]["intervals"]["speedup_over_ar"][0] <= by_label["auto"]["speedup_over_ar"]
        assert set(by_label["auto"]["stage_s"]) >= {"draft", "verify"} and found[0]["stage_s"] == {}
        names = {path.name for path in (tmp_path / "out").iterdir()}
        plots = {
            f"{name}.{kind}"
            for name in ("speed", "speed-by-budget", "committed", "width", "stages")
            for kind in ("png", "svg")
        }
        assert names == {"results.jsonl", "samples.jsonl", "results.md", *plots}
        out = capsys.readouterr().out
        assert "overall: 3 prompts" in out and "floor of ar" in out and "oracle budget of this sweep" in out
        markdown = (tmp_path / "out" / "results.md").read_text()
        assert "| ddtree 8 |" in markdown and "- machine: " in markdown
        assert "NaN" not in (tmp_path / "out" / "results.jsonl").read_text()

    def test_json_is_one_object(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        line = arguments(tmp_path, "--policies", "chain", "--json", "--no-plots")
        assert cli.run(line) == 0
        lines = json.loads(capsys.readouterr().out)["lines"]
        assert [(item["set"], item["policy"]) for item in lines][:2] == [("first", "ar"), ("first", "chain")]

    def test_temperature_and_seeds(self, tmp_path: Path) -> None:
        line = arguments(tmp_path, "--policies", "chain", "--temperature", "1", "--seeds", "3,4", "--no-plots")
        assert cli.run(line) == 0
        found = results(tmp_path)
        # float64: a seeded text is the same under every policy.
        assert {item["output"] for item in found} == {"identical"}
        assert found[0]["seeds"] == [3, 4] and found[0]["samples"] == 4 and found[0]["temperature"] == 1.0

    def test_timer_and_repeats(self, tmp_path: Path) -> None:
        line = arguments(tmp_path, "--policies", "chain", "--timer", "paper", "--repeats", "2", "--no-plots")
        assert cli.run(line) == 0
        assert {item["timer"] for item in results(tmp_path)} == {"paper"} and results(tmp_path)[0]["samples"] == 4


class TestMultiTurn:
    def test_history_is_the_reference_policys(self, tmp_path: Path, loaded: list[Engine]) -> None:
        path = tmp_path / "talk.jsonl"
        path.write_text(json.dumps({"id": "t", "turns": ["p0", "p1"]}) + "\n")
        line = [
            word for word in arguments(tmp_path, "--policies", "chain", "--no-plots", sets=str(path)) if word != "--raw"
        ]
        assert cli.run(line) == 0
        codec: Any = loaded[0].codec
        # Plain decoding answers the first turn; its end token (40) is no text.
        text = runner_text(units()[0].prompt_ids, 24)
        assert codec.asked[1] == [("user", "p0"), ("assistant", text), ("user", "p1")]
        samples = [json.loads(row) for row in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()[1:]]
        assert {item["prompt_id"] for item in samples} == {"t", "t#2"}
        assert results(tmp_path)[0]["prompts"] == 2

    def test_raw_conversations_are_refused(
        self, tmp_path: Path, loaded: list[Engine], capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "talk.jsonl"
        path.write_text(json.dumps({"turns": ["p0", "p1"]}) + "\n")
        assert cli.run(arguments(tmp_path, sets=str(path))) == 2
        assert "need the chat template" in error_line(capsys)
        assert not (tmp_path / "out").exists()


def runner_text(prompt_ids: tuple[int, ...], tokens: int) -> str:
    ids = text_of(prompt_ids)[:tokens]
    ids = ids[: ids.index(40)] if 40 in ids else ids
    return "".join(chr(33 + token) for token in ids)


class Stop(KeyboardInterrupt):
    pass


class TestInterruption:
    def test_finished_rows_are_kept_and_resume_finishes(
        self, tmp_path: Path, loaded: list[Engine], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        line = arguments(tmp_path, "--policies", "chain", "--no-plots")
        whole = runner.EngineArm.run
        left = [2 + 2 * 2 + 1]  # warm-ups, the first set, and one generation of the second

        def run(self: runner.EngineArm, turn: runner.Turn, tokens: int) -> runner.Sample:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
            return whole(self, turn, tokens)

        monkeypatch.setattr(runner.EngineArm, "run", run)
        assert cli.run(line) == 130
        assert {item["set"] for item in results(tmp_path)} == {"first", "overall"}
        assert len((tmp_path / "out" / "samples.jsonl").read_text().splitlines()) == 1 + 5
        left[0] = 10**6
        assert cli.run([*line, "--resume"]) == 0
        assert "resuming: 5 of 6" in capsys.readouterr().err
        assert 10**6 - left[0] == 2 + 1 + 2 * 2  # warm-ups, what was missing, stages
        assert {item["set"] for item in results(tmp_path)} == {"first", "second", "overall"}
        assert cli.run([*line, "--resume", "--max-tokens", "25"]) == 2
        assert "--resume: panels was" in capsys.readouterr().err

    def test_resume_says_that_the_template_renders_differently(
        self, tmp_path: Path, loaded: list[Engine], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        line = arguments(tmp_path, "--policies", "chain", "--no-plots")
        assert cli.run(line) == 0
        from tiny_bench import TinyCodec

        monkeypatch.setattr(TinyCodec, "encode", lambda self, prompt, **options: [*self.known[prompt][:-1], 1])
        capsys.readouterr()
        assert cli.run([*line, "--resume"]) == 2
        assert "has other token ids than in the interrupted run" in capsys.readouterr().err


class TestMethods:
    FILE = """
import time

from tiny_bench import text_of


def prepare(pair):
    def made(prompt_ids, max_tokens):
        time.sleep(1e-3 * max_tokens)
        return text_of(prompt_ids)[:max_tokens]

    assert (pair.model, pair.dtype, pair.device) == ("demo:smollm2", "float64", "cpu")
    return {"made": made}


def wrong(prompt_ids, max_tokens):
    return [0] * max_tokens

def _private(prompt_ids, max_tokens):
    raise AssertionError

def helper(one):
    raise AssertionError
"""

    @pytest.mark.usefixtures("loaded")
    def test_under_the_same_timer_and_gate(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        file = tmp_path / "methods.py"
        file.write_text(self.FILE)
        line = arguments(tmp_path, "--policies", "chain", "--methods-from", str(file), "--no-plots")
        assert cli.run(line) == 1  # `wrong` is different
        found = {item["label"]: item for item in results(tmp_path) if item["set"] == "overall"}
        assert list(found) == ["ar", "chain", "made", "wrong"]
        assert found["made"]["output"] == "identical"
        assert found["made"]["mean_committed"] is None and found["made"]["mean_rows"] is None
        assert found["wrong"]["output"] == "different" and found["wrong"]["speedup_over_ar"] is None
        assert found["wrong"]["gain_over_chain"] is None
        samples = [json.loads(row) for row in (tmp_path / "out" / "samples.jsonl").read_text().splitlines()[1:]]
        for label in ("made", "chain"):
            assert found[label]["speedup_over_ar"] == pytest.approx(speedup_by_hand(samples, label))


@pytest.mark.usefixtures("loaded")
class TestRecipes:
    @pytest.mark.parametrize("name", sorted(set(RECIPES) - {"probe-prefix"}))
    def test_run_on_the_tiny_pair(self, name: str, tmp_path: Path) -> None:
        line = arguments(tmp_path, "--recipe", name, "--limit", "1", "--max-tokens", "6", "--no-plots")
        assert cli.run(line) == 0
        assert {item["output"] for item in results(tmp_path)} == {"identical"}

    def test_rows_that_cannot_be_mixed(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(arguments(tmp_path, "--recipe", "cast-seeds", "--budgets", "4")) == 2
        assert "sets the rows" in error_line(capsys)
        assert cli.run(arguments(tmp_path, "--recipe", "cast")) == 2
        assert "recipe 'cast': expected one of cast-table1" in error_line(capsys)


class TestBadInput:
    @pytest.fixture(autouse=True)
    def no_model(self, monkeypatch: pytest.MonkeyPatch) -> None:
        refuse_loading(monkeypatch)

    @pytest.mark.parametrize(
        ("more", "words"),
        [
            (["--policies", "tree"], "policy 'tree'"),
            (["--budgets", "4,x"], "--budgets 'x'"),
            (["--budgets", "4,4"], "each once"),
            (["--budgets", "2000"], "budget 2000"),
            (["--timer", "sun"], "timer 'sun'"),
            (["--temperature", "-1"], "temperature -1"),
            (["--seeds", "-1"], "seed"),
            (["--max-tokens", "0"], "expected at least 1"),
            (["--max-tokens", "1"], "max_tokens 1"),
            (["--limit", "0"], "limit 0"),
            (["--methods-from", "absent.py"], "absent.py: no such file"),
            (["--recipe", "probe-prefix"], "leave out --prompts"),
        ],
    )
    def test_one_line_and_nothing_left(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str
    ) -> None:
        assert cli.run(arguments(tmp_path, *more)) == 2
        assert words in error_line(capsys)
        assert not (tmp_path / "out").exists()

    @pytest.mark.parametrize(
        ("text", "words"),
        [("", "empty"), ('{"question": "x"}\n', "no `prompt`"), ("{\n", "not JSON"), ("\n\n", "empty")],
    )
    def test_bad_prompt_sets(self, tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, words: str) -> None:
        path = tmp_path / "bad.jsonl"
        path.write_text(text)
        assert cli.run(arguments(tmp_path, sets=str(path))) == 2
        assert words in error_line(capsys)
        assert not (tmp_path / "out").exists()

    def test_output_folder_that_cannot_be_written(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "file").write_text("")
        assert cli.run(arguments(tmp_path, "-o", str(tmp_path / "file" / "out"))) == 2
        assert "cannot be written" in error_line(capsys)

    def test_resume_needs_a_folder(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["bench", DEMO, "--resume"]) == 2
        assert "-o DIR" in error_line(capsys)

    def test_bad_profile(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["bench", DEMO, "--profile", str(tmp_path / "absent.json")]) == 2
        assert "absent.json" in error_line(capsys)


@pytest.mark.usefixtures("loaded")
@pytest.mark.parametrize("more", [[], ["--resume"]])
def test_results_of_another_version(tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str]) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "results.jsonl").write_text('{"schema": 77}\n')
    assert cli.run(arguments(tmp_path, *more)) == 2
    assert "schema 77, expected 1" in error_line(capsys)
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["results.jsonl"]
