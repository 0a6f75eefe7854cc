"""One rank of two killed at a random moment, many times: exit code 4, the rank named, nobody left behind.

python -m bench killed_ranks    (DETSCOPE_KILLS=50 tells how many times; the seed is printed)
"""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

import psutil

from detscope.runs.reader import load_run

KILLS = 50
LONGEST_S = 300.0
MOST_S = 12.0  # between the start of both ranks, or the first steps on disk, and the kill
PAUSE_S = 0.05
MEMBER = "detscope.sessions.ranks.member"
COMMAND = [
    sys.executable, "-m", "detscope", "train", "tiny_retinanet", "--ranks=2", "--steps=100000",
    "--num-workers=1", "--set", "data.images=8",
    "--set", "data.image_width=64", "--set", "data.image_height=64",
    "--set", "record.telemetry_hz=0", "--set", "training.warmup_steps=1",
]  # fmt: skip


@dataclass(frozen=True)
class Ending:
    """How one try ended."""

    rank: int
    after_s: float
    exit_code: int | None
    named: bool
    status: str
    tracebacks: int
    left: int  # processes
    files: int  # of shared memory
    said: str

    @property
    def right(self) -> bool:
        """As it must be."""
        whole = self.exit_code == 4 and self.named and self.status in ("partial", "no run")
        return whole and not (self.tracebacks or self.left or self.files)


def main() -> None:
    """Kill, look, count."""
    tries = int(os.environ.get("DETSCOPE_KILLS", KILLS))
    seed = int(os.environ.get("DETSCOPE_SEED", random.SystemRandom().randrange(10**6)))
    draw = random.Random(seed)
    print(f"one rank of two killed -9, {tries} times (seed {seed})")
    print(f"{'':>4} rank  after s  exit  named  status   tracebacks  processes  files left")
    wrong = 0
    for number in range(1, tries + 1):
        ending = kill_once(draw.randrange(2), draw.uniform(0, MOST_S), in_steps=number % 3 > 0)
        wrong += not ending.right
        print(
            f"{number:>4} {ending.rank:>4} {ending.after_s:>8.1f} {ending.exit_code!s:>5}"
            f" {'yes' if ending.named else 'NO':>6}  {ending.status:<8} {ending.tracebacks:>10}"
            f" {ending.left:>10} {ending.files:>11}{'' if ending.right else '  WRONG'}",
            flush=True,
        )
        if not ending.right:
            print(ending.said, flush=True)
    print(f"as it must be: {tries - wrong} of {tries}")
    if wrong:
        sys.exit(1)


def kill_once(rank: int, after_s: float, *, in_steps: bool) -> Ending:
    """Start two ranks, kill one, and look at what is left."""
    with tempfile.TemporaryDirectory(prefix="killed-ranks-") as name:
        folder = Path(name)
        with (folder / "said").open("w+", encoding="utf-8") as said:
            child = subprocess.Popen(COMMAND, cwd=folder, stdout=said, stderr=said)
            try:
                known = _kill_rank(child, folder if in_steps else None, rank, after_s)
                exit_code = _end_of(child)
            finally:
                child.kill()
                child.wait()
            said.seek(0)
            text = said.read()
        left = _left(folder)
        files = [path for path in Path("/dev/shm").glob("torch_*") if path.name.split("_")[1] in known]
        found = [path for path in (folder / "runs").glob("*") if (path / "run.json").is_file()]
        named = f"rank {rank} SIGKILL" in text
        status = load_run(found[0]).status if found else "no run"
        return Ending(
            rank, after_s, exit_code, named, status, text.count("Traceback"), left, len(files), text
        )


def _kill_rank(child: subprocess.Popen[bytes], folder: Path | None, rank: int, after_s: float) -> set[str]:
    """Wait for both ranks, or until they have written, then for the moment; processes that were seen."""
    ends = monotonic() + LONGEST_S
    while len(members := _members(child.pid)) < 2 and child.poll() is None and monotonic() < ends:
        sleep(PAUSE_S)
    written = ("runs/*/parts/steps-*", "runs/.ranks-*/rank-1/*/parts/steps-*")
    while folder is not None and not all(any(folder.glob(one)) for one in written):
        if child.poll() is not None or monotonic() > ends:
            break
        sleep(PAUSE_S)
    sleep(after_s)
    known = {str(one.pid) for one in _family(child.pid)}
    if rank in members:
        with contextlib.suppress(ProcessLookupError):
            os.kill(members[rank].pid, signal.SIGKILL)
    return known


def _members(parent: int) -> dict[int, psutil.Process]:
    found = {}
    for process in _family(parent):
        with contextlib.suppress(psutil.Error):
            if MEMBER in process.cmdline() and "RANK" in (variables := process.environ()):
                found.setdefault(int(variables["RANK"]), process)  # its workers come later
    return found


def _family(parent: int) -> list[psutil.Process]:
    try:
        return psutil.Process(parent).children(recursive=True)
    except psutil.Error:
        return []


def _end_of(child: subprocess.Popen[bytes]) -> int | None:
    try:
        return child.wait(LONGEST_S)
    except subprocess.TimeoutExpired:
        return None


def _left(folder: Path) -> int:
    """Processes that are still at work there, some moments later."""
    ends = monotonic() + 5
    while True:
        found = 0
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                found += process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE
        if not found or monotonic() > ends:
            return found
        sleep(PAUSE_S)
