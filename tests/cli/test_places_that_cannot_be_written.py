"""`--out` and its kind on places that cannot be written: exit code 4, the place named, no internal error."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from PIL import Image

from detscope.cli.main import app
from detscope.runs.writer import RunWriter


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("places")
    (folder / "a_file").write_text("")
    (folder / "nowhere").symlink_to(folder / "gone" / "there")
    (folder / "trace.json").write_text(
        '{"traceEvents": [{"ph": "X", "name": "a", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]}'
    )
    (folder / "images").mkdir()
    Image.new("RGB", (64, 48)).save(folder / "images" / "0.png")
    writer = RunWriter(folder / "runs", "train", "net", {"device": "cpu"})
    for step in range(6):
        writer.append_rows("steps", [(step, 0, "recorded", "step", step * 100, 90, None)])
    writer.close_run("ok")
    return folder


def bad_places(place: Path) -> list[Path]:
    return [
        place / "a_file",
        place / "a_file" / "below",
        Path("/proc/detscope"),
        place / ("x" * 300),
        place / "nowhere",
        Path("/dev/null/runs"),
    ]


def end(capsys, *args) -> tuple[object, str]:
    with pytest.raises(SystemExit) as ended:
        app([str(arg) for arg in args], prog_name="detscope")
    return ended.value.code, capsys.readouterr().err


def check(code: object, err: str) -> None:
    assert code == 4, err
    assert "internal" not in err
    assert "Traceback" not in err
    lines = err.splitlines()
    assert sum(line.startswith("error: cannot ") for line in lines) == 1, err
    assert any(line.startswith("hint: ") for line in lines), err


MEASURING = {
    "train": (
        "train",
        "tiny_fasterrcnn",
        "--steps",
        "1",
        "--data",
        "synthetic",
        "--set",
        "data.images=2",
        "-q",
    ),
    "train with memory": (
        "train",
        "tiny_fasterrcnn",
        "--steps",
        "1",
        "--data",
        "synthetic",
        "--memory",
        "-q",
    ),
    "infer": ("infer", "tiny_fasterrcnn", "images", "-q"),
    "eval": ("eval", "tiny_fasterrcnn", "--data", "synthetic", "--set", "evaluation.images=2", "-q"),
    "import": ("import", "trace.json"),
}


@pytest.mark.parametrize("verb", MEASURING)
def test_a_measuring_verb_names_the_place(place, capsys, monkeypatch, verb):
    monkeypatch.chdir(place)
    for bad in bad_places(place)[: 6 if verb in ("import", "train") else 2]:
        check(*end(capsys, *MEASURING[verb], "--out", bad))


def test_reports_and_pages_name_the_place(place, capsys, monkeypatch):
    monkeypatch.chdir(place)
    run = next(path for path in (place / "runs").iterdir() if not path.is_symlink())
    for bad in [*bad_places(place)[1:4], place / "images"]:
        for form in ("html", "md", "json", "csv"):
            check(*end(capsys, "report", run, "--format", form, "--out", bad))
        check(*end(capsys, "compare", run, run, "--html", bad))


def test_a_run_whose_own_folder_cannot_be_written_is_still_shown(place, capsys, monkeypatch, tmp_path):
    run = next(path for path in (place / "runs").iterdir() if not path.is_symlink())
    copy = shutil.copytree(run, tmp_path / "run")
    (copy / "report.html").mkdir()
    check(*end(capsys, "report", copy))
    assert end(capsys, "show", copy)[0] == 0


LIMITED = """
import resource, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)  # as on a full disk: writes fail
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv.pop(1)),) * 2)
from detscope.cli.main import main
main()
"""


def test_a_disk_that_is_full_ends_a_training_with_4(tmp_path):
    """The first files find room, those that come later do not."""
    args = ["train", "tiny_fasterrcnn", "--steps", "3", "--data", "synthetic", "--set", "data.images=4", "-q"]
    args += ["--num-workers", "0"]
    for room in (0, 12_000):
        done = subprocess.run(
            [sys.executable, "-c", LIMITED, str(room), *args, "--out", str(tmp_path / f"runs{room}")],
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
            env=os.environ | {"DETSCOPE_DEBUG": ""},
        )
        check(done.returncode, done.stderr)
