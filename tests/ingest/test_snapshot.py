from __future__ import annotations

import base64
import gzip
import json
import pickle
import random
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from detscope.errors import InputError
from detscope.ingest.formats import memory_timeline, snapshot
from detscope.ingest.sink import Sink

FRAMES = [
    {"name": "at::_ops::add_Tensor::call(at::Tensor const&)", "filename": "??", "line": 0},
    {"name": "wrapper", "filename": "/x/site-packages/torch/nn/modules/module.py", "line": 9},
    {"name": "forward", "filename": "/home/me/secret/net/model.py", "line": 41},
]


def entry(action: str, address: int, size: int, time_us: int) -> dict[str, Any]:
    return {
        "action": action,
        "addr": address,
        "size": size,
        "time_us": time_us,
        "stream": 0,
        "frames": FRAMES,
    }


def example() -> dict[str, Any]:
    history = [
        entry("segment_alloc", 1000, 4096, 9),
        entry("alloc", 1000, 500, 10),
        entry("free_requested", 9000, 300, 11),
        entry("free_completed", 9000, 300, 11),
        entry("alloc", 1512, 900, 11),
        entry("free_requested", 1512, 900, 12),
        entry("free_completed", 1512, 900, 13),
        {"action": "oom", "size": 10**9, "device_free": 5, "time_us": 14, "frames": []},
    ]
    segments = [
        {
            "device": 0,
            "address": 1000,
            "total_size": 4096,
            "blocks": [
                {"address": 1000, "size": 512, "state": "active_allocated", "frames": FRAMES},
                {"address": 1512, "size": 3584, "state": "inactive"},
            ],
        },
        {
            "device": 0,
            "address": 9000,
            "total_size": 1024,
            "blocks": [{"size": 1024, "state": "active_allocated"}],
        },
    ]
    return {"segments": segments, "device_traces": [history]}


def rows_of(path: Path, module: Any = snapshot) -> tuple[dict[str, pl.DataFrame], Sink]:
    assert module.PART.recognize(path.read_bytes()[:65536], path) or path.suffix == ".gz"
    frames: dict[str, list[pl.DataFrame]] = {}
    sink = Sink(lambda table, frame: frames.setdefault(table, []).append(frame))
    module.PART.read(path, sink)
    return {table: pl.concat(parts) for table, parts in frames.items()}, sink


