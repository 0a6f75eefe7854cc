"""A list of runs: one line each, the newest on top, with ids that every verb takes."""

from __future__ import annotations

import io
from datetime import UTC, datetime
from pathlib import Path

import pytest
from rich.console import Console

from detscope.analyze.run_list import RunEntry, list_runs
from detscope.errors import InputError
from detscope.report.render.terminal import print_sections
from detscope.report.verbs.run_list import run_list_sections
from detscope.runs.folder import find_run, short_name, short_names
from detscope.runs.writer import RunWriter

NOW = datetime(2026, 11, 18, 0, 0, 0, tzinfo=UTC)


def made_entry(number: int, **changes: object) -> RunEntry:
    name = f"202611{17 - number:02}T234630Z-train-fasterrcnn_mobilenet_v3_large_320_fpn-{number:04x}"
    given = {"name": name, "id": name[-4:], "path": f"runs/{name}", "time": name[:16], "status": "ok",
             "verb": "train", "model": "fasterrcnn_mobilenet_v3_large_320_fpn", "ms": 12345.6,
             "images_per_s": 1234.5, "stability": "unstable", "process_peak_bytes": 123.4e6,
             "verdict": "optimizer 100 %"}  # fmt: skip
    return RunEntry(**{**given, **changes})  # type: ignore[arg-type]


def test_a_run_is_one_line_of_80_columns_with_its_figures() -> None:
    console = Console(width=80, record=True, file=io.StringIO())
    entries = [made_entry(number) for number in range(5)]
    entries.append(made_entry(9, status="damaged", reason="run.json is empty", ms=None, verdict=None))
    print_sections(run_list_sections(entries, NOW), console)
    lines = console.export_text().splitlines()
    assert max(map(len, lines)) <= 80
    body = lines[2:8]
    assert [line.split()[0] for line in body] == [entry.id for entry in entries], "a line each, in order"
    for part in ("13m", "train f", "~12,346", "1,234", "(123.4 MB)", "optimizer 100 %"):
        assert part in body[0], body[0]
    assert body[-1].rstrip().endswith("damaged")


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in (
        "20260101T000000Z-train-a-00aa",
        "20260202T000000Z-infer-b-00bb",
        "20260303T000000Z-train-c-10aa",
    ):
        writer = RunWriter(Path("made"), "train", "x", {})
        writer.close_run("ok")
        Path("runs").mkdir(exist_ok=True)
        writer.folder.rename(Path("runs") / name)
    return tmp_path / "runs"


def test_the_newest_run_is_the_first(runs: Path) -> None:
    assert [entry.time[:6] for entry in list_runs(runs)] == ["202603", "202602", "202601"]


def test_ids_are_the_last_letters_and_find_their_run(runs: Path) -> None:
    assert [entry.id for entry in list_runs(runs)] == ["10aa", "00bb", "00aa"]
    for entry in list_runs(runs):
        assert find_run(entry.id).name == entry.name
        assert short_name(Path(entry.path)) == entry.id


def test_an_ambiguous_name_lists_the_candidates(runs: Path) -> None:
    with pytest.raises(InputError, match=r"'0aa' fits 2 runs: 20260101T.*00aa, 20260303T.*10aa"):
        find_run("0aa")


def test_runs_that_share_their_last_letters_are_named_by_their_time() -> None:
    names = ["20260101T000000Z-train-a-00aa", "20260202T000000Z-train-a-00aa", "mine"]
    assert short_names(names) == {names[0]: "20260101T000000Z", names[1]: "20260202T000000Z", "mine": "mine"}


def test_a_run_elsewhere_is_named_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        short_name(tmp_path / "other" / "20260101T000000Z-train-a-00aa")
        == "other/20260101T000000Z-train-a-00aa"
    )
