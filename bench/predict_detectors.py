"""Latency of detectors' training steps by single layers alone: both measured now, one after the other.

    python -m bench.predict_detectors                      measure layers (3 minutes) and steps, and compare
    python -m bench.predict_detectors MICROBENCH.csv       with layers that were measured before

The first five were looked at when kinds and classes were settled; the others, other sizes and other batches
were not. A shared machine's speed changes within minutes: the microbench's reference layers are measured
beside every network's steps, and what is predicted is drawn to the speed of that moment.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from detscope.predict.layers.model import LayerModel, fit_layers
from detscope.predict.layers.times import read_layer_times
from detscope.predict.microbench.calls import LayerBench, make_clock
from detscope.predict.microbench.run import MachineDrift, ReferenceLayers
from detscope.predict.samples import StepCase

_SECONDS = 180.0
_STEPS, _WARM_UP = 11, 3


@dataclass(frozen=True)
class Question:
    """A detector as it is asked about; no image size: its own."""

    name: str
    batch: int = 2
    image_size: int | None = None
    optimizer: str = "sgd"

    def __str__(self) -> str:
        size = "" if self.image_size is None else f", {self.image_size} px"
        return f"{self.name}, batch {self.batch}{size}, {self.optimizer}"


LOOKED_AT = tuple(
    Question(f"tiny_{family}") for family in ("fasterrcnn", "retinanet", "ssd", "fcos", "efficientdet")
)
BLIND = (
    Question("tiny_maskrcnn"),
    Question("tiny_keypointrcnn"),
    Question("tiny_ssdlite"),
    Question("tiny_fasterrcnn", 6),
    Question("tiny_retinanet", 1, 320),
    Question("tiny_fcos", 4, optimizer="adam"),
    Question("tiny_efficientdet", 2, optimizer="adam"),
    Question("ssdlite320_mobilenet_v3_large", 2),
)


def main(arguments: Sequence[str] = ()) -> None:
    """Measure layers, or read them, and compare every detector."""
    with TemporaryDirectory() as folder:
        file = Path(arguments[0]) if arguments else _measured(Path(folder) / "microbench.csv")
        rows, then_ms = read_layer_times(file), _reference_ms(file)
    model = LayerModel(fit_layers(rows))
    print(f"\ndetectors' training steps from {len(rows)} single layers, one thread; median of {_STEPS} steps")
    for title, questions in (("looked at", LOOKED_AT), ("not looked at", BLIND)):
        errors = [compared(model, one, then_ms) for one in questions]
        print(f"  {title}: mean error {100 * float(np.mean(errors)):.1f} %, n = {len(errors)}")


def _measured(file: Path) -> Path:
    from detscope.sessions.fit.fitting import run_microbench

    run_microbench("cpu", _SECONDS, file, threads=1)
    return file


def _reference_ms(file: Path) -> float:
    """The reference convolution then; the addition depends on how much memory a process holds free."""
    facts = json.loads(file.with_suffix(".environment.json").read_text(encoding="utf-8"))
    return float(median(facts["reference_convolution_ms"]))


def _slowness(drift: MachineDrift, then_ms: float) -> float:
    return median(drift.compute_ms) / then_ms


def compared(model: LayerModel, question: Question, then_ms: float) -> float:
    """Print a detector's step, predicted and measured; its error."""
    from detscope.predict.trace.network import trace_network
    from detscope.zoo.networks import load_network

    network = load_network(question.name, image_size=question.image_size)
    case = StepCase(trace_network(network).layer_graph, question.batch, question.optimizer)
    measured, drift = step_ms(network, question)
    slower = _slowness(drift, then_ms)
    predicted = slower * float(model.predict([case])[0])
    print(
        f"  {question!s:46} {predicted:8.1f} ms predicted, {measured:8.1f} ms measured,"
        f" {100 * (predicted / measured - 1):+6.1f} %   (machine at {slower:.2f} of the microbench's times)",
        flush=True,
    )
    return abs(predicted / measured - 1)


def step_ms(network: Any, question: Question) -> tuple[float, MachineDrift]:
    """The median training step on one thread, and the reference layers around every step."""
    import torch

    torch.set_num_threads(1)
    reference = ReferenceLayers(LayerBench(torch, "cpu", make_clock("cpu")))
    trained = [one for one in network.module.parameters() if one.requires_grad]
    if question.optimizer == "adam":
        update: Any = torch.optim.AdamW(trained, lr=1e-6, weight_decay=1e-4)
    else:
        update = torch.optim.SGD(trained, lr=1e-6, momentum=0.9, weight_decay=5e-4)
    data = network.random_batch(question.batch)
    times = []
    for _ in range(_STEPS + _WARM_UP):
        began = time.perf_counter()
        network.loss(data).backward()
        update.step()
        update.zero_grad(set_to_none=True)
        times.append(1e3 * (time.perf_counter() - began))
        reference.measure_if_due(0.0)
    return median(times[_WARM_UP:]), reference.collect_drift()


if __name__ == "__main__":
    main(sys.argv[1:])
