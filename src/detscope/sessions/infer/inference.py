"""`detscope infer` behind the command line: which images it reads in which order; settings in, run out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, cast

from detscope.config.schema import Settings
from detscope.data.images import (
    DatasetImages,
    ImageFiles,
    ImageSource,
    UnusableImage,
    find_images,
    read_images,
)
from detscope.data.registry import list_datasets
from detscope.errors import InputError, UsageError
from detscope.extras import require_package
from detscope.machine.devices import take_device
from detscope.record.steps.schedule import BARE, RECORDED, Schedule
from detscope.sessions.recording import download_progress, open_data
from detscope.zoo.contract import Stage
from detscope.zoo.registry import get_card, list_cards

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.utils.data import DataLoader

    from detscope.loops.infer import Batch, InferPlan
    from detscope.report.progress import Progress

# Resizing to a model's input may leave nothing of such images; only the model can tell.
ODD_RATIO = 8
ODD_SIDE = 16


def run_inference(settings: Settings, *, progress: Progress, notes: Sequence[str] = ()) -> Path:
    """Profile a detector on images; what cannot work is said before anything is downloaded or built."""
    device = take_device(settings.inference.device)
    if settings.inference.tensorboard:
        require_package("tensorboard")
    card = get_card(settings.model.name)
    own_stages = parse_stages(settings.inference.stages)
    source, skipped = open_images(settings, progress)
    from detscope.sessions.infer.loop import infer_images

    return infer_images(settings, device, card, own_stages, source, skipped, progress, notes)


def parse_stages(texts: Sequence[str]) -> tuple[Stage, ...]:
    """`NAME=module.path` texts as stages."""
    stages = []
    for text in texts:
        name, equals, target = (part.strip() for part in text.partition("="))
        if not (name and equals and target):
            raise UsageError(f"--stage {text!r} is not NAME=path", "as in --stage neck=model.fpn")
        stages.append(Stage(name, target))
    return tuple(stages)


def open_images(settings: Settings, progress: Progress) -> tuple[ImageSource, list[UnusableImage]]:
    """The images to measure, and those that cannot be read."""
    inference, data = settings.inference, settings.data
    given = inference.images
    names = [text for text in given if is_dataset(text)]
    if names and len(given) > 1:
        raise UsageError(
            f"{names[0]} is a data set and cannot be mixed with other images", "measure them one by one"
        )
    if given and not names:
        paths, skipped = find_images(given)
        source, unreadable = read_images(paths, inference.limit, download_progress(progress))
        skipped += unreadable
        if not len(source):
            _refuse_all(skipped)
        return source, skipped
    if inference.limit is not None:
        data = data.model_copy(update={"images": inference.limit})
    if names:
        data = data.model_copy(update={"name": names[0]})
    return DatasetImages(open_data(settings, data, (), progress), inference.limit), []


def is_dataset(text: str) -> bool:
    """Whether a text names a data set; a file or folder of that name is given as ./NAME."""
    return any(entry.name == text for entry in list_datasets())


def names_images(text: str) -> bool:
    """Whether the first text on the command line means images and not a model."""
    if ":" in text or any(card.name == text for card in list_cards()):
        return False
    return is_dataset(text) or Path(text).exists() or bool(set("*?[") & set(text))


def without_unfit(
    source: ImageSource, model: nn.Module, plan: InferPlan
) -> tuple[ImageSource, list[UnusableImage]]:
    """Try images of odd sizes once; those the model cannot take are left out with its reason."""
    from detscope.loops.infer import detect_objects

    if not isinstance(source, ImageFiles):
        return source, []
    unfit: dict[int, UnusableImage] = {}
    for number, (width, height) in enumerate(source.sizes):
        if max(width, height) <= ODD_RATIO * min(width, height) and min(width, height) >= ODD_SIDE:
            continue
        try:
            detect_objects(model, [source[number][0]], plan)
        except Exception as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            what = f"{width} x {height} pixels: the model cannot take it: {reason}"[:300]
            unfit[number] = UnusableImage(source.image_name(number), what)
    kept = source.leave_out(list(unfit))
    if not len(kept):
        _refuse_all(list(unfit.values()))
    return kept, list(unfit.values())


def _refuse_all(skipped: Sequence[UnusableImage]) -> NoReturn:
    lines = [f"{item.file}: {item.reason}" for item in skipped]
    raise InputError(
        "\n".join([*lines, "none of the images can be measured"]), "give at least one image file"
    )


def split_batches(images: int, batch_size: int, repeat: int) -> list[list[int]]:
    """Image numbers, batch by batch; the last batch of a pass may be smaller."""
    numbers = range(images)
    one_pass = [list(numbers[start : start + batch_size]) for start in range(0, images, batch_size)]
    return one_pass * repeat


def order_steps(schedule: Schedule, batches: Sequence[list[int]]) -> list[list[int]]:
    """The batch of every step: recorded steps take each batch once, in order.

    Bare steps repeat the batch of a recorded neighbour, in turn the one before and the one after, so that
    the same work is compared and neither side always has the warmer caches. Warm-up and operator steps
    repeat batches from the beginning. Every image is measured exactly as often as asked.
    """
    order: list[list[int]] = []
    recorded = bare = other = 0
    for index in range(schedule.count_steps(len(batches))):
        mode = schedule.mode_of(index)
        if mode == RECORDED:
            order.append(batches[recorded])
            recorded += 1
        elif mode == BARE:
            bare += 1
            order.append(batches[max(0, recorded - bare % 2)])
        else:
            order.append(batches[other % len(batches)])
            other += 1
    return order


def make_loader(source: ImageSource, order: list[list[int]]) -> DataLoader[Any]:
    """Reads and decodes in the loop itself, batch by batch in this order."""
    from torch.utils.data import DataLoader

    return DataLoader(cast(Any, source), batch_sampler=order, num_workers=0, collate_fn=_join_images)


def _join_images(items: list[tuple[torch.Tensor, int]]) -> Batch:
    return [image for image, _ in items], [number for _, number in items]