def test_history_and_what_is_alive_at_its_end_become_one_account(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(pickle.dumps(example()))
    tables, sink = rows_of(path)
    lives = tables["memory"].select("bytes", "alloc_ns", "free_ns").rows()
    assert lives == [
        (512, 10_000, None),  # alive at the end: what it takes, not what was asked for
        (300, None, 11_000),  # freed, never seen allocated
        (900, 11_002, 12_000),  # entries of one microsecond keep their order
        (1024, None, None),  # older than the history, and alive
    ]
    assert tables["memory"].select("stack", "operator").row(0) == ("net/model.py:41 forward", "aten::add")
    reserved = tables["memory_levels"].filter(level="reserved").select("time_ns", "bytes").rows()
    assert reserved == [(9000, 1024), (9000, 5120), (14000, 5120)]
    assert tables["memory_levels"].filter(level="largest_free")["bytes"].to_list() == [3584]
    facts = sink.info["memory"][0]
    assert facts["history_peak_bytes"] == 1400
    assert facts["free_cached_bytes"] == 3584
    assert facts["fragmentation"] == 0.0, "one free block can serve all of it"
    assert facts["out_of_memory"] == [{"bytes": 10**9, "device_free_bytes": 5}]
    assert "recording began late: 1 frees of unknown blocks" in facts["verdict"]


def test_json_and_torchs_page_hold_the_same(tmp_path: Path) -> None:
    whole = tmp_path / "a"
    whole.write_bytes(pickle.dumps(example()))
    expected = rows_of(whole)[0]["memory"]
    as_json = tmp_path / "b"
    as_json.write_text(json.dumps(example()))
    page = tmp_path / "c"
    packed = json.dumps(
        [{"name": "snapshot.pickle", "base64": base64.b64encode(pickle.dumps(example()) + b"\0\0").decode()}]
    )
    page.write_text(
        f"<!DOCTYPE html>\n<script>const local_files = {packed}\nadd_local_files(local_files)</script>"
    )
    for path in (as_json, page):
        assert rows_of(path)[0]["memory"].equals(expected)


def test_a_snapshot_without_history_says_so(tmp_path: Path) -> None:
    path = tmp_path / "x"
    path.write_bytes(pickle.dumps(example()["segments"]))
    tables, sink = rows_of(path)
    assert tables["memory"]["bytes"].to_list() == [512, 1024]
    assert sink.info["memory"][0]["verdict"].startswith("no history")


@pytest.mark.parametrize(
    "value", [[], {}, {"segments": 5}, "text", {"segments": [], "device_traces": []}, 7, [[1]]]
)
def test_other_plain_data_is_no_snapshot(tmp_path: Path, value: Any) -> None:
    path = tmp_path / "x"
    path.write_bytes(pickle.dumps(value))
    with pytest.raises(InputError):
        rows_of(path)


def test_odd_values_anywhere_are_no_traceback(tmp_path: Path) -> None:
    chance = random.Random(1)
    odd = [None, "x", -1, 2**80, 1.5, [], {}, True]

    def spoil(value: Any) -> Any:
        if chance.random() < 0.04:
            return chance.choice(odd)
        if isinstance(value, dict):
            return {key: spoil(item) for key, item in value.items()}
        return [spoil(item) for item in value] if isinstance(value, list) else value

    path = tmp_path / "x"
    for _ in range(200):
        path.write_bytes(pickle.dumps(spoil(example())))
        try:
            rows_of(path)
        except InputError as error:
            assert error.message and error.hint


def test_a_timeline_keeps_torchs_names_where_ours_differ(tmp_path: Path) -> None:
    path = tmp_path / "t"
    path.write_text(
        "[[-1, 1, 100, 0], [5, 2, 40, 6], [5, 3, -40, 6], [5, 3, 40, 5], [9, 4, -40, 5], [9, 9, 1, 1]]"
    )
    tables, sink = rows_of(path, memory_timeline)
    assert tables["memory_changes"].select("time_ns", "category", "delta_bytes").rows() == [
        (None, "parameters", 100),
        (5, "autograd detail", 40),
        (5, "autograd detail", -40),
        (5, "gradients", 40),
        (9, "gradients", -40),
    ]
    assert sink.counts == {"changes with an unknown action or category": 1}
    assert sink.info["moments"] == 3


def test_a_timeline_by_moments_becomes_differences(tmp_path: Path) -> None:
    path = tmp_path / "t"
    sizes = [[0, 10, 0, 0, 0, 0, 0, 0, 0], [0, 10, 0, 0, 0, 7, 0, 0, 0]] + [[0, 10, 0, 0, 0, 0, 0, 0, 0]] * 5
    path.write_text(json.dumps([[1, 2, 3, 4, 5, 6, 7], sizes]))
    assert rows_of(path, memory_timeline)[0]["memory_changes"].select(
        "time_ns", "category", "delta_bytes"
    ).rows() == [
        (1000, "parameters", 10),
        (2000, "activations", 7),
        (3000, "activations", -7),
    ]


def test_a_cut_timeline_gives_what_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "t.gz"
    rows = json.dumps([[n, 2, n * 7919 % 1000, n % 8] for n in range(5000)]).encode()
    packed = gzip.compress(rows)
    path.write_bytes(packed[: int(len(packed) * 0.6)])
    tables, sink = rows_of(path, memory_timeline)
    assert 1000 < tables["memory_changes"].height < 5000
    assert any("cut" in note for note in sink.notes)
