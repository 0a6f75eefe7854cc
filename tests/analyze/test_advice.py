"""One test per rule: the figures that make it speak, what it promises, and figures that keep it silent."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from advised_runs import CALM, advised, summary
from detscope.analyze.advice import advise_on_time
from detscope.analyze.advice.case import Advice, AdviceRule, SettingValue
from detscope.analyze.step.steps import StepFigures
from detscope.analyze.summary import RunSummary
from detscope.parts import parts_of
from made_figures import made_figure


def module(kind: str, ms: float, path: str = "layer") -> dict[str, Any]:
    return {"path": path, "type": kind, "self_forward_ms": ms / 2, "self_backward_ms": ms / 2}


def test_a_calm_run_gets_no_advice() -> None:
    assert advise_on_time(summary()) == []
    assert advise_on_time(made_figure(RunSummary, {"verb": "train"})) == []


def test_workers_as_many_as_the_demand_needs() -> None:
    """Half of 100 ms is waiting: 2 images per 50 ms are 40 images/s; one worker makes 20: 2.3 are needed."""
    loader = {"num_workers": 1, "capacity_images_per_s": 20.0, "demand_images_per_s": 40.0}
    found = advised(summary(phases={"data": 0.5}, loader=loader))["workers"]
    assert found.settings == (SettingValue(key="training.num_workers", value=3),)
    assert found.gain_share == pytest.approx(0.5)
    assert found.command == "detscope train --config 'runs/a run/config.toml' --set training.num_workers=3"


def test_prefetch_where_workers_are_fast_and_yet_late() -> None:
    loader = {"num_workers": 2, "capacity_images_per_s": 60.0, "demand_images_per_s": 20.0}
    found = advised(summary(phases={"data": 0.2}, loader=loader))
    assert found["prefetch"].settings == (SettingValue(key="training.prefetch_factor", value=4),)
    assert "workers" not in found


def test_no_longer_queue_where_batches_lie_ready_and_receiving_them_takes_the_time() -> None:
    assert "prefetch" not in advised(summary(phases={"data": 0.2}))  # twenty times what is wanted


def received(tensors: float, more: dict[str, Any] | None = None, **changes: Any) -> RunSummary:
    """A fifth of the step is waiting, nearly all of it for batches that lie ready."""
    figures = {"wait_ms": 20.0, "receive_ms": 18.0, "ready_share": 0.9, "tensors_per_batch": tensors}
    loader = {"num_workers": 2, "capacity_images_per_s": 60.0, "demand_images_per_s": 20.0, **figures}
    return summary(phases={"data": 0.2}, loader={**loader, **changes}, **(more or {}))


def test_fewer_tensors_where_batches_lie_ready_and_receiving_them_takes_the_time() -> None:
    found = advised(received(14))
    assert list(found) == ["receiving"]  # neither more workers nor a longer queue
    assert found["receiving"].gain_share == pytest.approx(0.2 * 0.9 * 0.6)
    assert "14 tensors" in found["receiving"].evidence
    assert "file_system" in found["receiving"].how and not found["receiving"].settings
    assert "receiving" not in advised(received(14, ready_share=0.2))
    assert "receiving" not in advised(received(14, receive_ms=2.0))


def test_a_batch_in_one_piece_is_blamed_on_a_busy_machine_only_where_it_was_busy() -> None:
    def on_machine(percent: float) -> dict[str, Advice]:
        row = {"source": "system", "metric": "cpu_percent", "mean": percent}
        return advised(received(1, {"telemetry": [row]}))

    assert "97 % busy" in on_machine(97.0)["receiving"].evidence
    assert "receiving" not in on_machine(50.0) and "receiving" not in advised(received(1))


def waiting(cause: str, share: float, call: str = "enumerate(DataLoader)", **more: Any) -> RunSummary:
    """A file that was recorded elsewhere: nothing is known of its loader but how long it was waited for."""
    idle = {"causes": [{"name": cause, "share": share}], "window_ns": 1000}
    blame = [{"cause": cause, "call": call, "share": share}]
    use = {"idle": idle, "blame": blame, **more}
    return summary(verb="import", rerun=None, device="V100", device_use=use, loader={})


def test_a_recorded_device_that_waits_for_data_is_told_to_load_beside_the_loop() -> None:
    found = advised(waiting("data", 0.33, "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"))
    assert found["starved"].gain_share == pytest.approx(0.33)
    assert found["starved"].title == "load batches in workers beside the loop"
    assert "more or faster" in advised(waiting("data", 0.33))["starved"].title
    assert "starved" not in advised(waiting("data", 0.02))
    assert "starved" not in advised(waiting("host", 0.33))


def test_advice_follows_from_a_device_s_window_where_no_step_was_marked() -> None:
    without_steps = msgspec.structs.replace(waiting("data", 0.47), step_ms=StepFigures(), phases=[])
    found = advised(without_steps)["starved"]
    assert (found.gain_share, found.gain_ms) == (pytest.approx(0.47), None)


def test_late_launches_where_the_host_keeps_the_device_waiting() -> None:
    assert advised(waiting("host", 0.2))["late_launches"].gain_share == pytest.approx(0.1)
    assert "late_launches" not in advised(waiting("host", 0.04))


def test_copies_of_a_recorded_file_say_themselves_that_their_memory_was_pageable() -> None:
    rows = [{"direction": "HtoD", "memory": "pageable", "exposed_ns": 100}]
    found = advised(waiting("data", 0.01, copies={"rows": rows}))
    assert found["pinned_memory"].gain_share == pytest.approx(0.05)
    pinned = [{"direction": "HtoD", "memory": "pinned", "exposed_ns": 100}]
    assert "pinned_memory" not in advised(waiting("data", 0.01, copies={"rows": pinned}))


def test_pinned_memory_on_cuda_only() -> None:
    pageable = {"training": {"pin_memory": False}}
    on_cuda = summary(device="cuda:0", phases={"transfer": 0.2})
    assert advised(on_cuda, pageable)["pinned_memory"].gain_share == pytest.approx(0.1)
    assert "pinned_memory" not in advised(summary(phases={"transfer": 0.2}), pageable)


def test_a_larger_batch_where_the_optimizer_costs() -> None:
    found = advised(summary(phases={"optimizer": 0.3, "other": 0.1}))["batch_size"]
    assert found.settings == (SettingValue(key="training.batch_size", value=4),)
    assert found.gain_share == pytest.approx(0.2)


def test_channels_last_where_convolutions_dominate() -> None:
    settings = {"training": {"channels_last": False}}
    found = advised(summary(modules=[module("Conv2d", 60.0)]), settings)["channels_last"]
    assert found.gain_share == pytest.approx(0.6 * (1 - 1 / 1.15))
    assert "channels_last" not in advised(
        summary(modules=[module("Conv2d", 60.0)]), {"training": {"channels_last": True}}
    )


def on_device(**idle_ms: float) -> dict[str, Any]:
    """A run of 100 ms on a device's clock, of which phases stood idle for so long."""
    phases = [
        {
            "name": name,
            "ms": 100 * share,
            "share": share,
            "idle_ms": idle_ms.get(name, 0.0),
            "clock": "device",
        }
        for name, share in CALM.items()
    ]
    clocks = {"clock": "device", "device_step_ms": 100.0}
    given = made_figure(RunSummary, {"phases": phases, "clocks": clocks})
    return {"phases": given.phases, "clocks": given.clocks, "device": "xpu:0"}


