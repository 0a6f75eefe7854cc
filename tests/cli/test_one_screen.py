"""`train --level ops --memory` on a terminal of 80 x 25: one screen, and `show --section` has the rest."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console

from detscope.analyze.drawing import report_data
from detscope.report.model import Facts, Table
from detscope.report.render.cells import cell_of
from detscope.report.render.terminal import print_whole
from detscope.report.sections import make_sections
from detscope.runs.reader import load_run
from pseudo_terminal import COLUMNS, run_on_terminal


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("one_screen")


@pytest.fixture(scope="module")
def screen(place: Path) -> list[str]:
    args = ["train", "tiny_fasterrcnn", "--level", "ops", "--memory", "--steps", "6", "--num-workers", "0"]
    return run_on_terminal(args, place)


@pytest.fixture(scope="module")
def run(place: Path, screen: list[str]) -> Path:
    return (place / "runs" / "latest").resolve()


def test_training_with_operators_and_memory_prints_24_lines_with_progress_and_all(screen: list[str]) -> None:
    assert len(screen) <= 24, "\n".join(screen)
    assert max(map(len, screen)) <= COLUMNS
    text = "\n".join(screen)
    for part in ("tiny_fasterrcnn", "p50", "p95", "images/s", "peak", "allocated", "forward", "stages",
                 "modules", "trust", "report.html", "--section", "recorded of"):  # fmt: skip
        assert part in text, (part, text)
    assert re.search(r"modules\s+\S+\s+[\d.,]+ ms\s+[\d.]+ %", text)


def test_show_prints_the_same_screen_and_ends_with_the_sections(
    screen: list[str], place: Path, run: Path
) -> None:
    again = run_on_terminal(["show", run.name[-4:]], place)
    assert len(again) <= 24
    for line in screen[1:]:
        if line.startswith(("on ", "steps", "stages", "modules", "trust")):
            assert line in again
    words = " ".join(" ".join(again[-3:]).split())
    assert f"detscope show {run.name[-4:]} --section NAME:" in words
    assert words.rstrip().endswith(", all")


def test_every_figure_that_the_long_output_had_is_in_a_section(run: Path) -> None:
    sections = make_sections(report_data(load_run(run)))[0]
    assert {"memory", "modules", "operators", "loader", "device", "step"} <= {one.id for one in sections}
    for section in sections:
        console = Console(width=400, record=True, file=io.StringIO())
        print_whole([section], console)
        words = " ".join(console.export_text().split())
        for block in section.blocks:
            if isinstance(block, Facts) and block.brief:
                assert all(" ".join(fact.text.split()) in words for fact in block.facts), section.id
            elif isinstance(block, Table) and block.brief_rows:
                for row in block.rows:
                    cells = zip(row, block.columns, strict=True)
                    shown = [cell_of(value, column).text for value, column in cells if column.brief]
                    assert all(" ".join(cell.split()) in words for cell in shown), (section.id, row)


def test_sections_on_the_terminal_fit_its_width_and_break_no_word(run: Path, place: Path) -> None:
    lines = run_on_terminal(["show", str(run), "--section", "memory,loader,step,method"], place)
    assert max(map(len, lines)) <= COLUMNS
    text = "\n".join(lines)
    assert "What the peak is made of" in text
    whole = " ".join(text.split())
    for words in ("optimizer state", "Phases of a step", "live tensors"):
        assert words in whole


def test_a_script_on_a_terminal_ends_with_the_screen_and_names_its_page(tmp_path: Path) -> None:
    script = Path(__file__).parents[2] / "examples" / "plain_loop.py"
    lines = run_on_terminal(["run", str(script)], tmp_path)
    written = [line for line in lines if line.startswith("step ")]
    assert len(written) > 10, "what the script prints comes first, untouched"
    own = lines[lines.index(next(line for line in lines if line.startswith("run "))) :]
    assert len(own) <= 24 and max(map(len, own)) <= COLUMNS
    text = "\n".join(own)
    for part in ("p50", "images/s", "trust", "/report.html", "--section NAME:"):
        assert part in text, (part, text)
