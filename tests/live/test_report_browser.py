"""The report in headless Chromium, on a phone and on a desktop: quiet console, no request, no
sideways page, live tables, print.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from blackbox_lb.extras.report.data import read_run
from blackbox_lb.extras.report.page import places, write_report
from tests.support.report_runs import Kind, bias_of, write_run

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.live,
    pytest.mark.needs("playwright.sync_api", reason="needs playwright"),
    pytest.mark.skipif(
        CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome on this machine"
    ),
]
PHONE, DESKTOP = (360, 780), (1280, 900)
PATIENCE = 180_000
"""Milliseconds: a busy machine draws slowly."""


@dataclass
class Opened:
    """A page and what it said and asked for."""

    page: Any
    said: list[str] = field(default_factory=list)
    asked: list[str] = field(default_factory=list)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One Chromium for all tests."""
    from playwright import sync_api

    with sync_api.sync_playwright() as playwright:
        running = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"], timeout=PATIENCE
        )
        yield running
        running.close()


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Reports of every kind of run."""
    folder = tmp_path_factory.mktemp("reports")
    kinds: tuple[tuple[str, Kind, bool], ...] = (
        ("full", "helps", True),
        ("nothing", "nothing", False),
        ("hurts", "hurts", False),
    )
    found = {
        name: write_report(write_run(folder / name, kind, full=full)).page
        for name, kind, full in kinds
    }
    (folder / "minimal").mkdir()
    bias_of(None, 3, compiled=None, learned=None).save(folder / "minimal" / "bias.json")
    return {**found, "minimal": write_report(folder / "minimal").page}


def opened(browser: Any, path: Path, size: tuple[int, int], scheme: str = "light") -> Opened:
    """The page in a window of its own."""
    context = browser.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme=scheme
    )
    context.set_default_timeout(PATIENCE)
    found = Opened(context.new_page())
    found.page.on("console", lambda message: found.said.append(message.text))
    found.page.on("pageerror", lambda error: found.said.append(str(error)))
    found.page.on("request", lambda request: found.asked.append(request.url))
    found.page.goto(path.as_uri())
    return found


@pytest.mark.parametrize("size", [PHONE, DESKTOP], ids=["phone", "desktop"])
@pytest.mark.parametrize("name", ["full", "nothing", "hurts", "minimal"])
def test_quiet_alone_and_within_the_screen(
    browser: Any, pages: dict[str, Path], tmp_path: Path, name: str, size: tuple[int, int]
) -> None:
    """No console message, no request but the file, no page wider than the screen, with every box
    opened; hostile text never ran.
    """
    found = opened(browser, pages[name], size)
    found.page.evaluate(
        "document.querySelectorAll('details').forEach((each) => { each.open = true; })"
    )
    assert found.page.evaluate("document.documentElement.scrollWidth") <= size[0]
    assert "pwned" not in found.page.title()
    found.page.screenshot(path=tmp_path / f"{name}-{size[0]}.png")
    assert found.said == []
    assert [url for url in found.asked if not url.startswith("data:")] == [pages[name].as_uri()]
    assert (tmp_path / f"{name}-{size[0]}.png").stat().st_size > 10_000
    found.page.context.close()


def column(page: Any, table: str, place: int) -> list[str]:
    """The visible cells of a column, from the top."""
    script = (
        "([id, n]) => [...document.querySelectorAll(`#${id} tbody tr:not([hidden])`)].map((row) =>"
        " row.cells[n].dataset.v)"
    )
    found: list[str] = page.evaluate(script, [table, place])
    return found


def test_tables_sort_and_search(browser: Any, pages: dict[str, Path]) -> None:
    """A click and the keyboard sort by number, not by text, and say so; a search leaves the rows
    that match, and counts them.
    """
    page = opened(browser, pages["full"], DESKTOP).page
    header = page.locator("#entries thead th").nth(2)
    assert len(column(page, "entries", 2)) == 50
    header.locator("button").click()
    assert header.get_attribute("aria-sort") == "descending"
    down = [float(value) for value in column(page, "entries", 2)]
    assert down == sorted(down, reverse=True)
    header.locator("button").press("Enter")
    assert header.get_attribute("aria-sort") == "ascending"
    up = [float(value) for value in column(page, "entries", 2)]
    assert up == sorted(up)
    assert up[0] < 0 < down[0]
    box = page.locator(".table", has=page.locator("#entries"))
    box.locator("input").fill("WORD10")
    tokens = column(page, "entries", 0)
    assert tokens
    assert all("word10" in text for text in tokens)
    assert box.locator("output").inner_text() == f"{len(tokens)} of 300 rows"
    box.locator("input").fill("")
    box.locator("button.more").click()
    assert len(column(page, "entries", 2)) == 300
    page.context.close()


def test_a_long_table_sorts_at_once(browser: Any, pages: dict[str, Path]) -> None:
    """1,200 tokens sort within 5 s, also on a busy machine; unknown errors come
    last.
    """
    page = opened(browser, pages["full"], PHONE).page
    page.locator(".table", has=page.locator("#scores")).locator("button.more").click()
    spent = page.evaluate(
        """() => { const button = document.querySelectorAll('#scores thead button')[3];
        const begin = performance.now(); button.click(); return performance.now() - begin; }"""
    )
    assert spent < 5_000
    script = (
        "[...document.querySelectorAll('#scores tbody tr')].map((row) => row.cells[3].dataset.v ??"
        " null)"
    )
    values = page.evaluate(script)
    assert len(values) == 1_200
    known = [value for value in values if value is not None]
    assert None not in values[: len(known)]
    page.context.close()


def test_dark_by_the_system(browser: Any, pages: dict[str, Path]) -> None:
    """Page and pictures change with the system's scheme."""
    script = """() => [getComputedStyle(document.body).backgroundColor,
        getComputedStyle(document.querySelector('figure svg text')).fill]"""
    light = opened(browser, pages["full"], DESKTOP)
    dark = opened(browser, pages["full"], DESKTOP, "dark")
    day, night = light.page.evaluate(script), dark.page.evaluate(script)
    assert day[0] != night[0]
    assert day[1] != night[1]
    for each in (light, dark):
        each.page.context.close()


