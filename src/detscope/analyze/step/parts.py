"""What a step is made of, on the right clock: phases, stages, modules, and what lies between clocks."""

from __future__ import annotations

from dataclasses import dataclass

from detscope.analyze.device.figures import DeviceUse
from detscope.analyze.ranks.figures import Ranks
from detscope.analyze.step.clocks import Clocks, RunTimes, clock_figures, tell_reasons
from detscope.analyze.step.modules import (
    ModuleFigures,
    StageFigures,
    backward_attributed,
    module_figures,
    stage_figures,
)
from detscope.analyze.step.on_device import (
    attributed_to_modules,
    modules_on_device,
    stages_on_device,
    time_step,
)
from detscope.analyze.step.steps import PhaseFigures, TypicalSteps, phase_figures
from detscope.runs.reader import Run


@dataclass(frozen=True)
class StepParts:
    """Phases, stages and modules of the typical step."""

    phases: list[PhaseFigures]
    stages: list[StageFigures]
    modules: list[ModuleFigures]
    clocks: Clocks
    backward_attributed: float | None


def time_parts(
    run: Run, typical: TypicalSteps, times: RunTimes, use: DeviceUse | None, ranks: Ranks | None
) -> StepParts:
    """On the device's clock where there is one, with the host's beside it; else on the host's."""
    spans, order, told_clock = run.table("spans"), run.info.get("stages", []), run.info.get("device_clock")
    phases = phase_figures(run.table("steps"), typical)
    phases_ms = {phase.name: phase.ms for phase in phases}
    if run.info.get("level") == "phases":  # parts beside the model were heard, nothing of the model itself
        spans = spans.clear()
    stages = stage_figures(spans, typical, phases_ms, order)
    modules = module_figures(spans, run.table("nodes"), typical, phases_ms)
    told, of_modules = times.told, times.of_modules
    if told is None or of_modules is None:
        attributed = backward_attributed(spans, typical)
        return StepParts(phases, stages, modules, Clocks(clock="host", why=times.why), attributed)
    step = time_step(told, times.kernels, typical, phases)
    stages = stages_on_device(told, times.kernels, typical, step, stages, order) or stages
    reasons = tell_reasons(told_clock)
    modules, more_ms = modules_on_device(of_modules, typical, step, modules, spans, reasons)
    clocks = clock_figures(times, typical, step, stages, use, told_clock, _exposed_share(ranks), more_ms)
    attributed = attributed_to_modules(modules, step.find_phase("backward"))
    return StepParts(step.phases, stages, modules, clocks, attributed)


def _exposed_share(ranks: Ranks | None) -> float | None:
    """What of rank 0's steps was communication that nothing hid."""
    first = ranks.rows[0] if ranks is not None and ranks.rows else None
    if first is None or first.exposed_ms is None or not first.mean_step_ms:
        return None
    return first.exposed_ms / first.mean_step_ms
