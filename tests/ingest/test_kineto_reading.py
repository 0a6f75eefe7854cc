"""A trace reads the same however it is written, and a damaged one as far as it goes."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from time import process_time

import pytest
from kineto_maker import Read, event, launch, read, read_events, training_step

from detscope.errors import DetscopeError, InputError
from detscope.ingest.formats import find_format, kineto
from detscope.ingest.kineto import events as kineto_stream
from detscope.runs.reader import load_run
from detscope.sessions.importing import run_import

EVENTS = training_step() + training_step(2000.0, 2)
KERNELS = 14  # and copies, of two steps


def as_written(tmp_path: Path, text: bytes, packed: bool = False) -> Path:
    path = tmp_path / "odd name without ending"
    path.write_bytes(gzip.compress(text) if packed else text)
    return path


def same(one: Read, other: Read) -> bool:
    tables = set(one.frames) | set(other.frames)
    return all(one.table(name).equals(other.table(name)) for name in tables)


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("as_list", [False, True])
def test_a_trace_reads_the_same_as_list_or_object_packed_or_plain_dense_or_pretty(
    tmp_path, indent, packed, as_list
):
    plain = read_events(tmp_path, EVENTS, distributedInfo={"rank": 0})
    value = EVENTS if as_list else {"schemaVersion": 1, "traceEvents": EVENTS, "distributedInfo": {"rank": 0}}
    path = as_written(tmp_path, json.dumps(value, indent=indent).encode(), packed)
    assert find_format(path) is kineto.PART
    assert same(read(path), plain)


def test_the_size_of_a_chunk_changes_nothing(tmp_path, monkeypatch):
    whole = read_events(tmp_path, EVENTS, first=[{"name": "not an event"}, {"name": "nor this"}])
    text = json.dumps({"traceEvents": EVENTS, "after": [{"name": "x"}, {"name": "y"}]}).encode()
    for size in (97, 1000, 5003):
        monkeypatch.setattr(kineto_stream, "CHUNK_BYTES", size)
        chunked = read(as_written(tmp_path, text))
        assert same(chunked, whole)
        assert chunked.sink.counts == {}


def test_old_and_new_categories_mean_the_same(tmp_path):
    old = {
        "cpu_op": "Operator",
        "user_annotation": "Operator",
        "cuda_runtime": "Runtime",
        "kernel": "Kernel",
        "gpu_memcpy": "Memcpy",
    }
    renamed = [{**one, "cat": old.get(one["cat"], one["cat"])} for one in EVENTS]
    first, second = read_events(tmp_path, EVENTS), read_events(tmp_path, renamed)
    assert first.table("device_events").equals(second.table("device_events"))
    assert first.table("steps").equals(second.table("steps"))


def test_nanoseconds_survive_dates_that_a_float_cannot_hold(tmp_path):
    text = b"""{"traceEvents": [
      {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1712195495519695.812, "dur": 1.001},
      {"ph": "X", "cat": "kernel", "name": "k", "pid": 0, "tid": 7, "ts": 1712195495519698.687, "dur": 0.5}
    ]}"""
    device = read(as_written(tmp_path, text)).table("device_events")
    assert device["start_ns"].to_list() == [1712195495519695812, 1712195495519698687]
    assert device["wall_ns"].to_list() == [1001, 500]


def test_a_base_time_is_added_so_that_files_can_be_compared(tmp_path):
    device = read_events(tmp_path, launch(1, 5, 10.5, 2), baseTimeNanoseconds=10**18).table("device_events")
    assert device["start_ns"].to_list() == [10**18 + 10_500]
    assert device["launch_ns"].to_list() == [10**18 + 5_000]


def test_begin_and_end_marks_are_one_event(tmp_path):
    marks = [
        {"ph": "B", "cat": "cpu_op", "name": "outer", "pid": 1, "tid": 1, "ts": 1},
        {"ph": "B", "cat": "cpu_op", "name": "inner", "pid": 1, "tid": 1, "ts": 2},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 4},
        {"ph": "E", "pid": 1, "tid": 1, "ts": 9},
        {"ph": "B", "cat": "cpu_op", "name": "never ended", "pid": 1, "tid": 1, "ts": 10},
    ]
    found = read_events(tmp_path, marks)
    assert dict(found.host("operator").select("name", "wall_ns").iter_rows()) == {
        "outer": 8000,
        "inner": 2000,
    }
    assert found.sink.counts == {"begin marks without an end dropped": 1}


def test_order_does_not_matter(tmp_path):
    shuffled = list(EVENTS)
    random.Random(1).shuffle(shuffled)
    one, other = read_events(tmp_path, EVENTS), read_events(tmp_path, shuffled)
    assert one.table("device_events").equals(other.table("device_events"))
    assert one.table("steps").equals(other.table("steps"))


def test_a_trace_cut_at_60_percent_gives_what_came_before(tmp_path):
    text = json.dumps({"traceEvents": EVENTS}, indent=1).encode()
    found = read(as_written(tmp_path, text[: len(text) * 6 // 10]))
    assert 0 < found.table("device_events").height < KERNELS
    assert found.sink.info["cut"]
    packed = as_written(tmp_path, text, packed=True)
    packed.write_bytes(packed.read_bytes()[:-200])
    assert read(packed).sink.info["cut"]


def test_what_is_no_number_or_missing_is_dropped_and_counted(tmp_path):
    text = json.dumps({"traceEvents": EVENTS}).encode()
    text = text.replace(b'"dur": 60', b'"dur": NaN', 1).replace(b'"dur": 30', b'"dur": Infinity', 1)
    text = text.replace(b'"ts": 1520.0, ', b"", 1).replace(
        b'"ph": "X", "cat": "kernel"', b'"cat": "kernel"', 1
    )
    found = read(as_written(tmp_path, text))
    assert found.sink.counts["events without dur dropped"] == 2
    assert found.sink.counts["events without ph dropped"] == 1
    assert found.sink.counts["events without ts dropped"] == 1
    assert found.table("device_events").height == KERNELS - 3
    assert found.sink.info["events"] == len(EVENTS)


def test_numbers_of_5000_digits_and_wrong_types_cost_only_their_event(tmp_path):
    text = json.dumps({"traceEvents": EVENTS}).encode()
    text = text.replace(b'"ts": 1240.0', b'"ts": ' + b"9" * 5000, 1)
    text = text.replace(b'"correlation": 103', b'"correlation": {"a": []}', 1)
    text = text.replace(b'"tid": 10', b'"tid": null', 1).replace(b'"dur": 20', b'"dur": "20"', 1)
    found = read(as_written(tmp_path, text))
    assert found.sink.counts == {
        "events without ts dropped": 1,
        "device events without a launch record": 1,
    }


@pytest.mark.parametrize(
    "text",
    [
        b'{"traceEvents": [' + b"[" * 200_000 + b"]" * 200_000 + b"]}",
        b'{"a":' * 200_000 + b'"traceEvents": [',
        b"[]",
        b'{"traceEvents": []}',
        b'{"traceEvents": null}',
        b'[{"ph": "M", "name": "only metadata"}]',
    ],
)
def test_without_a_usable_event_it_is_an_error_of_the_input(tmp_path, text):
    with pytest.raises(InputError) as caught:
        read(as_written(tmp_path, text))
    assert caught.value.exit_code == 3
    assert "\n" not in caught.value.message


def test_nested_brackets_around_good_events_cost_only_what_they_are_in(tmp_path):
    deep = b"[" * 200_000 + b"]" * 200_000
    text = json.dumps({"x": 1, "traceEvents": EVENTS}).encode()
    for place in (b'"x": 1', b'"bytes": 4096'):
        key = place.split(b":")[0]
        path = as_written(tmp_path, text.replace(place, key + b": " + deep, 1))
        assert find_format(path) is kineto.PART
        found = read(path)
        assert found.table("device_events").height >= KERNELS - 1
        assert sum(found.sink.counts.values()) >= 1


def mutated(text: bytes, chance: random.Random) -> bytes:
    """Cut, flipped bytes, swapped types, swallowed or doubled stretches."""
    kind, at = chance.randrange(5), chance.randrange(len(text))
    if kind == 0:
        return text[:at]
    if kind == 1:
        changed = bytearray(text)
        for _ in range(chance.randrange(1, 20)):
            changed[chance.randrange(len(changed))] = chance.randrange(256)
        return bytes(changed)
    if kind == 2:
        values = [b"null", b"true", b"[]", b"{}", b'"text"', b"-1e999", b"NaN", b"18446744073709551616"]
        number = chance.choice([b"10", b"1", b"0", b"7", b"1000", b"60"])
        return text.replace(b": " + number, b": " + chance.choice(values), chance.randrange(1, 30))
    length = chance.randrange(1, 300)
    return text[:at] + (text[at : at + length] * 3 if kind == 3 else b"") + text[at + length :]


def test_500_mutations_never_end_in_a_traceback_or_hang(tmp_path):
    text = json.dumps(
        {"schemaVersion": 1, "traceEvents": training_step(), "traceName": "x"}, indent=1
    ).encode()
    chance = random.Random(20261115)
    path, usable = tmp_path / "mutated.json", 0
    for _ in range(500):
        path.write_bytes(mutated(text, chance))
        begun = process_time()
        try:
            if find_format(path) is kineto.PART:
                read(path)
                usable += 1
        except DetscopeError as error:
            assert error.message
        assert process_time() - begun < 60
    assert usable > 250


def test_what_is_private_is_named_by_key_and_kept_out(tmp_path):
    stack = "/home/somebody/project/train.py(12): step;/home/somebody/project/train.py(40): <module>"
    operator = {**event("cpu_op", "aten::add", 1, 5), "args": {"Call stack": stack}}
    found = read_events(
        tmp_path,
        [operator, event("user_annotation", "load /home/somebody/data", 0, 9)],
        environment={"HF_TOKEN": "hf_verysecret", "PATH": "/bin"},
        username="somebody",
        traceName="/home/somebody/t.json",
    )
    (note,) = found.sink.notes
    for key in ("HF_TOKEN", "username", "traceName", "Call stack"):
        assert key in note
    everything = str(found.sink) + "".join(str(f.to_dicts()) for fs in found.frames.values() for f in fs)
    assert "somebody" not in everything
    assert "hf_verysecret" not in everything
    assert found.host("operator")["stack"].to_list() == ["train.py(12): step"]


@pytest.mark.parametrize(("listed", "name"), [([0, 1], "first"), ([4, 5], "first, second"), ([], None)])
def test_a_device_keeps_its_name_where_the_file_numbers_it_in_another_way(tmp_path, listed, name):
    devices = [
        {"id": number, "name": text} for number, text in zip(listed, ("first", "second"), strict=False)
    ]
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({"deviceProperties": devices, "traceEvents": EVENTS}))
    (run,) = run_import([path], tmp_path).runs
    assert load_run(run).info["device"] == name
