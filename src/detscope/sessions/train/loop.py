"""A training from its job to its run: model and optimizer, loop, everybody who listens, costs and views."""

from __future__ import annotations

import math
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from detscope.config.schema import DataSettings, TrainingSettings
from detscope.data.contract import DetectionDataset
from detscope.data.loading import LoaderPlan, build_loader
from detscope.errors import OwnCodeError
from detscope.loops.ema import WeightAverage
from detscope.loops.train import (
    LearningRate,
    Position,
    TrainHooks,
    TrainPlan,
    make_scaler,
    run_forward_backward,
    train_model,
)
from detscope.record.device.nsight import watch_window
from detscope.record.recorder import Recorder
from detscope.report.progress import Progress
from detscope.report.publish import publish_run
from detscope.sessions.endings import name_kept_run, show_out_of_memory
from detscope.sessions.recording import add_costs, build_options, describe_model, make_recorder
from detscope.sessions.train.checkpoints import TrainingParts, restore_parts
from detscope.sessions.train.course import PassOrder, StopRequest, TrainingCourse
from detscope.sessions.train.resume import continue_curve, tell_how_to_resume
from detscope.sessions.train.training import TrainingJob, keeps_checkpoints, take_turn
from detscope.zoo.contract import BuiltModel
from detscope.zoo.outputs import find_forward
from detscope.zoo.recompute import recompute_in_backward
from detscope.zoo.registry import build_model, recognise_family


def train_job(job: TrainingJob, progress: Progress) -> Path:
    """Build everything, run the loop, and make what follows from its recording."""
    settings, training, team, dataset = job.settings, job.settings.training, job.team, job.dataset
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    torch.manual_seed(training.seed)
    share = (0, 1) if team is None else (team.place.rank, team.place.ranks)
    loading = build_loader(dataset, training, job.device, seed=training.seed, data=settings.data, share=share)
    options = build_options(settings, settings.model.num_classes or len(dataset.classes))
    built = take_turn(team, lambda: build_model(settings.model.name, options))
    parts = make_parts(built, training, job.device)
    model = parts.model if team is None else team.wrap_model(parts.model, training)
    info = {
        **describe_model(built),
        "data": {"name": dataset.name, "images": len(dataset), "classes": len(dataset.classes) - 1},
        "device": job.device,
        "batch_size": training.batch_size,
        "precision": training.precision,
        "settings": settings.model_dump(),
        "steps_per_epoch": len(loading.loader),
        "recipe": job.recipe,
        "held_out": None if job.held_out is None else {"images": len(job.held_out.dataset)},
    }
    recorder = make_recorder(settings, built, parts.optimizer, info, "train")
    about_data = data_notes(dataset, job.held_out.dataset if job.held_out else None)
    scaled = keep_drawn_sizes(built.module, settings.data)
    own = (*job.notes, *about_data, *loading.notes, *built.notes, *scaled)
    for text in (*own, *busy_machine_notes(job.device)):
        recorder.note(text)
    progress.note(built.weights.note)
    stopped_by: list[int] = []
    ends = show_out_of_memory(recorder)
    with ends, tell_how_to_resume(recorder, job.device, stopped_by), name_kept_run(recorder), recorder:
        _run_loop(job, parts, model, recorder, loading, progress, stopped_by)
    progress.finish()
    if team is not None:
        team.finish_run(recorder)
    if not job.leads_ranks:
        return recorder.run
    if settings.record.level != "phases":  # one more step; nothing of it reaches a checkpoint
        batch, plan = job.read_first_batch(), make_plan(training, job.device, None, Position())
        add_costs(
            recorder.writer,
            built,
            lambda: run_forward_backward(parts.model, batch, plan),
            images=len(batch[0]),
            modules=settings.record.modules,
            device=job.device,
            precision=training.precision,
        )
    publish_run(recorder.run)
    return recorder.run


