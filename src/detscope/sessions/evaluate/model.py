"""The model to evaluate, with weights that know the data set's classes, and which label means which class."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from detscope.config.schema import Settings
from detscope.data.contract import DetectionDataset
from detscope.errors import InputError, UsageError
from detscope.sessions.recording import build_options, coco_class_names
from detscope.zoo.contract import BuiltModel
from detscope.zoo.registry import build_model

# What VOC calls a class that COCO has under another name, without spaces.
_SAME_CLASS = {"aeroplane": "airplane", "motorbike": "motorcycle", "sofa": "couch", "tvmonitor": "tv"}
_NO_CLASS = -1


@dataclass(frozen=True)
class EvaluatedModel:
    """A model, the data set's category id of its labels 1, 2, ... (-1: not in the data set), and notes."""

    built: BuiltModel
    category_ids: tuple[int, ...]
    notes: tuple[str, ...] = ()


def run_of_weights(weights: str | None, runs: str) -> Path | None:
    """The run that `--weights` names, by path or name; None where it names a file or a keyword."""
    from detscope.runs.folder import find_run, runs_named

    if weights is None or weights in ("auto", "coco", "none"):
        return None
    if os.path.isfile(weights):  # noqa: PTH113  (a Path raises where the name is too long)
        return None
    if os.path.lexists(weights) or weights == "latest" or runs_named(weights, Path(runs)):
        return find_run(weights, Path(runs))
    hint = f"runs are looked for in {runs}, files by their path"
    raise UsageError(f"--weights {weights}: no such run or file", hint)


def settings_file_of(run: Path | None) -> Path | None:
    """The settings a run was trained with, so that its weights meet the same model, data and sizes."""
    return run / "config.toml" if run is not None and (run / "config.toml").is_file() else None


def with_weights_file(settings: Settings) -> Settings:
    """Settings in which a run's name became the file of its best weights, or of its last."""
    run = run_of_weights(settings.model.weights, settings.output.runs)
    if run is None:
        return settings
    from detscope.sessions.train.checkpoints import weights_of_run

    return settings.with_section("model", weights=str(weights_of_run(run)))


def build_evaluated(settings: Settings, dataset: DetectionDataset) -> EvaluatedModel:
    """Build the model so that its labels can be told apart in terms of the data set's classes."""
    wanted = settings.model.num_classes or len(dataset.classes)
    published = settings.model.weights in ("auto", "coco")
    built = build_model(settings.model.name, build_options(settings, None if published else wanted))
    if published and built.weights.kind != "coco":  # there are none: weights are random
        built = build_model(settings.model.name, build_options(settings, wanted))
    elif not published and built.weights.replaced:  # perhaps COCO's own 90 labels in a file
        built = build_model(settings.model.name, build_options(settings, None))
        if built.weights.replaced:
            raise InputError(
                f"weights {built.weights.source} were made for another number of classes than the "
                f"{wanted - 1} of {dataset.name} ({', '.join(built.weights.replaced)} would be new)",
                "evaluate on the data they were trained on, or set model.num_classes as in training",
            )
        published = True
    if not (published and built.weights.kind in ("coco", "file")):
        return EvaluatedModel(built, dataset.category_ids)
    return _with_coco_labels(built, dataset)


def _with_coco_labels(built: BuiltModel, dataset: DetectionDataset) -> EvaluatedModel:
    names = coco_class_names(built)[1:]
    ids = coco_label_ids(names, dataset.classes[1:], dataset.category_ids)
    known = {number for number in ids if number != _NO_CLASS}
    if not known:
        raise InputError(
            f"COCO weights know no class of {dataset.name}: {', '.join(dataset.classes[1:4])}, ...",
            "give weights that were trained on this data: --weights RUN or a file",
        )
    pairs = zip(dataset.classes[1:], dataset.category_ids, strict=True)
    unknown = [name for name, number in pairs if number not in known]
    note = f"the weights do not know {len(unknown)} of the classes: {', '.join(unknown)}"
    return EvaluatedModel(built, ids, (note,) if unknown else ())


def coco_label_ids(
    labels: Sequence[str], classes: Sequence[str], category_ids: Sequence[int]
) -> tuple[int, ...]:
    """The data set's category id for each of COCO's labels; -1 where the data set has no such class."""
    by_name = {_plain_name(name): number for name, number in zip(classes, category_ids, strict=True)}
    return tuple(by_name.get(_plain_name(label), _NO_CLASS) for label in labels)


def _plain_name(name: str) -> str:
    joined = "".join(name.lower().split())
    return _SAME_CLASS.get(joined, joined)
