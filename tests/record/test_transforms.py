"""What a worker does to an image is known by transform, and nothing of the data set is another for it."""

from __future__ import annotations

import io
import pickle
import random
import time
from collections import Counter

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset
from torchvision import transforms as v1
from torchvision.transforms import v2

from detscope.record.loader import instrument_iterator, unwrap_batch
from detscope.record.transforms.discovery import find_transforms
from detscope.record.transforms.timer import end_timing, find_image, find_timer
from planted_transform import PLANTED_S, Planted, WriteDown, read_ms


class Steps:
    """A pipeline of somebody's own, which is no `Compose`."""

    def __init__(self, *steps):
        self.steps = list(steps)

    def __call__(self, image):
        for step in self.steps:
            image = step(image)
        return image


def sleep_in_function(image):
    time.sleep(PLANTED_S)
    return image


class Pictures(Dataset):
    def __init__(self, transform=None, count=8):
        self.transform, self.count = transform, count
        written = io.BytesIO()
        Image.fromarray(np.full((24, 32, 3), 99, dtype=np.uint8)).save(written, "JPEG")
        self.raw = written.getvalue()
        self.names = [str(number) for number in range(1000)]

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        image = Image.open(io.BytesIO(self.raw)).convert("RGB")
        return self.transform(image) if self.transform else v1.functional.to_tensor(image)


class Endless(IterableDataset):
    def __init__(self, transform):
        self.transform = transform

    def __iter__(self):
        for number in range(4):
            yield self.transform(torch.full((3, 4, 4), float(number)))


@pytest.fixture(autouse=True)
def _nothing_stays():
    kinds, read = (nn.Module, v2.Compose, v2.Resize, Planted), Pictures.__getitem__
    before = {kind: vars(kind).get("__call__") for kind in kinds}
    decoders = (Image.open, Image.Image.convert)
    yield
    end_timing()
    assert {kind: vars(kind).get("__call__") for kind in before} == before
    assert (Image.open, Image.Image.convert) == decoders and Pictures.__getitem__ is read


def works_of(loader):
    return [unwrap_batch(item)[1] for item in instrument_iterator(loader)]


def sums_of(timings):
    own, calls = Counter(), Counter()
    for timing in timings:
        for part in timing.work.parts:
            own[part.name] += part.own_ns
            calls[part.name] += part.calls
    return own, calls


def share_named(timing):
    """Of a batch's time, what has a name."""
    own, _ = sums_of([timing])
    return own.total() / (timing.end_ns - timing.start_ns)


def make_v2():
    return v2.Compose([v2.ToImage(), v2.RandomApply([v2.Grayscale(3)], p=1.0), Planted(), v2.Resize((8, 8))])


@pytest.mark.parametrize(
    ("workers", "more"),
    [
        (0, {}),
        (2, {}),
        (1, {"multiprocessing_context": "spawn"}),
        (1, {"persistent_workers": True, "pin_memory": False}),
    ],
    ids=["loop", "forked", "spawned", "persistent"],
)
def test_each_transform_of_a_pipeline_is_timed_where_it_runs(workers, more, tmp_path):
    log = tmp_path / "slept"
    data = Pictures(make_v2())
    loader = DataLoader(data, batch_size=4, num_workers=workers, collate_fn=WriteDown(log), **more)
    timings = works_of(loader)
    own, calls = sums_of(timings)
    assert [timing.images for timing in timings] == [4, 4]
    assert calls == {
        "Compose": 8,
        "ToImage": 8,
        "RandomApply": 8,
        "Grayscale": 8,
        "Planted": 8,
        "Resize": 8,
        "Pictures.__getitem__": 8,
        "PIL.Image.open": 8,
        "PIL.Image.Image.convert": 8,
        "collate": 2,
    }
    slept_ms = read_ms(log, workers, range(2))
    assert len(slept_ms) == 8 and min(slept_ms) >= PLANTED_S * 1e3
    assert own["Planted"] / 8e6 == pytest.approx(sum(slept_ms) / 8, abs=2)
    shares = [share_named(timing) for timing in timings]
    for _ in range(20):  # who is stopped between two parts on a busy machine is in none of them for that long
        if max(shares) < 0.95:
            shares += [share_named(timing) for timing in works_of(loader)]
    assert 0.95 <= max(shares) <= 1
    (inside,) = {part.inside for part in timings[0].work.parts if part.name == "Grayscale"}
    assert inside == "RandomApply"


def test_a_part_takes_nothing_twice():
    (timing,) = works_of(DataLoader(Pictures(Steps(Steps(Planted()), Planted(), v1.ToTensor()), 1)))
    parts = {part.name: part for part in timing.work.parts}
    assert {name for name, part in parts.items() if part.kind == "transform"} == {
        "Steps",
        "Steps 2",
        "Planted",
        "Planted 2",
        "ToTensor",
    }
    inside_ns = sum(parts[name].total_ns for name in ("Steps 2", "Planted 2", "ToTensor"))
    assert parts["Steps"].total_ns == parts["Steps"].own_ns + inside_ns
    assert inside_ns >= 2 * PLANTED_S * 1e9
    assert parts["Planted 2"].inside == "Steps" and parts["Planted"].inside == "Steps 2"


def test_of_a_random_transform_those_calls_count_that_changed_the_image():
    random.seed(3)
    torch.manual_seed(3)
    (timing,) = works_of(
        DataLoader(Pictures(v1.Compose([v1.RandomHorizontalFlip(0.3), v1.ToTensor()]), 60), batch_size=60)
    )
    parts = {part.name: part for part in timing.work.parts}
    torch.manual_seed(3)
    assert parts["RandomHorizontalFlip"].calls == 60 and parts["ToTensor"].applied == 60
    assert 6 <= parts["RandomHorizontalFlip"].applied <= 32


