"""The HTML report, looked at by a real browser: offline, inert, readable with scripts off."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from browsing import Visit, after_some_frames, until
from PIL import Image

from detscope.report.files import write_report
from detscope.report.model import Card, Cards, Section
from detscope.report.render.page import render_page
from detscope.runs.schema import TABLES
from detscope.runs.writer import RunWriter, polars_schema
from memory_samples import made_run

EVIL = "<img src=x onerror=alert(1)>"
PHASES = {"data": 5.0, "transfer": 0.1, "forward": 40.0, "backward": 50.0, "optimizer": 4.0, "other": 0.9}


def module_paths(count: int) -> list[str]:
    """A tree of so many modules: a root, parts, blocks, layers."""
    paths = ["", "backbone", "rpn", "roi_heads", "roi_heads.box_head"]
    paths += [f"backbone.block{i // 8}" for i in range(0, count, 8)]
    paths += [f"backbone.block{i // 8}.layer{i % 8}" for i in range(count)]
    return list(dict.fromkeys(paths))[:count]


def make_run(parent: Path, steps: int = 40, modules: int = 40, name: str = "small", label: str = "") -> Path:
    """A run with phases, stages, modules, content, loader; `label` goes wherever names come from outside."""
    generator = np.random.default_rng(0)
    info = {
        "device": "cpu",
        "level": "modules",
        "batch_size": 2,
        "stages": ["backbone", "rpn", "roi_heads"],
        "model": {"name": name, "parameters": 1000},
        "data": {"name": f"shapes{label}"},
        "environment": {"host": f"box{label}", "torch": "2.15"},
        "notes": [f"a note {label}"],
    }
    writer = RunWriter(parent, "train", "small", info)
    factors = np.exp(generator.normal(0, 0.03, steps))
    numbers = np.arange(steps)
    modes = np.where(numbers < 3, "warmup", np.where(numbers % 5 == 0, "bare", "recorded"))
    rows: dict[str, list[Any]] = {key: [] for key in TABLES["steps"]}
    for phase, ms in {**PHASES, "step": sum(PHASES.values())}.items():
        rows["step"] += numbers.tolist()
        rows["epoch"] += [0] * steps
        rows["mode"] += modes.tolist()
        rows["phase"] += [phase] * steps
        rows["start_ns"] += (numbers * 10**8).tolist()
        rows["wall_ns"] += (ms * 1e6 * factors).astype(int).tolist()
        rows["device_ns"] += [None] * steps
    writer.append_frame("steps", pl.DataFrame(rows, schema=polars_schema("steps")))
    paths = [f"{path}{label if path.endswith('box_head') else ''}" for path in module_paths(modules)]
    kept = [int(step) for step in numbers[modes == "recorded"]][:256]
    spans = []
    for step in kept:
        for direction, whole in (("forward", 40e6), ("backward", 50e6)):
            own = int(whole / len(paths))
            spans += [(step, "module", path, direction, 1, own * 2, own, None, None) for path in paths]
            spans += [
                (step, "stage", s, direction, 1, 0, int(whole / 3), None, None)
                for s in ("backbone", "rpn", "roi_heads")
            ]
    writer.append_rows("spans", spans)
    writer.append_rows("nodes", [("module", path, f"Conv2d{label}", "backbone", 10) for path in paths])
    writer.append_rows(
        "content",
        [
            (int(s), 2, int(s % 7), 1000, 1200 + int(s % 3), 100, 50, None, None, 0, False, f"im{label}")
            for s in numbers[:2000]
        ],
    )
    regions = (("load", 1), ("decode", 2), ("batch", 4))
    batch = {"worker": 0, "pid": 1, "images": 2, "wait_ns": 10**5}
    loaded = [
        {**batch, "step": s, "region": region, "start_ns": s * 10**8, "wall_ns": ms * 10**6}
        for s in kept
        for region, ms in regions
    ]
    writer.append_frame("loader", pl.DataFrame(loaded, schema=polars_schema("loader")))
    writer.append_rows("losses", [(int(s), "loss", 1.0 / (1 + s)) for s in numbers[:2000]])
    writer.close_run("failed" if label else "ok", f"ValueError: {label}" if label else None)
    return writer.folder


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report(make_run(tmp_path_factory.mktemp("runs")))


@pytest.fixture(scope="module")
def figures(report: Path) -> dict[str, Any]:
    """What `--json` says of the same run."""
    return dict(json.loads(write_report(report.parent, "json").read_text()))


@pytest.fixture(scope="module")
def desk(browser: Any, report: Path) -> Visit:
    """One page for several tests, each of which looks at another part."""
    visit = Visit(browser, report, permissions=["clipboard-read", "clipboard-write"])
    visit.unfold()
    return visit


@pytest.fixture(scope="module")
def telephone(browser: Any, report: Path) -> Visit:
    return Visit(
        browser, report, color_scheme="light", viewport={"width": 420, "height": 900}, has_touch=True
    )


def pointed_text(page: Any, selector: str) -> str:
    """What is said when the pointer is over a box of a picture."""
    box = page.locator(selector).first
    box.scroll_into_view_if_needed()
    after_some_frames(page)
    box.hover(position={"x": 3, "y": 5})
    until(page, lambda: page.locator("#tip").is_visible(), "something said under the pointer")
    return str(page.locator("#tip").text_content())


def test_the_page_opens_from_a_file_without_an_error_or_a_request(desk: Visit) -> None:
    assert desk.page.locator("figure.chart").count() > 3
    assert desk.complaints == []


def test_pointing_at_the_icicle_tells_total_self_and_share_as_the_json_has_them(
    desk: Visit, figures: dict[str, Any]
) -> None:
    rows = {row["path"]: row for row in figures["modules"]}
    for path in ("backbone", "backbone.block0.layer1", "roi_heads.box_head"):
        row = rows[path]
        own = row["self_forward_ms"] + row["self_backward_ms"]
        number = desk.page.evaluate(f"detscope.data.charts.icicle.ids.indexOf({path!r})")
        assert pointed_text(desk.page, f"#icicle [data-n='{number}']") == (
            f"{path}\ntotal {row['total_ms']:,.3f} ms · self {own:,.3f} ms · "
            f"{100 * row['share']:.1f} % of the step"
        )


def test_pointing_at_the_map_of_memory_tells_bytes_and_share_as_the_json_has_them(
    browser: Any, tmp_path: Path
) -> None:
    folder = made_run(tmp_path).folder
    memory = json.loads(write_report(folder, "json").read_text())["memory"]
    page = Visit(browser, write_report(folder)).page
    for category in memory["categories"]:
        name, size = category["name"], category["bytes"]
        if size:
            number = page.evaluate(f"detscope.data.charts['memory-map'].ids.indexOf({name!r})")
            assert pointed_text(page, f"#memory-map [data-n='{number}']") == (
                f"{name}\ntotal {size:,} bytes · self 0 bytes · "
                f"{100 * size / memory['peak_bytes']:.1f} % of the peak"
            )


def test_a_click_zooms_into_the_icicle_and_the_address_brings_the_zoom_back(
    desk: Visit, browser: Any, report: Path
) -> None:
    page = desk.page
    boxes = page.locator("#icicle [data-n]")
    everything = boxes.count()
    page.locator("#icicle [data-n]", has_text="roi_heads").first.click()
    until(page, lambda: 0 < boxes.count() < everything, "fewer boxes after a click")
    page.locator("label", has_text="parameters").click()
    until(page, lambda: "parameters" in page.url, "the choice in the address")
    state = "[...document.querySelectorAll('#icicle [data-n]')].map((box) => box.dataset.told)"
    seen = page.evaluate(state)
    other = Visit(browser, report)
    other.page.goto(page.url)
    until(other.page, lambda: other.page.evaluate(state) == seen, "the same zoom from its address")
    assert other.page.locator("#icicle input:checked + label").inner_text() == "parameters"
    assert other.complaints == []


def test_the_address_of_a_row_unfolds_its_table_and_marks_the_row(browser: Any, report: Path) -> None:
    visit = Visit(browser, report)
    table = visit.page.locator("#modules-table")
    assert table.get_attribute("open") is None
    visit.page.goto(report.resolve().as_uri() + "#modules-table.roi_heads.box_head")
    marked = visit.page.locator("tr.here")
    until(visit.page, lambda: marked.is_visible(), "the row of the address")
    assert marked.locator("td").first.inner_text() == "roi_heads.box_head"


def test_the_module_table_sorts_by_full_figures(desk: Visit, figures: dict[str, Any]) -> None:
    page = desk.page
    head = page.locator("#modules-table th", has_text="total ms").get_by_role("button")
    head.click()
    head.click()
    first = page.locator("#modules-table tbody tr td:first-child").first.inner_text()
    cheapest = min(row["total_ms"] for row in figures["modules"])
    assert {row["path"]: row["total_ms"] for row in figures["modules"]}[first] == pytest.approx(cheapest)


def test_a_search_keeps_the_rows_that_match_marks_boxes_and_tells_other_scripts(
    browser: Any, report: Path
) -> None:
    page = Visit(browser, report).page
    page.evaluate("document.addEventListener('detscope:search', (event) => { window.heard = event.detail; })")
    page.keyboard.press("/")
    page.keyboard.type("Box_Head")
    until(page, lambda: page.evaluate("window.heard") == "box_head", "the text of the search")
    rows = page.locator("#modules-table tbody tr:visible td:first-child")
    assert rows.all_inner_texts() == ["roi_heads.box_head"]
    assert page.locator("#icicle .hit").count() >= 1
    assert "row" in page.locator("#matches").inner_text()
    page.keyboard.press("Escape")
    until(page, lambda: not page.locator("#modules-table tbody tr").first.is_visible(), "folded again")


def test_tables_and_commands_are_copied(desk: Visit, figures: dict[str, Any]) -> None:
    page = desk.page
    copied = "navigator.clipboard.readText()"
    tools = page.locator("#phases-table .tools")
    tools.get_by_text("Markdown").click()
    until(page, lambda: "| --- |" in page.evaluate(copied), "a table as Markdown")
    assert any(line.startswith("| backward |") for line in page.evaluate(copied).splitlines())
    tools.get_by_text("CSV").click()
    until(page, lambda: page.evaluate(copied).startswith("Phase,"), "a table as CSV")
    rows = {row["Phase"]: row for row in csv.DictReader(io.StringIO(page.evaluate(copied)))}
    for phase in figures["phases"]:
        assert float(rows[phase["name"]]["ms"]) == pytest.approx(phase["ms"], rel=1e-5)
    commands = page.locator(".command")
    if commands.count():
        commands.first.get_by_role("button").click()
        words = commands.first.locator("code").inner_text()
        until(page, lambda: page.evaluate(copied) == words, "a command")


def test_the_first_screen_is_saved_as_a_picture(desk: Visit, tmp_path: Path) -> None:
    with desk.page.expect_download() as download:
        desk.page.locator("#save").click()
    download.value.save_as(tmp_path / "first.png")
    with Image.open(tmp_path / "first.png") as picture:
        assert picture.size == (1200, 630)
        assert len(picture.convert("RGB").getcolors(1_000_000) or ()) > 50
    assert desk.complaints == []


def test_the_navigation_stays_in_view_and_says_where_one_is(desk: Visit) -> None:
    page = desk.page
    page.evaluate("document.getElementById('loader').scrollIntoView()")
    current = page.locator("nav a[aria-current]")
    until(page, lambda: current.get_attribute("href") == "#loader", "the section in view")
    assert page.evaluate("document.querySelector('nav').getBoundingClientRect().top >= 0")


def test_the_navigation_marks_the_first_section_as_soon_as_the_page_is_open(
    browser: Any, report: Path
) -> None:
    page = Visit(browser, report).page
    current = page.locator("nav a[aria-current]")
    until(page, lambda: current.count() == 1, "a section that one is in")
    assert current.get_attribute("href") == "#verdict"


def test_cards_leave_no_empty_field_whatever_their_number_and_the_width(browser: Any, tmp_path: Path) -> None:
    cards = [Card("label", "12.3 ms", "a detail of some length " * (number % 3)) for number in range(11)]
    sections = [Section(f"s{many}", "s", "s", "", [Cards(cards[:many])]) for many in range(1, 12)]
    path = tmp_path / "cards.html"
    path.write_text(render_page("cards", "", sections, [], ""))
    bare = """[...document.querySelectorAll('.cards')].map((field) => {
        const boxes = [...field.children].map((card) => card.getBoundingClientRect());
        const { left, right, top, bottom } = field.getBoundingClientRect();
        const covered = boxes.reduce((sum, box) => sum + box.width * box.height, 0);
        return 1 - covered / ((right - left) * (bottom - top));
    })"""
    for width in (1280, 900, 700, 420, 320):
        page = Visit(browser, path, viewport={"width": width, "height": 800}).page
        page.add_style_tag(content="main > section { content-visibility: visible !important; }")
        assert max(page.evaluate(bare)) < 0.06, width  # lines between cards, and around them


def test_dark_is_one_press_away(telephone: Visit) -> None:
    page = telephone.page
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    page.locator("#theme").focus()
    page.keyboard.press("Enter")
    assert page.evaluate(background) != light
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"
    page.keyboard.press("Enter")


def test_who_prefers_dark_gets_it_at_once(browser: Any, report: Path) -> None:
    page = Visit(browser, report, color_scheme="dark").page
    red, *_ = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g).map(Number)")
    assert red < 60


def test_on_a_narrow_screen_nothing_sticks_out_and_the_navigation_folds(telephone: Visit) -> None:
    page = telephone.page
    telephone.unfold()
    assert page.evaluate("document.documentElement.scrollWidth") <= 420
    widths = "[...document.querySelectorAll('td')].map((cell) => cell.offsetWidth).filter((width) => width)"
    narrowest = f"Math.min(...{widths})"
    assert page.evaluate(narrowest) >= 40  # a column of single letters is narrower
    links = page.locator("nav a").first
    assert not links.is_visible()
    page.locator("label[for=menu]").tap()
    until(page, links.is_visible, "the list of sections")
    links.tap()
    until(page, lambda: not links.is_visible(), "the list folded again")
    assert page.locator("label[for=menu]").is_visible()


def test_it_prints_with_all_sections_and_all_rows(telephone: Visit, tmp_path: Path) -> None:
    page = telephone.page
    page.emulate_media(media="print")
    page.evaluate("document.querySelectorAll('details').forEach((fold) => { fold.open = false; })")
    after_some_frames(page)
    heights = page.evaluate(
        "[...document.querySelectorAll('main section, details.table .scroll, details.table tbody tr')]"
        ".map((node) => node.getBoundingClientRect().height)"
    )
    assert len(heights) > 60 and min(heights) > 5
    assert not page.locator("nav").is_visible()
    page.pdf(path=str(tmp_path / "report.pdf"))
    printed = (tmp_path / "report.pdf").read_bytes()
    assert len(re.findall(rb"/Type\s*/Page\b", printed)) >= 4
    page.emulate_media(media="screen")


def test_with_scripts_off_every_figure_and_picture_is_still_there(browser: Any, report: Path) -> None:
    page = Visit(browser, report, java_script_enabled=False).page
    text = page.locator("main").text_content()
    for expected in (
        "backward",
        "roi_heads.box_head",
        "50.0 %",
        "worker 0",
        "annotated boxes",
        "overhead_ratio",
    ):
        assert expected in text
    page.locator("#modules-table summary").click()
    assert page.locator("#modules-table tbody tr").last.is_visible()
    assert page.locator("#icicle [data-n]").count() > 10
    assert "total" in page.locator("#icicle [data-n]").first.get_attribute("title")
    assert page.locator("#steps-over-time svg path").count() >= 1


def test_names_from_outside_are_inert(browser: Any, tmp_path: Path) -> None:
    path = write_report(make_run(tmp_path, name=f"model{EVIL}", label=EVIL))
    visit = Visit(browser, path)
    visit.unfold()
    assert visit.page.locator("img[src=x]").count() == 0
    assert visit.page.evaluate("document.querySelectorAll('[onerror]').length") == 0
    assert [text for text in visit.complaints if "x" in text] == []
    assert EVIL in visit.page.locator("main").text_content()


def test_the_page_lets_no_other_script_run(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy.group(1)
    assert "unsafe-eval" not in policy.group(1)
    assert "https://" not in text


def test_a_page_carries_no_script_that_it_does_not_use(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "train", "small", {"device": "cpu"})
    writer.close_run("failed", "RuntimeError: nothing")
    text = write_report(writer.folder).read_text(encoding="utf-8")
    assert "detscope:search" in text
    assert "treemap" not in text and "svg.lines" not in text.partition("<body>")[0]


def test_a_model_of_759_modules_and_500_steps_stays_below_1_megabyte(tmp_path: Path) -> None:
    assert write_report(make_run(tmp_path, steps=500, modules=759)).stat().st_size < 1_000_000


def test_a_hundred_thousand_steps_stay_below_2_megabytes(tmp_path: Path) -> None:
    assert write_report(make_run(tmp_path, steps=100_000)).stat().st_size < 2_000_000


def test_the_same_figures_come_as_markdown_json_and_csv(tmp_path: Path) -> None:
    run = make_run(tmp_path)
    summary = json.loads(write_report(run, "json").read_text())
    assert {row["name"]: row["ms"] for row in summary["phases"]}["backward"] == pytest.approx(50.0, rel=0.05)
    assert "| `backward` |" in write_report(run, "md").read_text()
    assert "step,phases-table,backward,share," in write_report(run, "csv").read_text()


def test_a_run_that_never_made_a_step_still_has_a_report_that_says_so(tmp_path: Path) -> None:
    writer = RunWriter(tmp_path, "train", "small", {"device": "cpu"})
    writer.close_run("failed", "RuntimeError: nothing")
    text = write_report(writer.folder).read_text()
    assert "no complete step was recorded" in text
    assert "failed: RuntimeError: nothing" in text
