"""`detscope eval` behind the command line: settings in, run folder with accuracy and detections out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from detscope.accuracy.coco_format import encode_results, import_results, import_truth, load_results
from detscope.accuracy.measures import export_content, make_table_rows, measure_accuracy
from detscope.accuracy.records import Detections, GroundTruth
from detscope.config.load import dump_settings
from detscope.config.schema import Settings
from detscope.data.contract import DetectionDataset, Problem
from detscope.errors import DetscopeError
from detscope.report.progress import Progress
from detscope.report.publish import publish_run
from detscope.runs.atomic import write_bytes, write_text
from detscope.runs.writer import RunWriter
from detscope.sessions.endings import close_failed
from detscope.sessions.evaluate.model import build_evaluated, with_weights_file
from detscope.sessions.evaluate.pictures import draw_worst
from detscope.sessions.recording import describe_model, open_data

DETECTIONS, EVALUATION, PICTURES = "detections.json", "evaluation.json", "worst"


def run_evaluation(settings: Settings, *, progress: Progress, notes: Sequence[str] = ()) -> Path:
    """Measure accuracy on a data set: of a model, or of a file of detections without any model."""

    for note in notes:
        progress.note(note)
    settings = settings.with_section("training", resume=None)  # a run's settings may hold it
    if settings.evaluation.detections is not None:
        run = _evaluate_file(settings, Path(settings.evaluation.detections), progress, notes)
    else:
        run = _evaluate_model(with_weights_file(settings), progress, notes)
    publish_run(run)
    return run


def _evaluate_file(settings: Settings, file: Path, progress: Progress, notes: Sequence[str]) -> Path:
    rows = load_results(file)
    first = rows[0] if rows and isinstance(rows[0], dict) else {}
    said = list(notes)
    # the data set with the masks or keypoints that the detections have, if it has any
    needs = {what for key, what in (("segmentation", "masks"), ("keypoints", "keypoints")) if key in first}
    try:
        dataset = _open_split(settings, needs, progress)
    except DetscopeError as error:
        if not needs:
            raise
        dataset = _open_split(settings, set(), progress)
        said.append(f"only boxes are measured: {error.message}")
    truth = _read_truth(dataset)
    read = import_results(rows, truth, str(file))
    # The path stays out of the run: it can be shown to anybody.
    info = {
        "model": {"name": file.name},
        "weights": {"kind": "file", "note": "detections as given; no model ran here"},
        "device": "no device",
    }
    writer = _start_run(settings, file.stem, dataset, info, said)
    with close_failed(writer):
        return _finish_run(writer, dataset, truth, read.detections, read.left_out, None, progress)


def _evaluate_model(settings: Settings, progress: Progress, notes: Sequence[str]) -> Path:
    from detscope.machine.devices import take_device
    from detscope.zoo.registry import get_card

    training = settings.training
    device = take_device(training.device)
    card = get_card(settings.model.name)
    dataset = _open_split(settings, set(card.needs), progress)
    truth = _read_truth(dataset)

    from detscope.data.loading import build_loader
    from detscope.loops.evaluate import evaluate_model
    from detscope.sessions.train.held_out import as_detections

    model = build_evaluated(settings, dataset)
    info = {
        **describe_model(model.built),
        "device": device,
        "batch_size": training.batch_size,
        "precision": training.precision,
    }
    progress.note(model.built.weights.note)
    writer = _start_run(settings, card.name, dataset, info, [*notes, *model.built.notes, *model.notes])
    with close_failed(writer):
        if training.threads is not None:
            import torch

            torch.set_num_threads(training.threads)
        plan = build_loader(dataset, training, device, shuffle=False, seed=training.seed, every_image=True)
        progress.start(len(dataset), f"evaluating {card.name}")
        found = evaluate_model(
            model.built.module.to(device),
            plan.loader,
            device,
            precision=training.precision,
            on_images=lambda images: progress.advance(images),
        )
        progress.finish()
        detections = as_detections(found.images, truth, model.category_ids)
        given = sum(len(image.scores) for image in found.images)
        left_out = {
            "of classes that are not in the data set": given - len(detections),
            "with a score or box that is not a number": sum(image.not_finite for image in found.images),
        }
        left_out = {reason: count for reason, count in left_out.items() if count}
        images, wall_s, model_s = len(found.images), found.wall_ns / 1e9, found.forward_ns / 1e9
        speed = {
            "images": images,
            "wall_s": wall_s,
            "images_per_s": images / wall_s if wall_s else None,
            "model_images_per_s": images / model_s if model_s else None,
        }
        return _finish_run(writer, dataset, truth, detections, left_out, speed, progress)


def _open_split(settings: Settings, needs: set[str], progress: Progress) -> DetectionDataset:
    evaluation, data = settings.evaluation, settings.data
    if evaluation.split == "val" or evaluation.images is not None:
        # how many images to train on says nothing about how many to evaluate on
        data = data.model_copy(update={"images": evaluation.images})
    return open_data(settings, data, needs, progress, evaluation.split)


def _read_truth(dataset: DetectionDataset) -> GroundTruth:
    content: Any = dataset.ground_truth()
    things = content["annotations"]
    masks = bool(things) and all("segmentation" in thing for thing in things)
    keypoints = bool(things) and all("keypoints" in thing for thing in things)
    return import_truth(content, masks=masks, keypoints=keypoints)


def _start_run(
    settings: Settings, name: str, dataset: DetectionDataset, info: dict[str, Any], notes: Sequence[str]
) -> RunWriter:
    from detscope.machine.facts import gather_facts

    data = {
        "name": dataset.name,
        "split": settings.evaluation.split,
        "images": len(dataset),
        "classes": len(dataset.classes) - 1,
    }
    about = {"environment": gather_facts(), "notes": list(notes), "settings": settings.model_dump()}
    whole = {"data": data, **info, **about}
    return RunWriter(Path(settings.output.runs), "eval", name, whole, dump_settings(settings, "eval"))


def _finish_run(
    writer: RunWriter,
    dataset: DetectionDataset,
    truth: GroundTruth,
    found: Detections,
    left_out: dict[str, int],
    throughput: dict[str, Any] | None,
    progress: Progress,
) -> Path:
    """Keep detections first, then what is said about them."""
    write_bytes(writer.folder / DETECTIONS, encode_results(found, truth))
    progress.note(f"measuring {len(found):,} detections against {len(truth):,} objects")
    for reason, count in left_out.items():
        progress.note(f"left out: detections {reason}: {count:,}")
    measured = drawn = measure_accuracy(truth, found)
    if truth.masks is None or found.masks is None:  # masks of one side alone would look like an error
        drawn = replace(
            measured, truth=replace(measured.truth, masks=None), found=replace(measured.found, masks=None)
        )
    content = {
        **export_content(measured),
        "data": writer.info["data"],
        "throughput": throughput,
        "left_out": {**count_problems(dataset.problems), "detections": left_out},
        "worst": draw_worst(writer.folder / PICTURES, drawn, dataset),
        "files": {"detections": DETECTIONS, "worst": PICTURES},
    }
    write_text(writer.folder / EVALUATION, json.dumps(content, indent=1, allow_nan=False) + "\n")
    writer.append_rows("accuracy", make_table_rows(measured, 0, 0))
    writer.close_run("ok")
    return writer.folder


def count_problems(problems: Sequence[Problem]) -> dict[str, int]:
    """How much of a data set is not part of the figures, or changed."""
    return {
        "images": sum(item.annotation_id is None and item.action == "dropped" for item in problems),
        "annotations": sum(item.annotation_id is not None and item.action == "dropped" for item in problems),
        "clipped": sum(item.action == "clipped" for item in problems),
    }
