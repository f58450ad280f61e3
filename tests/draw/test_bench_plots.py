"""Plots say what the lines say: read back from the figures themselves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from made_samples import sample

from draftwood.bench.bandwidth import Floor
from draftwood.bench.plan import Panel, rows_of
from draftwood.bench.runner import Sample
from draftwood.bench.session import BenchRun
from draftwood.bench.summary import Verdicts, summarise_panel
from draftwood.bench.tables import cells, groups, headings, markdown, markdown_table, notes, text_grid, text_tables
from draftwood.draw import bench_plots as plots

pytest.importorskip("matplotlib")
PANEL = Panel("", rows_of(["auto"], [4, 8]), max_tokens=4)


def samples() -> list[Sample]:
    found = []
    for prompt in "pq":
        found += [
            sample("ar", prompt, 4.0),
            sample("ddtree 4", prompt, 2.0, committed=[2, 1], rows=[5, 5], drafted=[True] * 2),
            sample("ddtree 8", prompt, 1.0, committed=[3], rows=[9], drafted=[True]),
            sample("auto", prompt, 1.0, rows=[1, 4, 7], drafted=[True] * 3, stage_s={"verify": [0.2] * 3}),
        ]  # fmt: skip
    return found


@pytest.fixture
def run() -> BenchRun:
    def explain(item: Sample, shared: object) -> tuple[float, float]:
        raise AssertionError

    lines = summarise_panel(PANEL, samples(), Verdicts("float32", explain))
    return BenchRun([PANEL], {"": lines})


def test_speed_by_budget_marks_auto(run: BenchRun) -> None:
    figure = plots.speed_by_budget(run.lines[""])
    (axes,) = figure.axes  # type: ignore[union-attr]
    curve = axes.get_lines()[0]
    assert curve.get_xdata().tolist() == [4, 8] and curve.get_ydata().tolist() == pytest.approx([2.0, 4.0])
    star = next(line for line in axes.get_lines() if line.get_marker() == "*")
    assert (star.get_xdata()[0], star.get_ydata()[0]) == (3.0, pytest.approx(4.0))  # 4 rows are 3 nodes
    assert "x)" in axes.get_ylabel() and axes.get_xlabel()


def test_committed_histogram_sums_to_one() -> None:
    figure = plots.committed_histogram(samples())
    rows = {one.get_label().split(" (")[0]: one for one in figure.axes[0].containers}  # type: ignore[union-attr]
    assert set(rows) == {"ddtree 4", "ddtree 8", "auto"}
    assert [bar.get_height() for bar in rows["ddtree 4"]] == [0.5, 0.5]
    assert [bar.get_height() for bar in rows["ddtree 8"]] == [0.0, 0.0, 1.0]


def test_speed_bars_carry_intervals(run: BenchRun) -> None:
    figure = plots.speed_bars(run.lines[""])
    (axes,) = figure.axes  # type: ignore[union-attr]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a"]
    heights = {bars.get_label(): bars[0].get_height() for bars in axes.containers if hasattr(bars, "patches")}
    assert heights == pytest.approx({"ar": 1.0, "ddtree 4": 2.0, "ddtree 8": 4.0, "auto": 4.0})
    assert "x)" in axes.get_ylabel() and len(figure.legends) == 1  # type: ignore[union-attr]
    different = [replace(line, speedup_over_ar=None) for line in run.lines[""]]
    figure = plots.speed_bars(different)
    assert figure.axes[0].get_ylabel() == "tokens per second"  # type: ignore[union-attr]
    assert plots.speed_bars([]) is None


def test_width_is_drawn_for_adaptive_rows_only() -> None:
    figure = plots.width_over_rounds(samples())
    (line,) = figure.axes[0].get_lines()  # type: ignore[union-attr]
    assert line.get_label() == "auto" and line.get_ydata().tolist() == [1, 4, 7]


def test_stage_bars(run: BenchRun) -> None:
    figure = plots.stage_bars(run.lines[""])
    heights = [bar.get_height() for bar in figure.axes[0].patches]  # type: ignore[union-attr]
    assert heights == pytest.approx([0.0, 200.0, 0.0])  # draft, verify, rest
    whole = {"schedule": 0.001, "draft": 0.01, "choose": 0.002, "verify": 0.03}
    lines = [replace(line, stage_s=whole) if line.stage_s else line for line in run.lines[""]]
    heights = [bar.get_height() for bar in plots.stage_bars(lines).axes[0].patches]  # type: ignore[union-attr]
    assert heights == pytest.approx([10.0, 30.0, 3.0])


def test_nothing_to_draw() -> None:
    assert plots.speed_by_budget([]) is None and plots.committed_histogram([]) is None
    assert plots.width_over_rounds([]) is None and plots.stage_bars([]) is None


def test_files(run: BenchRun, tmp_path: Path) -> None:
    written = plots.save_plots(run, samples(), tmp_path, "abacus, 2 threads")
    assert {path.name for path in written} == {path.name for path in tmp_path.iterdir()}
    page = (tmp_path / "speed.svg").read_text()
    assert "Speed of every policy" in page and "abacus, 2 threads" in page
    assert len(written) == 10 and all(path.stat().st_size > 1000 for path in written)


class TestTables:
    def test_cells_stand_under_their_headings(self, run: BenchRun) -> None:
        line = next(line for line in run.lines[""] if line.row.label == "ddtree 8")
        row = dict(zip(headings("decode"), cells(line), strict=True))
        assert row["policy"] == "ddtree 8" and row["tokens/s"] == "3.00" and row["committed"] == "3.00"
        assert row["over ar (95 %)"] == "4.00x 4.00..4.00" and row["gain over chain (95 %)"] == "-"
        assert row["rows (sd)"] == "9.0 (0.0)" and row["skipped"] == "0/2" and row["output"] == "identical"

    def test_one_set_is_shown_once(self, run: BenchRun) -> None:
        assert [title for title, _ in groups(run)] == ["a: 2 prompts"]

    def test_notes(self, run: BenchRun) -> None:
        found = "\n".join(notes(run.lines[""][:4], Floor(2_000_000_000, 4e9)))
        # 8 s for 6 tokens are 1,333 ms against a floor of 500 ms.
        assert "floor of ar: 500.00 ms/token (2000 MB of weights at 4.0 GB/s measured); ar takes 2.67 x that" in found
        assert "oracle budget of this sweep: 8; speed over it: auto 1.000" in found
        assert "auto 2:0 (p 0.5)" in found and "ms of a verification, stages timed apart: auto 200.00" in found

    def test_encodings(self, run: BenchRun) -> None:
        assert text_tables(run, "ascii").isascii() and "oracle budget of this sweep: 8" in text_tables(run, "utf-8")
        assert text_grid("t", ("a", "b"), [("1", "2")], "ascii").splitlines()[0] == "t"

    def test_markdown(self, run: BenchRun) -> None:
        text = markdown(run, {"machine": "abacus"})
        assert "- machine: abacus" in text and "| ddtree 8 | 3.00 |" in text
        assert markdown_table(("a", "b"), [("x|y", "1")]).splitlines()[2] == "| x\\|y | 1 |"
