"""Memory that grows from step to step: told with its size and the line that keeps it, and only then."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
import pytest

from detscope.analyze.summary import summarize
from detscope.record.memory.growth import find_growing_line, find_growth

MB = 10**6
LOOPS = Path(__file__).with_name("growing_loops.py")


def readings(sizes: list[float]) -> list[tuple[int, int]]:
    return [(step, int(1000 * MB + size * MB)) for step, size in enumerate(sizes)]


def test_growth_is_told_with_its_size_per_step():
    noise = np.random.default_rng(0).normal(0, 5, 40)
    found = find_growth(readings([40 * step + noise[step] for step in range(40)]))
    assert found is not None
    assert found.bytes_per_step == pytest.approx(40 * MB, rel=0.02)
    assert (found.first_step, found.last_step, found.n) == (0, 39, 40)
    assert found.lowest <= found.bytes_per_step <= found.highest


@pytest.mark.parametrize(
    "sizes",
    [
        [0.0] * 40,
        [min(step, 10) * 40.0 for step in range(40)],  # caches that are full after ten steps
        [40 * step**0.3 for step in range(40)],  # an allocator that settles
        [0.2 * step for step in range(200)],  # less than anything is told of
        [400.0 if step > 20 else 0.0 for step in range(40)],  # one larger image
        [100.0 * (step % 7) for step in range(40)],
        np.random.default_rng(1).normal(0, 200, 400).tolist(),
        [40.0 * step for step in range(11)],  # too few
    ],
)
def test_what_settles_or_comes_and_goes_is_no_growth(sizes):
    assert find_growth(readings(sizes)) is None


def test_the_line_that_makes_a_container_longer_is_found_in_its_source(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "history = []\n"
        "def one(self, x):\n"
        "    history.append(x)\n"
        "def two(self, x):\n"
        "    self.kept[x].extend([x])\n"
        "    table[x] = 1\n"
        "    history = []\n"
        "    total += x\n"
        "    loss_sum = loss_sum + x\n"
        "    self.mean = 0.9 * self.mean + x\n"
    )
    assert find_growing_line(str(script), "history") == "script.py:3"
    assert find_growing_line(str(script), "history", first=4) is None
    assert find_growing_line(str(script), "kept") == "script.py:5"
    assert find_growing_line(str(script), "table") == "script.py:6"
    assert find_growing_line(str(script), "total") == "script.py:8"
    assert find_growing_line(str(script), "loss_sum") == "script.py:9"
    assert find_growing_line(str(script), "mean") == "script.py:10"
    assert find_growing_line(str(tmp_path / "nothing.py"), "history") is None


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """In a process of its own: what this one has freed before would be used again and hide growth.

    There a block of megabytes is given back when it is freed; else glibc keeps it for the next loop.
    """
    folder = tmp_path_factory.mktemp("growing")
    variables = {**os.environ, "MALLOC_MMAP_THRESHOLD_": "131072"}
    command = [sys.executable, LOOPS, folder]
    done = subprocess.run(command, env=variables, capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def line_of(text: str) -> str:
    lines = LOOPS.read_text().splitlines()
    return f"growing_loops.py:{next(n for n, line in enumerate(lines, 1) if text in line)}"


def test_a_loop_that_keeps_nothing_does_not_grow(recorded):
    assert recorded["steady"]["growth"] is None
    assert not any("grows" in note for note in summarize(recorded["steady"]["run"]).notes)


@pytest.mark.parametrize(
    ("kind", "name", "where"),
    [
        ("tensors", "history", "history.append"),
        ("graphs", "graphs", "graphs.append"),
        ("bytes", "Keeper.blobs", 'self.blobs["all"].append'),
    ],
)
def test_what_is_kept_every_step_is_named_with_its_line(recorded, kind, name, where):
    growth = recorded[kind]["growth"]
    assert growth["bytes_per_step"] == pytest.approx(6 * MB, rel=0.35 if kind != "graphs" else 1.2)
    assert growth["held_by"]["name"] == name
    assert growth["held_by"]["line"] == line_of(where)
    assert growth["held_by"]["keeps_graphs"] == (kind == "graphs")
    summary = summarize(recorded[kind]["run"])
    assert msgspec.to_builtins(summary.growth) == growth
    said = next(note for note in summary.notes if note.startswith("memory grows by"))
    assert "MB per step" in said
    assert line_of(where) in said


def test_a_sum_that_keeps_the_graphs_of_all_steps_is_named_with_its_line(recorded):
    growth = recorded["sum"]["growth"]
    assert growth["held_by"]["name"] == "total"
    assert growth["held_by"]["line"] == line_of("total = total + ")
    assert growth["held_by"]["items"] == 4  # nodes: the leaf, exp, sum and the addition
    assert "graphs of all steps" in growth["note"]


def test_growth_that_no_container_explains_is_told_without_a_line(recorded):
    growth = recorded["linked"]["growth"]
    assert growth["bytes_per_step"] == pytest.approx(6 * MB, rel=0.35)
    assert growth["held_by"] is None
    assert "line: cannot tell" in growth["note"]
