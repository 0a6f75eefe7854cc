"""A recorded script's input pipeline: by transform, in workers, in the loop, and on whole batches."""

from __future__ import annotations

import pickle
import time

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision import transforms as v1
from torchvision.transforms import v2

from detscope.analyze.drawing import report_data
from detscope.analyze.step.steps import choose_typical_steps
from detscope.analyze.summary import summarize
from detscope.report.model import Facts, Table
from detscope.report.sections.loader import section
from detscope.runs.reader import load_run
from planted_transform import PLANTED_S, Planted, WriteDown, read_ms


class Chain:
    def __init__(self, parts):
        self.parts = parts

    def __call__(self, image):
        for part in self.parts:
            image = part(image)
        return image


class Blank(Dataset):
    def __init__(self, transform, count=48):
        self.transform, self.count = transform, count

    def __len__(self):
        return self.count

    def __getitem__(self, index):
        return self.transform(torch.full((3, 16, 16), float(index)))


class Inline(Blank):
    """What it does to an image lies in no transform."""

    def __getitem__(self, index):
        return self.brighten(torch.full((3, 16, 16), float(index)))

    def brighten(self, image):
        time.sleep(PLANTED_S)
        return image * 2


PIPELINES = {
    "v1": lambda: v1.Compose([v1.RandomHorizontalFlip(1.0), Planted(), v1.Resize(8)]),
    "v2": lambda: v2.Compose([v2.RandomHorizontalFlip(1.0), Planted(), v2.Resize(8)]),
    "own": lambda: Chain([v1.RandomHorizontalFlip(1.0), Planted(), v1.Resize(8)]),
}


def train(loader, transform=None):
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 1))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for batch in loader:
        loss = model(batch if transform is None else transform(batch)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("pipeline", "workers", "context"),
    [("v1", 0, None), ("v2", 2, None), ("own", 1, "spawn"), ("v2", 0, None)],
    ids=["v1 in the loop", "v2 forked", "own spawned", "v2 in the loop"],
)
def test_nearly_all_of_a_workers_time_has_a_name_and_a_planted_transform_is_found(
    listen, pipeline, workers, context, tmp_path
):
    log = tmp_path / "slept"
    data = Blank(PIPELINES[pipeline]())
    before = pickle.dumps(data)
    more = {"persistent_workers": True} if workers else {}
    loader = DataLoader(
        data, 4, num_workers=workers, multiprocessing_context=context, collate_fn=WriteDown(log), **more
    )
    with listen() as heard:
        train(loader)
    assert pickle.dumps(data) == before
    counted = choose_typical_steps(heard.table("steps")).measured
    slept_ms = read_ms(log, workers, counted)
    found = summarize(heard.run).loader
    names = {one.name: one for one in found.transforms}
    assert names["Planted"].ms_per_image == pytest.approx(sum(slept_ms) / len(slept_ms), abs=2)
    assert names["Planted"].where == ("worker" if workers else "loop")
    assert names["RandomHorizontalFlip"].calls_per_image == 1
    assert names["Resize"].inside == ("Chain" if pipeline == "own" else "Compose")
    assert found.named_share >= 0.95
    assert found.dearest.name == "Planted"
    assert sum(one.share for one in found.transforms) == pytest.approx(1, abs=0.01)
    # as many as the images wanted per second take seconds of one worker
    assert found.workers_needed == -(-found.demand_images_per_s * found.worker_ms_per_image // 1e3)


def test_the_page_and_the_terminal_list_transforms_and_say_which_is_dearest(listen):
    with listen() as heard:
        train(DataLoader(Blank(PIPELINES["v2"]()), 4))
    told = section(report_data(load_run(heard.run)))
    (table,) = [block for block in told.blocks if isinstance(block, Table) and block.id == "transforms"]
    assert table.rows[0][0] == "Planted in Compose"
    sentences = [fact.text for block in told.blocks if isinstance(block, Facts) for fact in block.facts]
    (sentence,) = [text for text in sentences if "dearest" in text]
    assert "workers would be needed (now 0) for the loop to wait for none" in sentence
    assert "the dearest is Planted (" in sentence and "move it to the device, or drop it" in sentence


def test_work_in_no_transform_is_told_by_the_function_that_a_timer_saw(listen):
    with listen() as heard:
        train(DataLoader(Inline(None), 4, num_workers=1))
    found = summarize(heard.run).loader
    dearest = found.dearest
    assert dearest.name.endswith("brighten") and dearest.kind == "sampled"
    assert dearest.origin.startswith("test_script_transforms.py:")
    assert dearest.ms_per_image >= 900 * PLANTED_S and dearest.calls_per_image is None
    assert found.named_share >= 0.95


def test_transforms_that_the_loop_calls_on_whole_batches_are_told_apart_from_the_loaders(listen, tmp_path):
    augment = nn.Sequential(v2.RandomHorizontalFlip(1.0), v2.RandomErasing(1.0))
    with listen() as heard:
        train(DataLoader(Blank(v2.Resize(8)), 4), augment)
    found = {one.name: one for one in summarize(heard.run).loader.transforms}
    assert found["Resize"].where == "loop"
    for name in ("Sequential", "RandomHorizontalFlip", "RandomErasing"):
        assert found[name].where == "batch" and found[name].share is None
    assert found["RandomErasing"].calls_per_image == 0.25
    assert found["RandomErasing"].inside == "Sequential"


def test_iterable_data_sets_are_told_too_and_give_what_they_give(listen):
    class Stream(torch.utils.data.IterableDataset):
        def __init__(self):
            self.transform = v2.Compose([v2.Resize(8)])

        def __iter__(self):
            for number in range(32):
                yield self.transform(torch.full((3, 16, 16), float(number)))

    plain = torch.cat(list(DataLoader(Stream(), 4)))
    seen = []
    with listen() as heard:
        train(DataLoader(Stream(), 4), lambda batch: seen.append(batch) or batch)
    assert torch.equal(torch.cat(seen), plain)
    assert {"Compose", "Resize"} <= {one.name for one in summarize(heard.run).loader.transforms}
