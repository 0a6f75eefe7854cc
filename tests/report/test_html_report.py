"""The HTML report, looked at by a real browser: offline, inert, readable with scripts off."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pytest
from browsing import Visit, after_some_frames, until

from detscope.report.files import write_report
from detscope.runs.schema import TABLES
from detscope.runs.writer import RunWriter, polars_schema

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
def desk(browser: Any, report: Path) -> Visit:
    """One page for several tests, each of which looks at another part: opening it takes seconds."""
    visit = Visit(browser, report)
    visit.draw()
    visit.page.wait_for_selector("#icicle .slice")
    return visit


@pytest.fixture(scope="module")
def telephone(browser: Any, report: Path) -> Visit:
    return Visit(browser, report, color_scheme="light", viewport={"width": 420, "height": 900})


def test_the_page_opens_from_a_file_without_an_error_or_a_request(desk: Visit) -> None:
    assert desk.page.locator(".js-plotly-plot").count() == desk.page.locator(".plot").count()
    assert desk.complaints == []


def test_a_click_zooms_into_the_icicle_and_the_choice_changes_what_it_shows(desk: Visit) -> None:
    page = desk.page
    slices = page.locator("#icicle .slice")
    slices.first.scroll_into_view_if_needed()
    after_some_frames(page)  # a chart that comes near the screen is drawn again, which would undo a click
    everything = slices.count()
    page.locator("#icicle .slice", has_text="roi_heads").first.click()
    until(page, lambda: 0 < slices.count() < everything, "fewer slices after a click")
    page.locator(".choice select[aria-controls=icicle]").select_option("parameters")
    values = "document.getElementById('icicle').data[0].values"
    until(page, lambda: set(page.evaluate(values)) == {0, 10}, "parameters in the place of times")


def test_the_module_table_sorts_and_filters(desk: Visit) -> None:
    page = desk.page
    rows = page.locator("#modules-table tbody tr")
    page.get_by_role("button", name="Module", exact=True).click()
    names = rows.locator("td:first-child").all_inner_texts()
    assert names == sorted(names, reverse=True)
    page.locator("#modules-table input").fill("box_head")
    assert page.locator("#modules-table tbody tr:visible td:first-child").all_inner_texts() == [
        "roi_heads.box_head"
    ]


def test_dark_is_one_press_away_and_reachable_by_keyboard(telephone: Visit) -> None:
    page = telephone.page
    background = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(background)
    for _ in range(2):  # the link that skips to the figures, then the button
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    assert page.evaluate(background) != light
    assert page.evaluate("document.documentElement.dataset.theme") == "dark"


def test_nothing_sticks_out_on_a_narrow_screen(telephone: Visit) -> None:
    telephone.draw()
    width = "document.documentElement.scrollWidth"
    until(telephone.page, lambda: telephone.page.evaluate(width) <= 420, "a page as wide as the screen")


def test_it_prints_with_all_charts(telephone: Visit, tmp_path: Path) -> None:
    page = telephone.page
    page.emulate_media(media="print")
    telephone.draw()
    page.pdf(path=str(tmp_path / "report.pdf"))
    assert (tmp_path / "report.pdf").stat().st_size > 20_000
    assert not page.locator("nav").is_visible()
    page.emulate_media(media="screen")


def test_with_scripts_off_every_figure_is_still_there(browser: Any, report: Path) -> None:
    page = Visit(browser, report, java_script_enabled=False).page
    text = page.locator("main").inner_text()
    for expected in (
        "backward",
        "roi_heads.box_head",
        "50.0 %",
        "worker 0",
        "annotated boxes",
        "overhead_ratio",
    ):
        assert expected in text


def test_names_from_outside_are_inert(browser: Any, tmp_path: Path) -> None:
    path = write_report(make_run(tmp_path, name=f"model{EVIL}", label=EVIL))
    visit = Visit(browser, path)
    visit.draw()
    assert visit.page.locator("img[src=x]").count() == 0
    assert visit.page.evaluate("document.querySelectorAll('[onerror]').length") == 0
    assert [text for text in visit.complaints if "x" in text] == []
    assert EVIL in visit.page.locator("main").inner_text()


def test_the_page_lets_no_other_script_run(report: Path) -> None:
    text = report.read_text(encoding="utf-8")
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', text)
    assert policy is not None
    assert "default-src &#39;none&#39;" in policy.group(1)
    assert "unsafe-eval" not in policy.group(1)
    assert "https://" not in re.sub(r"<script>.*?</script>", "", text, flags=re.S)


def test_a_model_of_759_modules_and_500_steps_stays_below_6_megabytes(tmp_path: Path) -> None:
    assert write_report(make_run(tmp_path, steps=500, modules=759)).stat().st_size < 6_000_000


def test_a_hundred_thousand_steps_stay_below_8_megabytes(tmp_path: Path) -> None:
    assert write_report(make_run(tmp_path, steps=100_000)).stat().st_size < 8_000_000


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