def test_print_is_short(browser: Any, pages: dict[str, Path], tmp_path: Path) -> None:
    """On paper are the verdict, six examples and the strongest tokens, of a long run on few pages:
    boxes stay closed, and other sections and tables are left out.
    """
    page = opened(browser, pages["full"], DESKTOP, "dark").page
    page.emulate_media(media="print")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    script = """() => [...document.querySelectorAll('main > section, #entries tbody tr, details, article.example')]
        .filter((part) => part.checkVisibility()).map((part) => part.id || part.className || part.localName)"""
    shown = page.evaluate(script)
    assert [name for name in shown if name not in ("example", "tr")] == [
        "hero",
        "examples",
        "tokens",
    ] or [name for name in shown if name not in ("example", "tr")] == [
        "verdict",
        "examples",
        "tokens",
    ]
    assert shown.count("example") == 6
    assert shown.count("tr") == 40
    page.context.close()
    page = opened(browser, pages["hurts"], DESKTOP).page
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert 1 <= (tmp_path / "report.pdf").read_bytes().count(b"/Type /Page\n") <= 3
    page.context.close()


def test_a_phone_shows_both_sides_of_a_verdict(browser: Any, pages: dict[str, Path]) -> None:
    """Without scrolling sideways, a row has the metric and both means."""
    page = opened(browser, pages["full"], PHONE).page
    ends = page.evaluate(
        "[...document.querySelectorAll('#verdict-rows thead th')].slice(0, 3).map((cell) =>"
        " cell.getBoundingClientRect().right)"
    )
    assert max(ends) <= PHONE[0]
    page.context.close()