def _run_loop(
    job: TrainingJob,
    parts: TrainingParts,
    model: nn.Module,
    recorder: Recorder,
    loading: LoaderPlan,
    progress: Progress,
    stopped_by: list[int],
) -> None:
    training, earlier, team = job.settings.training, job.earlier, job.team
    total = recorder.schedule.count_steps(training.steps) if training.steps else None
    per_epoch = max(1, len(loading.loader))
    expected = total or training.num_epochs * per_epoch
    with StopRequest() as stop:
        course = TrainingCourse(
            recorder=recorder,
            parts=parts,
            order=PassOrder(loading.loader, training.seed),
            stop=stop,
            held_out=job.held_out,
            eval_every=job.settings.evaluation.every,
            epochs=math.ceil(expected / per_epoch),
            keep_checkpoints=keeps_checkpoints(job.settings) and job.leads_ranks,
            say=progress.note,
            say_passes=total is None and training.num_epochs > 1,
        )
        start = Position()
        if earlier is not None:
            start = earlier.checkpoint.position
            recorder.continue_from(start.steps, start.epochs)
            continue_curve(recorder, earlier)
            restore_parts(earlier.checkpoint, parts)
            course.resume_from(start, earlier.checkpoint.state)

        def after_step(done: int) -> None:
            if team is not None:
                team.keep_collectives(recorder, start.steps + done - 1)
            progress.advance(1, loss=recorder.last_loss)

        def after_pass(position: Position) -> None:
            course.end_pass(position)
            if team is not None:
                team.wait_for_evaluation()

        recorder.between_steps = after_step
        watch_window(recorder)
        if team is not None:
            team.begin_steps(recorder)
        progress.start(max(0, expected - start.steps), job.card.name)
        hooks = TrainHooks(
            each_batch=recorder.steps,
            on_losses=recorder.losses,
            on_epoch=course.begin_pass,
            after_epoch=after_pass,
            should_stop=lambda: stop.asked is not None,
        )
        try:
            done = train_model(
                model,
                loading.loader,
                parts.optimizer,
                make_plan(training, job.device, total, start),
                LearningRate(
                    kind=training.schedule,
                    warmup_steps=training.lr_warmup_steps,
                    steps_per_epoch=per_epoch,
                    total_steps=expected,
                    step_epochs=training.schedule_step_epochs,
                    gamma=training.schedule_gamma,
                ),
                hooks,
                scaler=parts.scaler,
                average=parts.average,
            )
            if done.stopped:
                course.keep_checkpoint(done.position)
                raise KeyboardInterrupt
            if team is not None:
                team.end_steps(recorder, parts.model, job.read_first_batch(), training.seed)
        except RuntimeError:
            if stop.asked is None:
                raise
            # the signal reached the loader's workers too, and they are gone: the last epoch is what is kept
            raise KeyboardInterrupt from None
        finally:
            stopped_by.extend([stop.asked] if stop.asked is not None else [])


def make_parts(built: BuiltModel, training: TrainingSettings, device: str) -> TrainingParts:
    """Model, optimizer, loss scaling and averaged weights, on their device."""

    recompute_in_backward(built.module, training.recompute)
    model = built.module.to(device)
    if training.channels_last:
        model = model.to(memory_format=torch.channels_last)
    average = WeightAverage(model, training.ema_decay) if training.ema_decay is not None else None
    scaler = make_scaler(make_plan(training, device, None, Position()))
    return TrainingParts(model, make_optimizer(model, training), scaler, average)


def make_optimizer(model: torch.nn.Module, training: TrainingSettings) -> torch.optim.Optimizer:
    """SGD or AdamW over the parameters that are trained."""
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise OwnCodeError(
            f"{find_forward(model)}: the model has no parameters that are trained",
            "give it nn.Parameters or layers that have some, with requires_grad",
        )
    shared: dict[str, Any] = {
        "lr": training.learning_rate,
        "weight_decay": training.weight_decay,
        "fused": training.fused_optimizer or None,
    }
    if training.optimizer == "adamw":
        return torch.optim.AdamW(parameters, **shared)
    return torch.optim.SGD(parameters, momentum=training.momentum, **shared)


def make_plan(training: TrainingSettings, device: str, total: int | None, start: Position) -> TrainPlan:
    """How long and in which arithmetic."""
    return TrainPlan(
        device=device,
        epochs=training.num_epochs,
        max_steps=total,
        repeat_until_max=total is not None,
        precision=training.precision,
        channels_last=training.channels_last,
        clip_norm=training.clip_gradients,
        start=start,
    )


def keep_drawn_sizes(module: Any, data: DataSettings) -> list[str]:
    """Multi-scale training: stop a model from resizing what it trains on. Tells what it did.

    Images come in the sizes the data settings draw; evaluation resizes as ever.
    """
    if not data.scales:
        return []
    if not recognise_family(module).stop_resizing(module):
        return ["data.scales: this model resizes every image to one size of its own, so scales only blur"]
    sides = ", ".join(str(side) for side in sorted(data.scales))
    return [f"data.scales: images train at short sides of {sides}; the model's own resize is off"]


def busy_machine_notes(device: str) -> tuple[str, ...]:
    """A word on other work beside a training on the CPU: threads that wait for each other suffer most."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else 0.0
    if device != "cpu" or torch.get_num_threads() < 2 or load < cores:
        return ()
    return (
        f"this machine was busy at the start (load {load:.1f} on {cores} cores): steps may take much longer "
        "than alone; OMP_WAIT_POLICY=PASSIVE or training.threads = 1 suffers less",
    )


def data_notes(dataset: DetectionDataset, held_out: DetectionDataset | None) -> tuple[str, ...]:
    """What the data sets say of themselves, and how many images are not part of the figures."""
    notes = list(dataset.notes)
    for name, one in (("training", dataset), ("held-out", held_out)):
        dropped = {item.image for item in one.problems if item.action == "dropped"} if one is not None else ()
        if dropped:
            notes.append(f"{len(dropped)} {name} images were left out whole or in part: they cannot be used")
    return (*notes, *(note for note in (held_out.notes if held_out else ()) if note not in notes))
