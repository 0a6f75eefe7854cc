"""The summary of a run: everything that views show and `--json` prints, computed once."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import polars as pl

from detscope.analyze.accuracy import AccuracyFigures, evaluated_accuracy, training_accuracy
from detscope.analyze.advice import advise_on_memory, advise_on_time
from detscope.analyze.advice.case import Advice, Case
from detscope.analyze.curve import EpochFigures, epoch_figures
from detscope.analyze.device.figures import HOST_COLUMNS, DeviceUse, read_device_use
from detscope.analyze.device.imported import ImportedFigures, imported_figures, judge_import
from detscope.analyze.device.processor import (
    ProcessorUse,
    TelemetryFigures,
    processor_figures,
    telemetry_figures,
)
from detscope.analyze.device.roofline import Roofline, count_costs
from detscope.analyze.figure import Clock, Definition, Figure
from detscope.analyze.findings.census import CensusFigures, census_figures
from detscope.analyze.findings.collect import add_advice, find_at_lines
from detscope.analyze.findings.finding import Finding
from detscope.analyze.memory.account import memory_account, pass_memory
from detscope.analyze.memory.figures import MemoryAccount, PassMemory
from detscope.analyze.prediction import Prediction, read_predicted
from detscope.analyze.ranks.figures import Ranks, read_ranks, tell_straggler
from detscope.analyze.rerun import rerun_command
from detscope.analyze.script import ScriptFigures, script_figures
from detscope.analyze.step.beside import StepPart, step_parts
from detscope.analyze.step.clocks import Clocks, RunTimes, find_times, is_accelerator
from detscope.analyze.step.content import (
    BatchFigures,
    ContentFigures,
    LossFigures,
    batch_figures,
    content_figures,
    images_per_step,
    loss_figures,
)
from detscope.analyze.step.cost_content import ContentCost, cost_against_content, matching_against_boxes
from detscope.analyze.step.inference import (
    DetectionCounts,
    count_detections,
    first_step_ms,
    image_names,
    inference_stages,
    inference_verdict,
    name_outliers,
    stage_times,
    step_contents,
)
from detscope.analyze.step.latency import (
    PercentileNeed,
    SlowImage,
    SummedStage,
    percentile_needs,
    slowest_images,
    sum_stages,
)
from detscope.analyze.step.loader import LoaderFigures, loader_figures
from detscope.analyze.step.modules import ModuleFigures, StageFigures
from detscope.analyze.step.operators import OperatorFigures, operator_figures
from detscope.analyze.step.overhead import OwnCost, measure_own_cost
from detscope.analyze.step.parts import time_parts
from detscope.analyze.step.steady import Steadiness
from detscope.analyze.step.steps import (
    Outlier,
    PhaseFigures,
    SideSteps,
    StepFigures,
    TypicalSteps,
    WarmupFigures,
    choose_typical_steps,
    find_outliers,
    images_per_second,
    side_steps,
    step_figures,
    warmup_figures,
)
from detscope.analyze.verdict import training_verdict
from detscope.runs.definitions import DEFINITIONS, DEVICE_DEFINITIONS
from detscope.runs.reader import Run, load_run

SUMMARY_SCHEMA = 3
Facts = TypeVar("Facts", bound=Figure)


class RunFile(Figure, frozen=True, kw_only=True):
    """Something that lies in the run's folder."""

    name: str  # trace, report, memory, pictures, ...
    path: str  # where it lies


class SkippedImage(Figure, frozen=True, kw_only=True):
    """An image that could not be measured."""

    file: str  # its name
    reason: str  # why


class ModelFacts(Figure, frozen=True, kw_only=True):
    """The network."""

    name: str | None = None  # as it was asked for
    family: str | None = None  # of detectors
    source: str | None = None  # tiny, torchvision, script, ...
    parameters: int | None = None  # numbers that are trained or fixed
    tensors: int | None = None  # parameters and buffers of floating point: what an average of weights keeps
    one_to_one_head: bool | None = None  # whether it has a head that needs no suppression of boxes


class OptimizerFacts(Figure, frozen=True, kw_only=True):
    """An optimizer that stepped, as its groups were then."""

    name: str | None = None  # of its class
    groups: int | None = None  # of parameters
    different_groups: int | None = None  # of these, by their settings
    tensors: int | None = None  # in all groups
    parameters: int | None = None  # numbers in these
    way: str | None = None  # fused, foreach, or loop: tensor by tensor; None where it does not tell


