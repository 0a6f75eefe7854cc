"""What `detscope run` costs a script: steps clocked by the script itself, plain and recorded in turns.

The script notes the time at the top of every iteration and writes the times down at its end; it is the same
file in both processes. So what the recorder does inside of steps, between them and beside them is in the
ratio, and the figure that the run states of itself is held against it. Left out is the warm-up, and as many
steps as there are batches that workers made before the first: a start that takes longer leaves more of them.
What a whole process took longer, without the steps, is the start and the end of recording.

`python -m bench run_script --at-once`: both processes of a pair at the same time, each on a core and with a
thread of its own, which they swap from pair to pair. What the machine does to one it does to the other, and
what the recorder's threads take is taken from the script's only core. `--pairs=N`, `--steps=N`.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

from bench.run_shares import compare_shares
from bench.sidebyside import Ratio, pin_to, ratio, run_at_once, verdict

PAIRS = 12
STEPS = 80
WARM_UP = 4  # steps in which the run is opened: that is part of the start
PREFETCHED = 2  # of each worker, made before the first step: how fast they are used up is the start as well
AIMS = {"modules": 1.05, "phases": 1.02}
SPEED_AIM = 0.05
FIXED_AIM = 0.5  # of importing torch and torchvision

COMMON = """
import json, sys, time
import torch, torchvision

out, steps, slow_s, workers = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
torch.manual_seed(0)


class Images(torch.utils.data.Dataset):
    def __len__(self):
        return 2 * steps

    def __getitem__(self, index):
        if slow_s and index % 4 == 0:
            time.sleep(slow_s)  # batches of two: every second one is slow, always of the same worker
        pixels = torch.rand(3, 192, 256, generator=torch.Generator().manual_seed(index))
        boxes = torch.tensor([[10.0, 10.0, 90.0, 90.0], [60.0, 40.0, 200.0, 150.0]])
        return pixels, {"boxes": boxes, "labels": torch.tensor([1, 2])}


def collate(batch):
    return tuple(zip(*batch))


model = torchvision.models.detection.fasterrcnn_mobilenet_v3_large_320_fpn(
    weights=None, weights_backbone=None, num_classes=4, min_size=160, max_size=224,
    rpn_pre_nms_top_n_train=200, rpn_post_nms_top_n_train=100, box_batch_size_per_image=64,
).train()
parts = torchvision.models.detection.faster_rcnn
model.roi_heads.box_head = parts.TwoMLPHead(256 * 7 * 7, 64)  # of 1024 it would be most of the step
model.roi_heads.box_predictor = parts.FastRCNNPredictor(64, 4)
loader = torch.utils.data.DataLoader(Images(), batch_size=2, collate_fn=collate, num_workers=workers)
times = []
"""

LOOP = """
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4, momentum=0.9)
for images, targets in loader:
    times.append(time.perf_counter())
    loss = sum(model(list(images), list(targets)).values())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
"""

LIGHTNING = """
import logging, warnings

warnings.simplefilter("ignore")
import lightning

for name in ("lightning", "lightning.pytorch", "lightning.fabric"):
    logging.getLogger(name).setLevel(logging.ERROR)


class Training(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.detector = model

    def on_train_batch_start(self, batch, index):
        times.append(time.perf_counter())

    def training_step(self, batch, index):
        images, targets = batch
        return sum(self.detector(list(images), list(targets)).values())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=1e-4, momentum=0.9)


names = ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary")
quiet = dict.fromkeys(names, False)
lightning.Trainer(max_epochs=1, accelerator="cpu", **quiet).fit(Training(), loader)
"""

END = """
with open(out, "w") as handle:
    json.dump(times, handle)
