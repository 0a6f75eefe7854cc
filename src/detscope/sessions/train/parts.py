"""The parts of a training, made from settings: optimizer, schedule, plan, description."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detscope.config.schema import Settings, TrainingSettings
from detscope.errors import OwnCodeError
from detscope.sessions.about import about_model
from detscope.zoo.contract import BuildOptions, BuiltModel
from detscope.zoo.model_outputs import forward_place

if TYPE_CHECKING:
    import torch

    from detscope.data.contract import DetectionDataset
    from detscope.loops.schedules import Schedule
    from detscope.loops.train import Position, TrainPlan


def make_optimizer(model: torch.nn.Module, training: TrainingSettings) -> torch.optim.Optimizer:
    """SGD or AdamW over the parameters that are trained."""
    import torch

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if not parameters:
        raise OwnCodeError(
            f"{forward_place(model)}: the model has no parameters that are trained",
            "give it nn.Parameters or layers that have some, with requires_grad",
        )
    if training.optimizer == "adamw":
        return torch.optim.AdamW(
            parameters,
            lr=training.learning_rate,
            weight_decay=training.weight_decay,
            fused=training.fused_optimizer or None,
        )
    return torch.optim.SGD(
        parameters,
        lr=training.learning_rate,
        momentum=training.momentum,
        weight_decay=training.weight_decay,
        fused=training.fused_optimizer or None,
    )


def make_schedule(training: TrainingSettings, steps_per_epoch: int, total_steps: int) -> Schedule:
    """The learning rate over the whole training."""
    from detscope.loops.schedules import Schedule

    return Schedule(
        kind=training.schedule,
        warmup_steps=training.lr_warmup_steps,
        steps_per_epoch=steps_per_epoch,
        total_steps=total_steps,
        step_epochs=training.schedule_step_epochs,
        gamma=training.schedule_gamma,
    )


def make_plan(training: TrainingSettings, device: str, total: int | None, start: Position) -> TrainPlan:
    """How long and in which arithmetic."""
    from detscope.loops.train import TrainPlan

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


def let_model_bring_data(settings: Settings) -> None:
    """A user's model file may register data sets: it is read before a name that nobody knows is refused."""
    from detscope.data.registry import list_datasets
    from detscope.zoo import user

    known = {entry.name for entry in list_datasets()}
    if (
        ":" in settings.model.name
        and settings.data.name not in known
        and not Path(settings.data.name).exists()
    ):
        user.load(settings.model.name)


def busy_machine_notes(device: str) -> tuple[str, ...]:
    """A word on other work beside a training on the CPU: threads that wait for each other suffer most."""
    import torch

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


def build_options(settings: Settings, dataset: DetectionDataset) -> BuildOptions:
    """What the settings and the data set want of the model."""
    model = settings.model
    return BuildOptions(
        num_classes=model.num_classes or len(dataset.classes),
        weights=model.weights,
        image_size=model.image_size,
        trainable_layers=model.trainable_layers,
        seed=settings.training.seed,
    )


def run_info(settings: Settings, device: str, dataset: DetectionDataset, built: BuiltModel) -> dict[str, Any]:
    """What `run.json` says of a training."""
    training = settings.training
    return {
        **about_model(built),
        "data": {"name": dataset.name, "images": len(dataset), "classes": len(dataset.classes) - 1},
        "device": device,
        "batch_size": training.batch_size,
        "precision": training.precision,
        "settings": settings.model_dump(),
    }
