"""Standard output and error that are closed, full, unread or ASCII alone: real processes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from detscope.runs.writer import RunWriter

COMMAND = [sys.executable, "-c", "from detscope.cli.main import main; main()"]
NAME = "größe\u2014漢"


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    parent = tmp_path_factory.mktemp("runs")
    for _ in range(2):
        writer = RunWriter(
            parent, "train", "net", {"model": {"name": NAME}, "device": "cpu", "stages": [NAME]}
        )
        for step in range(6):
            steps = [(step, 0, "recorded", phase, step * 100, 90, None) for phase in ("step", "forward")]
            writer.append_rows("steps", steps)
        writer.close_run("ok")
    return parent


def verbs(runs: Path) -> list[list[str]]:
    first, second = (str(path) for path in sorted(runs.iterdir())[:2])
    return [
        ["--version"],
        ["--help"],
        ["models"],
        ["runs", str(runs)],
        ["runs", str(runs), "--json"],
        ["show", first],
        ["report", first, "--out", str(runs.parent / "report.html")],
        ["compare", first, second],
    ]


def run(args, *, out, err=subprocess.PIPE, **environment) -> subprocess.CompletedProcess[bytes]:
    kept = {key: value for key, value in os.environ.items() if key != "DETSCOPE_DEBUG"} | environment
    return subprocess.run(
        [*COMMAND, *args],
        stdout=out,
        stderr=err,
        env=kept,
        timeout=600,
        check=False,
        stdin=subprocess.DEVNULL,
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="the system has no /dev/full")
def test_a_full_standard_output_is_one_line_and_exit_code_4(runs):
    for verb in verbs(runs):
        with Path("/dev/full").open("wb") as full:
            done = run(verb, out=full)
            assert done.returncode == 4, (verb, done.stderr)
            first, second = done.stderr.decode().splitlines()
            assert first == "error: cannot write to standard output: No space left on device"
            assert second.startswith("hint: ")
            assert run(verb, out=full, err=full).returncode == 4, verb


def test_a_pipe_that_nobody_reads_ends_a_command_without_a_word(runs):
    for verb in verbs(runs):
        reading, writing = os.pipe()
        os.close(reading)
        done = run(verb, out=writing)
        os.close(writing)
        assert (done.returncode, done.stderr) == (141, b""), verb


def test_closed_streams_are_no_bug_and_no_file_takes_their_place(runs, tmp_path):
    for closing, code in ((">&-", 4), (">&- 2>&-", 4), ("2>&-", 0), ("<&-", 0)):
        for verb in verbs(runs)[:6]:
            line = ["bash", "-c", f'"$@" {closing}', "bash", *COMMAND, *verb]
            done = subprocess.run(line, capture_output=True, timeout=600, check=False, cwd=tmp_path)
            assert done.returncode == code, (closing, verb, done.stderr)
            assert b"Traceback" not in done.stderr
            assert b"internal" not in done.stderr


def test_an_ascii_terminal_gets_replacements(runs):
    for environment in (
        {"PYTHONIOENCODING": "ascii"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
    ):
        for verb in verbs(runs)[3:6]:
            done = run(verb, out=subprocess.PIPE, **environment)
            assert (done.returncode, done.stderr) == (0, b""), done.stderr
            assert b"gr" in done.stdout
            if "--json" in verb:
                assert json.loads(done.stdout)[0]["model"] == NAME


def test_long_tables_are_whole_also_where_the_pipe_is_full_and_does_not_wait(runs, tmp_path):
    source = sorted(runs.iterdir())[0]
    for number in range(2700):
        (tmp_path / f"20260101T000000Z-train-{'n' * 60}-{number:04d}").mkdir()
        shutil.copy(source / "run.json", tmp_path / f"20260101T000000Z-train-{'n' * 60}-{number:04d}")
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    parts: list[bytes] = []

    def read() -> None:
        while part := os.read(reading, 4096):
            parts.append(part)

    reader = threading.Thread(target=read)
    reader.start()
    done = run(["runs", str(tmp_path)], out=writing, PYTHONUNBUFFERED="1")
    os.close(writing)
    reader.join()
    os.close(reading)
    shown = b"".join(parts).decode()
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(shown) > 65536
    assert "runs         2700; " in shown
    assert shown.split()[-2:] == ["show", "2699"]