"""


@dataclass(frozen=True)
class Case:
    """One kind of script."""

    name: str
    body: str
    slow_s: float = 0.0
    workers: int = 0

    @property
    def skipped(self) -> int:
        """Steps before those that are compared."""
        return WARM_UP + PREFETCHED * self.workers


CASES = (
    Case("plain loop", LOOP),
    Case("Lightning training", LIGHTNING),
    Case("two workers, one slow", LOOP, slow_s=0.4, workers=2),
)


@dataclass(frozen=True)
class Seen:
    """One process."""

    step_s: float  # mean
    whole_s: float
    steps_s: float
    figures: dict[str, Any] | None


def _run(case: Case, level: str | None, folder: Path, steps: int, core: int | None = None) -> Seen:
    times_file = folder / f"times-{level}.json"
    figures_file = folder / "figures.json"
    words = ["script.py", str(times_file), str(steps), str(case.slow_s), str(case.workers)]
    recorded = ["-m", "detscope", "run", "-q", "--level", str(level), "--json-file", str(figures_file)]
    command = [sys.executable, *(recorded if level else []), *words]
    begun = perf_counter()
    subprocess.run([*pin_to(core), *command], cwd=folder, check=True)
    whole_s = perf_counter() - begun
    times = json.loads(times_file.read_text())
    spent_s = times[-1] - times[case.skipped]
    figures = json.loads(figures_file.read_text()) if level else None
    return Seen(spent_s / (len(times) - 1 - case.skipped), whole_s, spent_s, figures)


def _run_pair(case: Case, level: str, folder: Path, steps: int, number: int, at_once: bool) -> list[Seen]:
    """Plain and recorded, in turns or each on a core of its own."""
    ways: list[str | None] = [None, level]
    if not at_once:
        seen = {way: _run(case, way, folder, steps) for way in (ways if number % 2 else reversed(ways))}
        return [seen[way] for way in ways]
    return run_at_once([partial(_run, case, way, folder, steps) for way in ways], number)


def _import_s() -> float:
    begun = perf_counter()
    subprocess.run([sys.executable, "-c", "import torch, torchvision"], check=True)
    return perf_counter() - begun


def measure(case: Case, level: str, pairs: int, steps: int, at_once: bool = False) -> None:
    """One script at one level: print the script's own ratio, the run's, and what start and end cost."""
    plain: list[Seen] = []
    recorded: list[Seen] = []
    imports_s: list[float] = []
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / "script.py").write_text(COMMON + case.body + END)
        _run(case, None, folder, case.skipped + 2)  # file caches and compiled Python files
        for number in range(pairs):
            for seen, one in zip(
                (plain, recorded), _run_pair(case, level, folder, steps, number, at_once), strict=True
            ):
                seen.append(one)
            imports_s.append(_import_s())
    seconds = {"plain": [one.step_s for one in plain], "recorded": [one.step_s for one in recorded]}
    outside = ratio(seconds, "recorded", "plain")
    print(f"\n{case.name}, level {level}: {pairs} pairs of {steps} steps{', at once' if at_once else ''}")
    middle_ms = {which: statistics.median(values) * 1e3 for which, values in seconds.items()}
    print(f"  step: plain {middle_ms['plain']:.1f} ms, recorded {middle_ms['recorded']:.1f} ms")
    print(f"  run / plain, clocked by the script: {outside}  {verdict(outside, AIMS[level])}")
    _say_own_figure(outside, recorded)
    _say_speed(recorded)
    _say_fixed(plain, recorded, imports_s)


def _say_own_figure(outside: Ratio, recorded: list[Seen]) -> None:
    stated = [one.figures["overhead_ratio"]["value"] for one in recorded if one.figures]
    known = [value for value in stated if value is not None]
    if not known:
        print("  the run's own figure: cannot tell  MISSED")
        return
    own = statistics.median(known)
    said = "holds" if outside.low <= own <= outside.high else "MISSED"
    ends = f"median of {len(known)}, {min(known):.3f}..{max(known):.3f}"
    print(f"  the run's own figure: {own:.3f} ({ends})  {said} (inside of the interval)")


def _say_speed(recorded: list[Seen]) -> None:
    """Two images in every batch; the wall time holds everything."""
    off = [one.figures["images_per_s"] * one.step_s / 2 - 1 for one in recorded if one.figures]
    furthest = statistics.median(off)
    said = "holds" if abs(furthest) <= SPEED_AIM else "MISSED"
    print(f"  images/s shown against images / wall time: {furthest:+.1%}  {said} (aim {SPEED_AIM:.0%})")


def _say_fixed(plain: list[Seen], recorded: list[Seen], imports_s: list[float]) -> None:
    pairs = list(zip(plain, recorded, imports_s, strict=True))
    fixed = [(r.whole_s - r.steps_s) - (p.whole_s - p.steps_s) for p, r, _ in pairs]
    whole = {"plain": [p.whole_s for p, _, _ in pairs], "recorded": [r.whole_s for _, r, _ in pairs]}
    share = ratio({"fixed": fixed, "import": imports_s}, "fixed", "import")
    print(f"  run / plain of the whole script: {ratio(whole, 'recorded', 'plain')}")
    print(f"  start and end of recording: {statistics.median(fixed):.2f} s; over importing torch and")
    print(f"  torchvision, {statistics.median(imports_s):.2f} s: {share}  {verdict(share, FIXED_AIM)}")


def main() -> None:
    """`detscope run SCRIPT` over `python SCRIPT`, three scripts at two levels; then against `train`."""
    given = dict(word[2:].partition("=")[::2] for word in sys.argv[1:] if word.startswith("--"))
    pairs, steps = int(given.get("pairs", PAIRS)), int(given.get("steps", STEPS))
    print("\nwhat `detscope run` costs a script")
    for case in CASES:
        for level in AIMS:
            measure(case, level, pairs, steps, "at-once" in given)
            sys.stdout.flush()
    if "at-once" not in given:
        compare_shares()
