"""Spoilt files through the real commands: answered or refused, never an internal error, a traceback, a hang.

`python -m bench mutated --seed=7 --files=500`: so many files of each group. One process runs many commands;
it has 2 GB of memory and 60 s for each file, and is replaced where it died or took longer.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from bench.mutated_bases import Subject, make_subjects
from bench.mutations import KINDS

SECONDS = 60
FILES = 500
SMALLEST_SHARE_REFUSED = 1 / 3
_REFUSALS = (2, 3, 4)
_FILES_OF_A_WORKER = 50


class Worker:
    """A process that answers commands; ended and replaced where it does not."""

    def __init__(self) -> None:
        self._process = self._start()

    def _start(self) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "bench.mutated_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            cwd=Path(__file__).parents[1],
            env={
                **os.environ,
                "OPENBLAS_NUM_THREADS": "1",
                "OMP_NUM_THREADS": "1",
                "POLARS_MAX_THREADS": "2",
            },
        )

    def ask(self, arguments: list[str], seconds: float) -> dict[str, object]:
        """The answer, or how the process failed to give one."""
        asked, answers = self._process.stdin, self._process.stdout
        assert asked is not None and answers is not None
        print(json.dumps(arguments), file=asked, flush=True)
        ready, _, _ = select.select([answers], [], [], seconds)
        line = answers.readline() if ready else ""
        if line:
            found: dict[str, object] = json.loads(line)
            return found
        ending = f"died with {self._process.wait()}" if ready else f"hang: no answer in {seconds:.0f} s"
        self.close()
        self._process = self._start()
        return {"code": ending, "out": "", "told": ""}

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


@dataclass
class Tally:
    """What became of the files, by group and kind of mutation."""

    answered: Counter[tuple[str, str]] = field(default_factory=Counter)
    refused: Counter[tuple[str, str]] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    reasons: dict[str, int] = field(default_factory=lambda: defaultdict(int))


def fault_of(answer: dict[str, object]) -> str | None:
    """What is wrong with an answer; None: it is an answer or a refusal."""
    code, told = answer["code"], f"{answer['told']}{answer['out']}"
    if not isinstance(code, int):
        return str(code)[:300]
    for word in ("internal error", "Traceback"):
        if word in told:
            return told[told.index(word) :].splitlines()[0][:300]
    return None if code in (0, *_REFUSALS) else f"exit code {code}: {told[-200:]}"


def try_files(files: int, seed: int, base: Path, kept: Path | None = None) -> Tally:
    """Spoil so many files of each group and ask about them; `kept`: where files with faults go."""
    subjects = make_subjects(base / "sound")
    by_group: dict[str, list[Subject]] = defaultdict(list)
    for subject in subjects:
        by_group[subject.group].append(subject)
    tally, worker = Tally(), Worker()
    try:
        for group, members in by_group.items():
            for number in range(files):
                if number % _FILES_OF_A_WORKER == 0:  # what a process keeps of earlier files is not theirs
                    worker.close()
                    worker = Worker()
                _try_file(members[number % len(members)], group, number, seed, base, worker, tally, kept)
    finally:
        worker.close()
    return tally


def _try_file(
    subject: Subject,
    group: str,
    number: int,
    seed: int,
    base: Path,
    worker: Worker,
    tally: Tally,
    kept: Path | None,
) -> None:
    draw = Random(f"{seed} {subject.name} {number}")
    kind = KINDS[draw.randrange(len(KINDS))]
    folder = base / "case"
    folder.mkdir()
    refused = False
    commands = subject.spoil(folder, kind, draw)
    for arguments in commands:
        answer = worker.ask(arguments, SECONDS / len(commands))
        fault = fault_of(answer)
        if fault is not None:
            tally.faults.append(f"{subject.name} {number} ({kind}), {arguments[0]}: {fault}")
            if kept is not None:
                shutil.copytree(
                    folder, kept / f"{subject.name.replace(' ', '-')}-{number}", dirs_exist_ok=True
                )
        refused |= answer["code"] != 0
    (tally.refused if refused else tally.answered)[group, kind] += 1
    shutil.rmtree(folder)


def main() -> None:
    """1,500 files, a table of kinds, and exit code 1 where one was neither answered nor refused."""
    given = dict(word[2:].split("=", 1) for word in sys.argv if word.startswith("--") and "=" in word)
    files, seed = int(given.get("files", FILES)), int(given.get("seed", 0))
    kept = Path(given["keep"]) if "keep" in given else None
    with tempfile.TemporaryDirectory(prefix="mutated-") as folder:
        tally = try_files(files, seed, Path(folder), kept)
    tell(tally, seed)
    total = sum(tally.answered.values()) + sum(tally.refused.values())
    if tally.faults or sum(tally.refused.values()) < SMALLEST_SHARE_REFUSED * total:
        sys.exit(1)


def tell(tally: Tally, seed: int) -> None:
    """The table."""
    groups = list(dict.fromkeys(group for group, _ in (*tally.answered, *tally.refused)))
    total = sum(tally.answered.values()) + sum(tally.refused.values())
    print(f"mutated files, seed {seed}: answered / refused")
    print(f"{'':24}" + "".join(f"{group:>30}" for group in groups))
    for kind in KINDS:
        cells = (f"{tally.answered[group, kind]} / {tally.refused[group, kind]}" for group in groups)
        print(f"{kind:24}" + "".join(f"{cell:>30}" for cell in cells))
    hangs = sum("hang" in fault for fault in tally.faults)
    print(
        f"{total} files, {sum(tally.refused.values()) / max(1, total):.0%} refused;"
        f" {len(tally.faults)} faults (internal errors, tracebacks, deaths), {hangs} of them hangs"
    )
    for fault in tally.faults[:50]:
        print(f"  {fault}")
