"""What `detscope run --level modules` costs a script: the same script with and without, taking turns.

Both processes live at the same time and wait for a line before every block of steps, so that only one
of them works and both meet the same machine. The script times its blocks itself: what the recorder does
between steps is part of them.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

from bench.sidebyside import middle_ms, ratio, verdict

MODELS = ("tiny_fasterrcnn", "tiny_ssd")
STEPS = 4
ROUNDS = 30
AIM = 1.04

SCRIPT = """
import sys, time
import torch
from detscope.config.schema import DataSettings
from detscope.data.loader import collate
from detscope.data.registry import open_dataset
from detscope.zoo.contract import BuildOptions
from detscope.zoo.registry import build

name, steps, folder = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.manual_seed(0)
dataset = open_dataset(DataSettings(root=folder, images=4 * steps))
samples = [dataset[i] for i in range(len(dataset))]
loader = torch.utils.data.DataLoader(samples, batch_size=4, collate_fn=collate)
model = build(name, BuildOptions(num_classes=len(dataset.classes), weights="none")).module.train()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
for line in sys.stdin:
    start = time.perf_counter()
    for images, targets in loader:
        loss = sum(model(images, targets).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(time.perf_counter() - start, flush=True)
"""

# 35 steps are what `train --steps 24` makes: 3 of warm-up, 24 recorded, 8 bare
SAME_TRAINING = """
import torch
from detscope.config.schema import DataSettings, TrainingSettings
from detscope.data.loader import build_loader
from detscope.data.registry import open_dataset
from detscope.zoo.contract import BuildOptions
from detscope.zoo.registry import build

torch.manual_seed(0)
dataset = open_dataset(DataSettings(images=16, image_width=320, image_height=240))
loader = build_loader(dataset, TrainingSettings(batch_size=2, num_workers=1), "cpu", seed=0).loader
model = build("tiny_fasterrcnn", BuildOptions(num_classes=len(dataset.classes), weights="none")).module
model.train()
optimizer = torch.optim.SGD(model.parameters(), lr=0.005, momentum=0.9, weight_decay=5e-4)
batches = (batch for _ in range(5) for batch in loader)
for _, (images, targets) in zip(range(35), batches):
    losses = model(images, targets)
    total = sum(losses.values())
    optimizer.zero_grad()
    total.backward()
    optimizer.step()
    values = [loss.item() for loss in losses.values()]
"""


class Turn:
    """A process that runs one block of steps whenever it is asked."""

    def __init__(self, command: list[str], folder: Path) -> None:
        self._process = subprocess.Popen(
            command, cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def _pipe(self, stream: IO[str] | None) -> IO[str]:
        assert stream is not None
        return stream

    def block(self) -> float:
        """Seconds of the next block."""
        asking = self._pipe(self._process.stdin)
        asking.write("go\n")
        asking.flush()
        return float(self._pipe(self._process.stdout).readline())

    def end(self) -> None:
        """Let the script come to its end."""
        self._pipe(self._process.stdin).close()
        if self._process.wait(300) != 0:
            raise RuntimeError("the script failed")


def measure(name: str, rounds: int) -> None:
    """One model: print milliseconds for orientation and the ratio."""
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "script.py").write_text(SCRIPT)
        arguments = ["script.py", name, str(STEPS), str(folder / "data")]
        recorded = [sys.executable, "-m", "detscope", "run", "-q", "--level", "modules", *arguments]
        turns = {"plain": Turn([sys.executable, *arguments], folder)}
        turns["plain"].block()  # data are made once
        turns["recorded"] = Turn(recorded, folder)
        seconds: dict[str, list[float]] = {"plain": [], "recorded": []}
        for number in range(-2, rounds):
            for which in ("plain", "recorded") if number % 2 else ("recorded", "plain"):
                spent = turns[which].block()
                if number >= 0:
                    seconds[which].append(spent)
        for turn in turns.values():
            turn.end()
    found = ratio(seconds, "recorded", "plain")
    words = ", ".join(f"{which} {middle_ms(values, STEPS):.1f} ms" for which, values in seconds.items())
    print(f"{name}: {words} per step; run / plain: {found}  {verdict(found, AIM)}")


def _shares(figures: dict[str, Any]) -> dict[str, float]:
    """Phases of a run in percent of the step."""
    return {row["name"]: 100 * row["share"] for row in figures["phases"]}


def compare_shares(rounds: int = 6) -> None:
    """The same training through `train` and through `run`, in turns: shares of the phases must agree.

    What differs by chance differs between two runs of the same kind too; that is printed beside it.
    """
    sizes = ["--set", "data.images=16", "--set", "data.image_width=320", "--set", "data.image_height=240"]
    command = [sys.executable, "-m", "detscope"]
    train = [*command, "train", "tiny_fasterrcnn", "--batch-size", "2", "--num-workers", "1", *sizes]
    seen: dict[str, list[dict[str, float]]] = {"train": [], "run": []}
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "script.py").write_text(SAME_TRAINING)
        run = [*command, "run", "-q", "--json", "figures.json", "script.py"]
        for number in range(rounds):
            for which in ("train", "run") if number % 2 else ("run", "train"):
                if which == "train":
                    words = [*train, "--steps", "24", "--json"]
                    done = subprocess.run(words, cwd=folder, check=True, capture_output=True)
                    figures = json.loads(done.stdout)
                else:
                    subprocess.run(run, cwd=folder, check=True)
                    figures = json.loads((folder / "figures.json").read_text())
                seen[which].append(_shares(figures))
    apart = {}
    for phase in seen["run"][0]:
        values = {which: [one[phase] for one in shares] for which, shares in seen.items()}
        apart[phase] = statistics.median(values["run"]) - statistics.median(values["train"])
        pairs = ", ".join(f"{b - a:+.1f}" for a, b in zip(values["train"], values["run"], strict=True))
        ranges = ", ".join(f"{which} {min(v):.1f}..{max(v):.1f} %" for which, v in values.items())
        print(f"{phase}: {ranges}; run less train, points: {apart[phase]:+.1f} (pair by pair {pairs})")
    furthest = max(abs(points) for points in apart.values())
    said = "holds" if furthest <= 3 else "MISSED"
    print(f"furthest phase, medians of {rounds} each: {furthest:.1f} points  {said} (aim 3)")


def main(rounds: int = ROUNDS) -> None:
    """`detscope run SCRIPT` over `python SCRIPT`, for each model; then the same training both ways."""
    print("\nwhat `detscope run --level modules` costs a script")
    for name in MODELS:
        measure(name, rounds)
    compare_shares()
