"""Two clocks as they are shown: one bar and one column for each; on a CPU everything is as it was."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from msgspec.structs import replace
from rich.console import Console

from detscope.analyze.drawing import ReportData, report_data
from detscope.analyze.step.loader import WorkerFigures
from detscope.report.model import Absent, Chart, Section, Series, Table
from detscope.report.render.markdown import sections_markdown
from detscope.report.render.terminal import print_whole
from detscope.report.sections import content, detector, device, loader, method, modules, step, verdict
from detscope.runs.reader import load_run
from made_figures import made_figure
from planted_device import typical_plan, write_run

MARKED = [*["warmup"] * 3, *["recorded", "recorded", "bare", "recorded"] * 6]
OLD_RUNS = Path(__file__).parents[1] / "old_runs"
VIEWS = Path(__file__).with_name("cpu_views")


@pytest.fixture(scope="module")
def marked(tmp_path_factory) -> ReportData:
    plan = typical_plan(waits=True, data_ms=5.0)
    return report_data(load_run(write_run(tmp_path_factory.mktemp("runs"), plan, MARKED)))


@pytest.fixture(scope="module")
def both(tmp_path_factory) -> ReportData:
    plan = typical_plan(waits=True, data_ms=5.0)
    modes = [*MARKED, "ops", "ops", "ops"]
    return report_data(load_run(write_run(tmp_path_factory.mktemp("runs"), plan, modes)))


def find(section: Section | Absent | None, name: str) -> Table | Chart:
    assert isinstance(section, Section)
    return next(block for block in section.blocks if getattr(block, "id", None) == name)


def said(section: Section | Absent | None) -> str:
    assert isinstance(section, Section)
    console = Console(file=io.StringIO(), width=200, force_terminal=False)
    print_whole([section], console)
    return " ".join(console.file.getvalue().split())


def test_the_step_has_one_bar_for_the_host_and_one_for_the_device(marked) -> None:
    chart = find(step.section(marked), "phases")
    bars: dict[str, float] = {"host": 0.0, "device": 0.0}
    for series in chart.content:
        assert isinstance(series, Series)
        for who, ms in zip(series.y, series.x, strict=True):
            bars[who] += ms
    assert bars["host"] == pytest.approx(marked.summary.step_ms.p50)
    assert bars["device"] == pytest.approx(marked.summary.clocks.device_step_ms)


def test_tables_have_the_hosts_time_beside_the_devices(marked) -> None:
    table = find(step.section(marked), "phases-table")
    titles = [column.title for column in table.columns]
    assert titles[:5] == ["Phase", "device ms", "share", "at most idle ms", "host ms"]
    rows = {row[0]: dict(zip(titles, row, strict=True)) for row in table.rows}
    assert rows["forward"]["device ms"] == pytest.approx(20.0, rel=0.02)
    assert rows["forward"]["host ms"] > 50
    for section, name in (
        (detector.section(marked), "stages-table"),
        (modules.section(marked), "modules-table"),
    ):
        assert "host ms" in [column.title for column in find(section, name).columns]


def test_modules_without_a_time_say_why_and_show_no_number(marked) -> None:
    table = find(modules.section(marked), "modules-table")
    titles = [column.title for column in table.columns]
    rows = {row[0]: dict(zip(titles, row, strict=True)) for row in table.rows}
    assert (rows["tiny"]["total ms"], rows["tiny"]["remark"]) == (None, "below its mark: 4.0 us")
    assert rows["never"]["remark"] == "not marked yet"
    assert "1 below their mark, 1 not marked yet" in modules.section(marked).definition


def test_the_device_section_tells_what_lies_between_the_clocks(marked) -> None:
    text = said(device.section(marked))
    for words in (
        "device-bound: the device works at least 92 % of its step of 66.1 ms",
        "by marks; idle: waiting for data 0.00 ms, host late with launches at most 5.10 ms",
        "59.5 ms ahead when it has queued a step",
        "waiting for the device: cannot tell: marks do not tell in which calls: record with --level ops",
        "20 a step at 4.00 us of the host each: 0.1 % of the step",
    ):
        assert words in text, words
    assert device.section(marked).title == "Device-bound: the device works at least 92.3 % of its step"


def test_with_kernels_the_calls_are_named_and_marks_are_held_against_them(both) -> None:
    section = device.section(both)
    text = said(section)
    assert "waits for the device" in text and "most in item" in text
    assert "agree with kernels within" in text
    assert text.count("limited by") == 1, "the window of operators is not what is judged"
    assert find(section, "clock-agreement").rows
    assert find(section, "host-waits").rows[0][0] == "item"


def test_the_first_screen_says_the_word_and_how_busy_the_device_is(marked) -> None:
    section = verdict.section(marked)
    assert section.title.startswith("Device-bound: the device works at least 92 % of its step")
    cards = [card for block in section.blocks for card in getattr(block, "cards", ())]
    assert next(card.value for card in cards if card.label == "Device busy") == "at least 92.3 %"


def test_own_cost_and_the_wait_for_data_say_by_whose_clock(marked) -> None:
    assert "by the device's clock" in method.section(marked).title
    own = replace(marked.summary.loader, workers=(made_figure(WorkerFigures, {}),))
    text = said(loader.section(ReportData(marked.run, replace(marked.summary, loader=own))))
    assert "the host waited 5.00 ms per step for data, the device 0.00 ms" in text
    assert find(content.section(marked), "content-chart").y.title == "ms on the device"


def test_without_a_devices_clock_the_section_says_why(tmp_path) -> None:
    why = {"device_clock": {"why": "the device has no timing events"}}
    folder = write_run(tmp_path, typical_plan(), ["recorded"] * 8, why)
    for table in ("device_steps", "device_spans"):
        (folder / f"{table}.parquet").unlink()
    data = report_data(load_run(folder))
    assert [column.title for column in find(step.section(data), "phases-table").columns][1] == "ms"
    told = method.section(data).blocks[0]
    assert any("device times: the device has no timing events" in line for line in told.sentences)
    assert isinstance(found := device.section(data), Absent) and "no timing events" in found.why


@pytest.mark.parametrize("name", ["train", "infer", "script"])
def test_views_of_a_run_on_a_cpu_are_as_they_were(name, monkeypatch) -> None:
    monkeypatch.chdir(OLD_RUNS.parent)
    data = report_data(load_run(Path("old_runs") / name))
    parts = (verdict, step, detector, modules, device, content)
    found = [part.section(data) for part in parts]
    text = sections_markdown([one for one in found if isinstance(one, Section)])
    assert text == (VIEWS / f"{name}.md").read_text()
