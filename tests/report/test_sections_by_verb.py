"""What a page begins with, by verb, and that it mentions nothing the verb cannot have."""

from __future__ import annotations

from pathlib import Path

import pytest

from detscope.analyze.drawing import ReportData, report_data
from detscope.report.model import Cards, Chart, Section, Table
from detscope.report.render.markdown import sections_markdown
from detscope.report.sections import make_sections
from detscope.runs.reader import load_run

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
        ("infer", ["verdict", "latency", "content"]),
        ("eval", ["verdict", "accuracy"]),
        ("import", ["verdict", "device", "imported"]),
        ("script", ["verdict", "step", "script"]),
        ("ranks", ["verdict", "step", "ranks"]),
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
        "needs 459 images: --repeat 58"
    )
    cards = next(block for block in section_of(data, "verdict").blocks if isinstance(block, Cards)).cards
    values = {card.label: card.value for card in cards}
    assert values["p95"] == "needs 90 images"
    assert values["NMS"] == "8.45 ms"


def test_the_slowest_images_are_told_with_what_was_in_them() -> None:
    data = told("infer")
    table = table_of(section_of(data, "latency"), "slowest")
    assert column_of(table, "ms") == sorted((row.ms for row in data.summary.slowest), reverse=True)
    assert all(column_of(table, "size"))
    assert all(isinstance(count, int) for count in column_of(table, "boxes found"))
    assert all(isinstance(count, int) for count in column_of(table, "proposals"))


def test_sections_of_an_inference_have_no_word_of_training() -> None:
    sections = [one for one in make_sections(told("infer"))[0] if one.id not in ("method", "files")]
    text = sections_markdown(sections)
    for word in ("backward", "optimizer", "gradient", "autograd", "needs 90)"):
        assert word not in text, word


def test_boxes_found_are_drawn_against_the_time_of_an_inference() -> None:
    chart = next(block for block in section_of(told("infer"), "content").blocks if isinstance(block, Chart))
    assert chart.choices[0][0] == "boxes found"
