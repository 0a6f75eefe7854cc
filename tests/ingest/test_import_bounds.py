"""Recorded files that are small and say much: read as far as their size can mean, and no further."""

from __future__ import annotations

import gzip
import json
import pickle
from pathlib import Path

import pytest
from kineto_maker import Read, read

from detscope.errors import InputError
from detscope.ingest.files import RecordedFile
from detscope.ingest.recordings import import_files
from detscope.ingest.unpickle import load_plain

TINY = b'{"ph":"X","ts":%d,"dur":1},'


def packed_trace(folder: Path, events: int) -> Path:
    path = folder / "tiny.json.gz"
    with gzip.open(path, "wb") as file:
        file.write(b'{"traceEvents":[')
        file.write(b"".join(TINY % (2 * number) for number in range(events)))
        file.write(b'{"ph":"X","ts":1,"dur":1}]}')
    return path


def notes(found: Read) -> str:
    return "\n".join(found.sink.notes)


def test_a_small_packed_file_of_many_events_is_read_in_part_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DETSCOPE_LIMIT_PACKED_EVENTS", "1000")
    path = packed_trace(tmp_path, 60_000)
    most, name = RecordedFile(path).find_event_limit()
    assert name == "packed_events"
    assert most < 60_000
    found = read(path)
    assert most < found.sink.info["events"] < 60_000
    assert "partial: the first" in notes(found)
    assert "DETSCOPE_LIMIT_PACKED_EVENTS=N" in notes(found)
    made = import_files([path], tmp_path / "runs").runs[0]
    assert json.loads((made / "run.json").read_text())["status"] == "partial"


def test_events_are_kept_as_far_as_memory_is_free(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = packed_trace(tmp_path, 60_000)
    plain = tmp_path / "tiny.json"
    plain.write_bytes(gzip.decompress(path.read_bytes()))
    assert read(plain).sink.info["events"] == 60_001
    monkeypatch.setenv("DETSCOPE_LIMIT_EVENT_MEMORY_BYTES", str(10**9))
    assert RecordedFile(plain).find_event_limit()[1] == "event_memory_bytes"
    found = read(plain)
    assert found.sink.info["events"] < 60_000
    assert "limit event_memory_bytes" in notes(found)


def test_a_packed_file_is_unpacked_as_far_as_its_size_can_mean(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filling = json.dumps({"ph": "M", "name": "x" * 1_000_000}).encode() + b","
    path = tmp_path / "bomb.json.gz"
    with gzip.open(path, "wb") as file:
        file.write(b'{"traceEvents":[{"ph":"X","ts":1,"dur":1},')
        for _ in range(100):
            file.write(filling)
        file.write(b'{"ph":"X","ts":9,"dur":1}]}')
    assert path.stat().st_size < 200_000
    found = read(path)
    assert found.sink.info["events"] < 80
    assert "limit recording_ratio of 100 times" in notes(found)
    monkeypatch.setenv("DETSCOPE_LIMIT_RECORDING_RATIO", "10000")
    assert read(path).sink.info["events"] == 102


@pytest.mark.parametrize("begin", [b"\x80\x04", b"SQLite format 3\x00", b"==PROF== Connected to process 1\n"])
def test_other_packed_files_are_refused_at_their_ratio(tmp_path: Path, begin: bytes) -> None:
    path = tmp_path / "bomb.gz"
    with gzip.open(path, "wb") as file:
        file.write(begin)
        for _ in range(70):
            file.write(bytes(1 << 20) if begin[:1] != b"=" else b"x" * ((1 << 20) - 1) + b"\n")
    with pytest.raises(InputError, match="more than 100 times, the limit") as caught:
        import_files([path], tmp_path / "runs")
    assert "DETSCOPE_LIMIT_RECORDING_RATIO" in caught.value.hint


def test_a_snapshot_is_read_up_to_its_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "s.pickle").write_bytes(bytes(5000))
    monkeypatch.setenv("DETSCOPE_LIMIT_SNAPSHOT_BYTES", "4000")
    with pytest.raises(InputError, match="more than 4,000 unpacked bytes"):
        RecordedFile(tmp_path / "s.pickle").read_whole()


def test_a_pickle_of_empty_lists_makes_no_more_than_its_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    assert load_plain(b"\x80\x04]" + b"]a" * 1000 + b".") == [[]] * 1000
    monkeypatch.setenv("DETSCOPE_LIMIT_SNAPSHOT_VALUES", "500")
    with pytest.raises(InputError, match="more than 500 values"):
        load_plain(b"\x80\x04]" + b"]a" * 1000 + b".")


def test_a_snapshot_that_names_one_list_many_times_is_refused_by_its_sum(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = {"action": "alloc", "addr": 1, "size": 4, "time_us": 1, "frames": []}
    trace = [entry] * 100
    (tmp_path / "s.pickle").write_bytes(pickle.dumps({"segments": [], "device_traces": [trace] * 100}))
    monkeypatch.setenv("DETSCOPE_LIMIT_SNAPSHOT_VALUES", "9000")
    with pytest.raises(InputError, match="10,000 values, the limit is 9,000"):
        import_files([tmp_path / "s.pickle"], tmp_path / "runs")


def test_a_snapshot_whose_lists_share_their_parts_is_never_written_out_as_text(tmp_path: Path) -> None:
    endless: list[object] = ["x"]
    for _ in range(60):
        endless = [endless, endless]
    block = {"size": 4, "state": endless, "frames": [{"filename": endless, "name": endless, "line": endless}]}
    segment = {"device": 0, "address": 1, "total_size": 8, "blocks": [block]}
    entry = {
        "action": "alloc",
        "addr": 1,
        "size": 4,
        "time_us": 1,
        "frames": [{"filename": "a.py", "line": endless}],
    }
    value = {"segments": [segment], "device_traces": [[entry, {"action": endless}]]}
    (tmp_path / "s.pickle").write_bytes(pickle.dumps(value))
    assert import_files([tmp_path / "s.pickle"], tmp_path / "runs").runs
