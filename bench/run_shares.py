"""The same training through `train` and through `run`: shares of the phases must agree."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

# 35 steps are what `train --steps 24` makes: 3 of warm-up, 24 recorded, 8 bare
SAME_TRAINING = """
import torch
from detscope.config.schema import DataSettings, TrainingSettings
from detscope.data.loading import build_loader
from detscope.data.registry import open_dataset
from detscope.zoo.contract import BuildOptions
from detscope.zoo.registry import build_model

torch.manual_seed(0)
dataset = open_dataset(DataSettings(images=16, image_width=320, image_height=240))
loader = build_loader(dataset, TrainingSettings(batch_size=2, num_workers=1), "cpu", seed=0).loader
model = build_model("tiny_fasterrcnn", BuildOptions(num_classes=len(dataset.classes), weights="none")).module
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
