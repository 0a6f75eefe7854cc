"""Views of memory: the CSV, the pictures and the terminal's section show what the account says."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from rich.console import Console

from detscope.analyze.memory.account import memory_figures
from detscope.analyze.memory.iterations import iteration_rows
from detscope.analyze.memory.timeline import peak_tree, step_timeline
from detscope.analyze.summary import summarize
from detscope.report.memory_colours import CATEGORY_COLOURS
from detscope.report.memory_csv import write_memory_csv
from detscope.report.memory_pictures import write_memory_pictures
from detscope.report.memory_terminal import render_memory
from detscope.report.memory_timeline_picture import nice_ceiling, timeline_picture
from detscope.report.memory_treemap import squarified, treemap_picture
from detscope.report.terminal import render
from memory_samples import a_step, block, made_run, state, write_run


def shown(summary: dict) -> str:
    console = Console(file=io.StringIO(), width=160, color_system=None)
    render_memory(summary, console)
    return console.file.getvalue()


def large_run(folder: Path, **more):
    """The hand-made run in megabytes, as a CSV of three decimals can show it."""
    rows = [row | {"bytes": row["bytes"] * 1000} for row in (*state(), *a_step(0), *a_step(1))]
    return write_run(folder, rows, **more)


def test_the_csv_is_in_megabytes_with_three_decimals(tmp_path):
    run = large_run(tmp_path)
    path = write_memory_csv(run.folder, iteration_rows(run))
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
    path = write_memory_csv(run.folder, iteration_rows(run))
    header, first = list(csv.reader(path.read_text().splitlines()))
    assert dict(zip(header, first, strict=True))["peak_cached"] == ""


def test_the_timeline_shows_every_category_in_its_colour_and_height(tmp_path):
    timeline = step_timeline(large_run(tmp_path))
    pixels = timeline_picture(timeline, "a title")
    assert pixels.shape == (900, 1600, 3)
    # a column in the middle of the plateau of forward, 300 of 999 us: parameters at the ground
    column = pixels[:, 130 + round(1430 * 0.3)]
    heights = {
        name: int((np.abs(column.astype(int) - colour).sum(axis=1) < 12).sum())
        for name, colour in CATEGORY_COLOURS.items()
    }
    ceiling, _ = nice_ceiling(timeline.peak_bytes)
    for name, size in {"parameters": 700, "optimizer": 700, "inputs": 1000, "activations": 6000}.items():
        assert heights[name] == pytest.approx(650 * size * 1000 / ceiling, abs=4), name
    assert heights["workspace"] == 0


def test_areas_of_the_treemap_are_proportional_to_bytes(tmp_path):
    tree = peak_tree(large_run(tmp_path))
    pixels = treemap_picture(tree, "a title")
    assert pixels.shape == (900, 1600, 3)
    assert (pixels.reshape(-1, 3) == np.array(CATEGORY_COLOURS["activations"])).all(axis=1).any()


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.integers(1, 10**9), min_size=1, max_size=60),
    st.integers(10, 2000),
    st.integers(10, 2000),
)
def test_rectangles_fill_the_box_without_overlap(sizes, width, height):
    sizes = sorted(sizes, reverse=True)
    boxes = squarified(sizes, (0.0, 0.0, float(width), float(height)))
    scale = width * height / sum(sizes)
    slack = 1e-6 * max(width, height)
    for size, (left, top, right, bottom) in zip(sizes, boxes, strict=True):
        assert (right - left) * (bottom - top) == pytest.approx(size * scale, rel=1e-6, abs=1e-6)
        assert left >= -slack and top >= -slack
        assert right <= width + slack and bottom <= height + slack
    for index, one in enumerate(boxes):
        for other in boxes[index + 1 :]:
            across = min(one[2], other[2]) - max(one[0], other[0])
            down = min(one[3], other[3]) - max(one[1], other[1])
            assert across <= slack or down <= slack


def test_pictures_are_png_files_in_the_run(tmp_path):
    run = made_run(tmp_path)
    files = write_memory_pictures(run.folder, run.info, step_timeline(run), peak_tree(run))
    assert [file.name for file in files] == ["memory_timeline.png", "memory_peak.png"]
    for file in files:
        assert file.parent == run.folder / "pictures"
        with Image.open(file) as picture:
            assert (picture.format, picture.size) == ("PNG", (1600, 900))


def test_names_from_outside_do_not_break_pictures(tmp_path):
    odd = block(5000, 200, 400, module="<img src=x>\x1b[31m\n💥", operator="é" * 300, step=0)
    run = write_run(tmp_path, [*state(), *a_step(0), odd], steps=1)
    write_memory_pictures(run.folder, run.info, step_timeline(run), peak_tree(run))
    assert "\x1b" not in shown({"memory": memory_figures(run)})


def test_the_terminal_shows_peak_categories_modules_tensors_levels_and_advice(tmp_path):
    text = shown({"memory": memory_figures(large_run(tmp_path))})
    assert "peak 11.5 MB in backward, body.0.conv2, step 0" in text
    for words in ("What the peak is made of", "optimizer state", "52.2 %", "Largest tensors at the peak"):
        assert words in text
    assert "cannot tell: CPU has no caching allocator" in text
    assert "What would lower the peak" in text and "--batch-size 1" in text


def test_a_run_without_memory_has_no_memory_section(tmp_path):
    assert shown({"memory": None}) == ""
    assert shown({"memory": {"peak_bytes": 5, "largest": []}}) == "", "the older figure of an inference"


def test_the_whole_page_has_the_memory_section(tmp_path):
    run = large_run(tmp_path)
    write_memory_csv(run.folder, iteration_rows(run))
    console = Console(file=io.StringIO(), width=400, color_system=None)  # paths in one line
    render(summarize(run), console)
    text = console.file.getvalue()
    assert "What the peak is made of" in text
    assert "memory.csv" in text


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
    text = shown({"memory": memory_figures(made_run(tmp_path, info={"memory_tried": [row]}))})
    line = next(line for line in text.splitlines() if line.startswith("bf16"))
    assert " ".join(line.split()) == "bf16 5.00 MB 4.80 MB 4.2 % 7.00 MB 1.25 x the-run"
