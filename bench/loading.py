"""Loading: decode, resize, collate; batches per second against torchvision's `CocoDetection`.

Same files, same 2 workers, same batch, same output: float32 images in [0, 1] of the same size (short
side 640, long side up to 1333), mirrored at random, boxes in the pixels of the image. The other side
is `CocoDetection` with the transforms of torchvision's detection references: its Pillow variant
(RandomShortestSize, RandomHorizontalFlip, PILToTensor, ToDtype) and its tensor variant (ToImage first).
Targets without masks on both sides, and with masks on both sides.

And what it costs a worker that its transforms are timed: processor time of the worker, of every thread in it,
in blocks of plain and of timed batches by turns.
"""

from __future__ import annotations

import io
import json
import tempfile
import time
from collections.abc import Callable
from contextlib import redirect_stdout
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from bench.sidebyside import Ratio, interleave, ratio, verdict
from detscope.config.schema import DataSettings, TrainingSettings
from detscope.data.loading import build_loader
from detscope.data.registry import open_dataset

IMAGES, BATCH, WORKERS, SHORT_SIDE, ROUNDS = 48, 4, 2, 640, 10
SIZES = {"as in COCO, 640 x 480": (640, 480), "from a phone, 2592 x 1944": (2592, 1944)}
AIM = 1 / 1.2  # time of ours over time of theirs
TIMING_AIM, TIMED_BATCHES, TIMED_ROUNDS = 1.02, 32, 80
FIRST_ROUNDS = 8  # not counted: transforms are found, and the first batches are timed whole
TIMED_PLACES = (1, 0)  # by turns: the timed block of a round comes second, then first


def write_data(folder: Path, size: tuple[int, int], images: int) -> None:
    """Photograph-like JPEGs with a few polygons each, in COCO layout."""
    (folder / "images").mkdir(parents=True)
    rows, objects = [], []
    for number in range(1, images + 1):
        random = np.random.default_rng(number)
        width, height = size if number % 4 else size[::-1]
        Image.open(io.BytesIO(_photograph(random, width, height))).save(
            folder / "images" / f"{number}.jpg", "JPEG", quality=90
        )
        rows.append({"id": number, "file_name": f"{number}.jpg", "width": width, "height": height})
        for _ in range(7):  # COCO has 7.3 objects per image
            x, y = random.uniform(0, 0.7, 2) * (width, height)
            w, h = random.uniform(0.05, 0.3, 2) * (width, height)
            outline = np.array([x, y, x + w, y, x + w, y + h / 2, x + w / 2, y + h, x, y + h / 2])
            objects.append(
                {
                    "id": len(objects) + 1, "image_id": number, "category_id": 1, "iscrowd": 0,
                    "bbox": [x, y, w, h], "area": w * h, "segmentation": [outline.round(2).tolist()],
                }
            )  # fmt: skip
    content = {"images": rows, "annotations": objects, "categories": [{"id": 1, "name": "thing"}]}
    for name in ("train.json", "val.json"):
        (folder / name).write_text(json.dumps(content))


