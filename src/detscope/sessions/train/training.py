"""`detscope train` behind the command line: settings in, run folder out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from detscope.config.schema import Settings
from detscope.data.registry import open_dataset
from detscope.machine.devices import resolve_device
from detscope.sessions.memory_views import (
    running_out_is_an_answer,
    write_memory_views,
)
from detscope.sessions.recording import make_recorder
from detscope.sessions.train.parts import (
    build_options,
    busy_machine_notes,
    data_notes,
    let_model_bring_data,
    make_optimizer,
    make_plan,
    make_schedule,
    run_info,
)
from detscope.sessions.train.recipe import for_real, keeps_checkpoints, recipe_note, with_recipe
from detscope.sessions.train.resume import Earlier, continue_curve, find_earlier, resumable
from detscope.zoo.contract import BuiltModel, ModelCard
from detscope.zoo.registry import build, check_trainable, get_card

if TYPE_CHECKING:
    from torch import nn

    from detscope.data.contract import DetectionDataset
    from detscope.data.loading.loader import LoaderPlan
    from detscope.loops.train import Batch, Position
    from detscope.record.recorder import Recorder
    from detscope.sessions.ranks.team import Team
    from detscope.sessions.train.checkpoints import TrainingParts
    from detscope.sessions.train.course import Course
    from detscope.sessions.train.held_out import HeldOut

__all__ = ["Progress", "download_progress", "make_optimizer", "run_training"]

Made = TypeVar("Made")


class Progress(Protocol):
    """What a session tells while it runs."""

    def start(self, total: int | None, label: str) -> None: ...
    def advance(self, n: int = 1, **info: object) -> None: ...
    def note(self, text: str) -> None: ...
    def finish(self) -> None: ...


@dataclass(frozen=True)
class _Wanted:
    """What is to be trained, on what and from where, before anything is built."""

    settings: Settings
    device: str
    card: ModelCard
    dataset: DetectionDataset
    held_out: HeldOut | None
    earlier: Earlier | None
    notes: tuple[str, ...]
    recipe: dict[str, Any]
    team: Team | None = None  # the other ranks, where this is one of several

    @property
    def leads(self) -> bool:
        """Whether this process is the one that evaluates and keeps what is common."""
        return self.team is None or self.team.leads


def run_training(
    settings: Settings, *, progress: Progress, notes: Sequence[str] = (), team: Team | None = None
) -> Path:
    """Profile a training; what cannot work is said before anything is downloaded or built."""
    device = team.device if team else resolve_device(settings.training.device)
    card = get_card(settings.model.name)
    settings, recipe = with_recipe(settings, card)
    training = settings.training
    check_trainable(card, training.batch_size, settings.model.image_size)
    earlier = find_earlier(settings)
    said = (*notes, recipe_note(card, recipe)) if recipe else tuple(notes)
    for note in said:
        progress.note(note)
    let_model_bring_data(settings)
    dataset = _in_turn(
        team,
        lambda: open_dataset(
            settings.data,
            need_masks="masks" in card.needs,
            need_keypoints="keypoints" in card.needs,
            seed=training.seed,
            progress=download_progress(progress),
        ),
    )
    check_trainable(card, min(training.batch_size, len(dataset)), settings.model.image_size)
    evaluates = for_real(settings) and (team is None or team.leads)
    held_out = _held_out(settings, card, device, progress) if evaluates else None
    return _train(_Wanted(settings, device, card, dataset, held_out, earlier, said, recipe, team), progress)


def _in_turn(team: Team | None, make: Callable[[], Made]) -> Made:
    """Ranks of a host do not download the same file at the same time."""
    return make() if team is None else team.in_turn(make)


def _held_out(settings: Settings, card: ModelCard, device: str, progress: Progress) -> HeldOut:
    from detscope.sessions.train.held_out import open_held_out

    return open_held_out(settings, card, device, download_progress(progress))


def _train(wanted: _Wanted, progress: Progress) -> Path:
    import torch

    from detscope.data.loading.loader import build_loader
    from detscope.sessions.endings import closing_words
    from detscope.sessions.train.multi_scale import keep_drawn_sizes

    settings, training = wanted.settings, wanted.settings.training
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    torch.manual_seed(training.seed)
    loading = build_loader(
        wanted.dataset,
        training,
        wanted.device,
        seed=training.seed,
        data=settings.data,
        share=(0, 1) if wanted.team is None else (wanted.team.place.rank, wanted.team.place.ranks),
    )
    built = _in_turn(wanted.team, lambda: build(settings.model.name, build_options(settings, wanted.dataset)))
    parts = _parts(built, settings, wanted.device)
    model = parts.model if wanted.team is None else wanted.team.wrap(parts.model, training)
    recorder = make_recorder(settings, built, parts.optimizer, _info(wanted, built, loading), "train")
    about_data = data_notes(wanted.dataset, wanted.held_out.dataset if wanted.held_out else None)
    scaled = keep_drawn_sizes(built.module, settings.data)
    own = (*wanted.notes, *about_data, *loading.notes, *built.notes, *scaled)
    for text in (*own, *busy_machine_notes(wanted.device)):
        recorder.note(text)
    progress.note(built.weights.note)
    stopped_by: list[int] = []
    ends = running_out_is_an_answer(recorder)
    with ends, resumable(recorder, wanted.device, stopped_by), closing_words(recorder), recorder:
        _run(wanted, parts, model, recorder, loading, progress, stopped_by)
    progress.finish()
    if wanted.team is not None:
        wanted.team.finish(recorder)
    if wanted.leads:
        _count(recorder, wanted, parts, built)
        _after(recorder, settings)
    return recorder.run


def _count(recorder: Recorder, wanted: _Wanted, parts: TrainingParts, built: BuiltModel) -> None:
    """One more step, whose arithmetic is counted; nothing of it reaches a checkpoint."""
    from detscope.loops.train import Position, forward_and_backward
    from detscope.sessions.counting import add_costs

    if wanted.settings.record.level == "phases":
        return
    batch = _first_batch(wanted)
    images = len(batch[0])
    plan = make_plan(wanted.settings.training, wanted.device, None, Position())
    add_costs(
        recorder.writer,
        parts.model,
        lambda: forward_and_backward(parts.model, batch, plan),
        built.stages,
        images=images,
        modules=wanted.settings.record.modules,
        device=wanted.device,
    )


def _first_batch(wanted: _Wanted) -> Batch:
    from detscope.data.late_float import collate

    images = min(wanted.settings.training.batch_size, len(wanted.dataset))
    batch: Batch = collate([wanted.dataset[index] for index in range(images)])
    return batch


def _run(
    wanted: _Wanted,
    parts: TrainingParts,
    model: nn.Module,
    recorder: Recorder,
    loading: LoaderPlan,
    progress: Progress,
    stopped_by: list[int],
) -> None:
    """The loop, with everybody who listens to it."""
    from detscope.loops.train import Position, TrainHooks, train
    from detscope.record.device.nsight import watch_window
    from detscope.sessions.train.checkpoints import restore
    from detscope.sessions.train.course import Course
    from detscope.sessions.train.pass_order import PassOrder
    from detscope.sessions.train.stop_request import StopRequest

    training, earlier = wanted.settings.training, wanted.earlier
    total = recorder.schedule.total_steps(training.steps) if training.steps else None
    per_epoch = max(1, len(loading.loader))
    expected = total or training.num_epochs * per_epoch
    with StopRequest() as stop:
        course = Course(
            recorder=recorder,
            parts=parts,
            order=PassOrder(loading.loader, training.seed),
            stop=stop,
            held_out=wanted.held_out,
            eval_every=wanted.settings.evaluation.every,
            epochs=math.ceil(expected / per_epoch),
            keep_checkpoints=keeps_checkpoints(wanted.settings) and wanted.leads,
            say=progress.note,
            say_passes=total is None and training.num_epochs > 1,
        )
        start = Position()
        if earlier is not None:
            start = earlier.checkpoint.position
            recorder.continue_from(start.steps, start.epochs)
            continue_curve(recorder, earlier)
            restore(earlier.checkpoint, parts)
            course.resume(start, earlier.checkpoint.state)
        team = wanted.team
        recorder.between_steps = lambda done: _between(done, recorder, progress, team, start.steps)
        watch_window(recorder)
        if team is not None:
            team.begin(recorder)
        progress.start(max(0, expected - start.steps), wanted.card.name)
        hooks = TrainHooks(
            each_batch=recorder.steps,
            on_losses=recorder.losses,
            on_epoch=course.begin_pass,
            after_epoch=lambda position: _end_pass(position, course, team),
            should_stop=lambda: stop.asked is not None,
        )
        try:
            done = train(
                model,
                loading.loader,
                parts.optimizer,
                make_plan(training, wanted.device, total, start),
                make_schedule(training, per_epoch, expected),
                hooks,
                scaler=parts.scaler,
                average=parts.average,
            )
            if done.stopped:
                course.keep(done.position)
                raise KeyboardInterrupt
            if team is not None:
                team.end(recorder, parts.model, _first_batch(wanted), training.seed)
        except RuntimeError:
            if stop.asked is None:
                raise
            # the signal reached the loader's workers too, and they are gone: the last epoch is what is kept
            raise KeyboardInterrupt from None
        finally:
            stopped_by.extend([stop.asked] if stop.asked is not None else [])


def _between(done: int, recorder: Recorder, progress: Progress, team: Team | None, first: int) -> None:
    """After every step, outside of it."""
    if team is not None:
        team.after_step(recorder, first + done - 1)
    progress.advance(1, loss=recorder.last_loss)


def _end_pass(position: Position, course: Course, team: Team | None) -> None:
    course.end_pass(position)
    if team is not None:
        team.after_pass()


def _parts(built: BuiltModel, settings: Settings, device: str) -> TrainingParts:
    """Model, optimizer, loss scaling and averaged weights, on their device."""
    import torch

    from detscope.loops.ema import WeightAverage
    from detscope.loops.train import Position, make_scaler
    from detscope.sessions.train.checkpoints import TrainingParts
    from detscope.zoo.recompute import recompute_in_backward

    training = settings.training
    recompute_in_backward(built.module, training.recompute)
    model = built.module.to(device)
    if training.channels_last:
        model = model.to(memory_format=torch.channels_last)
    average = WeightAverage(model, training.ema_decay) if training.ema_decay is not None else None
    scaler = make_scaler(make_plan(training, device, None, Position()))
    return TrainingParts(model, make_optimizer(model, training), scaler, average)


def _info(wanted: _Wanted, built: BuiltModel, loading: LoaderPlan) -> dict[str, Any]:
    held_out = wanted.held_out
    return {
        **run_info(wanted.settings, wanted.device, wanted.dataset, built),
        "steps_per_epoch": len(loading.loader),
        "recipe": wanted.recipe,
        "held_out": None if held_out is None else {"images": len(held_out.dataset)},
    }


def _after(recorder: Recorder, settings: Settings) -> None:
    """What is made once the run is safe on disk: trace, curve, TensorBoard."""
    from detscope.report.trace import write_trace
    from detscope.runs.reader import load_run

    run = load_run(recorder.run)
    write_trace(run)
    write_memory_views(recorder.run)
    if for_real(settings) or settings.training.num_epochs > 1:
        from detscope.report.curve import write_curve

        write_curve(run)
    if settings.training.tensorboard:
        from detscope.analyze.summary import summarize
        from detscope.report.render.tensorboard import write_tensorboard

        write_tensorboard(recorder.run, summarize(recorder.run), ())


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
