"""What recording an inference costs: bare against modules, and the memory the recorder needs over time."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from bench.sidebyside import Ratio, interleave, middle_ms, ratio, verdict
from detscope.analyze.step.overhead import measure_own_cost
from detscope.config.schema import DataSettings
from detscope.data.images import DatasetImages
from detscope.data.registry import open_dataset
from detscope.loops.infer import InferHooks, InferPlan, infer_batches
from detscope.record.recorder import Recorder
from detscope.runs.reader import load_run
from detscope.sessions.infer.inference import make_loader
from detscope.zoo.contract import BuildOptions, BuiltModel
from detscope.zoo.registry import build_model

MODELS = ("tiny_fasterrcnn", "tiny_maskrcnn", "tiny_ssd")
IMAGES = 8
ROUNDS = 24
GROWTH_FROM, GROWTH_TO = 50, 200
GROWTH_AIM_BYTES = 20e6


class Workbench:
    """One model and the same image files for every variant; decoding is part of an image, as for a user."""

    def __init__(self, name: str, folder: Path) -> None:
        dataset = open_dataset(DataSettings(root=str(folder / "data"), images=IMAGES))
        self.source = DatasetImages(dataset)
        self.built: BuiltModel = build_model(name, BuildOptions(weights="none"))
        self.model = self.built.module.eval()
        self.folder = folder

    def loader(self, images: int = IMAGES) -> Any:
        """Reads and decodes in the loop."""
        return make_loader(self.source, [[number % IMAGES] for number in range(images)])

    def bare(self, images: int = IMAGES) -> None:
        """Our loop, nobody listens."""
        infer_batches(self.model, self.loader(images), InferPlan())

    def recorder(self, warmup_steps: int = 0, bare_every: int = 0) -> Recorder:
        """A recorder as `detscope infer` makes it; by default without bare steps between."""
        return Recorder(
            self.model,
            None,
            self.folder / "runs",
            stages=self.built.stages,
            observers=self.built.observers,
            warmup_steps=warmup_steps,
            bare_every=bare_every,
            verb="infer",
        )


def recorded(bench: Workbench) -> Callable[[], None]:
    """Our loop with a recorder that stays over all rounds: passes and the pauses between them."""
    recorder = bench.recorder()
    recorder.__enter__()

    def run() -> None:
        infer_batches(bench.model, bench.loader(), InferPlan(), InferHooks(recorder.steps))
        recorder.attach_probes("nothing")  # the other variant shares the model

    return run


def image_ratio(bench: Workbench) -> Ratio:
    """An image's own time, recorded against bare neighbours; the pauses between images are apart."""
    recorder = bench.recorder(warmup_steps=3, bare_every=2)
    with recorder:
        infer_batches(bench.model, bench.loader(ROUNDS * IMAGES), InferPlan(), InferHooks(recorder.steps))
    found = measure_own_cost(load_run(recorder.run).table("steps"))
    return Ratio(found["value"], *found["ci95"])


def memory_growth_bytes(bench: Workbench) -> tuple[int, int]:
    """Growth of the process from image 50 to image 200: recorded, and before that bare."""

    def growth(each_batch: Callable[[Any], Any]) -> int:
        seen: list[int] = []

        def watch(_batch: Any, _output: Any) -> None:
            images[0] += 1
            if images[0] in (GROWTH_FROM, GROWTH_TO):
                gc.collect()
                seen.append(psutil.Process().memory_info().rss)

        images = [0]
        infer_batches(bench.model, bench.loader(GROWTH_TO), InferPlan(), InferHooks(each_batch, watch))
        return seen[1] - seen[0]

    bare = growth(iter)
    with bench.recorder() as recorder:
        return growth(recorder.steps), bare


def main() -> None:
    """Print the table."""
    print("\nRecording an inference, as ratios (median of rounds, 95 % interval)")
    for name in MODELS:
        with tempfile.TemporaryDirectory() as folder:
            bench = Workbench(name, Path(folder))
            grown, bare = memory_growth_bytes(bench)
            seconds = interleave({"bare": bench.bare, "modules": recorded(bench)}, ROUNDS)
            whole, own = ratio(seconds, "modules", "bare"), image_ratio(bench)
            print(f"\n{name}: bare {middle_ms(seconds['bare'], IMAGES):.1f} ms per image")
            print(f"  {'modules':10} / {'bare, an image':24} {own}  {verdict(own, 1.03)}")
            print(f"  {'modules':10} / {'bare, pauses included':24} {whole}  {verdict(whole, 1.03)}")
            held = "holds" if grown < GROWTH_AIM_BYTES else "MISSED"
            print(
                f"  memory from image {GROWTH_FROM} to {GROWTH_TO}: {grown / 1e6:+.1f} MB recorded, "
                f"{bare / 1e6:+.1f} MB bare  {held} (aim {GROWTH_AIM_BYTES / 1e6:.0f} MB)"
            )
