"""CPU memory of training steps, simulated and measured: 12 + 6 classifiers and a tiny detector per family."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

from detscope.predict.trace.network import trace_network
from detscope.predict.trace.peaks import OPTIMIZERS
from detscope.zoo.networks import Network, load_network

CLASSIFIERS = (
    "alexnet", "vgg11_bn", "resnet18", "resnet50", "resnext50_32x4d", "densenet121", "mobilenet_v2",
    "mobilenet_v3_large", "efficientnet_b0", "squeezenet1_1", "shufflenet_v2_x1_0", "convnext_tiny",
)  # fmt: skip
BACKBONES = (
    "timm/regnety_004", "timm/rexnet_100", "timm/ghostnet_100", "timm/resnet26d", "timm/dla34",
    "timm/mixnet_s",
)  # fmt: skip
DETECTORS = (
    "tiny_fasterrcnn", "tiny_maskrcnn", "tiny_keypointrcnn", "tiny_retinanet", "tiny_fcos", "tiny_ssd",
    "tiny_ssdlite", "tiny_efficientdet",
)  # fmt: skip
IMAGE_SIZE = 96  # of classifiers; detectors at their own 128
BATCHES = (2, 4, 8)
MEAN, WORST = 0.01, 0.05


@dataclass(frozen=True)
class Comparison:
    """One training step."""

    network: str
    optimizer: str
    batch: int
    simulated_bytes: int
    measured_bytes: int

    @property
    def error(self) -> float:
        """Share of what was measured."""
        return self.simulated_bytes / self.measured_bytes - 1


def compare(
    name: str, batches: Sequence[int] = BATCHES, image_size: int | None = None
) -> Iterator[Comparison]:
    """Simulate first, from traces at two and three images; then run the steps and measure."""
    network = load_network(name, image_size=image_size)
    traced = trace_network(network)
    for optimizer in OPTIMIZERS:
        for batch in batches:
            yield Comparison(
                name,
                optimizer,
                batch,
                traced.find_cpu_peak(batch, optimizer).allocated_bytes,
                measured_bytes(network, batch, optimizer),
            )


def measured_bytes(network: Network, batch: int, optimizer: str) -> int:
    """Held plus what the second step adds at its highest, by the events of torch's CPU allocator."""
    import torch

    from detscope.sweep.measure import count_held_bytes, measure_allocated_peak

    trained = [one for one in network.module.parameters() if one.requires_grad]
    update: torch.optim.Optimizer = torch.optim.Adam(trained, lr=1e-6)
    if optimizer == "sgd":
        update = torch.optim.SGD(trained, lr=1e-6, momentum=0.9, weight_decay=5e-4)
    data = network.random_batch(batch)

    def step() -> None:
        network.loss(data).backward()  # type: ignore[no-untyped-call]
        update.step()
        update.zero_grad(set_to_none=True)

    step()
    return count_held_bytes(network.module, update, data) + measure_allocated_peak(step)


def main(names: Sequence[str] = ()) -> None:
    """Print the table."""
    warnings.simplefilter("ignore")
    print(f"\nCPU memory of a training step, simulated and measured; classifiers at {IMAGE_SIZE} px")
    found: list[Comparison] = []
    for name in names or (*CLASSIFIERS, *BACKBONES, *DETECTORS):
        began = perf_counter()
        some = list(compare(name, image_size=None if name in DETECTORS else IMAGE_SIZE))
        found += some
        worst = max(some, key=lambda one: abs(one.error))
        last = some[len(BATCHES) - 1]
        print(
            f"  {name:22} batch {last.batch}, sgd: {last.simulated_bytes / 1e6:8.2f} MB simulated,"
            f" {last.measured_bytes / 1e6:8.2f} MB measured; worst of {len(some)}:"
            f" {100 * worst.error:+.3f} % ({worst.optimizer}, batch {worst.batch});"
            f" {perf_counter() - began:.0f} s",
            flush=True,
        )
    errors = [abs(one.error) for one in found]
    mean, worst_error = sum(errors) / len(errors), max(errors)
    held = mean <= MEAN and worst_error <= WORST
    print(
        f"  {len(errors)} steps: mean error {100 * mean:.3f} % (wanted: 1), worst {100 * worst_error:.3f} %"
        f" (wanted: 5)  {'ok' if held else 'MISSED'}"
    )


if __name__ == "__main__":
    main(sys.argv[1:])
