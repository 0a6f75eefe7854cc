"""`detscope eval` behind the command line: settings in, run folder with accuracy and detections out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detscope.accuracy.coco_format import load_results, results_from_coco, truth_from_coco, write_results
from detscope.accuracy.measures import Measured, as_content, measure, table_rows
from detscope.accuracy.records import Detections, GroundTruth
from detscope.config.load import dump_settings
from detscope.config.schema import Settings
from detscope.data.registry import open_dataset
from detscope.errors import DetscopeError, InterruptedRun
from detscope.faults import one_line
from detscope.runs.atomic import write_bytes, write_text
from detscope.sessions.endings import raise_with_log
from detscope.sessions.evaluate.model import EvaluatedModel, build_evaluated, with_weights_file
from detscope.sessions.evaluate.pictures import draw_worst
from detscope.sessions.train.training import Progress, download_progress

if TYPE_CHECKING:
    from detscope.data.contract import DetectionDataset, Problem
    from detscope.loops.evaluate import ModelDetections
    from detscope.runs.writer import RunWriter

DETECTIONS, EVALUATION, PICTURES = "detections.json", "evaluation.json", "worst"


def run_evaluation(settings: Settings, *, progress: Progress, notes: Sequence[str] = ()) -> Path:
    """Measure accuracy on a data set: of a model, or of a file of detections without any model."""
    for note in notes:
        progress.note(note)
    training = settings.training.model_copy(update={"resume": None})  # a run's settings may hold it
    settings = settings.model_copy(update={"training": training})
    if settings.evaluation.detections is not None:
        return _evaluate_file(settings, Path(settings.evaluation.detections), progress, notes)
    return _evaluate_model(with_weights_file(settings), progress, notes)


def _evaluate_file(settings: Settings, file: Path, progress: Progress, notes: Sequence[str]) -> Path:
    rows = load_results(file)
    first = rows[0] if rows and isinstance(rows[0], dict) else {}
    said = list(notes)
    dataset = _open_for(settings, first, progress, said)
    truth = _truth_of(dataset)
    read = results_from_coco(rows, truth, str(file))
    # The path stays out of the run: it can be shown to anybody.
    info = {
        **_about_data(settings, dataset),
        "model": {"name": file.name},
        "weights": {"kind": "file", "note": "detections as given; no model ran here"},
        "device": "no device",
    }
    writer = _start_run(settings, file.stem, info, said)
    with _Closing(writer):
        return _finish(writer, dataset, truth, read.detections, read.left_out, {}, progress)


def _open_for(
    settings: Settings, first: dict[str, Any], progress: Progress, notes: list[str]
) -> DetectionDataset:
    """The data set with the masks or keypoints that the detections have, if it has any."""
    masks, keypoints = "segmentation" in first, "keypoints" in first
    try:
        return _open(settings, masks, keypoints, progress)
    except DetscopeError as error:
        if not (masks or keypoints):
            raise
        dataset = _open(settings, False, False, progress)
        notes.append(f"only boxes are measured: {error.message}")
        return dataset


def _evaluate_model(settings: Settings, progress: Progress, notes: Sequence[str]) -> Path:
    from detscope.machine.devices import resolve_device
    from detscope.zoo.registry import get_card

    device = resolve_device(settings.training.device)
    card = get_card(settings.model.name)
    dataset = _open(settings, "masks" in card.needs, "keypoints" in card.needs, progress)
    truth = _truth_of(dataset)

    from detscope.sessions.recording import about_model
    from detscope.sessions.train.held_out import as_detections

    model = build_evaluated(settings, dataset)
    info = {
        **_about_data(settings, dataset),
        **about_model(model.built),
        "device": device,
        "batch_size": settings.training.batch_size,
        "precision": settings.training.precision,
    }
    said = [*notes, *model.built.notes, *model.notes]
    progress.note(model.built.weights.note)
    writer = _start_run(settings, card.name, info, said)
    with _Closing(writer):
        found = _detect(settings, model, dataset, device, progress)
        detections = as_detections(found.images, truth, model.category_ids)
        return _finish(
            writer, dataset, truth, detections, _left_out(found, detections), _throughput(found), progress
        )


def _detect(
    settings: Settings, model: EvaluatedModel, dataset: DetectionDataset, device: str, progress: Progress
) -> ModelDetections:
    from detscope.data.loading.loader import build_loader
    from detscope.loops.evaluate import evaluate_model

    training = settings.training
    if training.threads is not None:
        import torch

        torch.set_num_threads(training.threads)
    plan = build_loader(dataset, training, device, shuffle=False, seed=training.seed, every_image=True)
    progress.start(len(dataset), f"evaluating {model.built.card.name}")
    found = evaluate_model(
        model.built.module.to(device),
        plan.loader,
        device,
        precision=training.precision,
        on_images=lambda images: progress.advance(images),
    )
    progress.finish()
    return found


def _open(settings: Settings, masks: bool, keypoints: bool, progress: Progress) -> DetectionDataset:
    evaluation, data = settings.evaluation, settings.data
    if evaluation.split == "val" or evaluation.images is not None:
        # how many images to train on says nothing about how many to evaluate on
        data = data.model_copy(update={"images": evaluation.images})
    return open_dataset(
        data,
        need_masks=masks,
        need_keypoints=keypoints,
        seed=settings.training.seed,
        split=evaluation.split,
        progress=download_progress(progress),
    )


def _truth_of(dataset: DetectionDataset) -> GroundTruth:
    content: Any = dataset.ground_truth()
    things = content["annotations"]
    masks = bool(things) and all("segmentation" in thing for thing in things)
    keypoints = bool(things) and all("keypoints" in thing for thing in things)
    return truth_from_coco(content, masks=masks, keypoints=keypoints)


def _start_run(settings: Settings, name: str, info: dict[str, Any], notes: Sequence[str]) -> RunWriter:
    from detscope.machine.facts import environment
    from detscope.runs.writer import RunWriter

    whole = {**info, "environment": environment(), "notes": list(notes), "settings": settings.model_dump()}
    return RunWriter(Path(settings.output.runs), "eval", name, whole, dump_settings(settings, "eval"))


def _finish(
    writer: RunWriter,
    dataset: DetectionDataset,
    truth: GroundTruth,
    found: Detections,
    left_out: dict[str, int],
    throughput: dict[str, Any],
    progress: Progress,
) -> Path:
    """Keep detections first, then what is said about them."""
    write_bytes(writer.folder / DETECTIONS, write_results(found, truth))
    progress.note(f"measuring {len(found):,} detections against {len(truth):,} objects")
    measured = measure(truth, found)
    content = {
        **as_content(measured),
        "data": writer.info["data"],
        "throughput": throughput or None,
        "left_out": {**count_problems(dataset.problems), "detections": left_out},
        "worst": draw_worst(writer.folder / PICTURES, _drawable(measured), dataset),
        "files": {"detections": DETECTIONS, "worst": PICTURES},
    }
    write_text(writer.folder / EVALUATION, json.dumps(content, indent=1, allow_nan=False) + "\n")
    writer.append("accuracy", table_rows(measured, 0, 0))
    writer.close("ok")
    return writer.folder


def _drawable(measured: Measured) -> Measured:
    """Masks are drawn only where both sides have them; one side alone would look like an error."""
    if measured.truth.masks is not None and measured.found.masks is not None:
        return measured
    return replace(
        measured, truth=replace(measured.truth, masks=None), found=replace(measured.found, masks=None)
    )


def _about_data(settings: Settings, dataset: DetectionDataset) -> dict[str, Any]:
    return {
        "data": {
            "name": dataset.name,
            "split": settings.evaluation.split,
            "images": len(dataset),
            "classes": len(dataset.classes) - 1,
        },
    }


def count_problems(problems: Sequence[Problem]) -> dict[str, int]:
    """How much of a data set is not part of the figures, or changed."""
    return {
        "images": sum(item.annotation_id is None and item.action == "dropped" for item in problems),
        "annotations": sum(item.annotation_id is not None and item.action == "dropped" for item in problems),
        "clipped": sum(item.action == "clipped" for item in problems),
    }


def _left_out(found: ModelDetections, kept: Detections) -> dict[str, int]:
    given = sum(len(image.scores) for image in found.images)
    counts = {
        "of classes that are not in the data set": given - len(kept),
        "with a score or box that is not a number": sum(image.not_finite for image in found.images),
    }
    return {reason: count for reason, count in counts.items() if count}


def _throughput(found: ModelDetections) -> dict[str, Any]:
    images = len(found.images)
    return {
        "images": images,
        "wall_s": found.wall_ns / 1e9,
        "images_per_s": images / (found.wall_ns / 1e9) if found.wall_ns else None,
        "model_images_per_s": images / (found.forward_ns / 1e9) if found.forward_ns else None,
    }


class _Closing:
    """Closes the run as failed, with the reason, when what happens inside does not end well."""

    def __init__(self, writer: RunWriter) -> None:
        self._writer = writer

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, _trace: object) -> None:
        if error is None:
            return
        folder = self._writer.folder
        if isinstance(error, KeyboardInterrupt):
            self._close("partial", "interrupted")
            raise InterruptedRun(f"interrupted; {folder} holds no accuracy yet", "evaluate again") from None
        self._close("failed", one_line(error) or type(error).__name__)
        if isinstance(error, Exception) and (not isinstance(error, DetscopeError) or error.__cause__):
            raise_with_log(error, folder)

    def _close(self, status: str, reason: str) -> None:
        with suppress(DetscopeError):  # never hide what happened behind a disk that is full
            self._writer.close(status, reason)
