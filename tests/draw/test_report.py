from __future__ import annotations

import itertools
import json
import re
from html.parser import HTMLParser
from pathlib import Path

import made_report
import pytest

from draftwood.draw.report import html_report, save_report, ticks
from draftwood.draw.views import RoundView
from draftwood.errors import UsageError

NASTY = "</pre></template></script><script>window.bad=1</script><img src=x onerror=bad()>&\"'\x00\x1b\u202e"


class Reader(HTMLParser):
    """Tags with their attributes, and the text of every round's span."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: dict[str, str] = {}
        self._round: str | None = None
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "span":
            self._round = dict(attrs).get("data-round")

    def handle_endtag(self, tag: str) -> None:
        if tag == "span":
            self._round = None

    def handle_data(self, data: str) -> None:
        if self._round is not None:
            self.text[self._round] = self.text.get(self._round, "") + data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attrs for name, attrs in self.tags if name == tag]


def test_page_has_every_round() -> None:
    rounds = made_report.rounds()
    page = Reader(html_report(rounds, title="A run", prompt="Say hello", first_text="Hi", facts={"model": "tiny"}))
    spans = [attrs for attrs in page.all("span") if "data-round" in attrs]
    assert [attrs["data-round"] for attrs in spans] == [str(item.index) for item in rounds]
    assert all(attrs["role"] == "button" and attrs["tabindex"] == "0" for attrs in spans)
    assert [attrs["id"] for attrs in page.all("template")] == [f"round-{item.index}" for item in rounds]
    assert page.text == {str(item.index): item.text for item in rounds}
    drawn = sum(attrs.get("class") == "dw-tree" for attrs in page.all("svg"))
    assert drawn == sum(item.tree is not None for item in rounds) > 2
    bars = [attrs for attrs in page.all("g") if "data-round" in attrs]
    assert len(bars) == 2 * len(rounds)


def test_neighbouring_rounds_differ_in_colour() -> None:
    page = Reader(html_report(made_report.rounds(), title="x"))
    hues = [str(attrs["class"]).split()[1] for attrs in page.all("span") if "data-round" in attrs]
    assert all(one != two for one, two in itertools.pairwise(hues))


def test_text_is_escaped_everywhere() -> None:
    item = RoundView(0, NASTY, 3, 2, True, 5, 0.01, made_report.tree(token=NASTY))
    page = html_report([item], title=NASTY, prompt=NASTY, first_text=NASTY, facts={NASTY: NASTY})
    read = Reader(page)
    assert len(read.all("script")) == 1
    assert not read.all("img")
    assert "window.bad" not in re.findall(r"<script>(.*?)</script>", page, re.S)[0]
    assert "\x00" not in page and "\x1b" not in page and "\u202e" not in page
    assert "\\x1b" in page and "\\u202e" in page
    assert {name for name, _ in read.tags} <= {
        "html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "table", "tr", "th", "td", "section",
        "pre", "p", "span", "i", "button", "div", "template", "svg", "rect", "path", "g", "text", "circle",
        "noscript", "script",
    }  # fmt: skip


def test_nothing_is_loaded_from_elsewhere() -> None:
    page = html_report(made_report.rounds(), title="x")
    read = Reader(page)
    assert not [attrs for _, attrs in read.tags if {"src", "href", "data", "action", "xlink:href"} & attrs.keys()]
    assert "url(" not in page and "@import" not in page and "fetch(" not in page
    assert set(re.findall(r"https?://[^\"'<\s]+", page)) == {"http://www.w3.org/2000/svg"}
    policy = next(attrs["content"] for attrs in read.all("meta") if attrs.get("http-equiv"))
    assert policy is not None and policy.startswith("default-src 'none'")


def test_line_ends_stay_and_are_marked() -> None:
    page = html_report([RoundView(0, "a\n\nb\r\t", 1, 1, False, 5)], title="x")
    assert 'a<i class="nl"></i>\n<i class="nl"></i>\nb\\x0d\t</span>' in page


def test_empty_generation_and_rounds_without_tree() -> None:
    page = html_report([], title="x", first_text="")
    assert "No rounds" in page
    page = html_report([RoundView(0, "a", 1, 1, False, 5)], title="x")
    assert "was not kept" in page and "did not draft" in page
    assert "milliseconds" not in page


def test_saving(tmp_path: Path) -> None:
    save_report(tmp_path / "r.html", html_report([], title="é\ud800"))
    assert "é\\ud800" in (tmp_path / "r.html").read_text(encoding="utf-8")
    with pytest.raises(UsageError, match="cannot be written"):
        save_report(tmp_path / "none" / "r.html", "")
    assert [path.name for path in tmp_path.iterdir()] == ["r.html"]


def test_script_has_no_syntax_of_its_own_from_data() -> None:
    """The script is a constant: data reaches the page only as markup."""
    pages = [html_report(made_report.rounds(seed), title=json.dumps({"a": seed})) for seed in (1, 2)]
    scripts = {re.findall(r"<script>(.*?)</script>", page, re.S)[0] for page in pages}
    assert len(scripts) == 1


@pytest.mark.parametrize(
    ("top", "expected"),
    [
        (13.0, [0, 5, 10]),
        (4.0, [0, 1, 2, 3, 4]),
        (72.2, [0, 20, 40, 60]),
        (1e-9, None),
        (100.0, [0, 20, 40, 60, 80, 100]),
    ],
)
def test_ticks_are_round_numbers(top: float, expected: list[float] | None) -> None:
    found = ticks(top)
    assert 3 <= len(found) <= 6 and found[0] == 0 and found[-1] <= top * (1 + 1e-9)
    assert expected is None or found == pytest.approx(expected)


def test_the_page_opens_at_a_round() -> None:
    page = html_report(made_report.rounds(), title="t", opened=1)
    assert 'data-open="1"' in page and "data-open" not in html_report(made_report.rounds(), title="t")
    assert "document.body.dataset.open" in page


def test_charts_have_a_legend_and_ticks() -> None:
    page = html_report(made_report.rounds(), title="t")
    assert "rows verified" in page and "tokens committed" in page and 'class="grid"' in page
    assert "prefers-color-scheme:dark" in page
