"""`detscope train` as a person types it: real processes, really killed."""

from __future__ import annotations

import array
import fcntl
import json
import os
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import polars as pl
import psutil
import pytest
from torch_process import DETECTION, wait_for

from detscope.runs.writer import read_part
from named_rows import by_name
from schema_check import check_summary

REPOSITORY = Path(__file__).parents[2]
SMALL = ["--set", "data.images=8", "--set", "data.image_width=160", "--set", "data.image_height=128"]
COMMAND = [sys.executable, "-m", "detscope"]


def run(*arguments: str, folder: Path, **options) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
        **options,
    )


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("person")
    done = run("train", "tiny_fasterrcnn", "--steps", "20", "--json", *SMALL, folder=folder)
    assert done.returncode == 0, done.stderr
    return folder, json.loads(done.stdout)


def typical_share_of_backward_in_modules(run: Path) -> float:
    """Of the median step: another process may hold a step up while it is in no module."""
    backward = pl.read_parquet(run / "spans.parquet").filter(
        (pl.col("direction") == "backward") & (pl.col("kind") != "stage")
    )
    outside = pl.col("self_ns").filter(pl.col("kind") == "outside").sum() / pl.col("self_ns").sum()
    return 1 - backward.group_by("step").agg(outside.alias("outside"))["outside"].median()


def test_the_json_has_the_figures_that_were_promised_and_they_add_up(trained):
    folder, summary = trained
    assert summary["step_ms"]["n"] + summary["warmup"]["n"] == 23  # steps of a slow start count as warm-up
    low, high = summary["step_ms"]["ci95"]
    assert low <= summary["step_ms"]["p50"] <= high
    assert set(by_name(summary["phases"], "ms")) == {
        "data",
        "transfer",
        "forward",
        "backward",
        "optimizer",
        "other",
    }
    assert sum(by_name(summary["phases"], "ms").values()) == pytest.approx(
        summary["step_ms"]["p50"], rel=0.005
    )
    assert sum(row["self_forward_ms"] for row in summary["modules"]) == pytest.approx(
        by_name(summary["phases"], "ms")["forward"], rel=0.01
    )
    assert {"path", "forward_ms", "backward_ms", "self_forward_ms", "self_backward_ms"} <= set(
        summary["modules"][0]
    )
    assert {"preprocess", "backbone", "fpn", "rpn", "roi_heads"} <= set(
        by_name(summary["stages"], "total_ms", 0)
    )
    assert summary["overhead_ratio"]["value"] > 0
    assert len(summary["overhead_ratio"]["ci95"]) == 2
    assert 0 < summary["backward_attributed"] <= 1
    assert typical_share_of_backward_in_modules(folder / summary["run"]) >= 0.99
    assert summary["images_per_s"] > 0
    assert summary["loader"]["workers"]
    assert (summary["step_ms"]["p99"], summary["step_ms"]["p99_why"]) == (None, "needs 459")


def test_show_prints_it_again_for_people_and_for_programs(trained):
    folder, summary = trained
    shown = run("show", folder=folder)
    assert shown.returncode == 0
    for text in ("tiny_fasterrcnn", "random", "backward", "roi_heads", "detscope"):
        assert text in shown.stdout
    again = json.loads(run("show", Path(summary["run"]).name, "--json", folder=folder).stdout)
    assert again["step_ms"] == summary["step_ms"]
    check_summary(again)


def test_the_run_keeps_no_environment_variable_and_no_home_path(trained):
    folder, summary = trained
    stored = (folder / summary["run"] / "run.json").read_text()
    assert str(Path.home()) + "/" not in stored
    assert not any(len(value) > 8 and value in stored for key, value in os.environ.items() if "TOKEN" in key)


def wait_for_steps(folder: Path, least: int) -> None:
    """Until so many recorded steps are on disk; how many a part holds depends on the machine."""
    wait_for(folder, "runs/*/parts/steps-*.arrow")
    deadline = time.monotonic() + 900
    while True:
        parts = [read_part(part) for part in folder.glob("runs/*/parts/steps-*.arrow")]
        whole = pl.concat(parts).filter((pl.col("phase") == "step") & (pl.col("mode") == "recorded"))
        if whole.height >= least:
            return
        assert time.monotonic() < deadline, f"{whole.height} steps"
        time.sleep(0.05)


