"""Run folders and tables: unique, whole, readable when cut short. Case 28 of the fault list."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import polars as pl
import pytest

from detscope.errors import InputError, MachineError
from detscope.runs.atomic import write_atomically, write_text
from detscope.runs.folder import create_run_folder, find_run, find_run_inside
from detscope.runs.reader import load_run
from detscope.runs.writer import RunWriter

LOSS = ("losses", [(0, "loss", 1.5), (1, "loss", 1.25)])


def test_two_runs_in_the_same_second_get_two_folders(tmp_path):
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: create_run_folder(tmp_path, "train", "m"), range(64)))
    assert len(set(folders)) == 64


def test_latest_points_at_the_newest_run(tmp_path):
    RunWriter(tmp_path, "train", "a", {}).close_run("ok")
    second = RunWriter(tmp_path, "train", "b", {})
    second.close_run("ok")
    assert find_run(None, tmp_path) == second.folder.resolve()
    assert find_run(second.folder.name[:-2], tmp_path) == second.folder.resolve()


@pytest.mark.parametrize("find", [find_run, find_run_inside])
@pytest.mark.parametrize("newest_goes", [False, True])
def test_the_latest_is_found_where_its_link_is_gone_or_leads_nowhere(tmp_path, find, newest_goes):
    for second in ("01", "03", "02"):
        made = tmp_path / f"202611180900{second}Z-train-a-0{second}0"
        made.mkdir()
        (made / "run.json").write_text("{}")
    latest, before = tmp_path / "20261118090003Z-train-a-0030", tmp_path / "20261118090002Z-train-a-0020"
    if newest_goes:
        (tmp_path / "latest").symlink_to(latest.name)
        shutil.rmtree(latest)
    assert find("", tmp_path) == (before if newest_goes else latest).resolve()


def test_names_of_models_cannot_leave_the_folder(tmp_path):
    folder = create_run_folder(tmp_path / "runs", "train", "../../evil/<b>:f")
    assert folder.parent == tmp_path / "runs"


def test_a_closed_run_has_its_tables_and_no_parts(tmp_path):
    writer = RunWriter(tmp_path, "train", "m", {"device": "cpu"})
    writer.append_rows(*LOSS)
    writer.flush_parts()
    writer.append_rows("losses", [(2, "loss", 1.0)])
    writer.close_run("ok")
    run = load_run(writer.folder)
    assert run.status == "ok"
    assert run.table("losses")["value"].to_list() == [1.5, 1.25, 1.0]
    assert run.table("ops").height == 0
    assert not (writer.folder / "parts").exists()


def test_an_unclosed_run_says_partial_and_opens_with_what_was_flushed(tmp_path):
    writer = RunWriter(tmp_path, "train", "m", {})
    writer.append_rows(*LOSS)
    writer.flush_parts()
    writer.append_rows("losses", [(2, "loss", 1.0)])
    run = load_run(writer.folder)
    assert run.status == "partial"
    assert run.table("losses").height == 2


def test_what_is_written_to_a_device_goes_through_it_and_leaves_it_one(tmp_path):
    reading, writing = os.pipe()
    write_text(Path(f"/dev/fd/{writing}"), "all of it")
    os.close(writing)
    with os.fdopen(reading) as file:
        assert file.read() == "all of it"
    if Path("/dev/full").is_char_device() and os.geteuid():  # root could replace it
        with pytest.raises(MachineError, match="no space left while writing /dev/full"):
            write_text(Path("/dev/full"), "x")


def test_a_file_is_never_seen_half_written(tmp_path):
    target = tmp_path / "file"
    write_text(target, "whole")

    def fail(temporary: Path) -> None:
        temporary.write_text("ha")
        raise ValueError

    with pytest.raises(ValueError):
        write_atomically(target, fail)
    assert target.read_text() == "whole"
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MachineError) as caught:
        RunWriter(tmp_path / "file" / "runs", "train", "m", {})
    assert "cannot write" in caught.value.message
    assert "--out" in caught.value.hint


def test_a_full_disk_is_one_clear_error_and_nothing_half_written_passes_as_whole(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("this machine does not let tests mount a small disk")
    try:
        writer = RunWriter(disk, "train", "m", {})
        with pytest.raises(MachineError) as caught:
            for step in range(40):
                writer.append_rows("losses", [(step * 5000 + i, f"loss-{i}", float(i)) for i in range(5000)])
                writer.flush_parts()
        assert "no space left" in caught.value.message
        run = load_run(writer.folder)
        assert run.status == "partial"
        assert run.table("losses").height % 5000 == 0
        assert not list(writer.folder.rglob("*.tmp"))
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_read_only_folder_is_one_clear_error(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "ro", "tmpfs", disk], capture_output=True, check=False
    )
    if mounted.returncode != 0:
        pytest.skip("this machine does not let tests mount a read-only folder")
    try:
        with pytest.raises(MachineError) as caught:
            RunWriter(disk / "runs", "train", "m", {})
        assert "--out" in caught.value.hint
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_newer_schema_a_damaged_file_and_a_plain_folder_are_told_apart(tmp_path):
    writer = RunWriter(tmp_path, "train", "m", {})
    writer.append_rows(*LOSS)
    writer.close_run("ok")
    (writer.folder / "losses.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(InputError, match="damaged"):
        load_run(writer.folder).table("losses")
    info = json.loads((writer.folder / "run.json").read_text())
    (writer.folder / "run.json").write_text(json.dumps({**info, "schema": 99}))
    with pytest.raises(InputError, match="newer detscope"):
        load_run(writer.folder)
    (writer.folder / "run.json").write_text('{"schema": ')
    with pytest.raises(InputError, match="damaged"):
        load_run(writer.folder)
    with pytest.raises(InputError, match=r"no run\.json"):
        load_run(tmp_path)


def test_reading_a_run_imports_neither_torch_nor_a_gpu_library(tmp_path):
    writer = RunWriter(tmp_path, "train", "m", {})
    writer.append_rows("steps", [(0, 0, "recorded", "step", 0, 1000, None)])
    writer.close_run("ok")
    code = (
        "import sys; from detscope.analyze.summary import summarize;"
        f"summarize({str(writer.folder)!r});"
        "assert 'torch' not in sys.modules and 'pynvml' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_flush_that_does_not_wait_is_on_disk_when_the_next_one_begins(tmp_path):
    writer = RunWriter(tmp_path, "train", "tiny", {})
    writer.append_rows("losses", [(0, "loss", 1.0)])
    writer.flush_parts(wait=False)
    writer.append_rows("losses", [(1, "loss", 2.0)])
    writer.flush_parts()
    assert load_run(writer.folder).table("losses")["step"].to_list() == [0, 1]
    writer.append_rows("losses", [(2, "loss", 3.0)])
    writer.flush_parts(wait=False)
    writer.close_run("ok")
    assert load_run(writer.folder).table("losses")["step"].to_list() == [0, 1, 2]
    assert not (writer.folder / "parts").exists()


def test_what_a_flush_could_not_put_on_disk_is_said_by_the_next_one(tmp_path):
    writer = RunWriter(tmp_path, "train", "tiny", {})
    writer.append_rows("losses", [(0, "loss", 1.0)])
    (writer.folder / "parts" / "losses-000001.arrow").mkdir(parents=True)  # a name that is taken
    writer.flush_parts(wait=False)
    with pytest.raises(MachineError, match="cannot write"):
        writer.flush_parts()


def test_some_columns_of_a_table_are_read_alone_whether_the_run_is_whole_or_partial(tmp_path):
    writer = RunWriter(tmp_path, "train", "tiny", {})
    writer.append_rows("losses", [(0, "loss", 1.0)])
    writer.flush_parts()
    columns = ("value", "step")
    partial = load_run(writer.folder).table("losses", columns)
    writer.close_run("ok")
    whole = load_run(writer.folder).table("losses", columns)
    assert partial.columns == whole.columns == list(columns)
    assert partial.rows() == whole.rows() == [(1.0, 0)]
    assert load_run(writer.folder).table("spans", ("path",)).schema == {"path": pl.String}


def test_rows_that_come_late_stand_among_the_others_in_the_order_of_their_step(tmp_path):
    writer = RunWriter(tmp_path, "train", "tiny", {})
    late = [{"step": 1, "name": "a", "value": 0.1}, {"step": 1, "name": "b", "value": 0.2}]
    writer.append_rows("losses", [(0, "z", 1.0), (2, "a", 2.0)])
    writer.append_frame("losses", pl.DataFrame(late), sorted_by="step")
    writer.close_run("ok")
    found = load_run(writer.folder).table("losses")
    assert found.select("step", "name").rows() == [(0, "z"), (1, "a"), (1, "b"), (2, "a")]


def test_ranks_that_began_at_different_times_write_at_the_same_moments(tmp_path, monkeypatch):
    now = [0.0]
    monkeypatch.setattr("detscope.runs.writer.monotonic", lambda: now[0])
    writers = []
    for now[0] in (30.1, 32.9):
        writers.append(RunWriter(tmp_path, "train", "m", {}))
    for now[0] in (32.95, 33.05):
        assert [writer.is_flush_due for writer in writers] == [now[0] > 33] * 2
    for writer in writers:
        writer.flush_parts()
        assert not writer.is_flush_due
    for now[0] in (36.1, 39.1):
        for writer in writers:
            writer.flush_parts()
    for now[0] in (44.9, 45.1):  # a run that has something on disk writes less often
        assert [writer.is_flush_due for writer in writers] == [now[0] > 45] * 2


def test_names_that_are_no_utf8_stand_in_a_run_that_opens_again(tmp_path):
    name = os.fsdecode(b"\xff\xfe.jpg")
    writer = RunWriter(tmp_path, "infer", "net", {"notes": [name], "more": {name: 1}})
    writer.append_rows("losses", [(0, name, 1.0), (1, "loss", 1.0)])
    writer.close_run("ok")
    run = load_run(writer.folder)
    assert run.table("losses")["name"].to_list() == [r"\udcff\udcfe.jpg", "loss"]
    assert run.info["notes"] == [r"\udcff\udcfe.jpg"]
