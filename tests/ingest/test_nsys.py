from __future__ import annotations

import gzip
import random
import sqlite3
from pathlib import Path
from time import process_time

import polars as pl
import pytest

from detscope.errors import InputError
from detscope.ingest.formats.nsys import read_export, read_meaning, recognize_head
from detscope.ingest.sink import Sink
from detscope.traces.naming import STEP_RANGE

PROCESS = 700
GLOBAL = PROCESS << 24
TABLES = {
    "StringIds": "id INTEGER, value TEXT",
    "CUPTI_ACTIVITY_KIND_KERNEL": "start INTEGER, end INTEGER, deviceId INTEGER, contextId INTEGER, "
    "streamId INTEGER, correlationId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER, "
    "gridX INTEGER, gridY INTEGER, gridZ INTEGER",
    "CUPTI_ACTIVITY_KIND_MEMCPY": "start INTEGER, end INTEGER, deviceId INTEGER, streamId INTEGER, "
    "correlationId INTEGER, globalPid INTEGER, bytes INTEGER, copyKind INTEGER",
    "CUPTI_ACTIVITY_KIND_RUNTIME": "start INTEGER, end INTEGER, globalTid INTEGER, correlationId INTEGER, "
    "nameId INTEGER",
    "NVTX_EVENTS": "start INTEGER, end INTEGER, eventType INTEGER, text TEXT, textId INTEGER, "
    "globalTid INTEGER",
    "TARGET_INFO_GPU": "id INTEGER, name TEXT, smCount INTEGER",
    "META_DATA_CAPTURE": "name TEXT, value TEXT",
}
ROWS = {
    "StringIds": [
        (1, "gemm"), (2, "cudaLaunchKernel_v7000"), (3, "cudaMemcpyAsync_v3020"), (4, "ncclAllReduce"),
    ],
    "CUPTI_ACTIVITY_KIND_KERNEL": [
        (1000, 3000, 0, 1, 7, 10, GLOBAL, 1, 1, 80, 2, 1),
        (4000, 4500, 0, 1, 7, 11, GLOBAL, 4, 4, 1, 1, 1),
        (6000, 6500, 0, 1, 7, 99, GLOBAL, 1, 1, 1, 1, 1),
        (9000, 8000, 0, 1, 7, 12, GLOBAL, 1, 1, 1, 1, 1),
    ],
    "CUPTI_ACTIVITY_KIND_MEMCPY": [(3500, 3900, 0, 8, 13, GLOBAL, 4096, 1)],
    "CUPTI_ACTIVITY_KIND_RUNTIME": [
        (500, 700, GLOBAL + 701, 10, 2), (800, 900, GLOBAL + 702, 11, 2), (3100, 3200, GLOBAL + 701, 13, 3),
    ],
    "NVTX_EVENTS": [
        (100, 3150, 59, "detscope:step 4", None, GLOBAL + 701),
        (400, 750, 59, "aten::addmm, seq = 12, op_id = 3", None, GLOBAL + 701),
        (450, 600, 59, None, 1, GLOBAL + 701),
        (50, None, 59, "open", None, GLOBAL + 701),
        (60, None, 75, "a domain", None, GLOBAL + 701),
    ],
    "TARGET_INFO_GPU": [(0, "NVIDIA X", 80)],
    "META_DATA_CAPTURE": [("PROCESS_0:ENVIRONMENT_VARIABLE", 'API_TOKEN="hunter2"')],
}  # fmt: skip


def make(path: Path, without: tuple[str, ...] = (), columns: dict[str, str] | None = None) -> Path:
    connection = sqlite3.connect(path)
    for table, definition in TABLES.items():
        if table in without:
            continue
        connection.execute(f"CREATE TABLE {table} ({(columns or {}).get(table, definition)})")
        for row in ROWS[table]:
            connection.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(row))})", row)
    connection.commit()
    connection.close()
    return path


def rows_of(path: Path) -> tuple[dict[str, pl.DataFrame], Sink]:
    frames: dict[str, list[pl.DataFrame]] = {}
    sink = Sink(lambda table, frame: frames.setdefault(table, []).append(frame))
    read_export(path, sink)
    return {table: pl.concat(parts) for table, parts in frames.items()}, sink


