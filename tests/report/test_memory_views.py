"""Views of memory: the CSV, the pictures and the terminal's section show what the account says."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.figure import Figure
from PIL import Image
from rich.console import Console

from detscope.analyze.drawing import report_data
from detscope.analyze.memory.timeline import step_timeline
from detscope.report.colours import CATEGORY_COLOURS
from detscope.report.memory_csv import write_memory_csv
from detscope.report.model import Chart, Section, Tree
from detscope.report.publish import publish_page
from detscope.report.render.picture import _draw_tree, chart_png
from detscope.report.render.terminal import print_whole
from detscope.report.sections import make_sections
from detscope.report.sections.memory import section
from detscope.runs.reader import Run
from memory_samples import a_step, block, made_run, state, write_run


def memory_section(run: Run) -> Section:
    found = section(report_data(run))
    assert isinstance(found, Section)
    return found


def chart(run: Run, name: str) -> Chart:
    return next(
        block for block in memory_section(run).blocks if isinstance(block, Chart) and block.file == name
    )


def shown(run: Run) -> str:
    console = Console(file=io.StringIO(), width=160, color_system=None)
    print_whole([memory_section(run)], console)
    return console.file.getvalue()


def large_run(folder: Path, **more):
    """The hand-made run in megabytes, as a CSV of three decimals can show it."""
    rows = [row | {"bytes": row["bytes"] * 1000} for row in (*state(), *a_step(0), *a_step(1))]
    return write_run(folder, rows, **more)


def test_the_csv_is_in_megabytes_with_three_decimals(tmp_path):
    run = large_run(tmp_path)
    path = write_memory_csv(run)
    header, *rows = list(csv.reader(path.read_text().splitlines()))
    assert len(rows) == 2
    first = dict(zip(header, rows[0], strict=True))
    assert (first["epoch"], first["iteration"]) == ("0", "0")
    assert first["peak_cached"] == "11.500"
    assert first["total_feature_map_usage"] == "6.500"
    assert first["total_weight_usage"] == "0.700"
    assert first["head.weight_grad"] == "0.400"
    assert {row[header.index("total_feature_map_usage")] for row in rows} == {"6.500"}


def test_a_figure_that_is_not_known_is_an_empty_cell(tmp_path):
    rows = [row | {"device": "cuda:0"} for row in (*state(), *a_step(0))]
    run = write_run(tmp_path, rows, steps=1, info={"device": "cuda:0"})
    path = write_memory_csv(run)
    header, first = list(csv.reader(path.read_text().splitlines()))
    assert dict(zip(header, first, strict=True))["peak_cached"] == ""


def test_the_timeline_has_every_category_in_its_colour_and_height(tmp_path):
    run = large_run(tmp_path)
    drawn = {line.colour: line for line in chart(run, "memory_timeline").content}
    timeline = step_timeline(run)
    middle = max(index for index, ms in enumerate(timeline.ms) if ms <= 0.3)  # the plateau of forward
    for name, size in {"parameters": 700, "optimizer": 700, "inputs": 1000, "activations": 6000}.items():
        assert drawn[CATEGORY_COLOURS[name]].y[middle] == pytest.approx(size / 1000), name
    assert CATEGORY_COLOURS["workspace"] not in drawn


def test_in_the_picture_of_the_timeline_a_category_is_as_high_as_it_is_large(tmp_path):
    with Image.open(io.BytesIO(chart_png(chart(large_run(tmp_path), "memory_timeline")))) as picture:
        pixels = np.asarray(picture.convert("RGB")).astype(int)

    def heights(name: str) -> np.ndarray:
        colour = np.array([int(CATEGORY_COLOURS[name][at : at + 2], 16) for at in (1, 3, 5)])
        return (np.abs(pixels - colour).sum(axis=2) < 12).sum(axis=0)

    sizes = {"parameters": 700, "optimizer": 700, "inputs": 1000, "activations": 6000}
    column = int(heights("activations").argmax())  # 6 MB of activations: from the end of forward on
    unit = heights("activations")[column] / 6000
    assert unit * 6000 > 100, "it is drawn large enough to be measured"
    for name, size in sizes.items():
        assert heights(name)[column] == pytest.approx(size * unit, abs=4), name
    assert not heights("workspace").any()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(10, 100), min_size=1, max_size=20))
def test_boxes_of_a_map_fill_it_without_overlap(sizes):
    names = [str(number) for number in range(len(sizes))]
    axes = Figure().add_subplot()
    _draw_tree(axes, Tree(names, names, [""] * len(names), sizes, ["#000000"] * len(names), shape="treemap"))
    boxes = [patch.get_bbox() for patch in axes.patches]
    shares = sorted(size / sum(sizes) for size in sizes)
    assert sorted(box.width * box.height for box in boxes) == pytest.approx(shares)
    for index, one in enumerate(boxes):
        assert one.x0 >= -1e-9 and one.y0 >= -1e-9 and one.x1 <= 1 + 1e-9 and one.y1 <= 1 + 1e-9
        for other in boxes[index + 1 :]:
            across = min(one.x1, other.x1) - max(one.x0, other.x0)
            up = min(one.y1, other.y1) - max(one.y0, other.y0)
            assert across <= 1e-9 or up <= 1e-9


def test_boxes_of_the_map_add_up_to_the_peak(tmp_path):
    boxes = chart(large_run(tmp_path), "memory_peak").content
    assert sum(boxes.values) == 11_500_000
    inside = dict(zip(boxes.ids, boxes.parents, strict=True))
    assert all(parent in inside or parent == "" for parent in boxes.parents)
    assert CATEGORY_COLOURS["activations"] in boxes.colours


def test_pictures_are_png_files_in_the_run(tmp_path):
    run = made_run(tmp_path)
    publish_page(run.folder)
    heights = {"memory_peak.png": 700, "memory_timeline.png": 633, "modules.png": 766}
    assert {path.name for path in (run.folder / "pictures").iterdir()} == heights.keys()
    for name, height in heights.items():
        with Image.open(run.folder / "pictures" / name) as picture:
            assert (picture.format, picture.size) == ("PNG", (1600, height))


def test_names_from_outside_do_not_break_pictures(tmp_path):
    odd = block(5000, 200, 400, module="<img src=x>$\x1b[31m\n💥", operator="é" * 300, step=0)
    run = write_run(tmp_path, [*state(), *a_step(0), odd], steps=1)
    publish_page(run.folder)
    assert "\x1b" not in shown(run)


def test_the_terminal_tells_peak_categories_modules_tensors_levels_and_advice(tmp_path):
    text = shown(large_run(tmp_path))
    assert "peak 11.5 MB in backward, body.0.conv2, step 0" in text
    for words in ("What the peak is made of", "optimizer state", "52.2 %", "Largest tensors at the peak"):
        assert words in text
    assert "cannot tell: CPU has no caching allocator" in text
    assert "What would lower the peak" in text and "--batch-size 1" in text


def test_the_whole_of_a_run_has_the_memory_section_and_names_the_table(tmp_path):
    run = large_run(tmp_path)
    write_memory_csv(run)
    console = Console(file=io.StringIO(), width=400, color_system=None)  # paths in one line
    print_whole(make_sections(report_data(run))[0], console)
    assert "What the peak is made of" in console.file.getvalue()
    assert "memory.csv" in console.file.getvalue()


def test_a_run_without_memory_says_how_to_record_it(tmp_path):
    absent = section(report_data(write_run(tmp_path, [])))
    assert (absent.short, absent.why) == ("Memory", "record it with --memory")


def test_what_was_tried_stands_beside_what_was_predicted(tmp_path):
    row = {
        "variant": "bf16",
        "predicted_saving_bytes": 5_000_000,
        "measured_saving_bytes": 4_800_000,
        "error_share": 0.0417,
        "peak_bytes": 7_000_000,
        "step_ratio": 1.25,
        "run": "runs/the-run",
    }
    text = shown(made_run(tmp_path, info={"memory_tried": [row]}))
    line = next(line for line in text.splitlines() if line.startswith("bf16"))
    assert " ".join(line.split()) == "bf16 5.00 MB 4.80 MB 4.2 % 7.00 MB 1.25 x the-run"