class WeightFacts(Figure, frozen=True, kw_only=True):
    """Where its weights come from."""

    kind: str | None = None  # random, or where they come from
    source: str | None = None  # where they lie
    note: str | None = None  # what is special about them
    replaced: tuple[str, ...] = ()  # parts that did not fit


class DataFacts(Figure, frozen=True, kw_only=True):
    """What it was fed."""

    name: str | None = None  # of the data set
    images: int | None = None  # how many
    classes: int | None = None  # how many
    split: str | None = None  # train, val, ...


class AcceleratorFacts(Figure, frozen=True, kw_only=True):
    """The device that the model ran on, where it is none of the processor's."""

    name: str | None = None  # as its driver calls it
    capability: str | None = None  # of a CUDA device: 8.6; of others their architecture


class ResumedRun(Figure, frozen=True, kw_only=True):
    """The run that this one continues."""

    run: str | None = None  # its name
    step: int | None = None  # from which it goes on
    epoch: int | None = None  # from which it goes on
    changed: tuple[str, ...] = ()  # settings that are not as before


class HeldOutData(Figure, frozen=True, kw_only=True):
    """Data that the training did not see."""

    images: int | None = None  # how many


class RecipeSetting(Figure, frozen=True, kw_only=True):
    """A setting that the model's recipe decided."""

    key: str  # training.optimizer
    value: bool | int | float | str | None  # as the recipe has it


class GrowthHolder(Figure, frozen=True, kw_only=True):
    """The variable that keeps what grows."""

    name: str | None = None  # of the variable
    line: str | None = None  # where it is made longer
    kind: str | None = None  # of what it keeps: tensors, bytes, ...
    items: float | None = None  # more each step
    bytes: float | None = None  # of these, as far as they are seen from Python
    keeps_graphs: bool | None = None  # whether autograd graphs hang on it


class MemoryGrowth(Figure, frozen=True, kw_only=True):
    """The process's memory grew from step to step."""

    bytes_per_step: float | None = None  # median of the quarters
    lowest: float | None = None  # of the quarters of these steps
    highest: float | None = None  # of the quarters
    first_step: int | None = None  # of those that were looked at
    last_step: int | None = None  # of those that were looked at
    n: int | None = None  # readings
    held_by: GrowthHolder | None = None
    note: str | None = None  # all that in words


class RunSummary(Figure, frozen=True, kw_only=True):
    """All figures of a run."""

    schema: int = SUMMARY_SCHEMA  # a change that breaks readers raises it
    run: str  # its folder
    verb: str | None  # train, infer, eval, run, record or import
    rerun: str | None  # the command that does it again
    status: str  # ok, partial, failed, oom_host, oom_device
    reason: str | None  # why it is not ok
    verdict: str  # what limits it, in a sentence
    model: ModelFacts | None
    optimizers: tuple[OptimizerFacts, ...] = ()  # that stepped
    weights: WeightFacts | None
    data: DataFacts | None
    device: str | None  # as torch or the recorded file calls it
    accelerator: AcceleratorFacts | None = None  # None on a CPU
    batch_size: int | None  # images per batch
    precision: str | None  # fp32, bf16, ...
    level: str | None  # of recording: bare, phases, modules, ops
    step_ms: StepFigures
    percentile_needs: tuple[PercentileNeed, ...] = ()  # of those that the steps do not support
    stability: Steadiness
    outliers: list[Outlier]
    warmup: WarmupFigures
    side_steps: tuple[SideSteps, ...] = ()  # that operators and memory are told of: another scale
    images_per_s: float | None  # of all measured steps, of all ranks
    accumulated: BatchFigures | None = None  # one of a step's batches, where it has several
    clocks: Clocks
    phases: list[PhaseFigures]
    parts: tuple[StepPart, ...] = ()  # of the phases optimizer and other, by name
    stages: list[StageFigures]
    nms: SummedStage | None = None  # suppression of boxes, in whichever stages it runs
    modules: list[ModuleFigures]  # most expensive first
    backward_attributed: float | None  # share of the backward phase that belongs to modules
    backward_attributed_by: str | None  # operators or module borders
    operators: list[OperatorFigures]
    roofline: Roofline
    content: ContentFigures
    cost_against_content: tuple[ContentCost, ...] = ()  # by stage; of a training, of its matching
    loss: LossFigures | None
    loader: LoaderFigures
    overhead_ratio: OwnCost
    memory: MemoryAccount | None  # where blocks were recorded
    pass_memory: PassMemory | None = None  # of an inference
    device_use: DeviceUse | None
    processor: ProcessorUse | None
    telemetry: tuple[TelemetryFigures, ...]
    ranks: Ranks | None
    imported: ImportedFigures | None
    script: ScriptFigures | None
    accuracy: AccuracyFigures | None
    epochs: tuple[EpochFigures, ...] = ()  # where there are several, or accuracy was evaluated
    recipe: tuple[RecipeSetting, ...] = ()
    resumed_from: ResumedRun | None = None
    held_out: HeldOutData | None = None
    predicted: Prediction | None  # what `detscope predict RUN` expected of it
    images: int | None = None  # of an inference: how many were measured
    repeat: int | None = None  # of an inference: passes over them
    score: float | None = None  # of an inference: detections above it count
    latency_ms: StepFigures | None = None  # of an inference: the step's figures
    first_image_ms: float | None = None  # of an inference: with all that is done only once
    detections: DetectionCounts | None = None
    slowest: tuple[SlowImage, ...] = ()  # of an inference, slowest first
    skipped: tuple[SkippedImage, ...] = ()
    growth: MemoryGrowth | None
    advice: tuple[Advice, ...] = ()  # about time, largest gain first; then about memory
    census: CensusFigures | None = None  # where waits and launches were counted
    findings: tuple[Finding, ...] = ()  # at lines of code, by their cost on a device; then advice without one
    notes: list[str]  # what else is to be known
    cannot_tell: list[str]  # what is not known, and why
    definitions: list[Definition]
    files: list[RunFile]

    def find_side_steps(self, mode: str) -> SideSteps | None:
        """Steps of another scale by their mode: ops or memory."""
        return next((one for one in self.side_steps if one.mode == mode), None)

    def find_phase(self, name: str) -> PhaseFigures | None:
        """A phase of the step by its name."""
        return next((phase for phase in self.phases if phase.name == name), None)


