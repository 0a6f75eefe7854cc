"""What a page begins with, by verb, and that it mentions nothing the verb cannot have."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import polars as pl
import pytest
from browsing import Visit

from detscope.analyze.advice.case import Advice
from detscope.analyze.device.figures import DeviceUse
from detscope.analyze.device.roofline import Roofline
from detscope.analyze.drawing import ReportData, report_data
from detscope.analyze.step.operators import OperatorFigures
from detscope.analyze.step.steps import PhaseFigures, choose_typical_steps, side_steps
from detscope.ingest.sink import Sink
from detscope.report.blocks.machine import telemetry_chart
from detscope.report.clock_blocks import IDLE_CAUSES
from detscope.report.figures import percent
from detscope.report.files import report_html
from detscope.report.first_screen import make_first_screen
from detscope.report.model import Card, Cards, Chart, Facts, Section, Table
from detscope.report.render.markdown import sections_markdown
from detscope.report.sections import make_sections, memory
from detscope.report.sections.content import section as content_section
from detscope.report.sections.operators import section as operators_section
from detscope.report.sections.step import section as step_section
from detscope.runs.reader import load_run
from made_figures import made_figure

OLD_RUNS = Path(__file__).parents[1] / "old_runs"


def told(name: str) -> ReportData:
    return report_data(load_run(OLD_RUNS / name))


def section_of(data: ReportData, name: str) -> Section:
    return next(section for section in make_sections(data)[0] if section.id == name)


def table_of(section: Section, name: str) -> Table:
    return next(block for block in section.blocks if isinstance(block, Table) and block.id == name)


def column_of(table: Table, title: str) -> list[object]:
    place = [column.title for column in table.columns].index(title)
    return [row[place] for row in table.rows]


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("train", ["verdict", "step"]),
        ("infer", ["verdict", "latency", "slowest", "content"]),
        ("eval", ["verdict", "accuracy"]),
        ("import", ["verdict", "device", "imported"]),
        ("script", ["verdict", "step", "script"]),
        ("ranks", ["verdict", "ranks", "step"]),
    ],
)
def test_a_page_begins_with_what_its_verb_is_asked_about(name, first) -> None:
    found = [section.id for section in make_sections(told(name))[0] if not section.brief_only]
    assert found[: len(first)] == first


@pytest.mark.parametrize(
    ("name", "never"),
    [
        ("infer", {"Accuracy", "Data pipeline"}),
        ("eval", {"A step", "Modules", "Operators", "Memory", "Data pipeline", "Predicted beside measured"}),
        ("import", {"The detector", "Accuracy", "Predicted beside measured", "Data pipeline"}),
        ("script", {"Accuracy", "Predicted beside measured"}),
    ],
)
def test_what_a_verb_cannot_have_is_not_listed_as_missing(name, never) -> None:
    assert not never & {absent.short for absent in make_sections(told(name))[1]}


def test_an_inference_shows_its_distribution_and_each_percentile_with_what_it_needs() -> None:
    data = told("infer")
    latency = section_of(data, "latency")
    chart = next(block for block in latency.blocks if isinstance(block, Chart))
    assert not isinstance(chart.content, tuple)
    histogram, cumulated = chart.content  # type: ignore[misc]
    assert sum(count for count in histogram.y) == data.summary.step_ms.n
    assert cumulated.on_right
    assert max(cumulated.y) == 100.0
    table = table_of(latency, "percentiles")
    assert dict(zip(column_of(table, "percentile"), column_of(table, "remark"), strict=True))["p99"] == (
        "needs 459 images: --repeat 42"
    )
    cards = next(block for block in section_of(data, "verdict").blocks if isinstance(block, Cards)).cards
    told_on = {card.label: (card.value, card.detail) for card in cards}
    assert told_on["p95 per image"] == ("cannot tell", "needs 90 images: --repeat 9; 32 were measured")
    assert told_on["NMS"][0] == "8.45 ms"


@pytest.mark.parametrize("name", ["train", "infer", "script", "ranks"])
def test_the_first_four_cards_are_p50_p95_images_per_second_and_the_peak(name: str) -> None:
    cards = next(block for block in section_of(told(name), "verdict").blocks if isinstance(block, Cards))
    labels = [card.label.split()[0] for card in cards.cards[:4]]
    assert labels == ["Median", "p95", "Speed", "Peak"]
    assert all(card.value for card in cards.cards)


@pytest.mark.parametrize(
    ("count", "columns"), [(1, 1), (4, 4), (5, 5), (6, 3), (7, 4), (8, 4), (9, 5), (11, 4)]
)
def test_cards_stand_in_rows_as_even_as_can_be(count: int, columns: int) -> None:
    assert Cards([Card("label", "value")] * count).columns == columns


def test_the_slowest_images_are_told_with_what_was_in_them() -> None:
    data = told("infer")
    table = table_of(section_of(data, "slowest"), "slowest-table")
    assert column_of(table, "ms") == sorted((row.ms for row in data.summary.slowest), reverse=True)
    assert all(column_of(table, "size"))
    assert all(isinstance(count, int) for count in column_of(table, "boxes found"))
    assert all(isinstance(count, int) for count in column_of(table, "proposals"))


def test_sections_of_an_inference_have_no_word_of_training() -> None:
    sections = [one for one in make_sections(told("infer"))[0] if one.id not in ("method", "files")]
    text = sections_markdown(sections)
    for word in ("backward", "optimizer", "gradient", "autograd", "needs 90)"):
        assert word not in text, word


def test_boxes_found_are_drawn_first_against_the_time_of_an_inference_where_they_vary() -> None:
    data = told("infer")
    boxes = pl.int_range(pl.len()).cast(pl.Int64) + 1
    varied = data.run.table("content").with_columns(detections=boxes)
    for content, first in (
        (data.run.table("content"), "pixels in the network's input"),
        (varied, "boxes found"),
    ):
        given = ReportData(data.run, data.summary)
        given.__dict__["content"] = content.join(data.steps, on="step")
        section = content_section(given)
        assert isinstance(section, Section)
        chart = next(block for block in section.blocks if isinstance(block, Chart))
        assert chart.choices[0][0] == first


def test_operators_and_memory_say_the_scale_of_the_steps_they_are_of() -> None:
    rows = [(step, "recorded", 20_000_000) for step in range(8)]
    rows += [(step, "ops", 28_000_000) for step in range(8, 11)] + [(11, "memory", 60_000_000)]
    steps = pl.DataFrame(
        [(step, mode, "step", 0, wall) for step, mode, wall in rows],
        schema=["step", "mode", "phase", "start_ns", "wall_ns"],
        orient="row",
    )
    side = side_steps(steps, choose_typical_steps(steps))
    assert [one.words for one in side] == [
        "3 operator steps, which took 1.4 times the median step",
        "1 memory step, which took 3 times the median step",
    ]
    data = told("train")
    summary = msgspec.structs.replace(
        data.summary, side_steps=side, operators=[made_figure(OperatorFigures, {})]
    )
    section = operators_section(ReportData(data.run, summary))
    assert isinstance(section, Section)
    assert "of the 3 operator steps, which took 1.4 times the median step" in section.definition


def test_steps_that_are_all_of_one_kind_have_no_other_scale() -> None:
    rows = [(step, "ops", "step", 0, 10**7) for step in range(6)]
    steps = pl.DataFrame(rows, schema=["step", "mode", "phase", "start_ns", "wall_ns"], orient="row")
    assert side_steps(steps, choose_typical_steps(steps)) == ()


def test_a_point_above_the_roof_is_told_as_such() -> None:
    point = {"path": "conv", "direction": "forward", "flops": 1, "bytes": 1, "flops_per_byte": 1.0}
    points = [
        {**point, "share_of_roof": 1.4, "above": "arithmetic"},
        {**point, "share_of_roof": 1.2, "above": "memory"},
    ]
    data = told("train")
    roofline = made_figure(Roofline, {"points": points, "share_of_peak": 0.9})
    summary = msgspec.structs.replace(data.summary, roofline=roofline)
    section = operators_section(ReportData(data.run, summary))
    assert isinstance(section, Section)
    remarks = column_of(table_of(section, "roofline-table"), "remark")
    assert [str(remark).partition(":")[0].partition(",")[0] for remark in remarks] == [
        "above the arithmetic roof",
        "above the memory roof",
    ]
    facts = [fact.text for block in section.blocks if isinstance(block, Facts) for fact in block.facts]
    assert any("1 of 2 points lie above the arithmetic roof" in text for text in facts)


def test_the_machine_is_drawn_in_cores_and_not_in_two_kinds_of_per_cent() -> None:
    data = told("train")
    chart = telemetry_chart(data)
    assert chart is not None
    assert chart.y.title == "cores busy"
    table = data.run.table("telemetry").filter(pl.col("metric") == "cpu_percent")
    cores = table.filter(pl.col("source").str.starts_with("core:"))["source"].n_unique()
    whole = next(line for line in chart.content if line.name == "the whole machine")  # type: ignore[union-attr]
    highest = table.filter(pl.col("source") == "system")["value"].max()
    assert max(whole.y) == pytest.approx(highest / 100 * cores, abs=1e-3)  # type: ignore[operator, type-var]


def test_what_was_tried_stands_in_the_place_of_what_was_estimated() -> None:
    estimate = {
        "about": "memory",
        "rule": "bf16",
        "title": "bf16",
        "saves_bytes": 5_000_000,
        "peak_bytes": 9_000_000,
    }
    measured = {"measured_bytes": -300_000, "measured_peak_bytes": 14_300_000, "measured_step_ratio": 1.25}
    table = memory.advice_table([made_figure(Advice, {**estimate, **measured})])
    assert table.rows[0][:2] == ["nothing: 300.0 kB more (measured)", 14_300_000]
    assert "step 1.25 x (measured)" in str(table.rows[0][3])
    assert memory.advice_table([made_figure(Advice, estimate)]).rows[0][:2] == ["5.00 MB", 9_000_000]


def test_idle_causes_have_the_same_words_in_every_table_and_chart_of_the_device() -> None:
    data = told("import")
    section = section_of(data, "device")
    words = {words for words, _ in IDLE_CAUSES.values()}
    chart = next(block for block in section.blocks if isinstance(block, Chart) and block.id == "device-time")
    drawn = {line.name.removeprefix("idle: ") for line in chart.content if line.name.startswith("idle")}  # type: ignore[union-attr]
    assert drawn
    assert drawn <= words
    listed = [str(name) for name in column_of(table_of(section, "device-figures"), "figure")]
    assert {name.removeprefix("idle: ") for name in listed if name.startswith("idle: ")} <= words
    assert set(column_of(table_of(section, "blame"), "cause")) <= words


@pytest.mark.parametrize("name", ["train", "infer", "eval", "import", "ranks", "script"])
def test_a_browser_shows_the_page_of_every_verb_without_a_complaint(name, browser, tmp_path) -> None:
    data = told(name)
    path = tmp_path / "report.html"
    path.write_text(report_html(data))
    visit = Visit(browser, path)
    sections = [section for section in make_sections(data)[0] if not section.brief_only]
    shown = visit.page.locator("main section h2").all_text_contents()
    shown = [" ".join(title.split()) for title in shown]
    assert shown[: len(sections)] == [" ".join(section.title.split()) for section in sections]
    if name == "infer":
        rows = visit.page.locator("#latency tbody tr, section#slowest tbody tr").all_text_contents()
        assert any("needs 459 images: --repeat 42" in row for row in rows)
        assert any((data.summary.slowest[0].file or "") in row for row in rows)
    assert visit.complaints == []


def test_words_of_a_count_decide_nothing_about_a_file_being_whole() -> None:
    sink = Sink(lambda table, frame: None)
    sink.add_count("events that look damaged, unreadable and negative", 3)
    assert not sink.damage
    sink.add_damage("lines in another alphabet", 2)
    sink.add_damage("nothing of the kind", 0)
    assert (sink.damage, sink.counts["lines in another alphabet"]) == ({"lines in another alphabet"}, 2)


def test_the_first_screen_of_a_recorded_file_is_about_its_device() -> None:
    data = told("import")
    cards = next(block for block in section_of(data, "verdict").blocks if isinstance(block, Cards)).cards
    values = {card.label: card for card in cards}
    use = data.summary.device_use
    assert use is not None and use.utilisation is not None and use.idle is not None
    assert values["Device busy with kernels"].value == percent(use.utilisation.kernels)
    longest = max(use.idle.causes, key=lambda cause: cause.idle_ns)
    assert values["Device idle"].detail == f"most: {IDLE_CAUSES[longest.name][0]} {percent(longest.share)}"


def test_counters_of_nsight_compute_stand_on_the_page_and_on_its_first_screen() -> None:
    data = told("import")
    counters = [{"name": "sm__throughput.avg.pct_of_peak_sustained_elapsed", "value": 0.0337, "n": 1}]
    use = made_figure(DeviceUse, {"why": "no time line", "cores": {"kernels": 1, "counters": counters}})
    counted = ReportData(data.run, msgspec.structs.replace(data.summary, device_use=use))
    sections = make_sections(counted)[0]
    cards = next(block for block in sections[0].blocks if isinstance(block, Cards)).cards
    assert ("SM throughput", "3.4 %") in [(card.label, card.value) for card in cards]
    assert sections[1].id == "device"
    assert "sm__throughput" in str(table_of(sections[1], "counters").rows)


@pytest.mark.parametrize(("backward", "named"), [(50.0, True), (0.0, False)])
def test_phases_of_a_script_that_only_evaluates_are_those_that_it_had(backward, named) -> None:
    data = told("script")
    names = ("data", "transfer", "forward", "backward", "optimizer", "other")
    spent = {"data": 5.0, "forward": 40.0, "backward": backward}
    phases = [made_figure(PhaseFigures, {"name": name, "ms": spent.get(name, 0.0)}) for name in names]
    summary = msgspec.structs.replace(data.summary, phases=phases)
    section = step_section(ReportData(data.run, summary))
    assert isinstance(section, Section)
    listed = column_of(table_of(section, "phases-table"), "Phase")
    assert ("optimizer" in listed) == ("backward" in listed) == named


def test_advice_for_a_script_says_what_to_change_in_it_and_how_to_run_it_again() -> None:
    data = told("script")
    row = Advice(
        rule="batch", title="batch 4", about="time", evidence="The loop takes 10 %.", worth=True,
        gain_share=0.1, how="DataLoader(..., batch_size=4)", command="detscope run train.py",
    )  # fmt: skip
    data = replace(data, summary=msgspec.structs.replace(data.summary, advice=[row]))
    page = report_html(data)
    assert "In the code: DataLoader(..., batch_size=4)." in page and "detscope run train.py" in page
    screen = make_first_screen(data)
    assert screen.advice is not None
    assert (screen.advice.how, screen.advice.command) == (row.how, row.command)
