"""The timeline on the page, used as a person does: keyboard, search, address, mouse; and without scripts."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import pytest
from browsing import Visit, after_some_frames, until

from detscope.report.files import write_report
from detscope.runs.writer import RunWriter

MS = 1_000_000
EVIL = "<img src=x onerror=alert(1)>"
PHASES = {"data": 2, "transfer": 0, "forward": 40, "backward": 50, "optimizer": 6, "other": 2}
STEP_MS = sum(PHASES.values())
# path, begin and end forward, begin and end backward, in ms
MODULES = (
    ("", 2, 42, 42, 92),
    ("backbone", 2, 30, 60, 92),
    ("backbone.conv1", 2, 9, 85, 92),
    ("backbone.conv2", 9, 30, 60, 85),
    (f"head.{EVIL}", 30, 41, 43, 60),
)
STEPS = 12


def write_step(writer: RunWriter, step: int) -> None:
    """A step like all others: tables and picture can be compared to the digit."""
    begin, about = step * 200 * MS, (step, 0, "recorded")
    rows = [(*about, phase, begin, ms * MS, None) for phase, ms in {"step": STEP_MS, **PHASES}.items()]
    writer.append_rows("steps", rows)
    drawn: list[tuple[Any, ...]] = [(step, "steps", f"step {step}", "", begin, STEP_MS * MS)]
    at = begin
    for phase, ms in PHASES.items():
        drawn += [(step, "phases", phase, "", at, ms * MS)] if ms else []
        at += ms * MS
    spans: list[tuple[Any, ...]] = []
    for path, first, last, back_first, back_last in MODULES:
        for direction, start, end in (("forward", first, last), ("backward", back_first, back_last)):
            length = (end - start) * MS
            drawn.append((step, "modules", path or "Detector", direction, begin + start * MS, length))
            below = (one for one in MODULES if path and one[0].startswith(f"{path}."))
            inside = sum(one[2] - one[1] if direction == "forward" else one[4] - one[3] for one in below)
            own = length - inside * MS if path else MS
            spans.append((step, "module", path, direction, 1, length, own, None, None))
    writer.append_rows("timeline", drawn)
    writer.append_rows("spans", spans)
    loaded = (step + 1, 0, 9)
    writer.append_rows("loader", [(*loaded, "batch", begin + 5 * MS, 30 * MS, 2, MS, 0, 1)])
    writer.append_rows("loader", [(*loaded, "decode", begin + 5 * MS, 20 * MS, 2, None, None, None)])


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    info = {"device": "cpu", "level": "modules", "batch_size": 2, "model": {"name": "small"}}
    writer = RunWriter(tmp_path_factory.mktemp("runs"), "train", "small", info)
    for step in range(STEPS):
        write_step(writer, step)
    writer.append_rows("nodes", [("module", path, "Conv2d", "backbone", 10) for path, *_ in MODULES])
    writer.close_run("ok", None)
    return write_report(writer.folder)


@pytest.fixture(scope="module")
def desk(browser: Any, report: Path) -> Visit:
    visit = Visit(browser, report, viewport={"width": 1200, "height": 900}, color_scheme="light")
    visit.page.locator("#timeline").scroll_into_view_if_needed()
    visit.page.wait_for_selector(".timeline[data-ready]")
    return visit


def seen_range(page: Any) -> tuple[float, float]:
    data = page.evaluate("({...document.querySelector('.timeline').dataset})")
    return float(data["from"]) / MS, float(data["to"]) / MS


def address_tells(page: Any, seen: tuple[float, float], wanted: str) -> bool:
    """Whether it has what is seen and searched for by now: it follows a little later."""
    told = dict(parse_qsl(urlsplit(page.url).fragment))
    told_range = tuple(float(told.get(key, "nan")) for key in ("from", "to"))
    return told_range == pytest.approx(seen, abs=1e-5) and told.get("find") == wanted


def point_at(page: Any, ms: float, lane: int, row: int = 0) -> tuple[float, float]:
    """Where on the canvas a moment of a lane's row is: lanes lie beneath each other."""
    box = page.locator(".timeline canvas").bounding_box()
    first, last = seen_range(page)
    rows_before = (0, 1)[lane]
    y = 20 + (lane + 1) * 17 + lane * 7 + (rows_before + row) * 18 + 8
    return (ms - first) / (last - first) * box["width"], y


