"""`detscope schema`: nodes are typed, objects closed, and changes that break readers noticed."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from detscope.analyze.findings.listing import list_findings
from detscope.analyze.schema import SUBJECTS, make_schema
from detscope.analyze.summary import SUMMARY_SCHEMA, summarize
from detscope.analyze.sweep.figures import summarize_sweep
from detscope.cli.main import app
from detscope.runs.reader import load_run
from detscope.runs.standard_json import as_standard_json
from detscope.runs.writer import RunWriter
from memory_samples import a_step, block, state, write_run
from schema_check import check_summary

STORED = Path(__file__).with_name("summary_schema.json")
OLD_RUNS = sorted(path.parent for path in (Path(__file__).parents[1] / "old_runs").glob("*/run.json"))
Node = Mapping[str, Any]


def nodes_of(node: Node, at: str = "") -> Iterator[tuple[str, Node]]:
    """A node and all inside of it, with the way to each."""
    yield at, node
    for key in ("properties", "$defs"):
        for name, inner in node.get(key, {}).items():
            yield from nodes_of(inner, f"{at}.{name}")
    lists = [*node.get("anyOf", ()), *node.get("prefixItems", ())]
    for inner in (*lists, node.get("items"), node.get("additionalProperties")):
        if isinstance(inner, Mapping):
            yield from nodes_of(inner, f"{at}[]")


@pytest.mark.parametrize("subject", SUBJECTS)
def test_the_command_prints_a_valid_schema_without_an_untyped_node(subject) -> None:
    printed = CliRunner().invoke(app, ["schema", subject])
    assert printed.exit_code == 0
    schema = json.loads(printed.stdout)
    Draft202012Validator.check_schema(schema)
    kinds = {"type", "anyOf", "$ref", "enum"}
    assert [at for at, node in nodes_of(schema) if not kinds & node.keys()] == []
    assert [at for at, node in nodes_of(schema) if node.get("type") == "array" and not _has_items(node)] == []
    assert all(definition["description"] for definition in schema["$defs"].values())


def _has_items(node: Node) -> bool:
    return "items" in node or "prefixItems" in node


@pytest.mark.parametrize("subject", ["summary", "sweep", "findings"])
def test_figures_allow_nothing_beside_what_is_named_and_each_is_described(subject) -> None:
    schema = make_schema(subject)
    objects = [(at, node) for at, node in nodes_of(schema) if node.get("type") == "object"]
    assert [at for at, node in objects if node.get("additionalProperties") is not False] == []
    fields = [(f"{at}.{name}", field) for at, node in objects for name, field in node["properties"].items()]
    assert [at for at, field in fields if not _is_described(field)] == []


def _is_described(field: Node) -> bool:
    """By a comment, by the docstring of its type, or as a definition in words."""
    if "description" in field or "$ref" in field or isinstance(field.get("default"), str):
        return True
    inner = [*field.get("anyOf", ()), field.get("items")]
    return any(_is_described(one) for one in inner if isinstance(one, Mapping))


def test_an_unknown_subject_is_wrong_use_and_names_the_known() -> None:
    done = CliRunner().invoke(app, ["schema", "figures"])
    assert done.exit_code == 2
    assert "summary, run, sweep, findings" in done.stderr


def test_the_schema_needs_no_torch() -> None:
    code = (
        "import sys; from detscope.cli.main import app; app(['schema', 'summary'], standalone_mode=False);"
        " sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def broken_for_readers(before: Node, after: Node) -> list[str]:
    """Properties that went or have another type; what is new, and texts, break nobody."""
    found = []
    for name, old in before["$defs"].items():
        new = after["$defs"].get(name, {})
        if old.keys() & {"properties"}:
            properties = new.get("properties", {})
            found += [
                f"{name}.{field}"
                for field, kind in old["properties"].items()
                if field not in properties or _kind_of(kind) != _kind_of(properties[field])
            ]
        elif _kind_of(old) != _kind_of(new):
            found.append(name)
    return found


def _kind_of(node: Any) -> Any:
    """A node without its texts; the order of alternatives says nothing."""
    if isinstance(node, list):
        return sorted((_kind_of(one) for one in node), key=str)
    if not isinstance(node, Mapping):
        return node
    return {key: _kind_of(one) for key, one in node.items() if key not in ("title", "description", "default")}


def test_a_change_that_breaks_readers_asks_for_a_new_version() -> None:
    stored = json.loads(STORED.read_text())
    again = f"detscope schema summary > {STORED}"
    assert stored["version"] == SUMMARY_SCHEMA, f"the version is new, so store its schema: {again}"
    broken = broken_for_readers(stored, make_schema("summary"))
    assert broken == [], f"readers of --json would break: raise SUMMARY_SCHEMA, then {again}"


def test_what_breaks_readers_is_found_and_what_is_added_is_not() -> None:
    before = make_schema("summary")
    after = copy.deepcopy(before)
    steps = after["$defs"]["StepFigures"]["properties"]
    steps["p12"] = {"type": "number"}
    steps["p50"]["description"] = "the middle one"
    assert broken_for_readers(before, after) == []
    del steps["mean"]
    steps["n"] = {"type": "string"}
    assert broken_for_readers(before, after) == ["StepFigures.n", "StepFigures.mean"]


@pytest.mark.parametrize("folder", OLD_RUNS, ids=lambda folder: folder.name)
def test_train_infer_eval_run_import_ranks_and_memory_are_as_the_schema_says(folder) -> None:
    check_summary(summarize(folder))


def test_a_run_out_of_memory_a_partial_and_a_killed_one_are_as_the_schema_says(tmp_path) -> None:
    failure = {"request_bytes": 3000, "device": "cpu", "phase": "forward", "module": "head", "message": "no"}
    rows = [*state(), *a_step(0), *a_step(1), block(20_000, 2100, None, module="body.0.conv1", step=2)]
    oom = write_run(tmp_path, rows, status="oom_host", info={"oom": failure, "batch_size": 2})
    found = summarize(oom)
    assert found.memory is not None
    assert found.memory.oom is not None
    check_summary(found)
    partial = write_run(
        tmp_path, [*state(), *a_step(0)], steps=1, status="partial", info={"reason": "Ctrl-C"}
    )
    check_summary(summarize(partial))
    killed = RunWriter(tmp_path, "train", "net", {"verb": "train"})
    killed.append_rows("steps", [(0, 0, "warmup", "step", 0, 900, None)])
    killed.append_rows("losses", [(0, "loss", 1.5)])
    killed.flush_parts()
    found = summarize(load_run(killed.folder))
    assert found.status == "partial"
    check_summary(found)
    check_summary(summarize(RunWriter(tmp_path, "train", "net", {}).folder))  # before its first step


def test_run_json_findings_and_a_sweep_are_as_their_schemas_say() -> None:
    by_name = {subject: Draft202012Validator(make_schema(subject)) for subject in SUBJECTS}
    for folder in OLD_RUNS:
        by_name["run"].validate(json.loads((folder / "run.json").read_text()))
        by_name["findings"].validate(as_standard_json(list_findings(summarize(folder), "a2ec")))
    status = {
        "store": "s.db",
        "plans": [],
        "devices": [],
        "retried": 0,
        "duplicates": 0,
        "statuses": {"ok": 1},
    }
    status |= {"done": 1, "failed": 0, "skipped": 0, "left": 0, "last_failures": []}
    row = {"network": "nets/a", "stage": "training", "device": "cpu", "batch_size": 2, "kind": "ok"}
    row |= {"status": "ok", "step_ms": 3.5, "images_per_s": 570.0, "parameters": 9, "seconds": 1.0}
    by_name["sweep"].validate(as_standard_json(summarize_sweep([row], status)))
