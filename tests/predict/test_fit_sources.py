"""What `fit` and `score` read: which rows are used, which are left out, and that it is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from made_networks import chain
from made_stores import FACTS, identity, keep, listed, result, rows_of

from detscope.errors import InputError, UsageError
from detscope.predict.layers.graph import Convolution, LayerGraph, Operation
from detscope.predict.layers.lists import read_layers, read_networks, write_layers
from detscope.sessions.fit import networks as fit_networks
from detscope.sessions.fit.sources import parse_where, read_measured
from detscope.sweep.exchange import export_rows
from detscope.sweep.outcome import Outcome


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    listed(tmp_path)
    return keep(tmp_path / "plan.db", rows_of())


def test_everything_an_operation_holds_comes_back_from_its_list(tmp_path: Path) -> None:
    layer = Convolution(8, 8, (1, 7), (2, 1), (0, 3), (1, 2), groups=4)
    shape = (1, 8, 9, 10)
    operations = (
        Operation("convolution", (0,), (shape,), 1, shape, (112, 8), layer, "backbone", "body.conv"),
        Operation("odd kind", (1, 0), (shape, (1, 1)), 1, shape),
    )
    graph = LayerGraph("net_5", operations, "family", {"image_size": "9"})
    write_layers(tmp_path / "layers.json", {("net", 5): graph})
    found = read_layers(tmp_path / "layers.json")[("net", 5)]
    assert (found.operations, found.name, found.family) == (graph.operations, graph.name, graph.family)
    assert found.details == graph.details
    assert found.operations[1].in_place


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "of version 2, this detscope reads 1"),
        ({"networks": [{"network": "x"}]}, "is not a list of layers"),
        ({"networks": 3}, "is not a list of layers"),
    ],
)
def test_a_list_of_another_version_or_damaged_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    file = tmp_path / "layers.json"
    write_layers(file, {("net", 0): chain(4)})
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    with pytest.raises(InputError, match=message) as caught:
        read_layers(file)
    assert "\n" not in caught.value.message


def test_a_store_gives_samples_with_level_figures_and_intervals(store: Path) -> None:
    found = read_measured([store])
    assert len(found.samples) == 30
    one = found.samples[4]
    assert (one.network, one.level, one.case.batch, one.device) == ("one", 10, 8, "cpu")
    assert one.latency_ms == pytest.approx(2 + 29 * 8 / 10)
    assert one.latency_low_ms is not None and one.latency_low_ms < one.latency_ms
    assert one.process_bytes == 700_000_000 + 12_000 * 29 * 8
    assert one.reserved_bytes == one.allocated_bytes  # a CPU's allocator holds nothing back
    assert found.kept["environment"] == "a processor, 2 cores, torch 2.15.0"
    assert found.left_out == {}


def test_rows_under_other_conditions_are_left_out_and_counted(store: Path) -> None:
    keep(
        store,
        [
            (identity("one-0", 2, precision="bf16"), Outcome("ok", result=result(32, 2))),
            (identity("one-0", 2, image_size=64), Outcome("ok", result=result(32, 2))),
            (identity("one-0", 2, threads=2), Outcome("ok", result=result(32, 2, torch_threads=2))),
            (identity("one-0", 2, device="cuda:0"), Outcome("ok", result=result(32, 2))),
            (identity("one-0", 2, stage="inference"), Outcome("ok", result=result(32, 2))),
        ],
    )
    keep(store, [(identity("one-0", 2, seed=1), Outcome("ok", result=result(32, 2)))], FACTS | {"cores": 64})
    found = read_measured([store])
    assert len(found.samples) == 30
    said = list(found.left_out)
    assert sum(found.left_out.values()) == 6
    for words in ("bf16", "image_size 64", "threads 2", "device cuda:0", "stage inference", "64 cores"):
        assert any(words in line for line in said), words


@pytest.mark.parametrize(
    ("ends", "words"),
    [
        ({"step_low_ms": 9.0, "step_high_ms": 90.0}, "the interval of its latency is wider than 50 %"),
        ({"step_low_ms": None, "step_high_ms": None}, "too few steps to know its latency"),
    ],
)
def test_a_latency_that_is_hardly_known_is_left_out_and_its_memory_stays(
    store: Path, ends: dict[str, float | None], words: str
) -> None:
    steady = len(read_measured([store]).samples)
    keep(
        store, [(identity("one-0", 32), Outcome("ok", result=result(32, 32, step_ms=10.0, steps=2, **ends)))]
    )
    found = read_measured([store])
    assert len(found.samples) == steady + 1
    (unsteady,) = [one for one in found.samples if one.latency_ms is None]
    assert unsteady.process_bytes is not None
    assert [words in why for why in found.left_out] == [True]


def test_conditions_can_be_chosen(store: Path) -> None:
    keep(store, [(identity("one-0", 2, precision="bf16"), Outcome("ok", result=result(32, 2)))])
    found = read_measured([store], where=parse_where("precision=bf16"))
    assert (len(found.samples), found.kept["precision"]) == (1, "bf16")
    with pytest.raises(InputError, match="no row has device cuda:7"):
        read_measured([store], where=parse_where(None, "cuda:7"))
    with pytest.raises(UsageError, match="'speed=9' is no condition"):
        parse_where("speed=9")


def test_out_of_memory_is_kept_and_other_failures_are_counted(store: Path) -> None:
    keep(
        store,
        [
            (identity("one-0", 64), Outcome("oom_host")),
            (identity("one-0", 128), Outcome("skipped", "out of memory at batch 64")),
            (identity("one-0", 256), Outcome("timeout")),
            (identity("one-0", 512), Outcome("crashed", "SIGSEGV")),
        ],
    )
    found = read_measured([store])
    failed = [one for one in found.samples if not one.passed]
    assert [(one.case.batch, one.latency_ms) for one in failed] == [(64, None)]
    assert found.left_out == {"skipped by the sweep": 1, "failed: timeout": 1, "failed: crashed": 1}


def test_an_exported_csv_is_the_same_as_its_store(store: Path) -> None:
    (csv,) = export_rows(store, "csv")
    ours, theirs = read_measured([store]).samples, read_measured([csv]).samples
    figures = [
        [(one.network, one.level, one.case.batch, one.latency_ms, one.process_bytes) for one in samples]
        for samples in (ours, theirs)
    ]
    assert figures[0] == figures[1]


def test_on_a_device_what_it_has_in_use_counts_and_not_the_process(tmp_path: Path) -> None:
    listed(tmp_path)
    figures = result(32, 2, reserved_bytes=5_000_000, device_used_bytes=900_000_000)
    store = keep(tmp_path / "a.db", [(identity("one-0", 2, device="cuda:0"), Outcome("ok", result=figures))])
    (one,) = read_measured([store]).samples
    assert (one.reserved_bytes, one.process_bytes) == (5_000_000, 900_000_000)


def test_what_was_imported_from_older_files_finds_the_older_list_of_layers(tmp_path: Path) -> None:
    shape = [1, 4, 8, 8]
    more = {"ic": 4, "oc": 4, "k": 3, "stride": 1, "pad": 1, "groups": 1, "params": 144}
    (tmp_path / "layers.json").write_text(json.dumps({"net_30": [["conv", 0, shape, 1, shape, more]]}))
    older = {"fingerprint": "older:net_30", "threads": None}
    memory = {"allocated_bytes": 1 << 20, "reserved_bytes": 2 << 20, "device_used_bytes": 3 << 20}
    store = keep(
        tmp_path / "tx2.db",
        [
            (identity("net_30", 2, variables="memory", **older), Outcome("ok", result=memory)),
            (identity("net_30", 64, variables="memory", **older), Outcome("error", "failed")),
            (identity("net_30", 2, variables="latency", **older), Outcome("ok", result={"step_ms": 3.0})),
        ],
        {"imported": "files of the older toolflow"},
    )
    found = read_measured([store])
    assert [(one.network, one.level, one.passed) for one in found.samples] == [
        ("net", 30, True),
        ("net", 30, False),
        ("net", 30, True),
    ]
    assert found.samples[0].process_bytes == 3 << 20


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([], "no trial of this sweep has ended yet"),
        ([(identity("one-0", 2), Outcome("timeout"))], "1 rows: failed: timeout"),
        (
            [(identity("unheard_of", 2), Outcome("ok", result=result(1, 2)))],
            "network unheard_of: no network named 'unheard_of'",
        ),
        (
            [
                (
                    identity("gone/net", 2, fingerprint="folder:1"),
                    Outcome("ok", result=result(1, 2)),
                )
            ],
            "network gone/net: its folder or file is not there",
        ),
    ],
)
def test_a_store_that_teaches_nothing_is_one_clear_line(
    tmp_path: Path, rows: list[tuple[dict[str, Any], Outcome]], message: str
) -> None:
    store = keep(tmp_path / "a.db", rows)
    with pytest.raises(InputError, match=message) as caught:
        read_measured([store])
    assert "\n" not in caught.value.message


def test_networks_are_traced_once_and_then_read_without_torch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [(identity("squeezenet1_1", batch), Outcome("ok", result=result(8, batch))) for batch in (2, 4)]
    store = keep(tmp_path / "a.db", rows)
    first = read_measured([store])
    assert "layers of 1 networks were traced" in first.notes[0]
    graph = first.samples[0].case.graph
    assert first.samples[1].case.graph is graph
    assert graph.input_shape == (1, 3, 32, 32)

    def never(*_: object) -> None:
        raise AssertionError("traced again")

    monkeypatch.setattr(fit_networks, "_trace_layers", never)
    again = read_measured([store])
    assert again.notes == []
    assert again.samples[0].case.graph.operations == graph.operations
    assert (again.samples[0].network, again.samples[0].level) == ("squeezenet1_1", 0)


def test_an_older_list_of_layers_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "layers.json").write_text(json.dumps({"net_30": []}))
    store = keep(tmp_path / "a.db", [(identity("squeezenet1_1", 2), Outcome("ok", result=result(8, 2)))])
    read_measured([store])
    assert json.loads((tmp_path / "layers.json").read_text()) == {"net_30": []}
    assert [one.network for one in read_networks(tmp_path / "layers.traced.json")] == ["squeezenet1_1"]


def made_run(folder: Path, batch: int, verb: str = "train", **other: Any) -> Path:
    """A run as `detscope train` leaves it: half of a step is waiting for data."""
    import polars as pl

    folder.mkdir(parents=True)
    info = {
        "schema": 1,
        "verb": verb,
        "status": "ok",
        "device": "cpu",
        "model": {"name": "one-0"},
        "batch_size": batch,
        "precision": "fp32",
        "settings": {"training": {"optimizer": "sgd"}, "model": {"image_size": None}},
        "environment": {
            "cpu": {"model": "a processor", "usable_cores": 2},
            "packages": {"torch": "2.15.0"},
            "threads": {"torch": 1},
        },
    }
    (folder / "run.json").write_text(json.dumps(info | other))
    rows = [
        {"step": step, "epoch": 0, "mode": "recorded", "phase": phase, "start_ns": 0, "wall_ns": wall}
        for step in range(7)
        for phase, wall in (("step", 2_000_000 * batch), ("data", 1_000_000 * batch))
    ]
    pl.DataFrame(rows).write_parquet(folder / "steps.parquet")
    pixels = [{"step": step, "images": batch, "network_pixels": batch * 1024} for step in range(7)]
    pl.DataFrame(pixels).write_parquet(folder / "content.parquet")
    return folder


def test_a_folder_of_runs_gives_steps_without_waiting_for_data(tmp_path: Path) -> None:
    runs = tmp_path / "runs"
    for batch in (2, 4):
        made_run(runs / f"run-{batch}", batch)
    (runs / "latest").symlink_to("run-4")
    made_run(runs / "script", 2, "run", model={"name": "Mine"})
    made_run(runs / "broken", 2, status="failed", reason="out of ideas")
    listed(runs)
    found = read_measured([runs])
    assert [(one.network, one.case.batch, one.latency_ms) for one in found.samples] == [
        ("one", 2, 2.0),
        ("one", 4, 4.0),
    ]
    assert found.kept["environment"] == "a processor, 2 cores, torch 2.15.0"  # as a sweep says it
    assert found.left_out == {
        "it failed: out of ideas": 1,
        "a network inside a script or a file (Mine) cannot be built again": 1,
    }
    with pytest.raises(InputError, match=r"script: a network inside a script .*Mine.* cannot be built again"):
        read_measured([runs / "script"])


def test_stores_runs_and_exports_are_welcome_in_one_call(store: Path) -> None:
    runs = store.parent / "runs"
    made_run(runs / "one", 2)
    listed(runs)
    keep(store.parent / "more.db", rows_of(seed=1)[:4])
    found = read_measured([store, runs, store.parent / "more.db"], where=parse_where("image_size=32"))
    assert len(found.samples) == 34
    assert found.left_out == {"image_size own (kept: 32; --where image_size=... chooses)": 1}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ("net,0,4,nan", "line 2: .*nan was never measured"),
        ("net,0,4,-3.5", "line 2: .*-3.5 was never measured"),
        ("net,0,4,inf", "line 2: .*inf was never measured"),
        ('net,0,4,"' + "x" * 200_000, "line 2: field larger than field limit"),
    ],
)
def test_rows_that_nobody_measured_are_refused_with_their_line(tmp_path: Path, row: str, told: str) -> None:
    write_layers(tmp_path / "layers.json", {("net", 0): chain(4)})
    (tmp_path / "mine.csv").write_text(f"net,level,bs,latency\n{row}\n")
    with pytest.raises(InputError, match=rf"mine\.csv, {told}"):
        read_measured([tmp_path / "mine.csv"])
