"""Models of families nobody wrote down: stages with sensible names, and hardly a rest."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

import detscope
from detscope.analyze.step.modules import REST
from detscope.analyze.summary import RunSummary, summarize
from detscope.zoo.family import has_target
from detscope.zoo.structure import find_structure, name_class
from simulated.clock import WorkingClock, product_reads

WIDTH = 16
CLOCK = WorkingClock()  # what others take of a busy machine would be told as the stage's, or the rest's


class Block(nn.Module):
    def __init__(self, inputs: int = WIDTH, stride: int = 1) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, WIDTH, 3, stride, 1)
        self.norm = nn.BatchNorm2d(WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.conv(x)).relu()


class Split(nn.Module):
    """Its list is iterated."""

    def __init__(self) -> None:
        super().__init__()
        self.first = Block()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        return x


class Detect(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.box = nn.ModuleList(Block() for _ in range(2))
        self.classes = nn.ModuleList(Block() for _ in range(2))

    def forward(self, levels: list[torch.Tensor]) -> torch.Tensor:
        heads = zip(self.box, self.classes, levels, strict=True)
        return torch.cat([torch.cat([box(x), of(x)], 1).flatten(2) for box, of, x in heads], 2)


class Iterated(nn.Module):
    """As YOLOs are: the sequence is never called."""

    def __init__(self) -> None:
        super().__init__()
        layers = [Block(3, 2), Block(stride=2), Split(), Block(stride=2), Split(), Split()]
        layers += [nn.Upsample(scale_factor=2), Split(), Block(stride=2), Split(), Detect()]
        self.model = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen: list[torch.Tensor] = []
        for layer in self.model[:-1]:
            x = layer(x)
            seen.append(x)
        return self.model[-1]([seen[7], seen[9]])


class DecoderLayer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.cross_attention = nn.MultiheadAttention(WIDTH, 2, batch_first=True)
        self.feed_forward = nn.Sequential(nn.Linear(WIDTH, 64), nn.ReLU(), nn.Linear(64, WIDTH))

    def forward(self, queries: torch.Tensor, memory: torch.Tensor) -> torch.Tensor:
        queries = queries + self.self_attention(queries, queries, queries)[0]
        queries = queries + self.cross_attention(queries, memory, memory)[0]
        return queries + self.feed_forward(queries)


class Queries(nn.Module):
    """As DETRs are: the list of decoder layers is iterated."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(Block(3, 2), Block(stride=2), Block(stride=2))
        self.queries = nn.Embedding(20, WIDTH)
        self.decoder = nn.ModuleList(DecoderLayer() for _ in range(3))
        self.box_head = nn.Linear(WIDTH, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        memory = self.backbone(x).flatten(2).transpose(1, 2)
        queries = self.queries.weight[None].expand(len(x), -1, -1)
        for layer in self.decoder:
            queries = layer(queries, memory)
        return self.box_head(queries)


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.ModuleDict({"stem": Block(3, 2), "stage1": Split(), "stage2": Split()})
        self.neck = Block()
        self.head = nn.Sequential(Block(), nn.Conv2d(WIDTH, 9, 1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for stage in self.backbone.values():
            x = stage(x)
        return self.head(self.neck(x))


class Wrapped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = Plain()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.net(x)


class Lit(nn.Module):
    """As modules of Lightning are: the model and its criterion inside."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Queries()
        self.criterion = nn.MSELoss()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output = self.model(x)
        return self.criterion(output, torch.zeros_like(output))


def make_sequence() -> nn.Module:
    return nn.Sequential(Block(3, 2), Split(), Split(), nn.Conv2d(WIDTH, 9, 1))


# what is called, with the stages that have to be there
MODELS: dict[str, tuple[Callable[[], nn.Module], set[str]]] = {
    "iterated": (Iterated, {"model", "model.0_block", "model.10_detect", "model.10_detect.box"}),
    "queries": (Queries, {"backbone", "backbone.0", "decoder", "decoder.2.cross_attention", "box_head"}),
    "plain": (Plain, {"backbone", "backbone.stem", "backbone.stage1", "neck", "head", "head.1_conv2d"}),
    "wrapped": (Wrapped, {"backbone", "backbone.stage2", "neck", "head"}),
    "lit": (Lit, {"backbone", "decoder.0.self_attention", "box_head", "criterion"}),
    "sequence": (make_sequence, {"0_block", "1_split", "2_split", "3_conv2d"}),
}


def train(model: nn.Module, folder: Any) -> RunSummary:
    torch.manual_seed(0)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    images = [torch.rand(2, 3, 96, 96) for _ in range(12)]
    with product_reads(CLOCK), detscope.Recorder(model, optimizer, folder, telemetry_hz=0) as recorder:
        for batch in recorder.steps(images):
            optimizer.zero_grad()
            model(batch).square().mean().backward()
            optimizer.step()
    return summarize(recorder.run)


@pytest.mark.parametrize("name", MODELS)
def test_hardly_anything_of_a_step_is_without_a_stage_and_none_is_large_without_parts(name, tmp_path) -> None:
    make, wanted = MODELS[name]
    model = make()
    summary = train(model, tmp_path)
    shares = {stage.name: stage.share for stage in summary.stages}
    assert wanted <= set(shares), sorted(shares)
    assert "loss" in shares
    assert shares[REST] <= 0.10
    whole = [one for one in shares if one != REST and not any(part.startswith(f"{one}.") for part in shares)]
    large = {one for one in whole if shares[one] > 0.5}
    single = {stage.name for stage in find_structure(model) if is_one_layer(model, stage.target)}
    assert large <= single
    assert len(shares) <= 48


def is_one_layer(model: nn.Module, target: str) -> bool:
    return target.isidentifier() and not any(model.get_submodule(target).children())


@pytest.mark.parametrize("name", MODELS)
def test_every_stage_exists_on_the_model_and_no_name_is_longer_than_four_words(name) -> None:
    model = MODELS[name][0]()
    for stage in find_structure(model):
        assert has_target(model, stage.target), stage
        assert stage.name.count(".") <= 3


def parts_of(name: str, model: nn.Module) -> set[str]:
    names = (stage.name.split(".") for stage in find_structure(model))
    return {parts[1] for parts in names if parts[0] == name and len(parts) > 1}


def test_of_dozens_in_a_row_neighbours_share_a_name() -> None:
    alike = nn.ModuleList(DecoderLayer() for _ in range(40))
    model = nn.ModuleDict({"stem": Block(3), "layers": alike})
    assert parts_of("layers", model) == {f"{first}-{first + 4}" for first in range(0, 40, 5)}
    # a resolution ends where the next layer is strided
    assert parts_of("model", Iterated()) == {"0_block", "1-2", "3-5", "6-7", "8-9", "10_detect"}


def test_a_large_model_has_a_few_dozen_stages() -> None:
    model = nn.Module()
    for number in range(60):
        model.add_module(f"layer_of_mine_{number}", Split())
    assert len({stage.name for stage in find_structure(model)}) <= 40


def test_methods_and_functions_that_say_what_they_do_are_stages(monkeypatch) -> None:
    file = ModuleType("somebodys_detector")
    monkeypatch.setitem(sys.modules, "somebodys_detector", file)
    exec(SOMEBODYS, vars(file))
    stages = {(stage.name, stage.target) for stage in find_structure(file.Detector())}
    assert stages >= {
        ("loss", "compute_losses()"),
        ("matcher", "somebodys_detector:match_boxes"),
        ("head", "head"),
    }
    assert not {"helper", "count"} & {name for name, _ in stages}


SOMEBODYS = """
from torch import nn

def match_boxes(boxes, targets): ...

def helper(x): ...

class Detector(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)

    def compute_losses(self, outputs, targets): ...

    def count(self): ...
"""


def test_classes_are_named_as_words() -> None:
    names = ("TransformerEncoderLayer", "SPPF", "Conv2d", "C2f", "RTDETRDecoder", "_Private")
    assert [name_class(name) for name in names] == [
        "transformer_encoder_layer",
        "sppf",
        "conv2d",
        "c2f",
        "rtdetr_decoder",
        "private",
    ]


def test_parts_are_not_asked_whether_they_are_true() -> None:
    """Of lists that hold nothing, and of compiled modules, which raise an error then."""

    class Neither(nn.Sequential):
        def __bool__(self) -> bool:
            raise TypeError("neither true nor false")

    def build(kind: type[nn.Sequential]) -> nn.Module:
        return nn.Sequential(kind(Block(3), Block()), kind(Block(), Block()), kind(nn.Conv2d(WIDTH, 4, 1)))

    found = find_structure(build(Neither))
    assert [stage.name.replace("neither", "sequential") for stage in found] == [
        stage.name for stage in find_structure(build(nn.Sequential))
    ]
