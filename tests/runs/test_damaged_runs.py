"""A damaged run is one clear line that names file and reason, and costs that run alone."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import polars as pl
import pytest

from detscope.analyze.compare.runs import compare_runs
from detscope.analyze.run_list import list_runs
from detscope.analyze.summary import summarize
from detscope.cli.main import app
from detscope.errors import InputError, UsageError
from detscope.report.notebook import loaded
from detscope.runs.folder import find_run
from detscope.runs.reader import load_run
from detscope.runs.writer import RunWriter
from detscope.sessions.fit.sources import MeasuredSamples, _read_path

INFO = {
    "device": "cpu",
    "level": "modules",
    "batch_size": 2,
    "stages": ["backbone"],
    "model": {"name": "net", "parameters": 10},
    "data": {"name": "synthetic", "images": 8},
    "settings": {"training": {"optimizer": "sgd"}},
    "environment": {"cpu": {"model": "x", "usable_cores": 2}, "gpus": {"devices": [], "reason": "none"}},
    "operators": {"steps": 1, "backward_attributed": 1.0},
    "costs": {"images": 2, "peak": {"peak_flops_per_s": 1e9, "bandwidth_bytes_per_s": 1e9}},
    "memory": {"live_bytes": {"parameters": 4}},
    "ranks": {"count": 2, "members": [{"rank": 0, "status": "ok"}], "missing": [1]},
    "sources": [{"file": "a.json", "rank": 0, "counts": {"cut": 1}}],
    "script": {"name": "a.py", "parts": {"training": {"steps": 3}}, "roots": [{"class": "Net"}]},
    "notes": ["one"],
}


def write_run(parent: Path) -> Path:
    writer = RunWriter(parent, "train", "net", INFO)
    for step in range(8):
        start = step * 1000
        rows = [
            (step, 0, "recorded", "step", start, 900, None),
            (step, 0, "recorded", "data", start, 90, None),
        ]
        writer.append_rows("steps", [*rows, (step, 0, "recorded", "forward", start + 90, 800, None)])
        writer.append_rows("losses", [(step, "loss", 1.0)])
    writer.close_run("ok")
    return writer.folder


def rewrite_json(change: Callable[[dict], object]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        info = json.loads((folder / "run.json").read_text())
        change(info)
        (folder / "run.json").write_text(json.dumps(info))

    return apply


def fill_json(content: bytes) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / "run.json").write_bytes(content)

    return apply


def replace_by_folder(name: str) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        (folder / name).unlink()
        (folder / name).mkdir()

    return apply


def rewrite_steps(change: Callable[[pl.DataFrame], pl.DataFrame]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        change(pl.read_parquet(folder / "steps.parquet")).write_parquet(folder / "steps.parquet")

    return apply


DAMAGED_JSON = {
    "empty": fill_json(b""),
    "NUL": fill_json(b"\x00" * 64),
    "a list": fill_json(b"[]"),
    "a number": fill_json(b"7"),
    "not UTF-8": fill_json(b'{"schema": 1, "verb": "\xff\xfe"}'),
    "too deep": fill_json(b'{"schema": 1, "model": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"),
    "deep objects": fill_json(b'{"schema": 1, "x": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_000 + b"}"),
    "a huge number": fill_json(b'{"schema": 1, "batch_size": ' + b"9" * 400 + b"}"),
    "no schema": fill_json(b"{}"),
    "schema is a text": fill_json(b'{"schema": "1"}'),
    "a folder": replace_by_folder("run.json"),
    "a link to nowhere": lambda folder: (
        (folder / "run.json").unlink(),
        (folder / "run.json").symlink_to("gone"),
    ),
    **{
        f"{key} is a {type(value).__name__}": rewrite_json(
            lambda info, key=key, value=value: info.update({key: value})
        )
        for key in (
            "model",
            "data",
            "settings",
            "environment",
            "operators",
            "costs",
            "memory",
            "ranks",
            "sources",
        )
        for value in ("text", 7)
    },
    "stages hold a number": rewrite_json(lambda info: info.update(stages=[1])),
    "notes are a text": rewrite_json(lambda info: info.update(notes="one")),
    "batch size is a text": rewrite_json(lambda info: info.update(batch_size="two")),
    "batch size is negative": rewrite_json(lambda info: info.update(batch_size=-1)),
    "gpus are a list": rewrite_json(lambda info: info["environment"].update(gpus=[])),
    "members are texts": rewrite_json(lambda info: info["ranks"].update(members=["a"])),
    "a peak without its bandwidth": rewrite_json(
        lambda info: info["costs"]["peak"].pop("bandwidth_bytes_per_s")
    ),
    "script parts are lists": rewrite_json(lambda info: info["script"].update(parts={"training": []})),
    "a pipe that nobody writes to": lambda folder: (
        (folder / "run.json").unlink(),
        os.mkfifo(folder / "run.json"),
    ),
}
DAMAGED_TABLES = {
    "cut": lambda folder: (folder / "steps.parquet").write_bytes(
        (folder / "steps.parquet").read_bytes()[:-40]
    ),
    "empty": lambda folder: (folder / "steps.parquet").write_bytes(b""),
    "no Parquet": lambda folder: (folder / "steps.parquet").write_bytes(b"PAR1" + b"\xff" * 500 + b"PAR1"),
    "a folder": replace_by_folder("steps.parquet"),
    "without steps": rewrite_steps(lambda steps: steps.drop("step")),
    "steps are texts": rewrite_steps(lambda steps: steps.cast({"step": pl.String})),
    "phases are numbers": rewrite_steps(lambda steps: steps.with_columns(phase=pl.lit(1))),
    "times with gaps": rewrite_steps(
        lambda steps: steps.with_columns(
            wall_ns=pl.when(pl.col("step") == 3).then(None).otherwise(pl.col("wall_ns"))
        )
    ),
    "times are lists": rewrite_steps(lambda steps: steps.with_columns(wall_ns=pl.lit([1, 2]))),
}


@pytest.mark.parametrize("damage", DAMAGED_JSON)
def test_a_damaged_run_json_is_named_and_the_other_runs_are_listed(tmp_path, damage, capsys):
    good, bad = write_run(tmp_path), write_run(tmp_path)
    DAMAGED_JSON[damage](bad)
    with pytest.raises(InputError, match=r"run\.json is damaged: ."):
        load_run(bad)
    rows = {row.name: row for row in list_runs(tmp_path)}
    assert rows[good.name].status == "ok"
    assert rows[bad.name].status == "damaged"
    found = MeasuredSamples()
    assert len(list(_read_path(tmp_path, found))) + sum(found.left_out.values()) == 2
    assert any("is damaged" in why for why in found.left_out)
    for verb in (["show", str(bad)], ["report", str(bad)], ["compare", str(good), str(bad)]):
        with pytest.raises(SystemExit) as ended:
            app(verb, prog_name="detscope")
        assert ended.value.code == 3
        assert capsys.readouterr().err.startswith("error: ")
    with pytest.raises(SystemExit) as ended:
        app(["runs", str(tmp_path)], prog_name="detscope")
    assert ended.value.code == 0
    shown = capsys.readouterr().out
    assert good.name[-4:] in shown
    assert "run.json is damaged" in shown


@pytest.mark.parametrize("damage", DAMAGED_TABLES)
def test_a_damaged_table_is_named_with_its_reason(tmp_path, damage):
    good, bad = write_run(tmp_path), write_run(tmp_path)
    rewrite_json(lambda info: info.pop("ranks"))(bad)
    DAMAGED_TABLES[damage](bad)
    for read in (summarize, lambda run: load_run(run).table("steps", ["step", "phase", "wall_ns"])):
        with pytest.raises(InputError, match=r"steps\.parquet is damaged: ."):
            read(bad)
    with pytest.raises(InputError, match=r"steps\.parquet"):
        compare_runs(load_run(good), [load_run(bad)])
    found = MeasuredSamples()
    list(_read_path(tmp_path, found))
    assert any("steps.parquet is damaged" in why for why in found.left_out)


def test_unknown_keys_and_columns_are_nobodys_business(tmp_path):
    run = write_run(tmp_path)
    rewrite_json(lambda info: info.update(later={"than": "us"}, model={"name": "net", "colour": [1]}))(run)
    rewrite_steps(lambda steps: steps.with_columns(later=pl.lit("x")))(run)
    assert summarize(run).step_ms.n == 8


def test_figures_that_are_no_numbers_still_make_a_page(tmp_path):
    from detscope.report.files import write_report

    run = write_run(tmp_path)
    losses = pl.read_parquet(run / "losses.parquet")
    losses.with_columns(value=pl.lit(float("nan"))).write_parquet(run / "losses.parquet")
    assert write_report(run, "html").stat().st_size > 1000


@pytest.mark.parametrize("file", ["evaluation.json", "predicted.json"])
@pytest.mark.parametrize(
    "content", ["", "[]", "7", '{"coco_box": 1, "version": 1, "compared": [1]}', '{"a":' * 9999]
)
def test_damaged_files_beside_the_tables_are_named(tmp_path, file, content):
    run = write_run(tmp_path)
    rewrite_json(lambda info: info.update(verb="eval"))(run)
    (run / file).write_text(content)
    with pytest.raises(InputError, match=f"{file} is damaged"):
        summarize(run)


@pytest.mark.parametrize("name", ["/not/there", "a\0b", "x" * 5000, "[", "**", "../..", "~"])
def test_a_name_that_fits_no_run_is_said_to_fit_none(tmp_path, name):
    write_run(tmp_path)
    with pytest.raises(InputError):
        find_run(name, tmp_path)


def test_a_run_that_lost_a_table_shows_the_rest(tmp_path):
    run = write_run(tmp_path)
    (run / "losses.parquet").unlink()
    assert summarize(run).step_ms.n == 8
    shutil.rmtree(run)
    with pytest.raises(InputError, match="is not a run"):
        load_run(run)


@pytest.mark.parametrize("name", ["of [1] and [!2", "a*?", os.fsdecode(b"\xff\xfe"), "\x1b[2J"])
def test_a_run_is_read_whatever_its_folder_is_called(tmp_path, name, capsys):
    run = write_run(tmp_path / "whole").rename(tmp_path / name)
    assert summarize(load_run(run)).step_ms.n == 8
    assert loaded.load_run(run).rows["steps"] == 24
    assert [row.ms is not None for row in list_runs(tmp_path)] == [True]
    with pytest.raises(SystemExit) as ended:
        app(["runs", str(tmp_path)], prog_name="detscope")
    assert ended.value.code == 0
    assert "\x1b" not in capsys.readouterr().out


@pytest.mark.parametrize("since", ["", "9999999-01-01", "yesterday", "2026-13-01"])
def test_a_day_that_is_none_is_refused_before_runs_are_read(tmp_path, since):
    with pytest.raises(UsageError, match="is not a date"):
        list_runs(tmp_path, since=since)
    assert len([write_run(tmp_path), *list_runs(tmp_path, since="2026-01-01T10:15")]) == 2
    assert not list_runs(tmp_path, since="9999-12-31")