def _photograph(random: np.random.Generator, width: int, height: int) -> bytes:
    small = random.integers(0, 255, (max(2, height // 24), max(2, width // 24), 3), dtype=np.uint8)
    smooth = np.asarray(
        Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC), dtype=np.float32
    )
    grain = random.normal(0, 6, (height, width, 1)).astype(np.float32)
    buffer = io.BytesIO()
    Image.fromarray((smooth + grain).clip(0, 255).astype(np.uint8)).save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def together(items: list[Any]) -> tuple[Any, ...]:
    """The references' collate function."""
    return tuple(zip(*items, strict=True))


def reference_loader(folder: Path, masks: bool, tensors: bool) -> Any:
    """`CocoDetection` as torchvision's references build it with their second transforms."""
    import torch
    from torch.utils.data import DataLoader
    from torchvision.datasets import CocoDetection, wrap_dataset_for_transforms_v2
    from torchvision.transforms import v2

    steps: list[Any] = [v2.ToImage()] if tensors else []
    steps += [v2.RandomShortestSize([SHORT_SIDE], max_size=1333), v2.RandomHorizontalFlip(0.5)]
    steps += [] if tensors else [v2.PILToTensor()]
    steps += [v2.ToDtype(torch.float, scale=True), v2.ConvertBoundingBoxFormat("XYXY")]
    steps += [v2.SanitizeBoundingBoxes(), v2.ToPureTensor()]
    keys = {"boxes", "labels", "image_id"} | ({"masks"} if masks else set())
    with redirect_stdout(io.StringIO()):
        plain = CocoDetection(
            str(folder / "images"), str(folder / "train.json"), transforms=v2.Compose(steps)
        )
    dataset = wrap_dataset_for_transforms_v2(plain, target_keys=keys)
    return DataLoader(
        dataset, BATCH, shuffle=True, num_workers=WORKERS, collate_fn=together, persistent_workers=True
    )


def our_loader(folder: Path, masks: bool) -> Any:
    """The loader of `detscope train`, with the same views."""
    data = DataSettings(name=str(folder), flip=True, scales=[SHORT_SIDE])
    dataset = open_dataset(data, need_masks=masks)
    training = TrainingSettings(batch_size=BATCH, num_workers=WORKERS)
    return build_loader(dataset, training, "cpu", seed=0, data=data).loader


def one_pass(loader: Any) -> Callable[[], None]:
    """All batches of a pass; every image is looked at, as a training would."""

    def run() -> None:
        for images, targets in loader:
            for image, target in zip(images, targets, strict=True):
                assert image.dtype.is_floating_point and image.shape[0] == 3 and "boxes" in target
                image[0, 0, 0].item()

    return run


def same_output(ours: Any, theirs: Any) -> None:
    """Both give the same images, apart from mirroring and a level of rounding: sizes, range, counts."""
    sizes = [
        sorted(tuple(image.shape) for images, _ in loader for image in images) for loader in (ours, theirs)
    ]
    assert sizes[0] == sizes[1], "the two sides give images of different sizes"
    for loader in (ours, theirs):
        images, _ = next(iter(loader))
        assert all(
            str(image.dtype) == "torch.float32" and image.min() >= 0 and image.max() <= 1 for image in images
        )


def main(images: int = IMAGES, rounds: int = ROUNDS) -> None:
    """Print the table."""
    print(f"\nLoading: {WORKERS} workers, short side {SHORT_SIDE}, batches of {BATCH}; time of ours / theirs")
    for name, size in SIZES.items():
        count = images if size[0] < 1000 else max(BATCH * WORKERS, images // 4)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place) / "data"
            write_data(folder, size, count)
            for masks in (False, True):
                _compare(name, folder, masks, count, rounds)
    time_transforms(rounds=2 * rounds)


def _compare(name: str, folder: Path, masks: bool, images: int, rounds: int) -> None:
    ours = our_loader(folder, masks)
    others = {
        "Pillow": reference_loader(folder, masks, False),
        "tensors": reference_loader(folder, masks, True),
    }
    same_output(ours, others["Pillow"])
    passes = {"ours": one_pass(ours), **{key: one_pass(loader) for key, loader in others.items()}}
    seconds = interleave(passes, rounds)
    rates = {key: images / BATCH / float(np.median(values)) for key, values in seconds.items()}
    print(
        f"\n{name}, {'with' if masks else 'without'} masks: "
        + ", ".join(f"{k} {v:.1f} batches/s" for k, v in rates.items())
    )
    for key in others:
        found = ratio(seconds, "ours", key)
        print(f"  ours / {key:8} {found}  {1 / found.value:.2f} x as fast  {verdict(found, round(AIM, 3))}")


class Clocked:
    """Images that come with the processor time of the worker which made them."""

    def __init__(self, size: tuple[int, int], steps: list[Any], images: int) -> None:
        from torchvision.transforms import v2

        self.image = Image.fromarray(np.full((size[1], size[0], 3), 99, dtype=np.uint8))
        self.transform, self.images = v2.Compose(steps), images

    def __len__(self) -> int:
        return self.images

    def __getitem__(self, index: int) -> tuple[Any, int]:
        return self.transform(self.image), time.process_time_ns()


class Nothing:
    """A transform that takes a few microseconds."""

    def __call__(self, image: Any) -> Any:
        return image[:, :, :]


def make_pipelines() -> dict[str, tuple[tuple[int, int], list[Any]]]:
    """From an image's small change to what a detector's training does."""
    import torch
    from torchvision.transforms import v2

    usual = [
        v2.ToImage(), v2.RandomHorizontalFlip(0.5), v2.RandomResizedCrop((192, 192), antialias=True),
        v2.ColorJitter(0.3, 0.3, 0.3), v2.ToDtype(torch.float, scale=True),
        v2.Normalize([0.5] * 3, [0.2] * 3),
    ]  # fmt: skip
    large = [v2.ToImage(), v2.RandomHorizontalFlip(0.5), v2.Resize((640, 853)), *usual[3:]]
    return {
        "six transforms, 320 x 240": ((320, 240), usual),
        "six transforms, 1280 x 960": ((1280, 960), large),
        "thirty of some microseconds": ((64, 48), [v2.PILToTensor(), *(Nothing() for _ in range(30))]),
    }


def _fetch_in_turns(plain: Callable[..., Any]) -> Callable[..., Any]:
    """Blocks of plain and of timed batches by turns; between plain ones nothing of ours stands anywhere."""
    from detscope.record.script.loading import make_timed_fetch
    from detscope.record.transforms.timer import find_timer

    timed, made = make_timed_fetch(plain, None), count()

    def fetch(self: Any, index: Any) -> Any:
        block, inside = divmod(next(made), TIMED_BATCHES)
        if block % 2 == TIMED_PLACES[block // 2 % 2]:
            return timed(self, index)
        timer = find_timer()
        if not inside and not timer._taken_out:
            timer._patches.take_out()
            timer._taken_out = True
        return plain(self, index)

    return fetch


def measure_timing(size: tuple[int, int], steps: list[Any], rounds: int) -> tuple[Ratio, float, float]:
    """Timed over plain, the plain milliseconds of an image, and the share of batches that were timed.

    In one worker: between any two there is a difference of some percent that is nobody's doing.
    """
    from torch.utils.data import DataLoader
    from torch.utils.data._utils.fetch import _MapDatasetFetcher as Fetcher

    blocks = 2 * (rounds + FIRST_ROUNDS)
    data = Clocked(size, steps, BATCH * TIMED_BATCHES * blocks)
    loader: Any = DataLoader(data, BATCH, num_workers=1)
    plain = Fetcher.fetch
    Fetcher.fetch = _fetch_in_turns(plain)  # type: ignore[method-assign]
    try:
        batches = iter(loader)  # the worker is forked here
    finally:
        Fetcher.fetch = plain  # type: ignore[method-assign]
    seconds: dict[str, list[float]] = {"plain": [], "timed": []}
    drawn = 0
    for block in range(blocks):
        items = [next(batches) for _ in range(TIMED_BATCHES)]
        if block < 2 * FIRST_ROUNDS:
            continue
        is_timed = hasattr(items[0], "timing")
        stamps = [moment for item in items for moment in getattr(item, "batch", item)[1].tolist()]
        seconds["timed" if is_timed else "plain"].append((stamps[-1] - stamps[0]) / 1e9)
        drawn += sum(item.timing.work is not None for item in items) if is_timed else 0
    each_ms = float(np.median(seconds["plain"])) / (BATCH * TIMED_BATCHES - 1) * 1e3
    return ratio(seconds, "timed", "plain"), each_ms, drawn / TIMED_BATCHES / rounds


def time_transforms(rounds: int = TIMED_ROUNDS) -> None:
    """What timing transforms costs a worker."""
    print("\nTransforms timed in a worker: its processor time, timed / plain")
    for name, (size, steps) in make_pipelines().items():
        found, each_ms, timed = measure_timing(size, steps, rounds)
        about = f"{name}, {each_ms:.2f} ms per image, {timed:.0%} of batches timed"
        print(f"  {about}: {found}  {verdict(found, TIMING_AIM)}", flush=True)
