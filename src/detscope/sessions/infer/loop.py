"""An inference from its images to its run: model, loop, everybody who listens, memory, costs and views."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from detscope.config.schema import Settings
from detscope.data.images import ImageSource, UnusableImage
from detscope.errors import DetscopeError, OwnCodeError, UsageError
from detscope.faults import describe_error, find_user_frame, list_frames
from detscope.loops.infer import InferHooks, InferPlan, detect_objects, infer_batches
from detscope.record.device.nsight import watch_window
from detscope.record.memory.allocations import measure_allocations
from detscope.record.memory.failures import find_out_of_memory
from detscope.record.recorder import Recorder
from detscope.report.progress import Progress
from detscope.report.publish import publish_run
from detscope.sessions.endings import name_kept_run
from detscope.sessions.infer.detections import DetectionKeeper
from detscope.sessions.infer.inference import (
    make_loader,
    order_steps,
    split_batches,
    without_unfit,
)
from detscope.sessions.recording import (
    add_costs,
    build_options,
    coco_class_names,
    describe_model,
    make_recorder,
)
from detscope.zoo.contract import BuiltModel, ModelCard, Stage
from detscope.zoo.family import has_target
from detscope.zoo.registry import build_model

MEMORY_PASSES = 3
# Images differ, and what they cost is related to what is in them: many are recorded with all modules.
DENSE_STEPS = 1024


def infer_images(
    settings: Settings,
    device: str,
    card: ModelCard,
    own_stages: tuple[Stage, ...],
    source: ImageSource,
    skipped: list[UnusableImage],
    progress: Progress,
    notes: Sequence[str],
) -> Path:
    """Build the model, pass the images through it, and make what follows from the recording."""
    inference = settings.inference
    if inference.threads is not None:
        torch.set_num_threads(inference.threads)
    torch.manual_seed(settings.training.seed)
    built = _build_model(settings, card, source, own_stages)
    built.module.to(device).eval()
    plan = InferPlan(device, inference.precision)
    source, unfit = without_unfit(source, built.module, plan)
    skipped += unfit
    info = _describe_inference(settings, device, source, built, skipped)
    recorder = make_recorder(settings, built, None, info, "infer")
    recorder.schedule = replace(recorder.schedule, modules_dense=DENSE_STEPS)
    for text in (*notes, *built.notes):
        recorder.note(text)
    if built.weights.kind == "file" and built.weights.replaced:
        recorder.note("detections mean nothing with new class heads: set model.num_classes as in training")
    if unfit:
        recorder.note("the first pass was not the model's first: odd images were tried before")
    for item in skipped:
        progress.note(str(item))
    progress.note(built.weights.note)
    keeper = DetectionKeeper(inference.score, source.image_name)
    _run_loop(settings, recorder, built, source, plan, keeper, progress)
    progress.finish()
    _measure_passes(settings, recorder, built, source, plan)
    names = coco_class_names(built) if built.weights.kind == "coco" else source.classes
    publish_run(recorder.run, keeper.make_pictures(names))
    return recorder.run


def _build_model(
    settings: Settings, card: ModelCard, source: ImageSource, own: tuple[Stage, ...]
) -> BuiltModel:
    """Published weights keep their own classes; other models get those of the data set, if there is one.

    Stages the user named come on top of the family's; the same target gets the new name.
    """
    model = settings.model
    from_data = len(source.classes) if model.weights not in ("auto", "coco") else 0
    options = build_options(settings, model.num_classes or from_data or None)
    built = build_model(card.name, replace(options, trainable_layers=None))
    for stage in own:
        found = False
        with suppress(ImportError):
            found = has_target(built.module, stage.target)
        if not found:
            children = ", ".join(name for name, _ in built.module.named_children())
            raise UsageError(
                f"--stage {stage.name}={stage.target}: the model has no {stage.target!r}",
                f"a module path, or a method as path.name(); top-level modules are: {children}",
            )
    targets = {stage.target for stage in own}
    kept = tuple(stage for stage in built.stages if stage.target not in targets)
    return replace(built, stages=(*kept, *own))


def _describe_inference(
    settings: Settings, device: str, source: ImageSource, built: BuiltModel, skipped: Sequence[UnusableImage]
) -> dict[str, Any]:
    inference = settings.inference
    return {
        **describe_model(built),
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
        "stages": list(dict.fromkeys(stage.name for stage in built.stages if stage.name)),
        "settings": settings.model_dump(),
    }


def _run_loop(
    settings: Settings,
    recorder: Recorder,
    built: BuiltModel,
    source: ImageSource,
    plan: InferPlan,
    keeper: DetectionKeeper,
    progress: Progress,
) -> None:
    batches = split_batches(len(source), settings.inference.batch_size, settings.inference.repeat)
    order = order_steps(recorder.schedule, batches)

    def after_step(steps_done: int) -> None:
        recorder.writer.append_rows("images", keeper.make_rows(steps_done - 1))
        progress.advance(1)

    recorder.between_steps = after_step
    watch_window(recorder)
    hooks = InferHooks(recorder.steps, keeper.take_output)
    with name_kept_run(recorder), recorder:
        progress.start(len(order), built.card.name)
        try:
            infer_batches(built.module, make_loader(source, order), plan, hooks)
        except DetscopeError:
            raise
        except Exception as error:
            # what our own lines raised is ours; running out says enough of itself
            if list_frames(error)[-1].is_ours or find_out_of_memory(error, plan.device):
                raise
            names = ", ".join(source.image_name(number) for number in order[recorder.steps_done])
            frame = find_user_frame(error)
            what = f"{names}: the model failed{f' at {frame}' if frame else ''}: {describe_error(error)}"
            raise OwnCodeError(what[:500], "correct the model") from error
        if not keeper.understood:
            recorder.note("the model's output is not a list of detections: no counts and no pictures")


def _measure_passes(
    settings: Settings, recorder: Recorder, built: BuiltModel, source: ImageSource, plan: InferPlan
) -> None:
    """Memory and arithmetic of a few more passes, once the times are safe on disk."""
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
        add_costs(
            recorder.writer,
            built,
            lambda: detect_objects(built.module, inputs[0], plan),
            images=len(inputs[0]),
            modules=settings.record.modules,
            device=plan.device,
            precision=plan.precision,
        )
