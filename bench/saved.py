"""A recorded model is the user's model: nine operations in the middle of steps, with and without detscope.

python -m bench saved [--nets=fasterrcnn,ssd] [--operations=save,pickle]

Every cell is compared with the same operation of a process without detscope: the same result (bytes of the
file, text of the program, what a copy answers), or the same exception with the same text. What was saved and
pickled is loaded in a process in which importing detscope fails, and so is what a spawned process was sent.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCRIPT = Path(__file__).with_name("saved_script.py")
LOADING = Path(__file__).with_name("saved_loading.py")
NETS = ("fasterrcnn", "maskrcnn", "keypointrcnn", "retinanet", "fcos", "ssd", "ssdlite", "efficientdet")
NETS += ("own net", "own forward")
OPERATIONS = ("save", "pickle", "deepcopy", "script", "trace", "fx", "export", "onnx", "spawn")
KINDS = ("bare", "recorded", "ops", "memory")
HOWS = ("run", "Recorder")
ALWAYS_RESULTS = ("save", "pickle", "deepcopy", "spawn")
_RUN = ["-m", "detscope", "run", "-q", "--level", "ops", "--memory"]
_AT_ONCE = 2


@dataclass
class Compared:
    """One net through one way of recording."""

    cells: int = 0
    results: int = 0
    wrong: list[str] = field(default_factory=list)
    by_operation: dict[str, str] = field(default_factory=dict)  # what a table shows


def run_script(
    net: str, how: str, folder: Path, operations: Sequence[str], kinds: Sequence[str], steps: str = ""
) -> str:
    """Train the net and try everything; what came of it lies in the folder. In which steps it was tried."""
    folder.mkdir()
    words = [str(SCRIPT), net, str(folder), *(["--recorder"] if how == "Recorder" else [])]
    command = [sys.executable, *(_RUN if how == "run" else []), *words]
    variables = {
        **os.environ,
        "PYTHONHASHSEED": "0",
        "OMP_NUM_THREADS": "1",
        "SAVED_ONLY": " ".join(operations),
        "SAVED_KINDS": " ".join(kinds),
        **({"SAVED_STEPS": steps} if steps else {}),
    }
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    if done.returncode or not (folder / "found.json").is_file():
        sys.exit(f"{net}, {how}: exit code {done.returncode}\n{done.stderr[-3000:]}")
    return (folder / "steps.json").read_text()


def load_files(net: str, folder: Path) -> dict[str, Any]:
    """What comes back of the files that were saved, by kind of step and operation."""
    files = sorted(str(file) for name in ("save", "pickle") for file in folder.glob(f"*/{name}"))
    if not files:
        return {}
    command = [sys.executable, str(LOADING), net, *files]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    loaded = {}
    for line in done.stdout.splitlines():
        told = json.loads(line)
        file = Path(told.pop("file"))
        loaded[f"{file.parent.name.rpartition('-')[2]} {file.name}"] = told
    return loaded


def compare(
    net: str, how: str, plain: Path, recorded: Path, wanted: Sequence[str], kinds: Sequence[str] = KINDS
) -> Compared:
    """Every cell of one net and one way of recording against the plain process."""
    before = json.loads((plain / "found.json").read_text())
    after = json.loads((recorded / "found.json").read_text())
    loaded = {folder: load_files(net, folder) for folder in (plain, recorded)}
    compared = Compared()
    for operation in wanted:
        right = 0
        for kind in kinds:
            compared.cells += 1
            here = after.get(kind, {}).get(operation, {"raised": "never tried"})
            problems = [] if here == before[kind][operation] else [f"{before[kind][operation]} became {here}"]
            if operation in ("save", "pickle"):
                one, other = (loaded[folder].get(f"{kind} {operation}") for folder in (plain, recorded))
                if one != other or "result" not in (one or {}):
                    problems.append(f"loaded: {one} became {other}")
            if here.get("ours"):
                problems.append("names detscope")
            if operation in ALWAYS_RESULTS and "result" not in here:
                problems.append("is no result")
            compared.results += "result" in here
            right += not problems
            compared.wrong += [f"{net}, {how}, {kind} step, {operation}: {why[:600]}" for why in problems]
        mark = "result" if "result" in before[kinds[0]][operation] else "raises"
        compared.by_operation[operation] = mark if right == len(kinds) else f"WRONG {len(kinds) - right}"
    return compared


def try_net(
    net: str,
    folder: Path,
    operations: Sequence[str],
    kinds: Sequence[str] = KINDS,
    hows: Sequence[str] = HOWS,
) -> dict[str, Compared]:
    """One net: under `run`, in a `Recorder`, and in the same steps without detscope."""
    place = folder / net.replace(" ", "_")
    place.mkdir()
    made = {}
    for how in hows:
        steps = run_script(net, how, place / how, operations, kinds)
        plain = place / f"plain {steps}"
        if not plain.is_dir():
            run_script(net, "plain", plain, operations, kinds, steps)
        made[how] = compare(net, how, plain, place / how, operations, kinds)
    return made


def main() -> None:
    """The table; exit code 1 where a cell differs."""
    given = dict(word[2:].split("=", 1) for word in sys.argv if word.startswith("--") and "=" in word)
    nets = given["nets"].split(",") if "nets" in given else list(NETS)
    operations = given["operations"].split(",") if "operations" in given else list(OPERATIONS)
    print("a recorded model against one without detscope; each cell: bare, recorded, operator, memory step")
    print(f"{'':26}" + "".join(f"{one:>10}" for one in operations), flush=True)
    wrong: list[str] = []
    cells = results = 0
    with tempfile.TemporaryDirectory(prefix="saved-") as text, ThreadPoolExecutor(_AT_ONCE) as at_once:
        tried = at_once.map(lambda net: try_net(net, Path(text), operations), nets)
        for net, found in zip(nets, tried, strict=True):
            for how, one in found.items():
                words = "".join(f"{one.by_operation[operation]:>10}" for operation in operations)
                print(f"{net:<14}{how:<12}{words}", flush=True)
                wrong += one.wrong
                cells, results = cells + one.cells, results + one.results
    print(
        f"{cells} cells, {results} of them results, {cells - results} the same exception as without detscope"
    )
    print(f"different: {len(wrong)}")
    for why in wrong:
        print(f"  {why}")
    if wrong:
        sys.exit(1)
