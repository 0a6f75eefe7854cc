"""Sound files of every kind that `bench.mutated` spoils, and how each is spoilt and asked about. No torch."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

from bench.mutations import BYTEWISE, STRUCTURAL, as_json, mutate_tree

Arguments = list[list[str]]


@dataclass(frozen=True)
class Subject:
    """One kind of file: makes a case in a folder, and the commands that read it."""

    group: str
    name: str
    spoil: Callable[[Path, str, Random], Arguments]  # folder of the case, kind of mutation


def make_subjects(base: Path) -> list[Subject]:
    """All kinds, with sound files below `base`."""
    base.mkdir(parents=True)
    return [coco(base), run_json(base), run_table(base), plan(base), device_model(base), store(base)]


def spoil_json(tree: Any, kind: str, draw: Random) -> bytes:
    """JSON, spoilt."""
    if kind in STRUCTURAL:
        return as_json(mutate_tree(tree, kind, draw))
    return BYTEWISE[kind](json.dumps(tree).encode(), draw)


def coco(base: Path) -> Subject:
    from PIL import Image

    images = [
        {"id": n, "file_name": f"{n}.jpg", "width": 96, "height": 72, "license": 1} for n in range(1, 5)
    ]
    for image in images:
        Image.new("RGB", (96, 72), (40 * int(image["id"]), 9, 9)).save(base / str(image["file_name"]))
    rows = [
        {
            "id": number,
            "image_id": number % 4 + 1,
            "category_id": (1, 18)[number % 2],
            "bbox": [5.5, 6, 30, 40],
            "area": 1200,
            "iscrowd": 0,
            "segmentation": [[5, 6, 35, 6, 35, 46, 5, 46]],
        }
        for number in range(1, 9)
    ]
    rows[-1] |= {"iscrowd": 1, "segmentation": {"size": [72, 96], "counts": [0, 72, 96 * 72 - 72]}}
    names = ["left_eye", "right_eye"]
    categories = [{"id": 1, "name": "person", "keypoints": names}, {"id": 18, "name": "dog"}]
    tree = {"info": {"year": 2017}, "images": images, "annotations": rows, "categories": categories}

    def spoil(folder: Path, kind: str, draw: Random) -> Arguments:
        for image in images:
            shutil.copy(base / str(image["file_name"]), folder)
        (folder / "instances.json").write_bytes(spoil_json(tree, kind, draw))
        return [["data", "check", str(folder), "--out", str(folder / "checks"), "-q"]]

    return Subject("COCO json", "COCO json", spoil)


def _run(base: Path) -> Path:
    """An imported trace: the run of a detector's operators, kernels, steps and modules."""
    from bench.importing import generate
    from detscope.ingest.recordings import import_files

    found = base / "run"
    if not found.exists():
        generate(base / "trace.json", 60_000)
        made = import_files([base / "trace.json"], base / "runs").runs[0]
        made.rename(found)
    return found


def _ask_run(folder: Path) -> Arguments:
    run = str(folder / "runs" / "one")
    return [
        ["show", run],
        ["runs", str(folder / "runs")],
        ["report", run, "--format", "md", "--out", str(folder / "report.md")],
    ]


def run_json(base: Path) -> Subject:
    whole = _run(base)
    tree = json.loads((whole / "run.json").read_text())

    def spoil(folder: Path, kind: str, draw: Random) -> Arguments:
        shutil.copytree(whole, folder / "runs" / "one")
        (folder / "runs" / "one" / "run.json").write_bytes(spoil_json(tree, kind, draw))
        return _ask_run(folder)

    return Subject("run.json + tables", "run.json", spoil)


def run_table(base: Path) -> Subject:
    import polars as pl

    whole = _run(base)
    tables = sorted(path.name for path in whole.glob("*.parquet"))

    def spoil(folder: Path, kind: str, draw: Random) -> Arguments:
        shutil.copytree(whole, folder / "runs" / "one")
        path = folder / "runs" / "one" / draw.choice(tables)
        if kind in BYTEWISE:
            path.write_bytes(BYTEWISE[kind](path.read_bytes(), draw))
            return _ask_run(folder)
        frame = pl.read_parquet(path)
        name = draw.choice(frame.columns)
        if kind == "types swapped":
            other = pl.String if frame.schema[name] != pl.String else pl.List(pl.Int64)
            values = pl.lit("text", other) if other == pl.String else pl.lit([1], other)
            frame = frame.with_columns(values.alias(name))
        elif kind == "depth":
            frame = frame.with_columns(pl.concat_list([pl.concat_list([pl.col(name)])]).alias(name))
        elif kind == "huge numbers":
            number = draw.choice((2**62, -(2**62), -1))
            kind_of = frame.schema[name] if frame.schema[name].is_numeric() else pl.Int64
            frame = frame.with_columns(pl.lit(number).cast(kind_of, strict=False).alias(name))
        elif kind == "NUL and strange texts":
            frame = frame.with_columns(pl.lit("a\0\x1b[2J").alias(name))
        elif kind == "duplicates":
            frame = pl.concat([frame] * 20)
        else:
            frame = draw.choice(
                (frame.drop(name), frame.clear(), frame.with_columns(pl.lit(None).alias(name)))
            )
        frame.write_parquet(path)
        return _ask_run(folder)

    return Subject("run.json + tables", "tables", spoil)


