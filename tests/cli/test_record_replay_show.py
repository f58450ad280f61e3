"""`draftwood record`, `replay` and `show` on the tiny pair."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from evidence_cli import DEMO, error_line, refuse_loading, tiny_commands, write_profile, write_sets

from draftwood import cli
from draftwood.engine import Engine
from draftwood.trace.format import load

pytestmark = pytest.mark.filterwarnings("ignore::draftwood.cost.profile.CostWarning")


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[Engine]:
    return tiny_commands(monkeypatch)


def record(folder: Path, *more: str) -> list[str]:
    sets = ",".join(write_sets(folder))
    return ["record", DEMO, "--prompts", sets, "--max-tokens", "24", "--raw", "-o", str(folder / "t.npz"), *more]


@pytest.mark.usefixtures("loaded")
class TestRecord:
    def test_every_position(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(record(tmp_path, "--every-position")) == 0
        trace = load(tmp_path / "t.npz")
        assert trace.meta.every_position and trace.requests.set_name.tolist() == ["first", "first", "second"]
        assert trace.num_rounds == 3 * 23 and trace.rounds.logp.shape[1:] == (7, 64)
        assert capsys.readouterr().out == f"{tmp_path / 't.npz'}: 3 requests, 69 rounds\n"

    def test_own_rounds_keep_policy_and_factors(self, tmp_path: Path) -> None:
        line = record(tmp_path, "--policy", "auto", "--profile", write_profile(tmp_path), "--limit", "1")
        assert cli.run(line) == 0
        trace = load(tmp_path / "t.npz")
        assert trace.meta.policy == "auto" and trace.num_requests == 2
        assert trace.meta.factor_names == ("base", "slope", "draft")
        assert trace.meta.model == DEMO and trace.meta.versions["torch"]


class TestRecordBadInput:
    @pytest.fixture(autouse=True)
    def no_model(self, monkeypatch: pytest.MonkeyPatch) -> None:
        refuse_loading(monkeypatch)

    @pytest.mark.parametrize(
        ("more", "words"),
        [
            (["--policy", "ar"], "'ar' never drafts"),
            (["--policy", "tree"], "policy 'tree'"),
            (["--policy", "chain", "--budget", "4"], "'budget' is not used by policy chain"),
            (["--every-position", "--policy", "chain"], "leave out --policy"),
            (["--batch", "4"], "one request at a time"),
            (["--limit", "0"], "limit 0"),
            (["-o", "/nowhere/t.npz"], "no folder"),
            (["-o", "."], "is a folder"),
            (["--prompts", "absent.jsonl"], "absent.jsonl"),
        ],
    )
    def test_one_line_and_no_file(
        self, tmp_path: Path, capsys: pytest.CaptureFixture[str], more: list[str], words: str
    ) -> None:
        assert cli.run(record(tmp_path, *more)) == 2
        assert words in error_line(capsys)
        assert not list(tmp_path.glob("*.npz"))


class TestReplay:
    @pytest.fixture
    def trace(self, tmp_path: Path, loaded: list[Engine], capsys: pytest.CaptureFixture[str]) -> str:
        assert cli.run(record(tmp_path, "--every-position")) == 0
        capsys.readouterr()
        return str(tmp_path / "t.npz")

    def test_table_of_all_policies(self, trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        line = ["replay", trace, "--budgets", "4,8", "--shapes", "medusa", "--profile", write_profile(tmp_path)]
        assert cli.run([*line, "--by-set"]) == 0
        out = capsys.readouterr().out
        for arm in ("ar", "chain", "ddtree 4", "ddtree 8", "cast", "caddtree", "ratio", "auto", "shape medusa 8"):
            assert f"\n {arm} " in out
        assert "biased" not in out and all(f"{name}\n" in out for name in ("first", "second", "overall"))

    def test_json_agrees_with_the_sets(self, trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        line = ["replay", trace, "--policies", "ar,auto", "--profile", write_profile(tmp_path), "--by-set", "--json"]
        assert cli.run(line) == 0
        found = json.loads(capsys.readouterr().out)
        assert found["every_position"] and found["notes"] == []
        auto = {item["set"]: item for item in found["lines"] if item["arm"] == "auto"}
        assert auto["first"]["tokens"] + auto["second"]["tokens"] == auto["overall"]["tokens"] == 3 * 23
        total_s = auto["first"]["predicted_s"] + auto["second"]["predicted_s"]
        assert auto["overall"]["tokens_per_s"] == pytest.approx(69 / total_s)
        plain = next(item for item in found["lines"] if item["arm"] == "ar" and item["set"] == "overall")
        assert plain["mean_committed"] == 1.0 and plain["rounds"] == 69

    def test_diagnostics(self, trace: str, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run(["replay", trace, "--diagnostics"]) == 0
        out = capsys.readouterr().out
        for title in ("Rank of the correction", "Reliability by depth", "Mean sorted masses", "Candidates per depth"):
            assert title in out
        assert cli.run(["replay", trace, "--diagnostics", "--json", "--budgets", "7"]) == 0
        found = json.loads(capsys.readouterr().out)["diagnostics"]
        assert found["biased"] is False and {row["budget"] for row in found["shapes"]} == {7}

    def test_says_what_is_biased(
        self, tmp_path: Path, loaded: list[Engine], capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert cli.run(record(tmp_path, "--budget", "7")) == 0
        capsys.readouterr()
        assert (
            cli.run(["replay", str(tmp_path / "t.npz"), "--policies", "chain", "--budgets", "7", "--diagnostics"]) == 0
        )
        out = capsys.readouterr().out
        rows = {
            line.split()[0] + line.split()[1]: line
            for line in out.splitlines()
            if line.startswith((" chain", " ddtree"))
        }
        assert rows["ddtree7"].rstrip().endswith("biased") is False
        assert "record with --every-position" in out and "one policy's own" in out

    def test_ascii_terminal(self, trace: str, capsys: pytest.CaptureFixture[str]) -> None:
        from draftwood.bench.tables import text_grid

        assert text_grid("t", ("a", "b"), [("1", "2")], "ascii").isascii()

    def test_bad_input(self, trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        whole = Path(trace).read_bytes()
        (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
        for more, words in (
            ([str(tmp_path / "cut.npz")], "cut short"),
            ([str(tmp_path / "absent.npz")], "no such file"),
            ([trace, "--policies", "auto"], "give --profile"),
            ([trace, "--policies", "tree"], "policy 'tree'"),
            ([trace, "--shapes", "star"], "shape 'star'"),
            ([trace, "--budgets", "x"], "--budgets 'x'"),
            ([trace, "--profile", str(tmp_path / "absent.json")], "absent.json"),
        ):
            assert cli.run(["replay", *more]) == 2
            assert words in error_line(capsys)

    def test_ids_outside_the_vocabulary(self, trace: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        with np.load(trace) as archive:
            arrays = dict(archive)
        arrays["rounds.ids"] = arrays["rounds.ids"] + 64
        bad: Any = tmp_path / "bad.npz"
        np.savez(bad, **arrays)
        assert cli.run(["replay", str(bad)]) == 2
        assert "outside 0 to 63" in error_line(capsys)


@pytest.mark.usefixtures("loaded")
class TestShow:
    LINE = ("show", DEMO, "p1", "--raw", "--budget", "7", "--max-tokens", "24")

    def test_tree_in_the_terminal(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert cli.run([*self.LINE, "--round", "1"]) == 0
        out = capsys.readouterr().out
        assert out.startswith("round 1 of ") and "8 rows verified (root + 7)" in out and "(root)" in out

    def test_pictures_and_page(self, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
        svg, html, png = tmp_path / "t.svg", tmp_path / "r.html", tmp_path / "t.png"
        assert cli.run([*self.LINE, "--round", "1", "-o", str(svg), "--html", str(html)]) == 0
        assert cli.run([*self.LINE, "-o", str(png)]) == 0
        assert capsys.readouterr().out == ""
        assert svg.read_text().startswith("<svg") and png.read_bytes().startswith(b"\x89PNG")
        page = html.read_text()
        assert page.count("<template") > 3 and "ddtree budget=7" in page

    def test_text_of_the_page_is_the_generation(self, tmp_path: Path) -> None:
        from tiny_bench import engine, text_of, units

        from draftwood.draw.show import watch_generation
        from draftwood.engine import SamplingParams
        from draftwood.policy import make_policy

        made = engine(codec=True)
        unit = units()[1]
        options = SamplingParams(24, end_ids=frozenset())
        shown = watch_generation(made, unit.prompt_ids, make_policy("ddtree", budget=7), options)
        text = "".join(chr(33 + token) for token in text_of(unit.prompt_ids)[:24])
        assert shown.first_text + "".join(item.text for item in shown.rounds) == text
        for item in shown.rounds:
            assert item.tree is not None and item.tree.num_rows == item.rows
            assert len(item.tree.accepted) == item.committed

    @pytest.mark.parametrize(
        ("more", "words"),
        [
            (["--round", "99"], "round 99: expected 0 to "),
            (["--round", "-1"], "--round -1"),
            (["-o", "t.gif"], "expected a name that ends in .svg or .png"),
            (["--html", "/nowhere/r.html"], "no folder"),
            (["--policy", "tree"], "policy 'tree'"),
        ],
    )
    def test_bad_input(self, capsys: pytest.CaptureFixture[str], more: list[str], words: str) -> None:
        assert cli.run([*self.LINE, *more]) == 2
        assert words in error_line(capsys)
