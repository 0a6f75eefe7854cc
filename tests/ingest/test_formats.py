"""A format is one part; what its reader may leave empty, a run may lack."""

from __future__ import annotations

from pathlib import Path

import pytest

from detscope import parts
from detscope.errors import InputError
from detscope.ingest.formats import find_format
from detscope.ingest.recordings import import_files
from detscope.ingest.sink import Format, Sink
from detscope.runs.reader import load_run


def recognize_head(head: bytes, path: Path) -> bool:
    return head.startswith(b"losses of")


def read_losses(path: Path, sink: Sink) -> None:
    values = [float(line) for line in path.read_text().splitlines()[1:]]
    sink.add_rows("losses", {"step": range(len(values)), "name": ["loss"] * len(values), "value": values})


def test_a_format_that_is_added_is_found_read_and_named(tmp_path: Path, monkeypatch) -> None:
    path = tmp_path / "recorded"
    path.write_text("losses of a run\n2.5\n1.5\n")
    with pytest.raises(InputError, match="of no format"):
        find_format(path)
    monkeypatch.setattr(parts, "_added", {})
    parts.add_part("formats", Format("list of losses", recognize_head, read_losses))
    (run,) = import_files([path], tmp_path / "runs").runs
    assert load_run(run).table("losses")["value"].to_list() == [2.5, 1.5]
    assert load_run(run).info["sources"][0]["format"] == "list of losses"
    path.write_text("something else\n")
    with pytest.raises(InputError) as caught:
        find_format(path)
    names = caught.value.hint.removeprefix("known are: ").split(", ")
    assert names[0] == "Nsight Systems export" and names[-1] == "list of losses"


def test_memory_that_is_older_than_the_recording_has_no_time_in_a_run(tmp_path: Path) -> None:
    path = tmp_path / "timeline.raw.json"
    path.write_text("[[-1, 1, 100, 0], [5000, 2, 50, 4], [6000, 4, -50, 4]]")
    (run,) = import_files([path], tmp_path / "runs").runs
    changes = load_run(run).table("memory_changes")
    assert changes["time_ns"].to_list() == [None, 5000, 6000]
    assert changes["category"].to_list() == ["parameters", "activations", "activations"]


def test_a_listing_that_does_not_name_its_kernels_makes_a_run_that_opens(tmp_path: Path) -> None:
    path = tmp_path / "pivot.csv"
    path.write_text("Metric Name,gpc__cycles_elapsed.max,sm__cycles_active.avg\n0,100,50\n1,200,60\n")
    (run,) = import_files([path], tmp_path / "runs").runs
    metrics = load_run(run).table("kernel_metrics")
    assert metrics["kernel"].to_list() == [0, 0, 1, 1] and metrics["name"].null_count() == 4
