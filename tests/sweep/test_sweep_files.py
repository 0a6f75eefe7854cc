"""Results out of a store and into one: CSV, Parquet, the older toolflow's files."""

from __future__ import annotations

import re
from pathlib import Path

import polars
import pytest
from sweep_samples import RAISES_STATUS, run_plan, write_plan

from detscope.errors import InputError, UsageError
from detscope.sweep.exchange import export_rows, import_older, split_level
from detscope.sweep.store import read_rows

MEMORY = "passed|mem_alloc|mem_reserved|mem_used|mem_avail|free|capacity|test_var|bs|dataset|net_name|model\n"
LATENCY = "passed|latency|test_var|bs|dataset|net_name|model\n"


def older_folder(folder: Path) -> Path:
    for kind, text in (
        (
            "memory",
            MEMORY + "True|128.5|142.0|1641.25|7166.5|5994.0|7859.0|memory|2|imagenet|mnasnet|m/30.pth\n"
            "False|-1|-1|1641.25|7166.5|5994.0|7859.0|memory|256|imagenet|mnasnet|m/30.pth\n",
        ),
        ("latency", LATENCY + "True|128.75|latency|2|imagenet|mnasnet|m/30.pth\n"),
    ):
        path = folder / "older" / kind / "mnasnet_30-gt.csv"
        path.parent.mkdir(parents=True)
        path.write_text(text)
    return folder / "older"


def test_older_files_come_in_and_go_out_as_they_were(tmp_path: Path) -> None:
    source, store = older_folder(tmp_path), tmp_path / "tx2.db"
    assert import_older([source], store, "tx2", "training") == {"files": 2, "rows": 3, "known": 0}
    assert import_older([source], store, "tx2", "training")["known"] == 3  # again: nothing new
    latency, fits, does_not = read_rows(store)
    assert (latency["step_ms"], latency["images_per_s"]) == (128.75, pytest.approx(2000 / 128.75))
    assert (fits["network"], fits["batch_size"], fits["device"], fits["image_size"]) == (
        "mnasnet_30",
        2,
        "tx2",
        224,
    )
    assert fits["allocated_bytes"] == 128.5 * 2**20
    assert fits["device_used_bytes"] == 1641.25 * 2**20
    assert does_not["status"] == "error (failed, says the older file)"
    assert does_not["device_used_bytes"] is None  # stale values are no figures
    export_rows(store, "older", tmp_path / "again")
    for kind in ("memory", "latency"):
        name = f"{kind}/mnasnet_30-gt.csv"
        before, after = (folder.joinpath(name).read_text() for folder in (source, tmp_path / "again"))
        assert before.splitlines()[:2] == after.splitlines()[:2]


def test_our_rows_go_out_as_older_files(tmp_path: Path) -> None:
    run_plan(write_plan(tmp_path, 'network = ["resnet18-l1-p30-s0", "full@2"]\nbatch_size = [1, 2]'))
    paths = export_rows(tmp_path / "plan.db", "older", None)
    assert sorted(path.relative_to(tmp_path / "plan-older").as_posix() for path in paths) == [
        "latency/full_2_0-gt.csv",
        "latency/resnet18_30-gt.csv",
        "memory/full_2_0-gt.csv",
        "memory/resnet18_30-gt.csv",
    ]
    lines = (tmp_path / "plan-older/latency/full_2_0-gt.csv").read_text().splitlines()
    assert lines[1:] == [
        "True|1.5|latency|1|imagenet|full@2|full@2",
        "False|-1|latency|2|imagenet|full@2|full@2",
    ]
    back = import_older([tmp_path / "plan-older"], tmp_path / "back.db", "x", "training")
    assert back["rows"] == 8


@pytest.mark.parametrize("form", ["csv", "parquet"])
def test_every_column_goes_out_and_nothing_is_overwritten(tmp_path: Path, form: str) -> None:
    run_plan(write_plan(tmp_path, 'network = ["a", "raises"]'))
    (path,) = export_rows(tmp_path / "plan.db", form)
    frame = polars.read_csv(path) if form == "csv" else polars.read_parquet(path)
    done, failed = frame["status"].to_list()
    assert done == "ok"
    assert re.fullmatch(RAISES_STATUS, failed)
    assert frame["step_ms"].to_list() == [1.5, None]
    assert '"torch":' in frame["environment_facts"][0]
    with pytest.raises(UsageError, match="exists already"):
        export_rows(tmp_path / "plan.db", form)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a|b\n1|2\n", "not a memory or latency file"),
        (LATENCY + "True|fast|latency|2|imagenet|net|m\n", "line 2: latency: expected a number, got 'fast'"),
        (LATENCY + "True|1.0|latency\n", "line 2: expected 7 values"),
    ],
)
def test_what_is_not_an_older_file_is_refused_and_nothing_is_kept(
    tmp_path: Path, text: str, words: str
) -> None:
    path = tmp_path / "x_0-gt.csv"
    path.write_text(text)
    with pytest.raises(InputError, match=words):
        import_older([path], tmp_path / "a.db", "x", "training")
    assert not (tmp_path / "a.db").exists() or read_rows(tmp_path / "a.db") == []


def test_levels_are_read_from_the_names_of_pruned_networks() -> None:
    def level(network: str, fingerprint: str = "folder:1") -> tuple[str, str]:
        return split_level({"network": network, "fingerprint": fingerprint})

    assert level("nets/resnet18-random-p50-s0") == ("resnet18", "50")
    assert level("squeezenet1_0", "name:squeezenet1_0") == ("squeezenet1_0", "0")
    assert level("mnasnet_35", "older:mnasnet_35") == ("mnasnet", "35")
