"""`detscope train` behind the command line: settings in, run folder out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from detscope.config.schema import Settings
from detscope.machine.devices import resolve_device
from detscope.sessions.endings import name_kept_run, show_out_of_memory
from detscope.sessions.recording import add_costs, build_options, make_recorder, open_data
from detscope.sessions.train.parts import (
    busy_machine_notes,
    data_notes,
    describe_training,
    keep_drawn_sizes,
    let_model_bring_data,
    make_parts,
    make_plan,
    make_schedule,
)
from detscope.sessions.train.recipe import apply_recipe, keeps_checkpoints, recipe_note, trains_for_real
from detscope.sessions.train.resume import EarlierRun, continue_curve, find_earlier, tell_how_to_resume
from detscope.zoo.contract import ModelCard
from detscope.zoo.registry import build_model, check_trainable, get_card

if TYPE_CHECKING:
    from torch import nn

    from detscope.data.contract import DetectionDataset
    from detscope.data.loading.loader import LoaderPlan
    from detscope.loops.train import Batch, Position
    from detscope.record.recorder import Recorder
    from detscope.report.progress import Progress
    from detscope.sessions.ranks.team import Team
    from detscope.sessions.train.checkpoints import TrainingParts
    from detscope.sessions.train.held_out import HeldOutImages

Made = TypeVar("Made")


@dataclass(frozen=True)
class TrainingJob:
    """What is to be trained, on what and from where, before anything is built."""

    settings: Settings
    device: str
    card: ModelCard
    dataset: DetectionDataset
    held_out: HeldOutImages | None
    earlier: EarlierRun | None
    notes: tuple[str, ...]
    recipe: dict[str, Any]
    team: Team | None  # the other ranks, where this is one of several

    @property
    def leads_ranks(self) -> bool:
        """Whether this process is the one that evaluates and keeps what is common."""
        return self.team is None or self.team.leads_ranks

    def read_first_batch(self) -> Batch:
        """The first images of the data set, as many as a step has."""
        from detscope.data.loading.packing import collate_batch

        images = min(self.settings.training.batch_size, len(self.dataset))
        batch: Batch = collate_batch([self.dataset[index] for index in range(images)])
        return batch


def run_training(
    settings: Settings, *, progress: Progress, notes: Sequence[str] = (), team: Team | None = None
) -> Path:
    """Profile a training; what cannot work is said before anything is downloaded or built."""
    device = team.device if team else resolve_device(settings.training.device)
    card = get_card(settings.model.name)
    settings, recipe = apply_recipe(settings, card)
    training = settings.training
    check_trainable(card, training.batch_size, settings.model.image_size)
    earlier = find_earlier(settings)
    said = (*notes, recipe_note(card, recipe)) if recipe else tuple(notes)
    for note in said:
        progress.note(note)
    let_model_bring_data(settings)
    dataset = _take_turn(team, lambda: open_data(settings, settings.data, card.needs, progress))
    check_trainable(card, min(training.batch_size, len(dataset)), settings.model.image_size)
    held_out = None
    if trains_for_real(settings) and (team is None or team.leads_ranks):
        from detscope.sessions.train.held_out import open_held_out

        held_out = open_held_out(settings, card, device, progress)
    job = TrainingJob(settings, device, card, dataset, held_out, earlier, said, recipe, team)
    return _train(job, progress)


def _take_turn(team: Team | None, make: Callable[[], Made]) -> Made:
    """Ranks of a host do not download the same file at the same time."""
    return make() if team is None else team.take_turn(make)


def _train(job: TrainingJob, progress: Progress) -> Path:
    import torch

    from detscope.data.loading.loader import build_loader
    from detscope.loops.train import Position, run_forward_backward
    from detscope.report.publish import publish_run

    settings, training, team, dataset = job.settings, job.settings.training, job.team, job.dataset
    if training.threads is not None:
        torch.set_num_threads(training.threads)
    torch.manual_seed(training.seed)
    share = (0, 1) if team is None else (team.place.rank, team.place.ranks)
    loading = build_loader(dataset, training, job.device, seed=training.seed, data=settings.data, share=share)
    options = build_options(settings, settings.model.num_classes or len(dataset.classes))
    built = _take_turn(team, lambda: build_model(settings.model.name, options))
    parts = make_parts(built, training, job.device)
    model = parts.model if team is None else team.wrap_model(parts.model, training)
    info = {
        **describe_training(settings, job.device, dataset, built),
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
    """The loop, with everybody who listens to it."""
    from detscope.loops.train import Position, TrainHooks, train_model
    from detscope.record.device.nsight import watch_window
    from detscope.sessions.train.checkpoints import restore_parts
    from detscope.sessions.train.course import PassOrder, StopRequest, TrainingCourse

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
                make_schedule(training, per_epoch, expected),
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