def summarize(run: Run | str | Path) -> RunSummary:
    """All figures of a run."""
    opened = run if isinstance(run, Run) else load_run(run)
    info, tables = opened.info, opened.table
    infers = info.get("verb") == "infer"
    steps, content = tables("steps"), tables("content")
    typical = choose_typical_steps(steps, find_slow_start=not infers)
    hosts = tables("host_events", HOST_COLUMNS)
    device_use, kernels = read_device_use(opened, hosts)
    times = find_times(opened, typical, kernels)
    ranks = read_ranks(opened, typical)
    parts = time_parts(opened, typical, times, device_use, ranks)
    phases, clock = parts.phases, times.clock
    phases_ms = {phase.name: phase.ms for phase in phases}
    modules, roofline = count_costs(opened, parts.modules, phases, clock)
    step_ms = step_figures(steps, typical)
    per_step = images_per_step(content, typical.measured)
    workers = info.get("num_workers")
    waiting_ms, done = phases_ms.get("data", 0.0), tables("transforms")
    loader = loader_figures(tables("loader"), typical, per_step, waiting_ms, workers, done)
    if clock == "device":
        waited = next((phase.host_ms for phase in phases if phase.name == "data"), None)
        loader = msgspec.structs.replace(loader, host_wait_ms=waited)
    operators = info.get("operators") or {}
    script = script_figures(info.get("script"))
    beside = (tables("spans"), tables("nodes"), steps)
    summary = RunSummary(
        run=str(opened.folder),
        verb=info.get("verb"),
        rerun=rerun_command(opened.folder, info),
        status=opened.status,
        reason=info.get("reason"),
        verdict=training_verdict(step_ms, phases, parts.stages, loader, parts.clocks),
        model=_read_facts(info.get("model"), ModelFacts),
        optimizers=msgspec.convert(info.get("optimizers") or [], tuple[OptimizerFacts, ...]),
        weights=_read_facts(info.get("weights"), WeightFacts),
        data=_read_facts(info.get("data"), DataFacts),
        device=info.get("device"),
        accelerator=_read_facts((info.get("environment") or {}).get("accelerator"), AcceleratorFacts),
        batch_size=info.get("batch_size"),
        precision=info.get("precision"),
        level=info.get("level"),
        step_ms=step_ms,
        percentile_needs=percentile_needs(
            step_ms, info.get("verb"), info.get("settings"), info.get("batch_size")
        ),
        stability=typical.steadiness,
        outliers=find_outliers(steps, content, typical, times.told.steps if times.told is not None else None),
        warmup=warmup_figures(steps, typical),
        side_steps=side_steps(steps, typical),
        images_per_s=images_per_second(steps, content, typical),
        accumulated=batch_figures(
            (info.get("script") or {}).get("batches_per_step"), per_step, typical.p50_ms
        ),
        clocks=parts.clocks,
        phases=phases,
        parts=step_parts(beside, typical, phases, info.get("part_places"), script),
        stages=parts.stages,
        nms=sum_stages(parts.stages),
        modules=modules,
        backward_attributed=operators.get("backward_attributed", parts.backward_attributed),
        backward_attributed_by="operators" if operators else "module borders",
        operators=operator_figures(tables("ops"), operators.get("steps", 1)),
        roofline=roofline,
        content=content_figures(content, typical.measured),
        cost_against_content=matching_against_boxes(tables("spans"), content, typical.steps),
        loss=loss_figures(tables("losses")),
        loader=loader,
        overhead_ratio=measure_own_cost(steps, content, tables("loader"), device=times.marks),
        memory=memory_account(opened),
        device_use=device_use,
        processor=processor_figures(tables("telemetry"), steps, info),
        telemetry=telemetry_figures(tables("telemetry")),
        ranks=ranks,
        imported=None,
        script=script,
        accuracy=training_accuracy(opened),
        recipe=_list_recipe(info.get("recipe")),
        resumed_from=_read_facts(info.get("resumed_from"), ResumedRun),
        held_out=_read_facts(info.get("held_out"), HeldOutData),
        predicted=read_predicted(opened),
        growth=_read_facts(info.get("growth"), MemoryGrowth),
        notes=_list_notes(info, typical.mode),
        cannot_tell=_list_unknowns(info, times, operators),
        definitions=_list_definitions(clock),
        files=list_files(opened.folder),
    )
    if infers:
        summary = _add_inference(summary, opened, typical, times)
    elif summary.verb == "eval":
        summary = _add_evaluation(summary, opened)
    elif summary.verb == "import":
        summary = _add_import(summary, opened, hosts)
    elif summary.verb == "train":
        epochs = epoch_figures(opened)
        if summary.accuracy is not None or len(epochs) > 1:
            summary = msgspec.structs.replace(summary, epochs=tuple(epochs))
    if summary.ranks is not None:
        summary = _add_ranks(summary, summary.ranks)
    advice = advise_on_time(summary, info.get("settings"))
    if summary.memory is not None:
        advice += advise_on_memory(opened, summary.memory)
    counted = census_figures(tables("census"), is_accelerator(info.get("device")))
    case = Case(summary, info.get("settings") or {})
    findings = add_advice(find_at_lines(case, counted, info), advice, clock)
    return msgspec.structs.replace(summary, advice=tuple(advice), census=counted, findings=findings)


