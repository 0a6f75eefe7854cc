"""`detscope train` behind the command line: settings in, run folder out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from detscope.config.load import dump_settings
from detscope.config.schema import Settings, TrainingSettings
from detscope.data.registry import open_dataset
from detscope.machine.devices import resolve_device
from detscope.sessions.about import about_model
from detscope.zoo.contract import BuildOptions, BuiltModel, ModelCard
from detscope.zoo.registry import build, check_trainable, get_card

if TYPE_CHECKING:
    import torch

    from detscope.data.contract import DetectionDataset


class Progress(Protocol):
    """What a session tells while it runs."""

    def start(self, total: int | None, label: str) -> None: ...
    def advance(self, n: int = 1, **info: object) -> None: ...
    def note(self, text: str) -> None: ...
    def finish(self) -> None: ...


def run_training(settings: Settings, *, progress: Progress, notes: Sequence[str] = ()) -> Path:
    """Profile a training; what cannot work is said before anything is downloaded or built."""
    training = settings.training
    device = resolve_device(training.device)
    card = get_card(settings.model.name)
    check_trainable(card, training.batch_size, settings.model.image_size)
    for note in notes:
        progress.note(note)
    dataset = open_dataset(
        settings.data,
        need_masks="masks" in card.needs,
        need_keypoints="keypoints" in card.needs,
        seed=training.seed,
        progress=download_progress(progress),
    )
    return _train(settings, device, card, dataset, progress, notes)


def _train(
    settings: Settings,
    device: str,
    card: ModelCard,
    dataset: DetectionDataset,
    progress: Progress,
    notes: Sequence[str],
) -> Path:
    import torch

    from detscope.data.loader import build_loader
    from detscope.loops.train import TrainHooks, train
    from detscope.record.recorder import Recorder
    from detscope.report.trace import write_trace
    from detscope.runs.reader import load_run
    from detscope.sessions.closing import closing_words

    training, record = settings.training, settings.record
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    torch.manual_seed(training.seed)
    plan = build_loader(dataset, training, device, seed=training.seed)
    built = build(settings.model.name, _build_options(settings, dataset))
    model = built.module.to(device)
    if training.channels_last:
        model = model.to(memory_format=torch.channels_last)
    optimizer = make_optimizer(model, training)
    scheduler = make_scheduler(optimizer, training)
    recorder = Recorder(
        model,
        optimizer,
        settings.output.runs,
        level=record.level,
        modules=record.modules,
        stages=built.stages,
        observers=built.observers,
        warmup_steps=training.warmup_steps,
        bare_every=record.bare_every,
        ops_steps=record.ops_steps,
        traced_steps=record.traced_steps,
        telemetry_hz=record.telemetry_hz,
        name=card.name,
        verb="train",
        info=_run_info(settings, device, dataset, built),
        config_toml=dump_settings(settings),
    )
    for text in (*notes, *plan.notes, *built.notes):
        recorder.note(text)
    progress.note(built.weights.note)
    total = recorder.schedule.total_steps(training.steps) if training.steps else None
    expected = total or training.num_epochs * len(plan.loader)
    recorder.between_steps = lambda _done: progress.advance(1, loss=recorder.last_loss)
    with closing_words(recorder), recorder:
        progress.start(expected, card.name)
        hooks = TrainHooks(
            each_batch=recorder.steps,
            on_losses=recorder.losses,
            on_epoch=lambda epoch: _say_epoch(progress, epoch, training, bool(total)),
        )
        train(model, plan.loader, optimizer, _plan(training, device, total), scheduler, hooks)
    progress.finish()
    write_trace(load_run(recorder.run))
    return recorder.run


def download_progress(progress: Progress) -> Callable[[str, int, int | None], None]:
    """Downloads and generation speak of (label, done, total): one bar each."""
    state: dict[str, int] = {}

    def tell(label: str, done: int, total: int | None) -> None:
        if label not in state:
            progress.start(total, label)
            state[label] = 0
        progress.advance(done - state[label])
        state[label] = done

    return tell


def _say_epoch(progress: Progress, epoch: int, training: TrainingSettings, by_steps: bool) -> None:
    if not by_steps and training.num_epochs > 1:
        progress.note(f"Epoch {epoch + 1}/{training.num_epochs}")


def _build_options(settings: Settings, dataset: DetectionDataset) -> BuildOptions:
    model = settings.model
    return BuildOptions(
        num_classes=model.num_classes or len(dataset.classes),
        weights=model.weights,
        image_size=model.image_size,
        trainable_layers=model.trainable_layers,
        seed=settings.training.seed,
    )


def _plan(training: TrainingSettings, device: str, total: int | None) -> Any:
    from detscope.loops.train import TrainPlan

    return TrainPlan(
        device=device,
        epochs=training.num_epochs,
        max_steps=total,
        repeat_until_max=total is not None,
        precision=training.precision,
        channels_last=training.channels_last,
        lr_warmup_steps=training.lr_warmup_steps,
    )


def make_optimizer(model: torch.nn.Module, training: TrainingSettings) -> torch.optim.Optimizer:
    """SGD or AdamW over the parameters that are trained."""
    import torch

    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    if training.optimizer == "adamw":
        return torch.optim.AdamW(parameters, lr=training.learning_rate, weight_decay=training.weight_decay)
    return torch.optim.SGD(
        parameters, lr=training.learning_rate, momentum=training.momentum, weight_decay=training.weight_decay
    )


def make_scheduler(
    optimizer: torch.optim.Optimizer, training: TrainingSettings
) -> torch.optim.lr_scheduler.LRScheduler | None:
    """A schedule that is stepped once per epoch."""
    from torch.optim.lr_scheduler import CosineAnnealingLR, StepLR

    if training.schedule == "step":
        return StepLR(optimizer, training.schedule_step_epochs, training.schedule_gamma)
    if training.schedule == "cosine":
        return CosineAnnealingLR(optimizer, training.num_epochs)
    return None


def _run_info(
    settings: Settings, device: str, dataset: DetectionDataset, built: BuiltModel
) -> dict[str, Any]:
    training = settings.training
    return {
        **about_model(built),
        "data": {"name": dataset.name, "images": len(dataset), "classes": len(dataset.classes) - 1},
        "device": device,
        "batch_size": training.batch_size,
        "precision": training.precision,
        "settings": settings.model_dump(),
    }
