"""`detscope infer` behind the command line: settings in, run folder out."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detscope.config.schema import InferenceSettings, Settings
from detscope.data.images.files import ImageSource, Skipped
from detscope.errors import DetscopeError, OwnCodeError, UsageError
from detscope.faults import frames_of, said_by, user_frame
from detscope.machine.devices import resolve_device
from detscope.sessions.recording import about_model
from detscope.sessions.infer.images import open_images, without_unfit
from detscope.sessions.recording import make_recorder
from detscope.sessions.train.training import Progress
from detscope.zoo.contract import BuildOptions, BuiltModel, ModelCard, Stage
from detscope.zoo.registry import build, get_card

if TYPE_CHECKING:
    from detscope.loops.infer import InferPlan
    from detscope.record.recorder import Recorder
    from detscope.sessions.infer.detections import DetectionKeeper

MEMORY_PASSES = 3
# Images differ, and what they cost is related to what is in them: many are recorded with all modules.
DENSE_STEPS = 1024


def run_inference(settings: Settings, *, progress: Progress, notes: Sequence[str] = ()) -> Path:
    """Profile a detector on images; what cannot work is said before anything is downloaded or built."""
    device = resolve_device(settings.inference.device)
    card = get_card(settings.model.name)
    own_stages = parse_stages(settings.inference.stages)
    source, skipped = open_images(settings, progress)
    return _infer(settings, device, card, own_stages, source, skipped, progress, notes)


def parse_stages(texts: Sequence[str]) -> tuple[Stage, ...]:
    """`NAME=module.path` texts as stages."""
    stages = []
    for text in texts:
        name, equals, target = (part.strip() for part in text.partition("="))
        if not (name and equals and target):
            raise UsageError(f"--stage {text!r} is not NAME=path", "as in --stage neck=model.fpn")
        stages.append(Stage(name, target))
    return tuple(stages)


def _infer(
    settings: Settings,
    device: str,
    card: ModelCard,
    own_stages: tuple[Stage, ...],
    source: ImageSource,
    skipped: list[Skipped],
    progress: Progress,
    notes: Sequence[str],
) -> Path:
    import torch

    from detscope.loops.infer import InferPlan
    from detscope.sessions.infer.detections import DetectionKeeper

    inference = settings.inference
    if inference.threads is not None:
        torch.set_num_threads(inference.threads)
    torch.manual_seed(settings.training.seed)
    built = _with_stages(build(card.name, _build_options(settings, source)), own_stages)
    built.module.to(device).eval()
    plan = InferPlan(device, inference.precision)
    source, unfit = without_unfit(source, built.module, plan)
    skipped += unfit
    recorder = _recorder(settings, device, built, source, skipped)
    for text in (*notes, *built.notes, *_notes_on(built, unfit)):
        recorder.note(text)
    for item in skipped:
        progress.note(str(item))
    progress.note(built.weights.note)
    keeper = DetectionKeeper(inference.score, source.image_name)
    _measure(recorder, built, source, plan, inference, keeper, progress)
    progress.finish()
    _after(settings, recorder, built, source, plan, keeper)
    return recorder.run


def _measure(
    recorder: Recorder,
    built: BuiltModel,
    source: ImageSource,
    plan: InferPlan,
    inference: InferenceSettings,
    keeper: DetectionKeeper,
    progress: Progress,
) -> None:
    """Run the loop with the recorder listening."""
    from detscope.loops.infer import InferHooks, infer_batches
    from detscope.record.device.nsight import watch_window
    from detscope.record.memory.failures import find_out_of_memory
    from detscope.sessions.endings import closing_words
    from detscope.sessions.infer.images import make_loader
    from detscope.sessions.infer.images import split_batches, order_steps

    batches = split_batches(len(source), inference.batch_size, inference.repeat)
    order = order_steps(recorder.schedule, batches)

    def between_steps(steps_done: int) -> None:
        recorder.writer.append("images", keeper.rows(steps_done - 1))
        progress.advance(1)

    recorder.between_steps = between_steps
    watch_window(recorder)
    with closing_words(recorder), recorder:
        progress.start(len(order), built.card.name)
        try:
            infer_batches(built.module, make_loader(source, order), plan, InferHooks(recorder.steps, keeper.take))
        except DetscopeError:
            raise
        except Exception as error:
            # what our own lines raised is ours; running out says enough of itself
            if frames_of(error)[-1].is_ours or find_out_of_memory(error, plan.device):
                raise
            raise _failed_on(recorder, source, order, error) from error
        if not keeper.understood:
            recorder.note("the model's output is not a list of detections: no counts and no pictures")


def _failed_on(
    recorder: Recorder, source: ImageSource, order: list[list[int]], error: Exception
) -> OwnCodeError:
    """The model raised: name the images; the traceback goes into the run's log."""
    names = ", ".join(source.image_name(number) for number in order[recorder.steps_done])
    frame = user_frame(error)
    at = f" at {frame}" if frame else ""
    return OwnCodeError(f"{names}: the model failed{at}: {said_by(error)}"[:500], "correct the model")


