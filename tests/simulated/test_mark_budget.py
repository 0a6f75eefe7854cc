"""What marks cost: three per cent of a step, and every module is timed in its turn."""

from __future__ import annotations

import polars as pl
import pytest
import torch
from torch import nn

import detscope
from detscope.record.device.mark_plan import LARGEST_SHARE
from simulated import OperatorCall, PlantedLoader, simulate

STEP_NS = 30_000_000
MARK_NS = 4_000
RECORDED = 20


class Scale(nn.Module):
    """One operator forward, one backward."""

    def __init__(self) -> None:
        super().__init__()
        self.by = nn.Parameter(torch.ones(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.by


def large_net() -> nn.Sequential:
    """1,011 modules: ten stages of ten blocks of nine leaves."""
    blocks = [[nn.Sequential(*[Scale() for _ in range(9)]) for _ in range(10)] for _ in range(10)]
    return nn.Sequential(*[nn.Sequential(*stage) for stage in blocks])


@pytest.mark.slow
def test_a_thousand_modules_are_timed_in_twenty_steps_at_three_per_cent_of_a_step(tmp_path):
    def cost(call: OperatorCall) -> int:
        # leaves of the first block of each stage are below a mark, all others well above
        tiny = call.label.module is not None and call.label.module.split(".")[1:2] == ["0"]
        return 1_000 if tiny else 12_000 if "mul" in call.name else 500

    with simulate(cost=cost, host_cost=lambda _call: 1_000, record_ns=MARK_NS) as simulation:
        model = simulation.watch(large_net().to("cuda"))
        optimizer = torch.optim.SGD(model.parameters(), 0.01)
        data = [torch.ones(2).pin_memory() for _ in range(RECORDED + 3)]
        recorder = detscope.Recorder(model, optimizer, tmp_path, telemetry_hz=0, bare_every=0, traced_steps=0)
        with recorder:
            for batch in recorder.steps(PlantedLoader(simulation, data)):
                loss = model(batch.to("cuda", non_blocking=True)).sum()
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                loss.detach().item()  # the host waits: the step is the device's
    run = detscope.load_run(recorder.run)
    modules = run.table("nodes").filter(pl.col("kind") == "module").height
    wall_ns = run.table("steps").filter((pl.col("phase") == "step") & (pl.col("mode") == "recorded"))[
        "wall_ns"
    ]
    about = run.info["device_clock"]
    share = about["marks_per_step"] * MARK_NS / wall_ns.mean()
    print(
        f"\n{modules} modules, {wall_ns.len()} recorded steps of {wall_ns.mean() / 1e6:.1f} ms:"
        f" {about['marks_per_step']:.0f} marks a step, {share:.2%} of it;"
        f" {len(about['below_mark'])} modules below their mark, {len(about['unmarked'])} without a time"
    )
    assert modules == 1_011
    assert wall_ns.len() == RECORDED
    assert about["mark_cost_ns"] == MARK_NS
    assert share <= LARGEST_SHARE
    assert about["unmarked"] == []
    timed = set(run.table("device_spans").filter(pl.col("kind") == "module")["path"].to_list())
    assert len(timed) == modules
    # those of the very first block are no less than a mark: there the device waits for the host
    assert set(about["below_mark"]) == {f"{stage}.0.{leaf}" for stage in range(1, 10) for leaf in range(9)}
