"""The report in a real browser: Chromium without a head, driven by playwright."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import made_report
import pytest

from draftwood.draw.report import html_report, save_report
from draftwood.draw.views import RoundView

CHROMIUM = Path("/usr/bin/chromium")
sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"no {CHROMIUM}: install Debian's chromium")

NASTY = "</template><script>window.bad=1</script><img src=x onerror='window.bad=2'>"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as play:
        launched = play.chromium.launch(executable_path=str(CHROMIUM), args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Any, tmp_path: Path) -> Iterator[Any]:
    """The report opened from disk, offline; any error of the page or request beyond the file fails the test."""
    rounds = made_report.rounds()
    rounds[5] = RoundView(5, NASTY, 6, 2, True, 30, 0.02, made_report.tree(token=NASTY))
    path = tmp_path / "report.html"
    save_report(path, html_report(rounds, title=f"Run {NASTY}", prompt=NASTY, first_text="Hi", facts={"model": NASTY}))
    context = browser.new_context(offline=True)
    opened = context.new_page()
    faults: list[str] = []
    opened.on("pageerror", lambda error: faults.append(str(error)))
    opened.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    opened.on("request", lambda request: None if request.url.startswith(path.as_uri()) else faults.append(request.url))
    opened.goto(path.as_uri())
    yield opened
    assert faults == []
    context.close()


def chosen(page: Any) -> list[str]:
    found: list[str] = page.eval_on_selector_all("#text .chosen", "all => all.map((one) => one.dataset.round)")
    return found


def test_a_click_shows_the_tree(page: Any) -> None:
    assert "No round chosen" in page.inner_text("#tree")
    page.click('#text [data-round="2"]')
    assert chosen(page) == ["2"]
    assert "Round 2: drafted, 6 rows verified" in page.inner_text("#tree")
    assert page.locator("#tree svg.dw-tree g").count() == 6
    page.click('#text [data-round="3"]')
    assert "did not draft" in page.inner_text("#tree")
    assert page.locator("#tree svg").count() == 0


def test_accepted_is_green_and_the_rejection_red_and_dashed(page: Any) -> None:
    page.click('#text [data-round="0"]')
    style = "(one, name) => getComputedStyle(one).getPropertyValue(name)"
    accepted = page.locator("#tree .ok rect").first
    assert accepted.evaluate(style, "stroke") == "rgb(19, 115, 51)"
    assert accepted.evaluate(style, "stroke-dasharray") == "none"
    rejected = page.locator("#tree .no rect")
    if rejected.count():
        assert rejected.first.evaluate(style, "stroke") == "rgb(197, 34, 31)"
        assert rejected.first.evaluate(style, "stroke-dasharray") != "none"


def test_keyboard_alone_reaches_every_round(page: Any) -> None:
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.dataset.round") == "0":
            break
    page.keyboard.press("Enter")
    assert chosen(page) == ["0"]
    for number in range(1, 8):
        page.keyboard.press("ArrowRight")
        assert chosen(page) == [str(number)]
    page.keyboard.press("ArrowRight")
    assert chosen(page) == ["7"]
    page.keyboard.press("ArrowLeft")
    assert "Round 6" in page.inner_text("#tree")


def test_bars_and_buttons_choose_rounds(page: Any) -> None:
    page.locator('.chart [data-round="4"] .hit').first.click()
    assert chosen(page) == ["4"]
    page.click("#next")
    assert chosen(page) == ["5"]
    page.click("#back")
    page.click("#back")
    assert chosen(page) == ["3"]
    assert page.locator(".chart .chosen").count() == 2


def test_text_cannot_become_code(page: Any) -> None:
    page.click('#text [data-round="5"]')
    assert page.evaluate("window.bad") is None
    assert page.locator("img").count() == 0
    assert "<script>" in page.inner_text('#text [data-round="5"]')
    assert "<script>" in page.inner_text("h1")


def test_the_address_remembers_the_round(page: Any) -> None:
    page.click('#text [data-round="6"]')
    assert page.url.endswith("#6")
    page.reload()
    assert chosen(page) == ["6"]
