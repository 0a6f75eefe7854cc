"""Where output goes: `-` is standard output everywhere; runs are found by ids, sections by names."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from detscope.cli.flags import find_config
from detscope.cli.main import app
from detscope.runs.writer import RunWriter

ID = "00aa"


@pytest.fixture(autouse=True)
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one run."""
    monkeypatch.chdir(tmp_path)
    writer = RunWriter(Path("made"), "train", "x", {"model": {"name": "tiny"}})
    writer.append_rows(
        "steps", [(step, 0, "recorded", "step", step * 10**8, 20_000_000, None) for step in range(8)]
    )
    writer.close_run("ok")
    (writer.folder / "config.toml").write_text('[model]\nname = "tiny_ssd"\n')
    Path("runs").mkdir()
    return writer.folder.rename(tmp_path / "runs" / f"20260101T000000Z-train-tiny-{ID}")


def invoke(*args: str) -> Any:
    return CliRunner().invoke(app, args, env={"COLUMNS": "80"})


@pytest.mark.parametrize(("form", "begin"), [("md", "# 2026"), ("json", "{"), ("html", "<!doctype html")])
def test_a_report_to_standard_output_is_the_report_alone(form: str, begin: str, run: Path) -> None:
    result = invoke("report", ID, "--format", form, "--out", "-")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.lower().startswith(begin)
    assert not Path("-").exists() and not (run / f"report.{form}").exists()


def test_markdown_and_page_are_asked_for_as_with_compare() -> None:
    result = invoke("report", ID, "--markdown", "-", "--html", "page.html")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith("# 2026") and result.stdout.endswith("page.html\n")
    assert Path("page.html").read_text().lower().startswith("<!doctype html")


def test_a_page_on_standard_output_cannot_be_opened() -> None:
    assert invoke("report", ID, "--out", "-", "--open").exit_code == 2


def test_a_sweep_goes_to_standard_output_as_csv(tmp_path: Path) -> None:
    from detscope.sweep.store import SweepStore

    with SweepStore(tmp_path / "empty.db", create=True):
        pass
    result = invoke("sweep", "export", "empty.db", "--out", "-")
    assert (result.exit_code, result.stdout) == (3, ""), "nothing but rows would be printed"
    assert invoke("sweep", "export", "empty.db", "--format", "older", "--out", "-").exit_code == 2


def test_figures_and_a_picture_cannot_share_standard_output() -> None:
    result = invoke("predict", "x.json:y", "--picture", "-", "--json")
    assert result.exit_code == 2
    assert "--picture - and --json exclude each other" in result.stderr


def test_sections_are_printed_by_name_and_a_slip_is_understood() -> None:
    whole = invoke("show", ID, "--section", "step").stdout
    assert "8 steps" in whole and "20.0 ms" in whole
    assert len(invoke("show", ID, "--section", "all").stdout) > len(whole)
    wrong = invoke("show", ID, "--section", "setp")
    assert wrong.exit_code == 2
    assert "did you mean step?" in wrong.stderr
    absent = invoke("show", ID, "--section", "memory")
    assert absent.exit_code == 3
    assert "record it with --memory" in absent.stderr


@pytest.mark.parametrize("name", [ID, "20260101", "latest", f"20260101T000000Z-train-tiny-{ID}"])
def test_settings_of_a_run_are_found_by_whatever_names_it(name: str, run: Path) -> None:
    (run.parent / "latest").symlink_to(run.name)
    assert find_config(Path(name)) == run / "config.toml"


def test_a_file_that_is_not_there_stays_what_was_asked_for() -> None:
    for given in ("missing.toml", "nothing"):
        assert find_config(Path(given)) == Path(given)
    assert find_config(None) is None


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (["--json", "train.py", "--json"], (True, None)),
        (["--json", "figures.json", "train.py"], (False, "figures.json")),
        (["--json=x.txt", "train.py"], (False, "x.txt")),
        (["--json-file", "-", "train.py"], (False, "-")),
        (["--level", "ops", "-m", "package", "--json", "a.json"], (False, None)),
    ],
)
def test_json_is_a_flag_of_run_as_of_every_verb_and_a_file_as_it_was_spelled_before(
    args: list[str], expected: tuple[bool, str | None]
) -> None:
    command: Any = get_command(app)
    context = command.commands["run"].make_context("run", args)
    file = context.params["json_file"]
    assert (context.params["json"], None if file is None else str(file)) == expected


def test_runs_lists_one_line_each_and_json_has_all() -> None:
    lines = invoke("runs").stdout.splitlines()
    assert lines[2].split()[0] == ID
    assert max(map(len, lines)) <= 80
    row = json.loads(invoke("runs", "--json").stdout)[0]
    assert (row["id"], row["ms"], row["stability"]) == (ID, 20.0, "stable")
