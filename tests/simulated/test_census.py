"""What the census tells from operators on a CPU is what the host waits for on a device."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torchvision.models import detection

from census_lines import CASES, Given
from census_runs import record_census
from simulated import Simulation, simulate

# no device lets numpy look at its tensors: what the census counts there would be an error
REFUSED = ("asarray",)
# `default_boxes.to(device)`: the generator keeps them on the host, which nothing tells without a device
KEPT_ON_THE_HOST = {"ssd": 1}
MS = 1_000_000


def count_waits(simulation: Simulation, code: Callable[[], object]) -> int:
    """How often the host stood still for the device."""
    calls = simulation.machine.calls
    before = len(calls)
    code()
    return sum("Synchronize" in call.name for call in calls[before:])


@pytest.mark.parametrize("name", [name for name in CASES if name not in REFUSED])
def test_a_line_waits_as_often_as_it_is_counted(name):
    code, expected = CASES[name]
    with simulate() as simulation:
        given = Given("cuda")
        assert count_waits(simulation, lambda: code(given)) == sum(expected.values())


@pytest.mark.parametrize("name", REFUSED)
def test_a_line_that_is_counted_without_a_device_and_cannot_run_on_one(name):
    with simulate(), pytest.raises(TypeError, match="to numpy"):
        CASES[name][0](Given("cuda"))


def count_in_table(table: pl.DataFrame) -> int:
    """Waits, with those that a copy to the device from memory that is not pinned is."""
    waits = table.filter(pl.col("kind").is_in(["read", "size", "copy", "index"]))
    feeds = table.filter((pl.col("kind") == "feed") & ~pl.col("detail").str.contains("non_blocking=True"))
    return int(waits["count"].sum() + feeds["count"].sum())


def make_batch(device: str) -> tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]:
    torch.manual_seed(0)
    boxes = torch.tensor([[8.0, 8.0, 60.0, 60.0], [30.0, 20.0, 110.0, 90.0]])
    targets = [{"boxes": boxes.to(device), "labels": torch.tensor([1, 2]).to(device)} for _ in range(2)]
    return [torch.rand(3, 96, 128).to(device) for _ in range(2)], targets


PLAIN: dict[str, Any] = {"weights": None, "weights_backbone": None, "num_classes": 4}
DETECTORS: dict[str, Callable[[], Any]] = {
    "fasterrcnn": lambda: detection.fasterrcnn_mobilenet_v3_large_320_fpn(
        **PLAIN, min_size=96, max_size=128, rpn_pre_nms_top_n_train=100
    ),
    "ssd": lambda: detection.ssdlite320_mobilenet_v3_large(**PLAIN),
}


@pytest.mark.parametrize("name", DETECTORS)
def test_a_detector_waits_as_often_as_is_counted_without_a_device(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = DETECTORS[name]().train()
    step = lambda batch: sum(model(*batch).values())  # noqa: E731
    counted = count_in_table(record_census(model, [make_batch("cpu")] * 2, step, tmp_path))
    with simulate() as simulation:
        model.to("cuda")
        batch = make_batch("cuda")
        step(batch).backward()
        assert count_waits(simulation, lambda: step(batch).backward()) == counted + KEPT_ON_THE_HOST.get(
            name, 0
        )


def test_on_a_device_the_line_is_named_at_which_the_driver_is_asked_for_memory(tmp_path: Path) -> None:
    """In the step that is counted one tensor is larger than any before."""
    with simulate():
        model = torch.nn.Conv2d(3, 4, 3).to("cuda")
        batches = [torch.rand(2, 3, 8, 8).to("cuda") for _ in range(3)]

        def step(batch: torch.Tensor) -> torch.Tensor:
            kept = torch.ones((64 if batch is batches[-1] else 1) << 20, device="cuda")
            return model(batch).square().mean() + kept[0]

        table = record_census(model, batches, step, tmp_path)
    asked = table.filter(pl.col("kind") == "allocation")
    assert asked["count"].to_list() == [1]
    assert "torch.ones(" in asked["code"].item()


def test_on_a_device_a_row_s_time_is_the_wait_itself(tmp_path: Path) -> None:
    """The device is busy for 50 ms when the host asks for a value."""

    def cost(call: Any) -> int:
        return 50 * MS if "convolution" in call.name and call.label.direction == "forward" else 10_000

    with simulate(cost=cost):
        model = torch.nn.Conv2d(3, 4, 3).to("cuda")
        batches = [torch.rand(2, 3, 8, 8).to("cuda") for _ in range(2)]

        def step(batch: torch.Tensor) -> torch.Tensor:
            loss = model(batch).square().mean()
            assert float(loss.detach()) > 0
            return loss

        table = record_census(model, batches, step, tmp_path)
    read = table.filter(pl.col("kind") == "read")
    assert read["count"].to_list() == [1]
    assert "float(loss" in read["code"].item()
    assert read["host_ns"].item() == pytest.approx(50 * MS, rel=0.02)
