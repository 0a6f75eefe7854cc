"""The parts of a training, made from settings: model and optimizer, schedule, plan, description and notes."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detscope.config.schema import DataSettings, Settings, TrainingSettings
from detscope.errors import OwnCodeError
from detscope.sessions.recording import describe_model
from detscope.zoo.contract import BuiltModel
from detscope.zoo.outputs import find_forward
from detscope.zoo.registry import recognise_family

if TYPE_CHECKING:
    import torch

    from detscope.data.contract import DetectionDataset
    from detscope.loops.train import LearningRate, Position, TrainPlan
    from detscope.sessions.train.checkpoints import TrainingParts


def make_parts(built: BuiltModel, training: TrainingSettings, device: str) -> TrainingParts:
    """Model, optimizer, loss scaling and averaged weights, on their device."""
    import torch

    from detscope.loops.ema import WeightAverage
    from detscope.loops.train import Position, make_scaler
    from detscope.sessions.train.checkpoints import TrainingParts
    from detscope.zoo.recompute import recompute_in_backward

    recompute_in_backward(built.module, training.recompute)
    model = built.module.to(device)
    if training.channels_last:
        model = model.to(memory_format=torch.channels_last)
    average = WeightAverage(model, training.ema_decay) if training.ema_decay is not None else None
    scaler = make_scaler(make_plan(training, device, None, Position()))
    return TrainingParts(model, make_optimizer(model, training), scaler, average)


def make_optimizer(model: torch.nn.Module, training: TrainingSettings) -> torch.optim.Optimizer:
    """SGD or AdamW over the parameters that are trained."""
    import torch

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


def make_schedule(training: TrainingSettings, steps_per_epoch: int, total_steps: int) -> LearningRate:
    """The learning rate over the whole training."""
    from detscope.loops.train import LearningRate

    return LearningRate(
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

    name = settings.data.name
    if ":" not in settings.model.name or Path(name).exists():
        return
    if name not in {entry.name for entry in list_datasets()}:
        user.import_own(settings.model.name)


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


def describe_training(
    settings: Settings, device: str, dataset: DetectionDataset, built: BuiltModel
) -> dict[str, Any]:
    """What `run.json` says of a training."""
    training = settings.training
    return {
        **describe_model(built),
        "data": {"name": dataset.name, "images": len(dataset), "classes": len(dataset.classes) - 1},
        "device": device,
        "batch_size": training.batch_size,
        "precision": training.precision,
        "settings": settings.model_dump(),
    }