@pytest.mark.processes
def test_killed_in_the_middle_the_run_opens_and_says_partial(tmp_path, torch_server):
    def kill(child: int) -> None:
        wait_for_steps(tmp_path, 6)
        wait_for(tmp_path, "runs/*/parts/steps-000002.arrow")
        os.killpg(child, signal.SIGKILL)

    command = ("train", "tiny_ssd", "--steps", "100000", "-q", *SMALL)
    done = torch_server(*command, folder=tmp_path, imports=DETECTION, meanwhile=kill)
    assert done.returncode == -signal.SIGKILL
    shown = torch_server("show", "--json", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    summary = json.loads(shown.stdout)
    assert summary["status"] == "partial"
    check_summary(summary)
    assert summary["step_ms"]["n"] >= 3  # six, of which up to half may count as a slow start
    assert "partial" in torch_server("show", folder=tmp_path).stdout


@pytest.mark.processes
def test_interrupted_by_the_person_it_ends_with_130_and_names_the_run(tmp_path, torch_server):
    def interrupt(child: int) -> None:
        wait_for_steps(tmp_path, 1)
        os.killpg(child, signal.SIGINT)  # a terminal tells the whole group, workers too

    command = ("train", "tiny_ssd", "--steps", "100000", *SMALL)
    done = torch_server(*command, folder=tmp_path, imports=DETECTION, meanwhile=interrupt)
    assert done.returncode == 130, done.stderr
    assert "Traceback" not in done.stderr
    assert "interrupted" in done.stderr
    assert "detscope show" in done.stderr
    summary = json.loads(torch_server("show", "--json", folder=tmp_path).stdout)
    assert summary["status"] == "partial"
    assert summary["step_ms"]["n"] > 0


@pytest.mark.skipif(
    "torch" in sys.modules and sys.modules["torch"].cuda.is_available(), reason="there is a GPU"
)
def test_cuda_without_cuda_is_exit_4_with_one_line_and_a_hint_and_nothing_is_made(tmp_path, torch_server):
    (tmp_path / ".config").mkdir()
    (tmp_path / ".config" / "config.toml").write_text(
        "[training]\nnum_epochs = 1\nbatch_size = 2\nprefetch_factor = 2\nnum_workers = 4\n"
        'device = "cuda:0"\n'
    )
    done = torch_server("train", folder=tmp_path)
    assert done.returncode == 4
    assert [line.split(":")[0] for line in done.stderr.strip().splitlines()] == ["error", "hint"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".config"]


def test_three_wrong_keys_are_three_messages_and_exit_2(tmp_path):
    (tmp_path / "wrong.toml").write_text(
        '[training]\nnum_epoch = 1\nbatch_size = "two"\n[modell]\nname = "x"\n'
    )
    done = run("train", "--config", "wrong.toml", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr.count("error:") == 3
    assert "num_epochs" in done.stderr


def test_the_example_with_a_loop_of_its_own_gives_the_same_tables(tmp_path, torch_server):
    example = str(REPOSITORY / "examples" / "own_loop.py")
    done = torch_server(example, folder=tmp_path, imports=DETECTION, script=True)
    assert done.returncode == 0, done.stderr
    summary = json.loads(torch_server("show", "--json", folder=tmp_path).stdout)
    assert summary["status"] == "ok"
    assert {"report.html", "trace.json.gz"} <= {path.name for path in Path(summary["run"]).iterdir()}
    assert sum(by_name(summary["phases"], "ms").values()) == pytest.approx(
        summary["step_ms"]["p50"], rel=0.005
    )
    assert {"backbone", "head"} <= {row["path"] for row in summary["modules"]}
    assert {"backbone", "head"} <= set(by_name(summary["stages"], "total_ms", 0))


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(fcntl, "F_GETPIPE_SZ"), reason="the system does not tell the size of a pipe")
def test_figures_that_fill_the_pipe_are_whole_also_when_the_command_is_stopped_and_goes_on():
    code = "from detscope.cli.output import print_json; print_json(['x' * 50] * 5000)"
    with subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE) as child:
        process, pipe = psutil.Process(child.pid), child.stdout
        inside = array.array("i", [0])
        while inside[0] < fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) or process.status() != psutil.STATUS_SLEEPING:
            fcntl.ioctl(pipe, termios.FIONREAD, inside)
            assert child.poll() is None
            time.sleep(0.01)
        while process.status() != psutil.STATUS_STOPPED:
            child.send_signal(signal.SIGSTOP)
            time.sleep(0.01)
        child.send_signal(signal.SIGCONT)
        assert json.loads(pipe.read()) == ["x" * 50] * 5000