def test_functions_in_a_list_are_seen_by_a_timer_with_their_line():
    timings = works_of(DataLoader(Pictures(Steps(sleep_in_function, v1.ToTensor()), 40), batch_size=8))
    looks = Counter()
    for timing in timings:
        for inside, function, line, times in timing.work.looks:
            looks[inside, function, line.partition(":")[0]] += times
    assert looks.most_common(1)[0][0] == ("Steps", "sleep_in_function", "test_transforms.py")


def test_a_data_set_without_transforms_is_seen_by_a_timer():
    class Sleeper(Pictures):
        def __getitem__(self, index):
            return self.read_slowly(index)

        def read_slowly(self, index):
            time.sleep(PLANTED_S)
            return torch.zeros(1)

    timings = works_of(DataLoader(Sleeper(count=24), batch_size=8))
    looks = Counter(
        (inside, function.rpartition(".")[2])
        for timing in timings
        for inside, function, *_ in timing.work.looks
    )
    assert set(looks) == {("Sleeper.__getitem__", "read_slowly")}


@pytest.mark.parametrize("workers", [0, 2])
def test_the_data_set_is_afterwards_what_it_was(workers):
    data = Pictures(make_v2())
    before, listed = pickle.dumps(data), list(data.transform.transforms)
    held, numbers = vars(data).copy(), random.getstate()
    works_of(DataLoader(data, batch_size=4, num_workers=workers))
    assert pickle.dumps(data) == before
    assert vars(data) == held and all(
        one is two for one, two in zip(listed, data.transform.transforms, strict=True)
    )
    assert random.getstate() == numbers


def test_a_data_set_can_be_pickled_while_it_is_timed():
    class Saving(Pictures):
        def __getitem__(self, index):
            self.saved = len(pickle.dumps(self.transform))
            return super().__getitem__(index)

    data = Saving(make_v2(), 2)
    works_of(DataLoader(data))
    assert data.saved == len(pickle.dumps(data.transform))


def test_images_are_the_same_as_without_timing():
    loader = DataLoader(Pictures(make_v2(), 3))
    plain = list(loader)
    timed = [unwrap_batch(item)[0] for item in instrument_iterator(loader)]
    assert all(torch.equal(one, two) for one, two in zip(plain, timed, strict=True))


def test_what_a_transform_raises_reaches_the_loop_and_later_batches_are_timed():
    class Raises:
        def __call__(self, image):
            raise KeyError("no such image")

    data = Pictures(Steps(Planted(), Raises()), 2)
    iterator = instrument_iterator(DataLoader(data))
    with pytest.raises(KeyError, match="no such image"):
        next(iterator)
    data.transform = Steps(Planted())
    timer = find_timer()
    assert timer.thread is None and timer.open == []
    timer.take_work()
    with timer.timing(data):
        data.transform(1)
    assert {part.name: part.calls for part in timer.take_work().parts} == {"Steps": 1, "Planted": 1}


def test_a_pipeline_that_is_replaced_is_found_again():
    data, timer = Pictures(Planted()), find_timer()
    for transform, name in ((data.transform, "Planted"), (v1.ToTensor(), "ToTensor")):
        data.transform = transform
        with timer.timing(data):
            data[0]
        names = {part.name for part in timer.take_work().parts if part.kind == "transform"}
        assert names == {name}


def test_iterable_data_sets_and_samples_without_batches_pass_through():
    loader = DataLoader(Endless(Planted()), batch_size=2)
    assert [unwrap_batch(item)[1] for item in instrument_iterator(loader)] == [None, None]
    single = DataLoader(Pictures(make_v2(), 2), batch_size=None)
    assert [unwrap_batch(item)[1] for item in instrument_iterator(single)] == [None, None]


def test_transforms_are_found_in_data_sets_inside_of_others_and_in_any_attribute():
    first, second = Pictures(make_v2()), Pictures()
    second.pipelines = {"train": [v1.Resize(8), nn.Sequential(v2.Grayscale(), v2.Resize(4))]}
    second.network = nn.Linear(2, 2)
    second.model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    second.itself = second
    every = find_transforms(Subset(ConcatDataset([first, second]), [0]))
    found = {one.name: one for one in every if one.method == "__call__"}
    assert [one.transform for one in every if one.name == "Pictures.__getitem__"] == [first, second]
    assert list(found) == [
        *("Compose", "ToImage", "RandomApply", "Grayscale", "Planted", "Resize"),
        *("Resize 2", "Sequential", "Grayscale 2", "Resize 3", "Linear", "Sequential 2"),
    ]
    assert found["Resize 3"].inside == "Sequential"
    assert found["Compose"].origin == "torchvision.transforms.v2._container.Compose"
    assert find_transforms(first.transform, itself=True)[0].name == "Compose"


def test_a_wrapped_function_gives_its_name():
    data = Pictures(v1.Compose([v1.Lambda(sleep_in_function)]))
    assert [one.name for one in find_transforms(data)][1:] == ["Compose", "Lambda(sleep_in_function)"]


@pytest.mark.parametrize(
    ("value", "image"),
    [
        (("image",), "image"),
        (({"img": "image", "cls": 1},), "image"),
        ({"image": "image", "bboxes": []}, "image"),
        ((("image", {"boxes": 1}),), "image"),
        ({}, {}),
        ((), ()),
    ],
)
def test_the_image_is_found_among_arguments(value, image):
    assert find_image(value) == image


def test_an_empty_loop_of_lists_ends():
    turning = []
    turning.append(turning)
    assert find_image(turning) is turning
