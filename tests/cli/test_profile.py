"""`draftwood profile` and `draftwood simulate` in this process, on a tiny random pair."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from clocked import Pair, clocked_pair

from draftwood import cli
from draftwood.cli import load as cli_load
from draftwood.cli.commands import generate as cli_generate
from draftwood.cli.commands import profile as cli_profile
from draftwood.cost import CostProfile, CostWarning, Identity
from draftwood.engine.measuring import profile as measure

DEMO = "demo:smollm2"
SMALL = ["--contexts", "32", "--max-nodes", "8", "--quick"]
HERE = Identity("cpu", 1, "float32", "sdpa", "m", "d", {"torch": "1"})


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture
def pair(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Pair:
    made = clocked_pair(tmp_path, codec=True)
    made.engine.identity = HERE
    monkeypatch.setattr(cli_profile, "load_engine", lambda options: made.engine)
    return made


@pytest.fixture
def no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: object) -> None:
        raise AssertionError("a model was loaded although the input is bad")

    for module in (cli_profile, cli_generate):
        monkeypatch.setattr(module, "load_engine", refuse)


class TestProfile:
    def test_writes_a_profile_and_says_what_it_found(
        self, pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path = tmp_path / "p.json"
        assert cli.run(["profile", DEMO, "-o", str(path), *SMALL]) == 0
        profile = CostProfile.load(path)
        assert profile.identity == HERE and profile.contexts.tolist() == [32]
        assert {1, 2, 4, 8, 9} <= set(profile.rows.tolist())
        assert profile.mean_gains is not None
        out = capsys.readouterr().out
        assert "9 rows" in out and "context 32" in out and "steps after rows" in out
        assert [item.name for item in tmp_path.iterdir() if item.is_file()] == ["p.json"], "no partial file is left"

    def test_json_is_one_object(self, pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        path = tmp_path / "p.json"
        assert cli.run(["profile", DEMO, "-o", str(path), "--json", *SMALL]) == 0
        found = json.loads(capsys.readouterr().out)
        stored = json.loads(path.read_text())
        assert found["path"] == str(path) and found["rows"] == stored["rows"]
        assert found["cast_width"] is None, "rows 1 to 9 do not reach the range of the slope"
        assert found["least_repeats"] >= 3 and found["disturbed"] == stored["measured"]["disturbed"]

    def test_plot(self, pair: Pair, tmp_path: Path) -> None:
        pytest.importorskip("matplotlib", reason="matplotlib is not installed")
        picture = tmp_path / "p.png"
        assert cli.run(["profile", DEMO, "-o", str(tmp_path / "p.json"), "--plot", str(picture), *SMALL]) == 0
        assert picture.read_bytes()[:4] == b"\x89PNG"

    def test_interrupted_and_resumed(
        self, pair: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        path, partial = tmp_path / "p.json", tmp_path / "p.json.partial"
        forward, calls = pair.target.inner.forward, 0

        def interrupted(*arguments: Any) -> Any:
            nonlocal calls
            calls += 1
            if calls == 20:
                raise KeyboardInterrupt
            return forward(*arguments)

        monkeypatch.setattr(pair.target.inner, "forward", interrupted)
        assert cli.run(["profile", DEMO, "-o", str(path), *SMALL]) == 130
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.count("\n") == 1 and "--resume" in captured.err
        assert partial.is_file() and not path.exists()
        assert cli.run(["profile", DEMO, "-o", str(path), *SMALL, "--resume"]) == 0
        assert path.is_file() and not partial.exists()

    def test_unfinished_work_is_not_dropped_in_silence(
        self, pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "p.json.partial").write_text("{}")
        assert cli.run(["profile", DEMO, "-o", str(tmp_path / "p.json"), *SMALL]) == 0
        assert "p.json.partial holds unfinished work" in capsys.readouterr().err

    def test_partial_work_of_another_machine_exits_2(
        self, pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        options = measure.MeasureOptions(quick=True, contexts=(32,), max_nodes=8, partial=tmp_path / "p.json.partial")
        measure.measure_profile(pair.engine, options)
        pair.engine.identity = Identity("cpu", 2, "float32", "sdpa", "m", "d", {"torch": "1"})
        assert cli.run(["profile", DEMO, "-o", str(tmp_path / "p.json"), *SMALL, "--resume"]) == 2
        assert "threads 1 against 2 here" in capsys.readouterr().err

    def test_contexts_that_do_not_fit_exit_2(
        self, pair: Pair, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.run(["profile", DEMO, "-o", str(tmp_path / "p.json"), "--contexts", "32,4096"]) == 2
        assert re.search(r"context 4096: expected 1 to \d+ for this model", capsys.readouterr().err)

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            ([DEMO], "--output"),
            ([DEMO, "-o", "p.txt"], "'p.txt': expected a name that ends in .json"),
            ([DEMO, "-o", "nowhere/p.json"], "'nowhere/p.json': expected a file in a folder that exists"),
            ([DEMO, "-o", "p.json", "--plot", "p.svg"], "'p.svg': expected a name that ends in .png"),
            ([DEMO, "-o", "p.json", "--contexts", "128,many"], "--contexts '128,many'"),
            ([DEMO, "-o", "p.json", "--max-nodes", "2000"], "max_nodes 2000: expected 1 to 1024"),
            ([DEMO, "-o", "p.json", "--max-nodes", "0"], "max_nodes 0"),
            ([DEMO, "-o", "p.json", "--max-seconds", "-3"], "max_seconds -3.0"),
            ([DEMO, "-o", "p.json", "--max-seconds", "nan"], "max_seconds nan"),
            ([DEMO, "-o", "p.json", "--resume"], "nothing to resume: p.json.partial does not exist"),
            (["absent.gguf", "-o", "p.json"], "absent.gguf"),
            ([".", "-o", "p.json"], "config.json"),
        ],
    )
    @pytest.mark.usefixtures("no_engine")
    def test_bad_input_is_one_line_and_exit_2(
        self,
        capsys: pytest.CaptureFixture[str],
        monkeypatch: pytest.MonkeyPatch,
        tmp_path: Path,
        arguments: list[str],
        words: str,
    ) -> None:
        monkeypatch.chdir(tmp_path)
        assert cli.run(["profile", *arguments]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.count("\n") == 1 and words in captured.err
        assert list(tmp_path.iterdir()) == []

    def test_a_target_without_drafter(
        self, no_engine: None, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        (tmp_path / "config.json").write_text("{}")
        assert cli.run(["profile", str(tmp_path), "-o", str(tmp_path / "p.json")]) == 2
        assert "--drafter" in capsys.readouterr().err


BLACKWELL_ROWS = [1, 16, 24, 32, 48, 64, 96, 128]
BLACKWELL_S = [0.0172, 0.0219, 0.0233, 0.0236, 0.0241, 0.0246, 0.0244, 0.0303]


class TestSimulate:
    @pytest.fixture
    def files(self, tmp_path: Path) -> list[str]:
        """Published Blackwell costs (CAST, Table 5) and a made mass curve."""
        costs = {"schema": 1, "rows": BLACKWELL_ROWS, "contexts": [1024], "verify_s": [BLACKWELL_S], "draft_s": None}
        (tmp_path / "c.json").write_text(json.dumps(costs))
        (tmp_path / "m.json").write_text(json.dumps([0.9 / (1 + 0.5 * n) for n in range(127)]))
        return ["--costs", str(tmp_path / "c.json"), "--masses", str(tmp_path / "m.json")]

    def test_json_holds_the_four_fields(self, files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        line = "--policy cast --grid 15,31,63 --draft-ms 4.5 --fit-rows 16,128 --json"
        assert cli.run(["simulate", *files, *line.split()]) == 0
        found = json.loads(capsys.readouterr().out)
        assert set(found) == {"width", "threshold", "c1", "tokens_per_s_by_width"}
        # By hand: least squares over the rows 16..128, and speeds from the sums of the masses.
        rows, seconds = BLACKWELL_ROWS[1:], BLACKWELL_S[1:]
        mean_row, mean_s = sum(rows) / 7, sum(seconds) / 7
        slope = sum((r - mean_row) * (s - mean_s) for r, s in zip(rows, seconds, strict=True))
        slope /= sum((r - mean_row) ** 2 for r in rows)
        assert found["c1"] == pytest.approx(slope)
        masses = [0.9 / (1 + 0.5 * n) for n in range(127)]
        rates = {n: (1 + sum(masses[:n])) / (BLACKWELL_S[at] + 0.0045) for n, at in ((15, 1), (31, 3), (63, 5))}
        assert found["tokens_per_s_by_width"] == pytest.approx({str(n): rate for n, rate in rates.items()})
        passing = [n for n in (15, 31) if masses[n] >= rates[n] * slope]
        assert found["width"] == {0: 15, 1: 31, 2: 63}[len(passing)]
        assert found["threshold"] == pytest.approx(rates[found["width"]] * slope)

    def test_table(self, files: list[str], capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["simulate", *files, "--grid", "15,31"]) == 0
        out = capsys.readouterr().out
        assert out.splitlines()[0].split() == ["width", "tokens/s"] and out.count("<- auto") == 1

    @pytest.mark.parametrize(
        ("extra", "words"),
        [
            (["--policy", "ddtree"], "policy 'ddtree' takes no width"),
            (["--policy", "zigzag"], "zigzag"),
            (["--grid", "31,15"], "31,15"),
            (["--grid", "a"], "--grid 'a'"),
            (["--draft-ms", "-1"], "draft_s is -0.001"),
            (["--fit-rows", "16"], "--fit-rows '16'"),
            (["--fit-rows", "17,20"], "fit rows 17,20"),
            (["--context", "0"], "--context"),
            (["--masses", "absent.json"], "absent.json"),
            (["--costs", "absent.json"], "absent.json"),
        ],
    )
    def test_bad_input(
        self, files: list[str], capsys: pytest.CaptureFixture[str], extra: list[str], words: str
    ) -> None:
        assert cli.run(["simulate", *files, *extra]) == 2
        captured = capsys.readouterr()
        assert captured.out == "" and captured.err.count("\n") == 1 and words in captured.err

    def test_growing_masses(self, files: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        (tmp_path / "m.json").write_text("[0.5, 0.6]")
        assert cli.run(["simulate", *files]) == 2
        assert "masses[1] is 0.6" in capsys.readouterr().err


def test_warnings_of_ours_become_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    from draftwood.models import quiet

    monkeypatch.setattr(quiet, "quiet_libraries", lambda: None)
    monkeypatch.setattr(warnings, "showwarning", warnings.showwarning)
    monkeypatch.setattr("draftwood.Engine.load", lambda *_, **options: options)
    options = cli_load.LoadOptions("m", None, "auto", "cpu", 1, Path("p.json"), True, False)
    passed: Any = cli_load.load_engine(options)
    assert (passed["profile"], passed["allow_stale_profile"], passed["live_costs"]) == (Path("p.json"), True, False)
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = cli_load.as_notice
        warnings.warn("rows 88 is beyond the measured 65", CostWarning, stacklevel=1)
    assert capsys.readouterr().err == "draftwood: note: rows 88 is beyond the measured 65\n"


@pytest.mark.usefixtures("no_engine")
def test_generate_passes_the_profile_options(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Any] = []

    class Stop(Exception):
        pass

    def load(options: Any) -> None:
        seen.append(options)
        raise Stop

    monkeypatch.setattr(cli_generate, "load_engine", load)
    line = "--profile p.json --allow-stale-profile --no-live-costs"
    with pytest.raises(Stop):
        cli.run(["generate", DEMO, "hi", *line.split()])
    assert (seen[0].profile, seen[0].allow_stale_profile, seen[0].live_costs) == (Path("p.json"), True, False)