def test_the_keyboard_zooms_to_a_named_module_whose_time_is_that_of_the_table(desk: Visit) -> None:
    page = desk.page
    page.locator(".timeline-find").fill("backbone.conv1")
    page.keyboard.press("Enter")
    pinned = page.locator(".timeline-pinned")
    assert pinned.get_attribute("data-name") == "backbone.conv1"
    assert pinned.get_attribute("data-group") == "forward"
    first, last = seen_range(page)
    assert (first, last) == (0, 14)  # twice its length, as far as the step has it
    row = page.locator("#modules-table tbody tr", has_text="backbone.conv1").first
    titles = page.locator("#modules-table thead th").all_text_contents()
    cells = row.locator("td").all_text_contents()
    for key, direction in (("n", "backward"), ("p", "forward")):
        page.locator(".timeline canvas").focus()
        page.keyboard.press(key)
        assert pinned.get_attribute("data-group") == direction
        shown = cells[[title.lower() for title in titles].index(f"{direction} ms")]
        assert f"{shown} ms" in pinned.inner_text()
        assert float(pinned.get_attribute("data-total")) == 7 * MS
    wide = last - first
    page.keyboard.press("w")
    assert seen_range(page)[1] - seen_range(page)[0] < wide
    page.keyboard.press("0")
    assert seen_range(page) == (0, STEP_MS)
    assert desk.complaints == []


def test_w_a_s_d_arrows_and_signs_zoom_and_move(desk: Visit) -> None:
    page = desk.page
    page.locator(".timeline canvas").focus()
    page.keyboard.press("0")
    for closer, farther in (("w", "s"), ("ArrowUp", "ArrowDown"), ("+", "-")):
        page.keyboard.press(closer)
        first, last = seen_range(page)
        assert last - first == pytest.approx(0.75 * STEP_MS)
        page.keyboard.press(farther)
        assert seen_range(page) == pytest.approx((0, STEP_MS))
    page.keyboard.press("w")
    for left, right in (("a", "d"), ("ArrowLeft", "ArrowRight")):
        before = seen_range(page)
        page.keyboard.press(left)
        assert seen_range(page)[0] < before[0]
        page.keyboard.press(right)
        assert seen_range(page) == pytest.approx(before)


def test_a_search_of_the_whole_page_highlights_here_too(desk: Visit) -> None:
    page = desk.page
    page.evaluate("document.dispatchEvent(new CustomEvent('detscope:search', {detail: 'backbone'}))")
    assert page.locator(".timeline").get_attribute("data-found") == "6"
    assert page.locator(".timeline-find").input_value() == "backbone"
    page.evaluate("document.dispatchEvent(new CustomEvent('detscope:search', {detail: ''}))")
    assert page.locator(".timeline").get_attribute("data-found") == "0"


def test_what_is_found_keeps_its_colour_and_all_else_pales(desk: Visit) -> None:
    page = desk.page
    page.locator(".timeline canvas").focus()
    page.keyboard.press("0")
    page.keyboard.press("Escape")
    x, y = point_at(page, 20, 1, 2)  # backbone.conv2, forward
    context = "document.querySelector('.timeline canvas').getContext('2d')"
    look = f"([x, y]) => [...{context}.getImageData(x, y, 1, 1).data]"
    after_some_frames(page)
    plain = page.evaluate(look, [x + 60, y - 5])
    page.locator(".timeline-find").fill("conv2")
    after_some_frames(page)
    assert page.evaluate(look, [x + 60, y - 5]) == plain
    page.locator(".timeline-find").fill("conv1")
    after_some_frames(page)
    assert page.evaluate(look, [x + 60, y - 5]) != plain
    page.locator(".timeline-find").fill("")
    assert all("getImageData" in complaint for complaint in desk.complaints)  # of this test's own looking
    desk.complaints.clear()


