"""Trials that end in every way there is: real processes, really killed."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from fake_trial import FOLDER, allow
from sweep_samples import RAISES_STATUS, run_plan, write_plan

from detscope.sweep.store import read_rows

pytestmark = pytest.mark.processes


def statuses(folder: Path) -> dict[str, str]:
    return {f"{row['network'].partition('@')[0]}": row["status"] for row in read_rows(folder / "plan.db")}


def members(group: int) -> list[psutil.Process]:
    """Living processes of a group."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == group and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, ProcessLookupError):
            continue
    return found


def fake_processes() -> list[int]:
    """Living trials that this test has started; those of others may run beside them."""
    mine, found = os.environ[FOLDER], []
    for process in psutil.process_iter(["cmdline"]):
        if any("fake_trial" in part for part in process.info["cmdline"] or ()):
            with contextlib.suppress(psutil.NoSuchProcess):
                alive = process.status() != psutil.STATUS_ZOMBIE
                if alive and process.environ().get(FOLDER) == mine:
                    found.append(process.pid)
    return found


def test_five_ways_to_die_are_five_statuses_and_the_other_trials_are_ok(tmp_path: Path) -> None:
    names = ["fine", "killed", "segfault", "abort", "exit3", "raises", "fine_too"]
    found = run_plan(write_plan(tmp_path, f"network = {names}", "[limits]\nretries = 0"))
    found_statuses = statuses(tmp_path)
    assert re.fullmatch(RAISES_STATUS, found_statuses.pop("raises"))
    assert found_statuses == {
        "fine": "ok",
        "killed": "crashed (SIGKILL)",
        "segfault": "crashed (SIGSEGV)",
        "abort": "crashed (SIGABRT)",
        "exit3": "exited (3)",
        "fine_too": "ok",
    }
    assert (found["done"], found["failed"], found["left"]) == (2, 5, 0)


def test_a_segmentation_fault_says_where_it_was(tmp_path: Path) -> None:
    run_plan(write_plan(tmp_path, 'network = "segfault"'))
    row = read_rows(tmp_path / "plan.db")[0]
    assert "fake_trial.py" in row["message"]


def test_running_out_of_memory_tells_host_from_device_and_is_not_tried_again(tmp_path: Path) -> None:
    names = ["full@1", "numpy_full", "device_full"]
    run_plan(write_plan(tmp_path, f"network = {names}\nbatch_size = [1, 2]"))
    rows = read_rows(tmp_path / "plan.db", role=None)
    assert [row["status"] for row in rows] == ["oom_host"] * 4 + ["oom_device"] * 2  # 2 was run as well
    assert {row["role"] for row in rows} == {"accepted"}


def test_till_first_fail_skips_larger_batches_of_that_network_only(tmp_path: Path) -> None:
    axes = 'network = ["full@4", "fine"]\nbatch_size = [8, 1, 4, 2, 16]'
    run_plan(write_plan(tmp_path, axes), till_first_fail=True)
    found = [(row["network"], row["batch_size"], row["status"]) for row in read_rows(tmp_path / "plan.db")]
    assert found == [
        ("full@4", 1, "ok"),
        ("full@4", 2, "ok"),
        ("full@4", 4, "oom_host"),
        ("full@4", 8, "skipped (out of memory at batch 4)"),
        ("full@4", 16, "skipped (out of memory at batch 4)"),
        *[("fine", batch, "ok") for batch in (1, 2, 4, 8, 16)],
    ]


def test_what_was_killed_from_outside_is_tried_once_more_and_both_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = run_plan(write_plan(tmp_path, 'network = "once"'))
    rows = read_rows(tmp_path / "plan.db", role=None)
    assert [(row["attempt"], row["role"], row["status"]) for row in rows] == [
        (1, "retried", "crashed (SIGKILL)"),
        (2, "accepted", "ok"),
    ]
    assert (found["done"], found["retried"]) == (1, 1)


def test_a_hanging_trial_times_out_and_its_whole_group_is_gone(tmp_path: Path) -> None:
    # on a machine that is held up a short limit strikes what does not hang, too: then with a longer one
    for limit_s in (1, 5, 25, 125, 625):
        (tmp_path / "plan.db").unlink(missing_ok=True)
        began = time.monotonic()
        run_plan(
            write_plan(tmp_path, 'network = ["hangs_with_child", "fine"]', f"[limits]\ntime_s = {limit_s}")
        )
        assert time.monotonic() - began >= limit_s
        until(lambda: not fake_processes())
        hung, fine = read_rows(tmp_path / "plan.db")
        assert hung["status"] == "timeout"
        assert hung["seconds"] >= limit_s
        if fine["status"] == "ok" and "_hang_with_child" in hung["message"]:  # it says where it hung
            return
    raise AssertionError([hung, fine])