def test_kernels_are_linked_to_launch_operator_and_step(tmp_path: Path) -> None:
    path = make(tmp_path / "a.sqlite")
    assert recognize_head(path.read_bytes()[:100], path)
    tables, sink = rows_of(path)
    kernels = tables["device_events"].filter(kind="kernel")
    assert kernels.select("name", "launch_ns", "launch_thread", "operator", "step").rows() == [
        ("gemm", 500, 701, "aten::addmm", 4),
        ("ncclAllReduce", 800, 702, None, 4),  # another thread of the same step
        ("gemm", None, None, None, None),
    ]
    assert kernels["communication"].to_list() == [False, True, False]
    assert kernels["blocks_per_sm"].to_list() == [2.0, 1 / 80, 1 / 80]
    assert sink.counts["device events without a launch record"] == 1
    assert sink.counts["kernel events without usable times"] == 1
    assert sink.counts["ranges still open at the end of the recording"] == 1


def test_copies_have_direction_and_size(tmp_path: Path) -> None:
    copies = rows_of(make(tmp_path / "a.sqlite"))[0]["device_events"].filter(kind="copy")
    assert copies.select("name", "copy", "bytes", "step").rows() == [("Memcpy HtoD", "HtoD", 4096, 4)]


def test_host_calls_lose_their_version_and_ranges_say_what_they_are(tmp_path: Path) -> None:
    host = rows_of(make(tmp_path / "a.sqlite"))[0]["host_events"]
    assert host.filter(kind="runtime")["name"].to_list() == [
        "cudaLaunchKernel",
        "cudaLaunchKernel",
        "cudaMemcpyAsync",
    ]
    named = host.filter(pl.col("kind") != "runtime").select("kind", "name", "sequence").rows()
    assert named == [
        ("step", "detscope:step 4", None),
        ("phase", "forward", None),
        ("operator", "aten::addmm", 12),
        ("annotation", "gemm", None),
    ]


@pytest.mark.parametrize("table", [table for table in TABLES if table != "CUPTI_ACTIVITY_KIND_KERNEL"])
def test_a_table_may_be_missing(tmp_path: Path, table: str) -> None:
    tables, _ = rows_of(make(tmp_path / "a.sqlite", without=(table,)))
    assert tables["device_events"].filter(kind="kernel").height == 3


def test_an_old_schema_without_processes_still_links(tmp_path: Path) -> None:
    path = tmp_path / "old.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
    connection.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, correlationId, shortName)"
    )
    connection.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId)"
    )
    connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (10, 20, 0, 5, 77)")
    connection.execute("INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (1, 2, 9, 5, 78)")
    connection.commit()
    connection.close()
    events = rows_of(path)[0]["device_events"]
    assert events.select("launch_ns", "launch_thread", "stream", "name").rows() == [(1, 9, None, "name 77")]


def test_equal_correlation_numbers_of_two_processes_are_two_launches(tmp_path: Path) -> None:
    path = make(tmp_path / "a.sqlite")
    other = (PROCESS + 1) << 24
    connection = sqlite3.connect(path)
    kernel = (1100, 1200, 0, 2, 7, 10, other, 1, 1, 1, 1, 1)
    connection.execute(f"INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES ({','.join('?' * 12)})", kernel)
    connection.execute(
        "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?,?,?,?,?)", (910, 920, other + 701, 10, 2)
    )
    connection.commit()
    connection.close()
    events = rows_of(path)[0]["device_events"].filter(correlation=10)
    # the other process has the same thread number too, and no range of its own around the launch
    assert events.select("rank", "launch_ns", "operator").rows() == [(0, 500, "aten::addmm"), (1, 910, None)]


def test_secrets_are_told_by_name_only(tmp_path: Path) -> None:
    tables, sink = rows_of(make(tmp_path / "a.sqlite"))
    assert "by their names secret: API_TOKEN" in sink.notes[0]
    assert "hunter2" not in str(sink) + str(tables)


def test_another_database_is_named_as_such(tmp_path: Path) -> None:
    path = tmp_path / "other.sqlite"
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE cats (name TEXT)")
    connection.commit()
    connection.close()
    with pytest.raises(InputError, match="no export of Nsight Systems"):
        rows_of(path)


