"""A sweep's page, made from a real store and looked at by a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from browsing import Visit, until
from typer.testing import CliRunner

from detscope.cli.main import app
from detscope.sweep.store import SweepStore
from swept_store import make_store

EVIL = "<img src=x onerror=alert(1)>"


def opened(browser: Any, path: Path, **context: Any) -> tuple[Any, list[str]]:
    """The page, and everything it complained about."""
    visit = Visit(browser, path, **context)
    return visit.page, visit.complaints


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    store = make_store(tmp_path_factory.mktemp("sweep") / "nightly.db")
    done = CliRunner().invoke(app, ["report", str(store)])
    assert done.exit_code == 0, done.output
    path = Path(done.stdout.strip())
    assert path == store.with_name("nightly-report.html")
    return path


@pytest.fixture(scope="module")
def desk(browser: Any, report: Path) -> tuple[Any, list[str]]:
    """One page for the tests that only look: opening it takes seconds."""
    return opened(browser, report)


def test_the_page_of_a_sweep_opens_without_an_error_or_a_request(desk: tuple[Any, list[str]]) -> None:
    page, complaints = desk
    assert page.locator("figure.chart svg.lines").count() == 5
    assert complaints == []


def test_with_scripts_off_what_ran_how_it_ended_and_why_it_failed_are_still_there(
    browser: Any, report: Path
) -> None:
    page, _ = opened(browser, report, java_script_enabled=False)
    text = page.locator("main").text_content()
    for expected in (
        "10 trials measured, 1 failed, 1 still to run",
        "resnet18-p50",
        "no memory for 17 bytes",
        "a processor",
        "wide, stopped by time",
        "The fastest step takes 10.0 ms: resnet18-p0 at batch 1",
    ):
        assert expected in text


def test_intervals_are_bars_and_an_unsteady_point_is_an_open_circle(desk: tuple[Any, list[str]]) -> None:
    page, _ = desk
    chart = page.evaluate("detscope.data.charts.latency[0].series")
    names = [line["name"] for line in chart]
    rings = page.locator(f"#latency g[data-s='{names.index('resnet18-p50')}'] .dots.hollow")
    assert rings.count() == 1 and rings.get_attribute("d").count("M") == 1
    steady = names.index("resnet18-p0")
    assert page.locator(f"#latency g[data-s='{steady}'] .dots.hollow").count() == 0
    bars = page.locator(f"#latency g[data-s='{steady}'] .line").last
    assert "V" in bars.get_attribute("d")


def test_it_is_dark_narrow_and_printable(browser: Any, report: Path, tmp_path: Path) -> None:
    narrow, _ = opened(browser, report, viewport={"width": 420, "height": 900}, color_scheme="dark")
    width = "document.documentElement.scrollWidth"
    until(narrow, lambda: narrow.evaluate(width) <= 420, "a page as wide as the screen")
    assert narrow.evaluate("getComputedStyle(document.body).backgroundColor") != "rgb(255, 255, 255)"
    narrow.emulate_media(media="print")
    narrow.pdf(path=str(tmp_path / "sweep.pdf"))
    assert (tmp_path / "sweep.pdf").stat().st_size > 20_000


def test_names_from_outside_are_inert_on_the_page_of_a_sweep(browser: Any, tmp_path: Path) -> None:
    store = make_store(tmp_path / "evil.db", EVIL)
    out = tmp_path / "evil.html"
    assert CliRunner().invoke(app, ["report", str(store), "--out", str(out)]).exit_code == 0
    page, complaints = opened(browser, out)
    assert page.locator("img[src=x]").count() == 0
    assert page.evaluate("document.querySelectorAll('[onerror]').length") == 0
    assert complaints == []
    assert EVIL in page.locator("main").text_content()


def test_a_file_that_is_no_store_and_another_format_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    done = CliRunner().invoke(app, ["report", str(tmp_path / "notes.txt")])
    assert done.exit_code == 3 and "not a database" in done.stderr.splitlines()[0]
    store = make_store(tmp_path / "nightly.db")
    done = CliRunner().invoke(app, ["report", str(store), "--format", "md"])
    assert done.exit_code == 2 and "sweep export" in done.stderr


def test_a_store_without_results_says_so(tmp_path: Path) -> None:
    with SweepStore(tmp_path / "empty.db", create=True):
        pass
    done = CliRunner().invoke(app, ["report", str(tmp_path / "empty.db")])
    assert done.exit_code == 0, done.output
    text = Path(done.stdout.strip()).read_text(encoding="utf-8")
    assert "No trial of this sweep has ended yet" in text