def _read_facts(told: Mapping[str, Any] | None, kind: type[Facts]) -> Facts | None:
    """What run.json says, as far as it is shown."""
    if not told:
        return None
    known = {name: told[name] for name in kind.__struct_fields__ if told.get(name) is not None}
    return msgspec.convert(known, kind, strict=False)


def _add_inference(summary: RunSummary, run: Run, typical: TypicalSteps, times: RunTimes) -> RunSummary:
    """What an inference has beside the figures of its steps, and in their place."""
    steps, content = run.table("steps"), run.table("content")
    images = run.table("images").sort("step", "position")
    on_device = run.info.get("device") != "cpu"
    per_step = stage_times(steps, run.table("spans"), typical.measured, on_device, times.told)
    measured = images.filter(pl.col("step").is_in(typical.measured))
    stages = inference_stages(summary.stages, summary.phases, summary.step_ms, per_step, on_device)
    outliers = name_outliers(summary.outliers, images, content, typical)
    return msgspec.structs.replace(
        summary,
        verdict=inference_verdict(stages, summary.step_ms, summary.batch_size, summary.clocks.bound),
        images=measured["name"].n_unique() if measured.height else 0,
        repeat=run.info.get("repeat"),
        score=run.info.get("score"),
        latency_ms=summary.step_ms,
        first_image_ms=first_step_ms(steps),
        stages=stages,
        nms=sum_stages(stages),
        outliers=outliers,
        slowest=slowest_images(steps, images, content, typical, outliers),
        cost_against_content=tuple(
            cost_against_content(per_step, step_contents(images, content), times.told is not None)
        ),
        detections=count_detections(measured),
        pass_memory=pass_memory(run.info.get("memory")),
        skipped=msgspec.convert(run.info.get("skipped") or [], tuple[SkippedImage, ...]),
        overhead_ratio=measure_own_cost(steps, content, alike=image_names(images), device=times.marks),
        loss=None,
        backward_attributed=None,
        backward_attributed_by=None,
    )