def test_a_process_is_used_again_only_after_ok(tmp_path: Path) -> None:
    names = ["fine", "fine2", "poisoned", "after", "after2", "exit3", "last"]
    run_plan(write_plan(tmp_path, f"network = {names}"), isolation="batch")
    rows = {row["network"]: row for row in read_rows(tmp_path / "plan.db")}
    pids = {name: rows[name]["more"].get("pid") for name in names}
    assert pids["fine"] == pids["fine2"]
    assert pids["after"] == pids["after2"] != pids["fine"]
    assert pids["last"] not in (pids["fine"], pids["after"], None)
    assert ": RuntimeError: CUDA error: an illegal" in rows["poisoned"]["status"]
    assert rows["exit3"]["status"] == "exited (3)"
    until(lambda: not fake_processes())


def test_a_network_that_prints_much_does_not_stand_still(tmp_path: Path) -> None:
    run_plan(write_plan(tmp_path, 'network = ["prints", "fine"]'))
    assert [row["status"] for row in read_rows(tmp_path / "plan.db")] == ["ok", "ok"]


def test_what_cannot_run_is_said_before_and_the_sweep_goes_on(tmp_path: Path) -> None:
    axes = 'stage = "training"'
    more = """
[[trials]]
network = "ssdlite320_mobilenet_v3_large"
batch_size = 1
[[trials]]
network = "fine"
device = "cuda:7"
[[trials]]
network = "fine"
prefetch_factor = 2
[[trials]]
network = "fine"
"""
    found = run_plan(write_plan(tmp_path, axes, more))
    texts = [row["status"] for row in read_rows(tmp_path / "plan.db")]
    assert texts[0].startswith("skipped (cannot run: ssdlite320_mobilenet_v3_large cannot train with batch")
    assert texts[1].startswith("skipped (cannot run: cuda:7: ")
    assert texts[2].startswith("skipped (cannot run: prefetch_factor: with num_workers = 0")
    assert texts[3] == "ok"
    assert found["failed"] == 0


DRIVER = """
import sys
sys.path.insert(0, {folder!r})
from pathlib import Path
from sweep_samples import FAKE
from detscope.cli.failures import run_guarded
from detscope.report.sweep_progress import SweepLines
from detscope.sessions.sweep import SweepOptions, run_sweep
from detscope.sweep.plan import load_plan
plan = load_plan(Path(sys.argv[1]))
options = SweepOptions(resume=True, command=FAKE)
sys.exit(run_guarded(lambda: run_sweep(plan, options, SweepLines()), []) )
"""


def start(plan: Path) -> subprocess.Popen[str]:
    code = DRIVER.format(folder=str(Path(__file__).parent))
    return subprocess.Popen(
        [sys.executable, "-c", code, str(plan)], stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True
    )


def until(condition: object, seconds: float = 900) -> None:
    """Wait; what is waited for must not come by itself in so long a time."""
    ends = time.monotonic() + seconds
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < ends, "waited too long"
        time.sleep(0.02)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_sweep_abandons_its_trial_and_resumes(tmp_path: Path, number: int, code: int) -> None:
    plan = write_plan(tmp_path, 'network = ["fine", "allowed", "last"]')
    sweep = start(plan)
    until(lambda: (tmp_path / "plan.db").exists() and fake_processes() and rows_of(tmp_path) == 1)
    sweep.send_signal(number)
    _, words = sweep.communicate(timeout=900)
    assert sweep.returncode == code
    assert "hint: --resume runs the rest" in words
    until(lambda: not fake_processes())
    allow(1)
    assert start_and_wait(plan) == 0
    assert [row["status"] for row in read_rows(tmp_path / "plan.db")] == ["ok", "ok", "ok"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.db", "plan.toml"]


def test_a_killed_sweep_leaves_no_process_behind(tmp_path: Path) -> None:
    sweep = start(write_plan(tmp_path, 'network = "hangs_with_child"'))
    until(lambda: len(fake_processes()) >= 3)  # the trial, who watches over it, its child
    group = os.getpgid(fake_processes()[0])
    sweep.kill()
    sweep.communicate()
    until(lambda: not members(group))


def rows_of(folder: Path) -> int:
    return len(read_rows(folder / "plan.db"))


def start_and_wait(plan: Path) -> int:
    sweep = start(plan)
    sweep.communicate(timeout=900)
    return sweep.returncode
