"""Scripts that train in processes they start: recorded, or named with the command that records them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from detscope.runs.reader import load_run
from detscope.sessions.run.children import recording_command

pytestmark = pytest.mark.processes
LAUNCHER = """
import subprocess, sys
done = subprocess.run([sys.executable, "train.py", "--epochs", "2"], check=False)
sys.exit(done.returncode)
"""
BY_SHELL = """
import os, sys
sys.exit(os.waitstatus_to_exitcode(os.system(f"{sys.executable} train.py --epochs 2")))
"""
BY_SPAWN = """
import os, sys
child = os.spawnv(os.P_NOWAIT, sys.executable, [sys.executable, "train.py", "--epochs", "2"])
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
BY_POSIX_SPAWN = """
import os, sys
child = os.posix_spawn(sys.executable, [sys.executable, "train.py", "--epochs", "2"], os.environ)
sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
BY_EXEC = """
import os, sys
try:
    os.execv("/nowhere/python", ["python", "train.py"])
except FileNotFoundError:
    os.execlp(sys.executable, sys.executable, "train.py", "--epochs", "2")
"""
LAUNCHERS = {
    "subprocess": LAUNCHER,
    "os.system": BY_SHELL,
    "spawnv": BY_SPAWN,
    "posix_spawn": BY_POSIX_SPAWN,
    "exec": BY_EXEC,
}
TRAINING = """
import sys
print("trains with", *sys.argv[1:], flush=True)
sys.exit(3)
"""
PROCESSES = """
import multiprocessing, sys
def work(number):
    print("works", number, flush=True)
    if number:
        raise ValueError(f"not {number}")
if __name__ == "__main__":
    import torch
    context = multiprocessing.get_context(sys.argv[1])
    codes = []
    for number in (0, 1):
        process = context.Process(target=work, args=(number,), name=f"worker-{number}")
        process.start()
        process.join()
        codes.append(process.exitcode)
    print(codes, flush=True)
"""


def run(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command], cwd=folder, capture_output=True, text=True, timeout=600, check=False
    )


@pytest.mark.parametrize("launcher", LAUNCHERS.values(), ids=LAUNCHERS.keys())
def test_a_script_that_only_starts_another_names_it_and_how_to_record_it(tmp_path, launcher):
    (tmp_path / "launch.py").write_text(launcher)
    (tmp_path / "train.py").write_text(TRAINING)
    plain = run(tmp_path, "launch.py")
    done = run(tmp_path, "-m", "detscope", "run", "launch.py")
    assert (
        (done.returncode, done.stdout) == (plain.returncode, plain.stdout) == (3, "trains with --epochs 2\n")
    )
    assert "no step was seen in this process, and it started others" in done.stderr
    assert f"{sys.executable} train.py --epochs 2" in done.stderr
    assert f"{sys.executable} -m detscope run train.py --epochs 2" in done.stderr


POOL = """
import inspect, multiprocessing, os, subprocess, sys
if __name__ == "__main__":
    print(inspect.signature(os.spawnv), inspect.signature(subprocess.Popen), os.execv.__name__, flush=True)
    for how in ("fork", "spawn"):
        with multiprocessing.get_context(how).Pool(1) as pool:
            print(pool.map(os.system, ["exit 3", "true"]), flush=True)
    program = os.open(sys.executable, os.O_RDONLY)
    for path, words in ((program, [1]), ("/nowhere", ["x"]), (sys.executable, "x")):
        try:
            os.execve(path, words, {})
        except Exception as error:
            print(type(error).__name__, error, flush=True)
    os.execve(program, [sys.executable, "-c", "print('another')"], dict(os.environ))
"""


def test_what_starts_processes_is_pickled_asked_and_fails_as_without_us(tmp_path):
    (tmp_path / "pool.py").write_text(POOL)
    plain = run(tmp_path, "pool.py")
    done = run(tmp_path, "-m", "detscope", "run", "pool.py")
    assert (done.returncode, done.stdout) == (plain.returncode, plain.stdout)
    assert plain.returncode == 0 and plain.stdout.endswith("another\n"), plain.stderr


@pytest.mark.parametrize("how", ["spawn", "fork"])
def test_processes_that_are_no_ranks_run_as_they_are_and_are_named(tmp_path, how):
    (tmp_path / "several.py").write_text(PROCESSES)
    plain = run(tmp_path, "several.py", how)
    done = run(tmp_path, "-m", "detscope", "run", "several.py", how)
    assert (
        (done.returncode, done.stdout)
        == (plain.returncode, plain.stdout)
        == (0, "works 0\nworks 1\n[0, 1]\n")
    )
    own = [line for line in done.stderr.splitlines() if not line.startswith("detscope: ")]
    assert own == plain.stderr.splitlines()  # with the traceback of the one that raised
    found = load_run(next((tmp_path / "runs").glob("*-run-*")))
    assert found.status == "partial"
    assert "worker-0" in found.info["reason"]
    assert "detscope.watch()" in found.info["reason"]


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("python train.py --lr 1", "python -m detscope run train.py --lr 1"),
        ("python -u -m pkg.train x", "python -u -m detscope run -m pkg.train x"),
        ("torchrun --nproc-per-node 2 train.py", "torchrun --nproc-per-node 2 -m detscope run train.py"),
        (
            "python -m torch.distributed.run --nproc-per-node 2 train.py",
            "python -m torch.distributed.run --nproc-per-node 2 -m detscope run train.py",
        ),
        ("accelerate launch train.py", "accelerate launch -m detscope run train.py"),
        ("mpirun -n 2 python train.py", "mpirun -n 2 python -m detscope run train.py"),
        ("python -m detscope run train.py", None),
        ("git status", None),
    ],
)
def test_the_command_that_records_stands_before_the_script(command, expected):
    found = recording_command(command.split())
    assert (None if found is None else " ".join(found)) == expected