def _add_evaluation(summary: RunSummary, run: Run) -> RunSummary:
    """What an evaluation found, in the place of the figures of steps."""
    accuracy = evaluated_accuracy(run)
    found = None if accuracy is None else accuracy.evaluation
    if found is None:
        verdict = "no accuracy: the evaluation did not come to its end"
        return msgspec.structs.replace(summary, accuracy=None, verdict=verdict)
    return msgspec.structs.replace(
        summary,
        accuracy=accuracy,
        images_per_s=None if found.throughput is None else found.throughput.images_per_s,
        cannot_tell=list(found.cannot_tell),
        verdict=found.verdict,
    )


def _add_import(summary: RunSummary, run: Run, hosts: pl.DataFrame) -> RunSummary:
    """What files that were recorded elsewhere tell without our own recorder."""
    use = summary.device_use
    if use is None:
        return summary
    measured = summary.step_ms.n
    imported = imported_figures(run, hosts, use, measured, known_stages=bool(summary.stages))
    verdict, unknown = judge_import(use, summary.memory, measured)
    return msgspec.structs.replace(
        summary,
        imported=imported,
        verdict=verdict or summary.verdict,
        cannot_tell=summary.cannot_tell + unknown,
    )


def _add_ranks(summary: RunSummary, ranks: Ranks) -> RunSummary:
    """What several ranks change: the speed of all, who holds the others up, who is missing."""
    speed = ranks.scaling.images_per_s
    missing = [f"rank {rank} delivered nothing: figures are without it" for rank in ranks.missing]
    return msgspec.structs.replace(
        summary,
        images_per_s=summary.images_per_s if speed is None else speed,
        verdict=tell_straggler(ranks, summary.verdict),
        notes=summary.notes + missing,
    )


def _list_recipe(told: Mapping[str, Any] | None) -> tuple[RecipeSetting, ...]:
    flat = []
    for section, value in (told or {}).items():
        named = value.items() if isinstance(value, Mapping) else [("", value)]
        flat += [(f"{section}.{key}" if key else section, one) for key, one in named]
    plain = (bool, int, float, str, None.__class__)
    return tuple(
        RecipeSetting(key=key, value=value if isinstance(value, plain) else str(value)) for key, value in flat
    )


def _list_notes(info: Mapping[str, Any], mode: str) -> list[str]:
    notes = list(info.get("notes") or [])
    growth = info.get("growth")
    if isinstance(growth, dict) and growth.get("note"):
        notes.append(str(growth["note"]))
    if mode == "ops":
        notes.append("all measured steps ran under the operator profiler: step times include its cost")
    if mode == "warmup":
        notes.append("the run ended during its warm-up: figures are those of warm-up steps")
    return notes


def _list_definitions(clock: Clock) -> list[Definition]:
    told = DEFINITIONS if clock == "host" else DEFINITIONS | DEVICE_DEFINITIONS
    return [Definition(name=name, text=text) for name, text in told.items()]


def _list_unknowns(info: Mapping[str, Any], times: RunTimes, operators: Mapping[str, Any]) -> list[str]:
    reasons = list(info.get("cannot_tell") or [])  # what readers of recorded files could not know
    if times.why is not None:
        reasons.append(f"device times: {times.why}; phases, stages and modules are the host's")
    gpus = info.get("environment", {}).get("gpus", {})
    if not gpus.get("devices") and gpus.get("reason"):
        reasons.append(f"GPU telemetry: {gpus['reason']}")
    if operators.get("kernels_unlinked"):
        reasons.append(f"{operators['kernels_unlinked']} kernels without a launching operator")
    return reasons


def list_files(folder: Path) -> list[RunFile]:
    """What can be opened, as far as it is there."""
    named = {
        "trace": "trace.json.gz",
        "report": "report.html",
        "memory": "memory.csv",
        "pictures": "pictures",
    }
    named |= {"worst": "worst", "detections": "detections.json", "tensorboard": "tb"}
    found = {name: folder / file for name, file in named.items()}
    return [RunFile(name=name, path=str(path)) for name, path in found.items() if path.exists()]