def test_a_view_in_the_place_of_a_table_is_not_asked(tmp_path: Path) -> None:
    path = make(tmp_path / "a.sqlite", without=("NVTX_EVENTS",))
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE VIEW NVTX_EVENTS AS WITH RECURSIVE n(start) AS (SELECT 1 UNION ALL SELECT start + 1 FROM n) "
        "SELECT start, start AS end, 59 AS eventType, 'x' AS text, NULL AS textId, 0 AS globalTid FROM n"
    )
    connection.commit()
    connection.close()
    tables, _ = rows_of(path)  # the view has no end: who asks it never comes back
    assert tables["device_events"].height == 4
    assert tables["host_events"]["kind"].unique().to_list() == ["runtime"]


def test_it_opens_packed_read_only_and_with_odd_names(tmp_path: Path) -> None:
    plain = make(tmp_path / "odd ?name#%20.sqlite")
    plain.chmod(0o444)
    expected = rows_of(plain)[0]["device_events"]
    packed = tmp_path / "a.sqlite.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert rows_of(packed)[0]["device_events"].equals(expected)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.sqlite.gz", plain.name]


@pytest.mark.parametrize(
    ("text", "kind", "name"),
    [
        ("ProfilerStep#12", "annotation", "ProfilerStep#12"),
        ("detscope:phase backward", "own phase", "backward"),
        ("aten::add, op_id = 3", "operator", "aten::add"),
        ("AddmmBackward0, seq = 3, sizes = [[1]]", "operator", "AddmmBackward0"),
        ("forward", "annotation", "forward"),
    ],
)
def test_the_text_of_a_range_says_what_it_is(text: str, kind: str, name: str) -> None:
    assert read_meaning(text)[:2] == (kind, name)


@pytest.mark.parametrize(
    ("text", "number"),
    [("iteration 7", "7"), ("detscope:step 4", "4"), ("Step 90 to 100", None), ("steps", None)],
)
def test_ranges_named_like_steps_are_steps(text: str, number: str | None) -> None:
    found = STEP_RANGE.search(text)
    assert (found.group(1) if found else None) == number


def test_an_export_has_steps_and_operators_as_any_other_recording(tmp_path: Path) -> None:
    tables, sink = rows_of(make(tmp_path / "a.sqlite"))
    steps = tables["steps"].filter(phase="step").select("step", "start_ns", "wall_ns").rows()
    assert steps == [(4, 100, 3050)]
    assert tables["ops"].select("name", "count", "device_ns", "kernels").rows() == [
        ("aten::addmm", 1, 2000, 1)
    ]
    assert sink.info["steps_by"] == "ranges that are named like steps"


def mutated(data: bytes, chance: random.Random) -> bytes:
    kind, place = chance.randrange(3), chance.randrange(len(data))
    if kind == 0:
        return data[:place]
    changed = bytearray(data)
    if kind == 1:
        for _ in range(chance.randrange(1, 30)):
            changed[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    else:
        changed[place : place + 64] = chance.randbytes(64)
    return bytes(changed)


def test_500_damaged_exports_are_read_or_refused_and_never_hang(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole.sqlite").read_bytes()
    chance = random.Random(7)
    read_well = 0
    for _ in range(400):
        path = tmp_path / "damaged.sqlite"
        path.write_bytes(mutated(whole, chance) or b"x")
        begin = process_time()
        try:
            rows_of(path)
            read_well += 1
        except InputError as error:
            assert error.message and error.hint
        assert process_time() - begin < 60
    assert read_well > 50
    values = [None, "text", b"\x00\xff", 1.5, -(2**63), 2**63 - 1, float("inf"), ""]
    path = tmp_path / "types.sqlite"
    for _ in range(100):  # swapped types: SQLite keeps any value in any column
        path.unlink(missing_ok=True)
        make(path)
        connection = sqlite3.connect(path)
        for _ in range(5):
            table = chance.choice(list(TABLES))
            column = chance.choice([part.split()[0] for part in TABLES[table].split(", ")])
            where = "" if chance.random() < 0.5 else " WHERE rowid = 1"
            connection.execute(f"UPDATE {table} SET {column} = ?{where}", (chance.choice(values),))
        connection.commit()
        connection.close()
        try:
            rows_of(path)
        except InputError as error:
            assert error.message and error.hint
