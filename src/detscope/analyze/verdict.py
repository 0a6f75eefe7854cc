"""The verdict: one sentence that names what limits this run, with its evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from detscope.analyze.stats import percent
from detscope.analyze.step.clocks import Clocks
from detscope.analyze.step.loader import LoaderFigures
from detscope.analyze.step.modules import StageFigures
from detscope.analyze.step.steps import PhaseFigures, StepFigures

DATA_BOUND_SHARE = 0.15


def training_verdict(
    step_ms: StepFigures,
    phases: Sequence[PhaseFigures],
    stages: Sequence[StageFigures],
    loader: LoaderFigures,
    clocks: Clocks | None = None,
) -> str:
    """What limits the step; on a device's clock in one of five words, with the evidence."""
    shares = {phase.name: phase.share for phase in phases}
    if not shares or not step_ms.p50:
        return "cannot tell: no complete step was recorded"
    if clocks is not None and clocks.clock == "device":
        return _tell_bound(clocks, shares["data"], loader, _tell_largest(shares, stages, "the device's step"))
    if shares["data"] >= DATA_BOUND_SHARE:
        return _tell_waiting(shares["data"], loader)
    return _tell_largest(shares, stages, "the step")


def _tell_bound(clocks: Clocks, waits: float, loader: LoaderFigures, largest: str) -> str:
    """The word first; then what it rests on."""
    if clocks.bound is None:
        return largest
    if clocks.bound == "input-bound":
        return f"input-bound: {_tell_waiting(waits, loader)}"
    most, least = ("at most ", "at least ") if any(cause.at_most for cause in clocks.idle) else ("", "")
    said = ", ".join(clocks.evidence)
    if clocks.bound == "device-bound":
        said = f"the device works {least}{percent(clocks.busy_share or 0.0)} of its step"
    elif clocks.bound == "host-bound":
        late = sum(cause.share or 0.0 for cause in clocks.idle if cause.name != "data")
        said = f"the device waits for the host {most}{percent(late)} of its step"
    elif clocks.bound == "communication-bound" and clocks.communication_ms and clocks.device_step_ms:
        exposed = percent(clocks.communication_ms / clocks.device_step_ms)
        said = f"exchange that nothing hides takes {exposed} of the device's step"
    return f"{clocks.bound}: {said}; {largest}"


def _tell_largest(shares: Mapping[str, float], stages: Sequence[StageFigures], whole: str) -> str:
    largest = max(("forward", "backward", "optimizer", "transfer", "other"), key=lambda name: shares[name])
    sentence = f"{largest} takes {percent(shares[largest])} of {whole}"
    named = [stage for stage in stages if stage.depth == 0 and not stage.name.startswith("(")]
    if named:
        top = max(named, key=lambda stage: stage.total_ms)
        together = ", forward and backward together" if shares["backward"] > 0 else ""
        sentence += f"; the largest stage is {top.name} with {percent(top.share)}{together}"
    return sentence


def _tell_waiting(share: float, loader: LoaderFigures) -> str:
    if loader.lies_ready and loader.receive_ms is not None:
        # workers were in time: what takes long is to get from them what they have made
        much = percent(share * loader.receive_ms / loader.wait_ms)
        sentence = f"batches lie ready: receiving them takes {loader.receive_ms:.1f} ms a step, {much} of it"
        tensors = loader.tensors_per_batch
        if tensors is None:
            return sentence
        return f"{sentence} ({'one tensor' if round(tensors) == 1 else f'{tensors:.0f} tensors'} each)"
    sentence = f"waiting for data: {percent(share)} of the step"
    capacity, demand = loader.capacity_images_per_s, loader.demand_images_per_s
    if capacity is None or demand is None:
        return sentence
    workers = loader.num_workers or 0
    many = "1 worker delivers" if workers == 1 else f"{workers} workers deliver"
    who = many if workers else "the loop itself loads"
    return f"{sentence}; {who} {capacity:.1f} images/s, the loop could take {demand:.1f}"