def test_half_precision_saves_work_and_not_the_time_in_which_a_device_stands_idle() -> None:
    idle = on_device(forward=45.0, backward=50.0)
    busy = msgspec.structs.replace(summary(), **on_device())
    found = advised(busy)["precision"]
    assert found.gain_share == pytest.approx(0.6 * 0.95 * (1 - 1 / 1.8))
    assert "precision" not in advised(msgspec.structs.replace(summary(), **idle))


@pytest.mark.parametrize(("capability", "advises"), [("7.5", False), ("8.0", True), ("12.0", True)])
def test_bf16_is_advised_where_the_device_has_arithmetic_for_it(capability, advises) -> None:
    given = summary(device="cuda:0", accelerator={"name": "a GPU", "capability": capability})
    found = advised(given)
    assert ("precision" in found) == advises
    assert "capability" not in (found["precision"].evidence if advises else "")
    unknown = advised(summary(device="cuda:0"))["precision"]
    assert "a CUDA device needs capability 8 or newer" in unknown.evidence


@pytest.mark.parametrize("device", ["cuda", "xpu:1", "mps"])
def test_pinned_memory_on_any_accelerator(device) -> None:
    given = summary(device=device, phases={"transfer": 0.2})
    assert "pinned_memory" in advised(given, {"training": {"pin_memory": False}})


def test_an_imported_file_without_a_device_is_no_accelerator() -> None:
    given = summary(verb="import", device="a processor", device_use={"why": "no device events were recorded"})
    assert "precision" not in advised(given)


