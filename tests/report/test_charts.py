"""Charts as the page writes them: places, sizes, words; no browser is needed to check these."""

from __future__ import annotations

import re

import pytest

from detscope.report.model import Axis, Chart, Mark, Series, Tree
from detscope.report.render.charts.drawing import draw_chart
from detscope.report.render.charts.scales import scale_of, ticks_of
from detscope.report.render.charts.trees import TreeBox, figure_texts, square_boxes, tell_part

EVIL = "<img src=x onerror=alert(1)>"


def test_ticks_are_round_and_lie_inside_the_axis():
    scale = scale_of(Axis(lowest=0), [3.0, 97.0])
    assert [text for _, text in ticks_of(Axis(), scale)] == ["0", "20", "40", "60", "80", "100"]
    log = scale_of(Axis(scale="log"), [0.5, 2e6])
    assert [text for _, text in ticks_of(Axis(scale="log"), log)] == [
        "1", "10", "100", "1,000", "10,000", "100,000", "1 M",
    ]  # fmt: skip


def test_an_axis_without_a_range_and_a_chart_without_values_are_drawn():
    assert scale_of(Axis(), [5.0, 5.0]).place_of(5.0) == pytest.approx(0.0)
    for content in ([], [Series("none", [], [], "#000000")], [Series("one", [1], [1], "#000000", "points")]):
        assert "<svg" in draw_chart(Chart("c", "a chart", content)).html


def test_boxes_of_a_treemap_fill_their_room_by_size():
    parts = [(0, 6.0), (1, 6.0), (2, 4.0), (3, 3.0), (4, 2.0), (5, 2.0), (6, 1.0)]
    boxes = square_boxes(parts, TreeBox(-1, 0, 0, 600, 400))
    for box in boxes:
        assert box.width * box.height == pytest.approx(600 * 400 * dict(parts)[box.part] / 24)
        assert max(box.width / box.height, box.height / box.width) < 3.1


def test_a_part_of_a_tree_tells_what_it_was_given_and_else_what_it_sums_to():
    ids, parents, values = ["a", "a.b", "a.c"], ["", "a", "a"], [1.0, 2.0, None]
    tree = Tree(ids, ["a", "b", "c"], parents, values, ["#000000"] * 3, "ms")
    assert figure_texts(tree) == [
        ("3.000", "1.000", "100.0"),
        ("2.000", "2.000", "66.7"),
        ("0.000", "?", "0.0"),
    ]
    told = Tree(
        ids, ["a", "b", "c"], parents, values, ["#000000"] * 3, "ms", totals=[9, 8, None], shares=[0.5] * 3
    )
    assert figure_texts(told)[0] == ("9.000", "1.000", "50.0")
    assert tell_part(told, 2, figure_texts(told)) == (
        "a.c\ntotal cannot tell · self cannot tell · 50.0 % of the whole"
    )


def test_what_no_pixel_shows_is_left_out_of_a_path():
    at = [index / 100 for index in range(100_000)]
    html = draw_chart(Chart("c", "many", [Series("s", at, [1.0] * len(at), "#000000")])).html
    assert len(html) < 20_000


def test_stacked_bars_lie_end_to_end_and_words_stay_inside():
    content = [
        Series(name, [value], [""], "#56B4E9", "bars", texts=[name]) for name, value in (("a", 1), ("b", 3))
    ]
    html = draw_chart(Chart("c", "a bar", content, Axis("ms"), Axis(hidden=True))).html
    assert "left:0.00%;width:25.00%" in html and "left:25.00%;width:75.00%" in html


def test_points_beside_names_have_whiskers_and_a_line_at_zero():
    values = Series(
        "change", [-2.0, 3.0], ["x", "y"], "#0072B2", "points", error_up=[1, 1], error_down=[1, 2]
    )
    html = draw_chart(Chart("c", "intervals", [values], Axis("%"), Axis(scale="names"))).html
    assert html.count("<q ") == html.count("<b ") == html.count("<s ") == 2


def test_names_from_outside_are_text_in_every_picture():
    lines = [Series(EVIL, [1, 2], [1, 2], "#000000", "points", texts=[EVIL, EVIL], details=[EVIL, EVIL])]
    bars = [Series(EVIL, [1.0], [EVIL], "#000000", "bars", texts=[EVIL], details=[EVIL])]
    tree = Tree([EVIL], [EVIL], [""], [1.0], ["#000000"], EVIL, EVIL)
    for content in (lines, bars, tree):
        chart = Chart("c", EVIL, content, Axis(EVIL), Axis(EVIL), marks=[Mark(1, EVIL)])
        for drawn in (chart, Chart("c", EVIL, content, choices=[(EVIL, content), ("b", content)])):
            assert not re.search("<img", draw_chart(drawn).html)