def test_pointing_tells_ms_and_share_and_a_click_pins_what_is_known(desk: Visit) -> None:
    page = desk.page
    page.locator(".timeline canvas").focus()
    page.keyboard.press("0")
    x, y = point_at(page, 35, 1, 1)
    page.locator(".timeline canvas").hover(position={"x": x, "y": y})
    tip = page.locator(".timeline-tip")
    tip.wait_for(state="visible")
    assert tip.inner_text() == f"head.{EVIL}\n11.0 ms, 11.0 % of the step, forward"
    page.locator(".timeline canvas").click(position={"x": x, "y": y})
    text = page.locator(".timeline-pinned").inner_text()
    assert EVIL in text
    assert "Conv2d" in text
    assert page.locator(".timeline-pinned img").count() == 0
    page.locator(".timeline canvas").focus()
    page.keyboard.press("Escape")
    assert page.locator(".timeline-pinned").is_hidden()
    assert desk.complaints == []


def test_the_wheel_zooms_only_once_the_picture_was_chosen(desk: Visit) -> None:
    page = desk.page
    page.locator(".timeline canvas").focus()
    page.keyboard.press("0")
    page.evaluate("document.activeElement.blur()")
    page.locator(".timeline canvas").hover(position={"x": 300, "y": 60})
    page.mouse.wheel(0, -200)
    after_some_frames(page)
    assert seen_range(page) == (0, STEP_MS)
    page.locator("#timeline").scroll_into_view_if_needed()
    page.locator(".timeline canvas").click(position={"x": 300, "y": 60})
    page.mouse.wheel(0, -200)
    until(page, lambda: seen_range(page)[1] - seen_range(page)[0] < STEP_MS, "a closer look")


def test_the_address_brings_step_zoom_and_search_back(browser: Any, report: Path, desk: Visit) -> None:
    page = desk.page
    page.locator(".timeline-find").fill("conv2")
    page.keyboard.press("Enter")
    seen = seen_range(page)
    until(page, lambda: address_tells(page, seen, "conv2"), "the address of what is seen")
    again = Visit(browser, report, viewport={"width": 1200, "height": 900})
    again.page.goto("about:blank")
    again.page.goto(page.url)
    again.page.wait_for_selector(".timeline[data-ready]")
    assert seen_range(again.page) == pytest.approx(seen, abs=1e-5)
    assert again.page.locator(".timeline-find").input_value() == "conv2"
    assert again.page.locator(".timeline").get_attribute("data-found") == "2"
    assert again.complaints == []


def test_dark_and_narrow_the_picture_follows(browser: Any, report: Path) -> None:
    visit = Visit(browser, report, viewport={"width": 420, "height": 900}, color_scheme="dark")
    page = visit.page
    page.locator("#timeline").scroll_into_view_if_needed()
    page.wait_for_selector(".timeline[data-ready]")
    after_some_frames(page)
    corner = "[...document.querySelector('.timeline canvas').getContext('2d').getImageData(2, 2, 1, 1).data]"
    assert sum(page.evaluate(corner)[:3]) < 200
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    assert visit.complaints == []


def test_without_scripts_a_table_has_the_longest_spans(browser: Any, report: Path) -> None:
    visit = Visit(browser, report, java_script_enabled=False)
    page = visit.page
    rows = page.locator("#timeline-table tbody tr")
    assert rows.count() >= 5
    assert rows.first.is_visible()
    assert page.locator(".timeline canvas").is_hidden()
    assert "the picture needs scripts" in page.locator(".timeline noscript").inner_text()