def test_compiling_saves_python_only_while_the_device_waits_for_it() -> None:
    operators = [{"name": "aten::conv2d", "self_ms": 5.0, "phase": "forward"}]
    told = on_device(forward=40.0)
    told["phases"] = [msgspec.structs.replace(phase, host_ms=45.0) for phase in told["phases"]]
    waits = msgspec.structs.replace(summary(operators=operators), **told)
    assert advised(waits)["compiled"].gain_share == pytest.approx(0.4 / 2)
    works = on_device(forward=0.0)
    works["phases"] = [msgspec.structs.replace(phase, host_ms=45.0) for phase in works["phases"]]
    assert "compiled" not in advised(msgspec.structs.replace(summary(operators=operators), **works))


def test_half_precision_on_cuda() -> None:
    operators = [
        {"name": "aten::conv2d", "self_ms": 3.0, "phase": "backward"},
        {"name": "aten::add", "self_ms": 1.0, "phase": "backward"},
    ]
    found = advised(summary(device="cuda", operators=operators))["precision"]
    assert found.gain_share == pytest.approx(0.75 * 0.95 * (1 - 1 / 1.8))
    assert "precision" not in advised(summary(operators=operators))


def test_padding_where_much_of_the_input_is_empty() -> None:
    stages = [
        {"name": "backbone", "share": 0.5, "depth": 0},
        {"name": "rpn", "share": 0.2, "depth": 0},
        {"name": "rpn.head", "share": 0.1, "depth": 1},
    ]
    found = advised(summary(content={"padding_share": 0.4}, stages=stages))["padding"]
    assert found.gain_share == pytest.approx(0.4 * 0.7 * 0.6)


def test_batch_norm_that_takes_a_large_share() -> None:
    rows = [module("BatchNorm2d", 30.0, "backbone.norm"), module("FrozenBatchNorm2d", 30.0)]
    found = advised(summary(modules=rows))["frozen_batch_norm"]
    assert found.gain_share == pytest.approx(0.15)
    assert "backbone.norm" in found.evidence


def test_a_fused_optimizer_where_updating_takes_long() -> None:
    found = advised(summary(phases={"optimizer": 0.1}))["fused_optimizer"]
    assert found.gain_share == pytest.approx(0.05)
    assert "fused_optimizer" not in advised(
        summary(phases={"optimizer": 0.1}), {"training": {"fused_optimizer": True}}
    )


def test_the_call_that_makes_the_device_wait() -> None:
    blame = [
        {"cause": "data", "call": "next", "share": 0.5, "idle_ms_per_step": 50.0},
        {"cause": "synchronisation", "call": "aten::item", "module": "roi_heads", "share": 0.2, "gaps": 3},
    ]
    found = advised(summary(device="V100", device_use={"blame": blame}))["synchronisations"]
    assert found.gain_share == pytest.approx(0.2)
    assert found.title == "avoid aten::item in roi_heads"


def test_nms_with_fewer_candidates() -> None:
    stages = [
        {"name": "rpn.proposals.nms", "share": 0.2, "depth": 2},
        {"name": "postprocess.nms", "share": 0.1, "depth": 1},
    ]
    assert advised(summary(stages=stages))["nms_limits"].gain_share == pytest.approx(0.15)


def test_compile_where_python_takes_the_time() -> None:
    operators = [{"name": "aten::add", "self_ms": 5.0, "phase": "forward"}]
    assert advised(summary(operators=operators))["compiled"].gain_share == pytest.approx(0.2)


def test_the_largest_gain_comes_first_and_every_rule_has_a_test() -> None:
    given = summary(
        phases={"data": 0.5, "optimizer": 0.1},
        loader={"num_workers": 1, "capacity_images_per_s": 20.0, "demand_images_per_s": 40.0},
    )
    gains = [row.gain_share for row in advise_on_time(given)]
    assert gains == sorted(gains, reverse=True)
    assert len([rule for rule in parts_of("advice", AdviceRule) if rule.time]) == 22


def test_every_rule_about_time_or_lines_stands_in_the_documentation() -> None:
    told = (Path(__file__).parents[2] / "docs" / "advice.md").read_text(encoding="utf-8")
    rules = {rule.name for rule in parts_of("advice", AdviceRule) if rule.time or rule.lines}
    assert set(re.findall(r"^\| `(\w+)` \|", told, re.MULTILINE)) == rules