def test_print_all_shows_everything_and_no_controls(
    browser: Any, pages: dict[str, Path], tmp_path: Path
) -> None:
    """By choice all 300 rows and all boxes are on paper and nothing to click is; the PDF is
    written.
    """
    page = opened(browser, pages["full"], DESKTOP, "dark").page
    page.emulate_media(media="print")
    page.evaluate("document.body.classList.add('all')")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    shown = "getComputedStyle(document.querySelector('%s')).display"
    assert page.evaluate(shown % ".masthead .controls") == "none"
    assert page.evaluate(shown % "#entries tbody tr:nth-child(299)") == "table-row"
    assert page.evaluate(shown % "#scores tbody tr:nth-child(301)") == "none"
    assert page.evaluate("document.querySelectorAll('details:not([open])').length") == 0
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 30, 36)"
    page.set_viewport_size(
        {"width": 690, "height": 980}
    )  # the width of an A4 page within its margins
    cut = (
        "[...document.querySelectorAll('.scroll')].filter((box) => box.scrollWidth >"
        " box.clientWidth + 1).length"
    )
    assert page.evaluate(cut) == 0
    page.evaluate("window.dispatchEvent(new Event('afterprint'))")
    assert page.evaluate("document.querySelectorAll('details[open]').length") == 0
    page.pdf(path=tmp_path / "report.pdf", format="A4")
    assert (tmp_path / "report.pdf").read_bytes().startswith(b"%PDF")
    page.context.close()


def visible(page: Any) -> list[str]:
    """The statuses of the examples that can be seen, from the top."""
    script = """() => [...document.querySelectorAll('#examples article.example')]
        .filter((card) => card.checkVisibility()).map((card) => card.dataset.status)"""
    statuses: list[str] = page.evaluate(script)
    return statuses


def test_examples_are_filtered_with_the_keyboard(browser: Any, pages: dict[str, Path]) -> None:
    """Arrow keys go through the choices, each leaves its own examples and counts them; a link to a
    number of the terminal chooses its examples.
    """
    page = opened(browser, pages["hurts"], DESKTOP).page
    assert visible(page) == ["broken", "mended", "broken", "same", "broken", "same"]
    page.locator("form.filter input[type=radio]").first.focus()
    for status, count in (("mended", 1), ("broken", 3), ("same", 2)):
        page.keyboard.press("ArrowRight")
        assert visible(page) == [status] * count
        assert page.locator("form.filter output").inner_text() == f"{count} of 6 prompts"
    page.keyboard.press("ArrowRight")
    assert len(visible(page)) == 6
    page.goto(f"{pages['hurts'].as_uri()}#broken")
    assert visible(page) == ["broken"] * 3
    page.context.close()


def test_moved_tokens_are_marked_and_can_be_left_plain(
    browser: Any, pages: dict[str, Path]
) -> None:
    """Up and down have another sign and another line; the box takes both away."""
    page = opened(browser, pages["hurts"], PHONE).page
    script = """() => ['up', 'down'].map((side) => {
        const token = document.querySelector(`#examples .example .moved.${side}`);
        return [getComputedStyle(token, '::before').content, getComputedStyle(token).textDecorationStyle,
            getComputedStyle(token).textDecorationLine, token.title]; })"""
    up, down = page.evaluate(script)
    assert up[0] != down[0]
    assert up[1] != down[1]
    assert (up[2], down[2]) == ("overline", "overline")
    assert (up[3], down[3]) == ("+2.50 nats", "−1.25 nats")
    page.locator("form.filter input[type=checkbox]").press("Space")
    plain = page.evaluate(script)
    assert [(sign, line) for sign, _, line, _ in plain] == [("none", "none")] * 2
    page.context.close()


def test_every_place_that_the_terminal_prints_is_in_the_page(
    browser: Any, pages: dict[str, Path]
) -> None:
    """Each anchor is the id of one element that can be seen."""
    page = opened(browser, pages["hurts"], PHONE).page
    for anchor, _ in places(read_run(pages["hurts"].parent)):
        assert page.locator(f"[id='{anchor}']").is_visible(), anchor
    page.context.close()


def test_without_scripts_everything_can_be_read(browser: Any, pages: dict[str, Path]) -> None:
    """A mail program that runs no script shows all rows and no dead control."""
    context = browser.new_context(java_script_enabled=False)
    context.set_default_timeout(PATIENCE)
    page = context.new_page()
    page.goto(pages["full"].as_uri())
    assert page.locator("#entries tbody tr").count() == 300
    assert page.locator("#entries tbody tr").nth(299).is_visible()
    assert not page.locator("#print").is_visible()
    page.goto(pages["hurts"].as_uri())
    assert page.locator("#examples article.example").count() == 6
    assert not page.locator("form.filter").is_visible()
    assert page.locator(".example .moved.up").first.get_attribute("title") == "+2.50 nats"
    context.close()
