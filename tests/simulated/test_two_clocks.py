"""What is shown of a training on an asynchronous device: the planted truth, and no host time in disguise.

`BEFORE` holds what the version before two clocks showed of the same trainings (phases and stages in ms, and
the verdict), so that one sees beside each other what was planted, what is shown and what used to be.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import detscope
from detscope.analyze.summary import RunSummary, summarize
from simulated import OperatorCall, PlantedLoader, plain_cost, simulate
from simulated.cases import CASES, MS, Case, Recorded, record_case
from simulated.comparison import (
    compare_device_spans,
    compare_device_steps,
    compare_modules,
    compare_summary,
    find_wrong,
)
from simulated.networks import YoloLike, make_batch, make_detector, move_batch, yolo_loss

Shown = Callable[[Case, str], tuple[Recorded, RunSummary]]
PHASES = ("data", "transfer", "forward", "backward", "optimizer", "other")
STAGES = ("backbone", "neck", "head")
BEFORE: dict[str, tuple[tuple[float, ...], tuple[float, ...], str]] = {
    "device-bound": (
        (0.0, 0.01, 0.08, 12.61, 3.84, 1.84),
        (4.77, 3.72, 2.22),
        "backward takes 69 % of the step",
    ),
    "host-bound": (
        (0.0, 1.01, 5.06, 13.05, 9.04, 4.03),
        (8.04, 4.01, 4.01),
        "backward takes 41 % of the step",
    ),
    "synchronisation in forward": (
        (0.0, 0.01, 18.25, 0.09, 0.07, 0.04),
        (0.06, 0.03, 0.03),
        "forward takes 99 % of the step",
    ),
    "hidden data wait": (
        (12.73, 0.01, 0.08, 1.83, 3.69, 0.04),
        (1.8, 0.03, 0.03),
        "waiting for data: 69 % of the step",
    ),
    "exposed data wait": (
        (40.0, 0.01, 0.08, 0.09, 0.07, 0.04),
        (0.06, 0.03, 0.03),
        "waiting for data: 99 % of the step",
    ),
    "side-stream prefetcher": (
        (0.0, 0.01, 0.08, 14.07, 4.17, 0.05),
        (8.09, 0.4, 3.81),
        "backward takes 77 % of the step",
    ),
    "fp16 with a scaler": (
        (0.0, 0.01, 0.11, 0.13, 18.6, 0.05),
        (0.09, 0.05, 0.05),
        "optimizer takes 98 % of the step",
    ),
    "gradient accumulation": (
        (0.0, 0.01, 4.49, 9.21, 0.0, 4.48),
        (9.28, 0.42, 3.94),
        "backward takes 51 % of the step",
    ),
    "hidden communication": (
        (0.0, 0.01, 0.08, 12.61, 5.82, 1.84),
        (4.77, 3.72, 2.22),
        "backward takes 62 % of the step",
    ),
    "exposed communication": (
        (0.0, 0.01, 0.08, 12.63, 27.82, 1.83),
        (4.8, 3.72, 2.21),
        "optimizer takes 66 % of the step",
    ),
    "another device": (
        (0.0, 0.01, 0.08, 12.61, 3.84, 1.84),
        (4.77, 3.72, 2.22),
        "backward takes 69 % of the step",
    ),
    "graph capture": ((0.0, 3.39, 0.0, 0.0, 14.98, 0.03), (), "optimizer takes 81 % of the step"),
    "device-side assert": ((), (), "cannot tell: no complete step was recorded"),
    "out of memory": (
        (0.0, 0.01, 0.08, 12.85, 3.68, 1.76),
        (5.1, 3.56, 2.3),
        "backward takes 70 % of the step",
    ),
}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> Shown:
    """Every case is recorded and summed up once per level."""
    known: dict[tuple[str, str], tuple[Recorded, RunSummary]] = {}

    def find(case: Case, level: Any) -> tuple[Recorded, RunSummary]:
        if (case.name, level) not in known:
            recorded = record_case(case, level, tmp_path_factory.mktemp("runs"))
            known[case.name, level] = (recorded, summarize(recorded.folder))
        return known[case.name, level]

    return find


def name_case(case: Case) -> str:
    return case.name


def find_before(case: Case) -> dict[str, float]:
    phases, stages, _ = BEFORE[case.name]
    return dict(zip((*PHASES, *STAGES), (*phases, *stages), strict=False))


@pytest.mark.parametrize("level", ["modules", "ops"])
@pytest.mark.parametrize("case", CASES.values(), ids=name_case)
def test_phases_and_stages_are_shown_as_planted(shown: Shown, case: Case, level: str) -> None:
    recorded, summary = shown(case, level)
    lines = compare_summary(recorded, summary, find_before(case))
    print(f"\n{case.name}: {summary.verdict}\n  before: {BEFORE[case.name][2]}", *lines, sep="\n")
    assert len(lines) == 5 + 3 * (case.loop != "captured") + (case.exchange_ns > 0)
    assert not find_wrong(lines)


@pytest.mark.parametrize("case", CASES.values(), ids=name_case)
def test_modules_are_shown_as_planted_where_operators_are_recorded(
    shown: Shown, case: Case, request: pytest.FixtureRequest
) -> None:
    if case.loop == "captured":
        pytest.skip("no module is called when a graph is replayed")
    recorded, summary = shown(case, "ops")
    lines = compare_modules(recorded, summary)
    assert {line.what for line in lines} >= {"backbone.0", "neck", "head"}
    assert not find_wrong(lines), request.node.name


@pytest.mark.parametrize("level", ["modules", "ops"])
@pytest.mark.parametrize("case", CASES.values(), ids=name_case)
def test_the_step_has_the_right_word(shown: Shown, case: Case, level: str) -> None:
    recorded, summary = shown(case, level)
    assert summary.clocks.bound == case.bound, summary.clocks.evidence
    assert summary.verdict.startswith(f"{case.bound}: ")
    assert summary.clocks.clock == "device"
    assert recorded.folder.is_dir()


@pytest.mark.parametrize("level", ["modules", "ops"])
@pytest.mark.parametrize("case", CASES.values(), ids=name_case)
def test_two_clocks_add_up(shown: Shown, case: Case, level: str) -> None:
    recorded, summary = shown(case, level)
    clocks = summary.clocks
    assert sum(phase.ms for phase in summary.phases) == pytest.approx(clocks.device_step_ms, rel=1e-6)
    assert clocks.busy_ms + clocks.idle_ms == pytest.approx(clocks.device_step_ms, rel=1e-6)
    hosts = [phase.host_ms for phase in summary.phases]
    assert sum(hosts) == pytest.approx(summary.step_ms.p50, rel=0.02)
    assert recorded.simulation.machine.log


@pytest.mark.parametrize("name", ["synchronisation in forward", "fp16 with a scaler"])
def test_a_host_that_waits_is_told_with_the_call(shown: Shown, name: str) -> None:
    _, summary = shown(CASES[name], "ops")
    first = summary.clocks.host_waits[0]
    assert "item" in str(first)
    assert first.ms > 12


def test_a_program_that_waits_for_nothing_is_not_said_to_wait(shown: Shown) -> None:
    _, summary = shown(CASES["device-bound"], "ops")
    assert not summary.clocks.host_waits_ms


def test_what_runs_beside_the_step_is_told(shown: Shown) -> None:
    _, summary = shown(CASES["side-stream prefetcher"], "modules")
    assert [one.phase for one in summary.clocks.side_streams] == ["transfer"]


@pytest.mark.parametrize("name", ["device-bound", "host-bound", "exposed data wait", "gradient accumulation"])
def test_marks_and_kernels_agree(shown: Shown, name: str) -> None:
    _, summary = shown(CASES[name], "ops")
    found = {one.name: one for one in summary.clocks.agreement if one.kernels_ms > 0.1}
    assert {name.partition(".")[0] for name in found} >= {"forward", "backward", *STAGES}
    for one in found.values():
        if one.name != "optimizer":  # of accumulated gradients not every step has one
            assert one.ratio == pytest.approx(1, abs=0.02), one


# ---- detectors


Lose = Callable[[Callable[..., Any], Any], torch.Tensor]


def lose_detector(forward: Callable[..., Any], batch: Any) -> torch.Tensor:
    return sum(forward(*batch).values())


def lose_yolo(forward: Callable[..., Any], batch: Any) -> torch.Tensor:
    images, targets = batch
    return yolo_loss(forward(torch.stack(images)), torch.stack([one["boxes"] for one in targets]) / 64)


def record_detector(make: Callable[[], nn.Module], lose: Lose, level: Any, out: Path) -> Recorded:
    def cost(call: OperatorCall) -> int:
        return 4 * plain_cost(call)

    torch.manual_seed(0)
    with simulate(cost=cost) as simulation:
        model = simulation.watch(make().train().to("cuda"))
        optimizer = torch.optim.SGD(model.parameters(), 0.001, momentum=0.9)
        recorder = detscope.Recorder(model, optimizer, out, level=level, telemetry_hz=0, warmup_steps=2)
        loader = PlantedLoader(simulation, [make_batch(seed=step) for step in range(14)], 2 * MS)

        with recorder:
            for batch in recorder.steps(loader):
                with simulation.phase("transfer"), detscope.phase("transfer"):
                    moved = move_batch(batch, "cuda")
                with simulation.phase("forward"):
                    loss = lose(model, moved)
                with simulation.phase("optimizer"), detscope.phase("optimizer"):
                    optimizer.zero_grad()
                loss.backward()
                with simulation.phase("optimizer"), detscope.phase("optimizer"):
                    optimizer.step()
    return Recorded(Case("detector", None), simulation, recorder.run)


@pytest.mark.parametrize(
    ("make", "lose"), [(make_detector, lose_detector), (YoloLike, lose_yolo)], ids=["tiny_fasterrcnn", "yolo"]
)
@pytest.mark.parametrize("level", ["modules", "ops"])
def test_detectors_are_shown_on_both_clocks(
    make: Callable[[], nn.Module], lose: Lose, level: str, tmp_path: Path
) -> None:
    recorded = record_detector(make, lose, level, tmp_path)
    summary = summarize(recorded.folder)
    clocks = summary.clocks
    assert sum(phase.ms for phase in summary.phases) == pytest.approx(clocks.device_step_ms, rel=1e-6)
    assert clocks.busy_ms + clocks.idle_ms == pytest.approx(clocks.device_step_ms, rel=1e-6)
    assert sum(phase.host_ms for phase in summary.phases) == pytest.approx(summary.step_ms.p50, rel=0.02)
    page = (recorded.folder / "report.html").read_text()
    assert "host" in page and "device" in page
    assert not find_wrong(compare_device_steps(recorded))
    if level == "modules":
        modules = compare_device_spans(recorded, "module")
        assert len(modules) > 20
        assert not find_wrong(modules)
