"""Runs that version 1 recorded open with equal figures: `show --json` then and now, key by key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from detscope.analyze.schema import make_schema
from detscope.cli.main import app
from old_figures import OldKeys

OLD_RUNS = Path(__file__).parents[1] / "old_runs"
TABLE = Path(__file__).with_name("old_keys.tsv")
NAMES = sorted(folder.name for folder in OLD_RUNS.iterdir() if folder.is_dir())


@pytest.fixture(scope="module")
def old_keys() -> OldKeys:
    return OldKeys(TABLE, make_schema("summary"))


def without_folder(text: str, folder: str) -> Any:
    """What a summary says, wherever its run lies; a path inside the run is its name."""
    return json.loads(text.replace(f'"{folder}/', '"').replace(folder, "RUN"))


def as_version_3(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Without what version 3 did away with: means of running totals, host time where a device's is told.

    Of that, `host_ms` is what it was; of modules by their path, for their order is now the device's.
    """
    old["definitions"].pop("device_ms")
    old["definitions"].pop("p95, p99")  # have become those of bare steps too
    old["definitions"].pop("other")  # a loss that is no module has become part of forward
    for row in old["telemetry"]:
        if row["metric"] in ("read_bytes", "write_bytes"):
            del row["mean"], row["max"]
    use = old.get("device") if isinstance(old.get("device"), dict) else {}
    # sentences that say more, or the same of a live run; numbers are held
    use.pop("per_definition", None)
    use.get("utilisation", {}).get("definition", {}).pop("compute", None)
    for name in ("sm_efficiency", "occupancy"):
        use.get(name, {}).pop("why", None)
    if new["clocks"]["clock"] == "host":
        return old
    assert new["verdict"].partition(": ")[2] in old.pop("verdict"), "the word of a step has come before it"
    for rows, name, ms in (
        ("phases", "name", "ms"),
        ("stages", "name", "total_ms"),
        ("modules", "path", "total_ms"),
    ):
        told = {row[name]: row["host_ms"] for row in new[rows]}
        assert {row[name]: row[ms] for row in old.pop(rows)} == pytest.approx(told)
        old.pop(f"{rows}_ms", None)
    old["advice"] = [
        row for row in old["advice"] if row["rule"] != "fused_optimizer"
    ]  # by the device's phases
    del old["backward_attributed"]
    return old


def test_there_are_old_runs_of_every_kind() -> None:
    assert NAMES == ["eval", "import", "infer", "ranks", "script", "train"]


def test_every_successor_in_the_table_is_a_key_of_the_schema(old_keys: OldKeys) -> None:
    assert old_keys.unknown_keys() == []


@pytest.mark.parametrize("name", NAMES)
def test_an_old_run_has_all_its_figures_and_they_are_equal(name, old_keys, capsys) -> None:
    folder = OLD_RUNS / name
    with pytest.raises(SystemExit) as ended:
        app(["show", str(folder), "--json"], prog_name="detscope")
    assert not ended.value.code
    new = without_folder(capsys.readouterr().out, str(folder))
    old = as_version_3(without_folder((folder / "old.json").read_text(), "RUN"), new)
    assert (old.pop("schema"), new["schema"]) == (1, 3)
    assert old_keys.differences(old, new) == []


def test_a_figure_that_changed_or_went_is_named(old_keys: OldKeys) -> None:
    old = {"step_ms": {"p50": 2.0, "p95": "n/a (needs 90)"}, "phases_ms": {"data": 1.0}, "gone": 7}
    now = {
        "step_ms": {"p50": 2.0, "p95": None, "p95_why": "needs 90"},
        "phases": [{"name": "data", "ms": 1.0}],
    }
    assert [one.split()[0] for one in old_keys.differences(old, now)] == ["gone"]
    now["phases"][0]["ms"] = 1.5
    now["step_ms"]["p95_why"] = None
    found = [one.split()[0] for one in old_keys.differences(old, now)]
    assert found == ["step_ms.p95", "phases_ms.data", "gone"]