def plan(base: Path) -> Subject:  # noqa: ARG001
    tree = {
        "sweep": {"name": "mine", "repetitions": 2, "order": "batch", "seed": 3},
        "axes": {
            "network": ["resnet18", "vgg11"],
            "batch_size": [1, 2, 4],
            "stage": ["training", "inference"],
            "image_size": [64],
            "device": "cpu",
        },
        "limits": {"time_s": 60.0, "memory": "4GiB", "retries": 1},
        "measure": {"min_steps": 6, "max_steps": 50, "target_interval": 0.05},
        "trials": [{"network": "alexnet", "batch_size": [8, 16]}],
        "exclude": [{"network": "vgg*", "batch_size": ">= 2"}],
    }

    def spoil(folder: Path, kind: str, draw: Random) -> Arguments:
        spoilt = mutate_tree(tree, kind, draw) if kind in STRUCTURAL else tree
        data = as_toml(spoilt)
        if kind in BYTEWISE:
            data = BYTEWISE[kind](data, draw)
        (folder / "plan.toml").write_bytes(data)
        return [["sweep", str(folder / "plan.toml"), "--dry-run"]]

    return Subject("plans, device models, stores", "plans", spoil)


def as_toml(tree: dict[str, Any]) -> bytes:
    """TOML of tables of values, whatever the values are; what it has no word for becomes a text."""
    lines = []
    for key, value in tree.items():
        rows = (
            value if isinstance(value, list) and value and all(isinstance(v, dict) for v in value) else None
        )
        for part in rows or [value]:
            if isinstance(part, dict):
                lines.append(f"[[{key}]]" if rows else f"[{key}]")
                lines += [f"{json.dumps(name)} = {_toml_value(item)}" for name, item in part.items()]
            else:
                lines.insert(0, f"{json.dumps(key)} = {_toml_value(value)}")
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _toml_value(value: Any) -> str:
    if isinstance(value, dict):
        inside = ", ".join(f"{json.dumps(name)} = {_toml_value(item)}" for name, item in value.items())
        return f"{{{inside}}}"
    if isinstance(value, list):
        try:
            return f"[{', '.join(map(_toml_value, value))}]"
        except RecursionError:
            return "[" * 3000 + "]" * 3000
    if value is None:
        return '""'
    if isinstance(value, float):
        return repr(value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else json.dumps(value)


def device_model(base: Path) -> Subject:
    from detscope.predict.device.file import save_model
    from detscope.predict.device.model import fit_device
    from detscope.predict.layers.graph import Convolution, LayerGraph, Operation
    from detscope.predict.layers.kinds import CONVOLUTION, RELU
    from detscope.predict.layers.lists import ListedNetwork, write_networks
    from detscope.predict.samples import StepCase, StepSample

    def network(channels: int, depth: int, name: str) -> LayerGraph:
        operations, inside = [], 3
        for place in range(depth):
            given, made = (1, inside, 32, 32), (1, channels, 32, 32)
            layer = Convolution(inside, channels, (3, 3), padding=(1, 1))
            weights = (inside * channels * 9,)
            operations.append(Operation(CONVOLUTION, (place,), (given,), place + 1, made, weights, layer))
            operations.append(Operation(RELU, (place + 1,), (made,), place + 1, made))
            inside = channels
        return LayerGraph(name, tuple(operations), family=name)

    samples = [
        StepSample(
            StepCase(network(64 - level // 2, 3 + number, f"net{number}"), batch),
            f"net{number}",
            level,
            latency_ms=2 + batch * (3 + number) * (64 - level // 2) / 40,
            process_bytes=1e9 + 1e6 * batch * (64 - level // 2),
            reserved_bytes=1e6 * batch * (64 - level // 2),
        )
        for number in range(3)
        for level in (0, 20, 40, 60)
        for batch in (2, 8, 32)
    ]
    write_networks(base / "layers.json", [ListedNetwork("small", 0, network(24, 3, "small"))])
    trees = []
    for method in ("hybrid", "trees"):
        save_model(fit_device(samples, method=method), base / f"{method}.model")
        trees.append(json.loads((base / f"{method}.model").read_text()))

    def spoil(folder: Path, kind: str, draw: Random) -> Arguments:
        tree = trees[draw.random() < 0.2]  # a forest takes a second to load
        (folder / "m.model").write_bytes(spoil_json(tree, kind, draw))
        network = f"{base / 'layers.json'}:small"
        return [["predict", network, "--device-model", str(folder / "m.model"), "--batch-sizes", "1,8"]]

    return Subject("plans, device models, stores", "device models", spoil)


_SQL_VALUES = ("x'00ff'", "1.5", "7", "'text'")
RECURSIVE = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i FROM n"


def store(base: Path) -> Subject:
    from detscope.sweep.outcome import Outcome
    from detscope.sweep.store import COLUMNS, SweepStore

    whole = base / "store.db"
    with SweepStore(whole, create=True) as opened:
        environment = opened.keep_environment({"processor": "one", "packages": {"torch": "2.10"}})
        opened.keep_plan("mine", "[axes]", {"a": 1}, [("t1", "words", "cpu")])
        for batch in (1, 2, 4, 8):
            key = f"t{batch}"
            identity = {"trial": key, "configuration": key, "device": "cpu", "environment": environment}
            identity |= {"repetition": 0, "network": "net", "stage": "training", "batch_size": batch}
            identity |= {"variables": "latency", "fingerprint": "name:net"}
            result = {"step_ms": 2.0 * batch, "images_per_s": 500.0, "process_bytes": 10**9, "level": 0}
            opened.record_attempt(identity, Outcome("ok", result=result))

    def spoil(folder: Path, kind: str, draw: Random) -> Arguments:
        path = folder / "s.db"
        data = whole.read_bytes()
        path.write_bytes(BYTEWISE[kind](data, draw) if kind in BYTEWISE else data)
        if kind in STRUCTURAL:
            connection = sqlite3.connect(path)
            connection.execute("PRAGMA writable_schema = ON")
            for statement in _spoiling(kind, draw.choice([*COLUMNS]), draw):
                connection.execute(statement)
            connection.commit()
            connection.close()
        out = str(folder / "s.csv")
        return [
            ["sweep", "status", str(path)],
            ["sweep", "export", str(path), "--out", out],
            ["report", str(path)],
        ]

    return Subject("plans, device models, stores", "stores", spoil)


def _spoiling(kind: str, column: str, draw: Random) -> list[str]:
    """SQL that spoils a store."""
    one = "WHERE rowid = 2"
    ignored = "UPDATE OR IGNORE attempts SET"
    nested = "'" + "[" * 100_000 + "'"
    return {
        "types swapped": [f"{ignored} {column} = {draw.choice(_SQL_VALUES)} {one}"],
        "depth": draw.choice(
            (
                [f"UPDATE attempts SET more = {nested}"],
                [f"UPDATE environments SET facts = {nested}"],
                ["ALTER TABLE attempts RENAME TO other", f"CREATE VIEW attempts AS {RECURSIVE}"],
            )
        ),
        "huge numbers": [
            f"{ignored} {column} = {draw.choice(('9e999', '9223372036854775807', '-1', '1e300'))} {one}"
        ],
        "NUL and strange texts": [f"{ignored} {column} = 'a' || char(0) || char(27) || '[2J' {one}"],
        "duplicates": draw.choice(
            (
                ["INSERT INTO planned SELECT plan, position, trial || rowid, words, device FROM planned"],
                ["CREATE TRIGGER t AFTER INSERT ON plans BEGIN DELETE FROM plans; END"],
                [f"CREATE TABLE more_{column} AS SELECT * FROM attempts"],
            )
        ),
        "parts missing": draw.choice(
            (
                ["DROP TABLE planned"],
                ["DELETE FROM attempts"],
                ["DELETE FROM environments"],
                [f"DELETE FROM attempts {one}"],
                [f"UPDATE OR IGNORE attempts SET {column} = NULL WHERE {column} IS NOT NULL AND 0"],
            )
        ),
    }[kind]
