"""Pictures of a comparison: intervals beneath each other, modules coloured by their change."""

from __future__ import annotations

from pathlib import Path

import pytest

from compared_runs import make_run
from detscope.analyze.compare.runs import ComparisonResult, compare_runs
from detscope.report.colours import BLUE, GREY, RED
from detscope.report.model import Chart, Tree
from detscope.report.verbs.comparison import comparison_page, comparison_sections


@pytest.fixture
def result(tmp_path: Path) -> ComparisonResult:
    slower = {"roi_heads.box_head": 9.0, "rpn": -6.0}
    return compare_runs(make_run(tmp_path, 1), [make_run(tmp_path, 2, slower)])


def charts_of(result: ComparisonResult) -> dict[str, Chart]:
    blocks = [block for section in comparison_sections(result) for block in section.blocks]
    return {block.id: block for block in blocks if isinstance(block, Chart)}


def test_every_interval_is_drawn_where_the_table_has_it(result: ComparisonResult) -> None:
    chart = charts_of(result)["forest-1"]
    one = result.comparisons[0]
    assert not isinstance(chart.content, Tree)
    (points,) = chart.content
    places = {str(name): index for index, name in enumerate(points.y)}
    stages = [(f"stage {row.name}", row) for row in one.stages]
    for name, row in (("step p50", one.step), *stages):
        assert row.relative_ci95 is not None and row.relative is not None
        change, at = float(points.x[places[name]]), places[name]
        assert change == 100 * row.relative
        drawn = [change - points.error_down[at], change + points.error_up[at]]
        assert drawn == pytest.approx([100 * min(end, 2.0) for end in row.relative_ci95])
    colours = {name: points.colour[at] for name, at in places.items()}
    assert colours["module roi_heads.box_head"] == RED
    assert colours["stage rpn"] == colours["module rpn"] == BLUE
    assert colours["stage backbone"] == GREY


def test_the_flame_chart_holds_every_module_under_its_parent(result: ComparisonResult) -> None:
    tree = charts_of(result)["flames-1"].content
    assert isinstance(tree, Tree)
    assert set(tree.parents) - {""} <= set(tree.ids)
    sizes = dict(zip(tree.ids, tree.values, strict=True))
    assert {row.path: row.after for row in result.comparisons[0].modules} == {
        path: size for path, size in sizes.items() if size
    }
    labels = dict(zip(tree.ids, tree.labels, strict=True))
    assert labels["roi_heads.box_head"].startswith("box_head +") and labels["backbone"] == "backbone"
    assert tree.parents[tree.ids.index("backbone")] == "(model)"


def test_the_page_has_the_tables_and_both_pictures(result: ComparisonResult) -> None:
    page = comparison_page(result)
    for word in ("forest-1", "flames-1", "Change: after / before - 1", "stability", "Step, ms"):
        assert word in page
