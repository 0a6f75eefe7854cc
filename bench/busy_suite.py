"""Tests of ranks, clusters, kills and signals, again and again while others use every core: `make test-busy`.

What needs a quiet machine fails here and not on somebody else's desk. Each round is a pytest of its own.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

TESTS = Path(__file__).parents[1] / "tests"


@contextmanager
def busy_cores(count: int) -> Iterator[None]:
    """As many processes that never rest."""
    others = [subprocess.Popen(["yes"], stdout=subprocess.DEVNULL) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def list_files(marker: str) -> list[str]:
    """Files of tests that name the marker: collecting all others takes longer than a round."""
    named = [file for file in sorted(TESTS.rglob("test_*.py")) if f"mark.{marker}" in file.read_text()]
    return [str(file.relative_to(TESTS.parent)) for file in named]


def run_round(marker: str, workers: int, arguments: list[str]) -> tuple[int, str, list[str]]:
    """Exit code, pytest's last line and the tests that failed."""
    command = [sys.executable, "-m", "pytest", "-m", marker, "-n", str(workers), "--dist", "loadfile"]
    command += [*list_files(marker), *arguments]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    lines = done.stdout.rstrip().splitlines() or [""]
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, re.MULTILINE)
    if done.returncode:
        print(done.stdout, flush=True)
    return done.returncode, lines[-1].strip("= "), failed


def main() -> int:
    """Run the rounds; 1 if any of them was not green."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--busy", type=int, default=2, help="processes that never rest")
    parser.add_argument("--select", default="processes", help="a marker of pytest")
    parser.add_argument("--workers", type=int, default=2, help="processes of pytest")
    asked, arguments = parser.parse_known_args()
    red = 0
    print(f"{'round':>5}  {'result':<6}  minutes  pytest says, and what failed", flush=True)
    with busy_cores(asked.busy):
        for number in range(1, asked.times + 1):
            begin = time.monotonic()
            code, words, failed = run_round(asked.select, asked.workers, arguments)
            red += code != 0
            minutes, result = (time.monotonic() - begin) / 60, "red" if code else "green"
            print(
                f"{number:>5}  {result:<6}  {minutes:7.1f}  {words}  {' '.join(failed)}".rstrip(), flush=True
            )
    print(f"{asked.times - red} of {asked.times} rounds green")
    return int(red > 0)


if __name__ == "__main__":
    sys.exit(main())