def _after(
    settings: Settings,
    recorder: Recorder,
    built: BuiltModel,
    source: ImageSource,
    plan: InferPlan,
    keeper: DetectionKeeper,
) -> None:
    """What is made once the times are safe on disk: trace, memory, pictures, TensorBoard."""
    from detscope.analyze.summary import summarize
    from detscope.loops.infer import detect_objects
    from detscope.record.memory.allocations import measure_allocations
    from detscope.report.drawing import save_pictures
    from detscope.report.trace import write_trace
    from detscope.runs.reader import load_run
    from detscope.sessions.infer.detections import as_pictures
    from detscope.sessions.endings import write_memory_views

    write_trace(load_run(recorder.run))
    batch = settings.inference.batch_size
    inputs = [
        [source[(number * batch + offset) % len(source)][0] for offset in range(min(batch, len(source)))]
        for number in range(MEMORY_PASSES)
    ]
    light = measure_allocations(
        built.module,
        [lambda images=images: detect_objects(built.module, images, plan) for images in inputs],  # type: ignore[misc]
        built.stages,
        settings.record.modules,
        plan.device,
    )
    recorder.writer.info["memory"] = light | (recorder.writer.info.get("memory") or {})
    recorder.writer.save_info()
    if settings.record.level != "phases":
        from detscope.sessions.recording import add_costs

        add_costs(
            recorder.writer,
            built.module,
            lambda: detect_objects(built.module, inputs[0], plan),
            built.stages,
            images=len(inputs[0]),
            modules=settings.record.modules,
            device=plan.device,
        )
    pictures = as_pictures(keeper.found.values(), source, built)
    if pictures:
        save_pictures(recorder.run / "pictures", pictures)
    write_memory_views(recorder.run)
    if settings.inference.tensorboard:
        from detscope.report.render.tensorboard import write_tensorboard

        write_tensorboard(recorder.run, summarize(recorder.run), pictures)


def _recorder(
    settings: Settings, device: str, built: BuiltModel, source: ImageSource, skipped: Sequence[Skipped]
) -> Recorder:
    recorder = make_recorder(
        settings, built, None, _run_info(settings, device, source, built, skipped), "infer"
    )
    recorder.schedule = replace(recorder.schedule, modules_dense=DENSE_STEPS)
    return recorder


def _with_stages(built: BuiltModel, own: tuple[Stage, ...]) -> BuiltModel:
    """Stages the user named come on top of the family's; the same target gets the new name."""
    from detscope.zoo.stages import resolves

    for stage in own:
        found = False
        with suppress(ImportError):
            found = resolves(built.module, stage.target)
        if not found:
            children = ", ".join(name for name, _ in built.module.named_children())
            raise UsageError(
                f"--stage {stage.name}={stage.target}: the model has no {stage.target!r}",
                f"a module path, or a method as path.name(); top-level modules are: {children}",
            )
    targets = {stage.target for stage in own}
    kept = tuple(stage for stage in built.stages if stage.target not in targets)
    return replace(built, stages=(*kept, *own))


def _build_options(settings: Settings, source: ImageSource) -> BuildOptions:
    """Published weights keep their own classes; other models get those of the data set, if there is one."""
    model = settings.model
    from_data = len(source.classes) if model.weights not in ("auto", "coco") else 0
    return BuildOptions(
        num_classes=model.num_classes or from_data or None,
        weights=model.weights,
        image_size=model.image_size,
        seed=settings.training.seed,
    )


def _notes_on(built: BuiltModel, unfit: Sequence[Skipped]) -> list[str]:
    notes = []
    if built.weights.kind == "file" and built.weights.replaced:
        notes.append("detections mean nothing with new class heads: set model.num_classes as in training")
    if unfit:
        notes.append("the first pass was not the model's first: odd images were tried before")
    return notes


def _run_info(
    settings: Settings, device: str, source: ImageSource, built: BuiltModel, skipped: Sequence[Skipped]
) -> dict[str, Any]:
    inference = settings.inference
    return {
        **about_model(built),
        "data": {
            "name": source.name,
            "images": len(source),
            "classes": max(0, len(source.classes) - 1) or None,
        },
        "device": device,
        "batch_size": inference.batch_size,
        "precision": inference.precision,
        "score": inference.score,
        "repeat": inference.repeat,
        "skipped": [{"file": item.file, "reason": item.reason} for item in skipped],
        "stages": list(dict.fromkeys(stage.name for stage in built.stages)),
        "settings": settings.model_dump(),
    }
