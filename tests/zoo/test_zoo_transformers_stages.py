"""Stages of transformers' detectors: what takes time is told where it lies, between modules too."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torch import nn
from transformers_samples import DETECTORS, make_hybrid, make_inputs

from detscope import load_run, summarize
from detscope.record.recorder import Recorder
from detscope.zoo.registry import recognise_family, recognise_parts
from simulated.clock import WorkingClock, product_reads

SLEEP_MS = 10.0
SLEEP = pytest.approx(SLEEP_MS, abs=2)
CLOCK = WorkingClock()  # what others take of a busy machine would be told as the stage's that it hits
FAMILY = {"rt_detr_v2": "rt_detr", "conditional_detr": "detr", "rf_detr": "lw_detr"}
LOSSES = {
    "rt_detr": ("main", "auxiliary_0", "auxiliary_1", "encoder", "denoising"),
    "rt_detr_v2": ("main", "auxiliary_0", "auxiliary_1", "encoder", "denoising"),
    "d_fine": ("main", "auxiliary_0", "auxiliary_1", "encoder", "denoising"),
    "detr": ("main", "auxiliary_0", "auxiliary_1"),
    "conditional_detr": ("main", "auxiliary_0", "auxiliary_1"),
    "deformable_detr": ("main", "auxiliary_0", "auxiliary_1"),
    "lw_detr": ("main", "auxiliary_0", "auxiliary_1", "encoder"),
    "rf_detr": ("main", "auxiliary_0", "auxiliary_1", "encoder"),
    "yolos": ("main",),
}


def train(model: nn.Module, steps: Iterator[Any]) -> None:
    optimizer = torch.optim.AdamW(model.parameters(), 1e-5)
    model.train()
    for inputs in steps:
        optimizer.zero_grad()
        model(**inputs).loss.backward()
        optimizer.step()


def infer(model: nn.Module, steps: Iterator[Any]) -> None:
    model.eval()
    with torch.no_grad():
        for inputs in steps:
            model(pixel_values=inputs["pixel_values"])


def record(model: nn.Module, batches: Sequence[Any], folder: Path, loop: Callable[..., None] = train) -> Path:
    options: dict[str, Any] = {"warmup_steps": 2, "bare_every": 0, "telemetry_hz": 0, "traced_steps": 0}
    with product_reads(CLOCK), Recorder(model, None, folder, **options) as recorder:
        loop(model, recorder.steps(batches))
    return recorder.run


@dataclass
class Plant:
    """A call that sleeps in steps in which it is wanted: the n-th of a step, from a file named so."""

    stage: str
    owner: Any
    name: str
    nth: int = 0
    file: str = ""
    wanted: bool = False
    calls: int = 0

    def put_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        plain = getattr(self.owner, self.name)

        @functools.wraps(plain)
        def sleepy(*args: Any, **kwargs: Any) -> Any:
            if self.wanted and self.file in sys._getframe(1).f_code.co_filename:
                self.calls += 1
                if self.calls == self.nth + 1:
                    CLOCK.sleep(round(SLEEP_MS * 1e6))
            return plain(*args, **kwargs)

        monkeypatch.setattr(self.owner, self.name, sleepy, raising=False)


def plants_of(family: str, model: Any) -> list[Plant]:
    """One for every part that the family has a name for."""
    body: Any = model.vit if family == "yolos" else model.model
    library = sys.modules[type(model).__module__]
    losses = sys.modules["transformers.loss.loss_for_object_detection"]
    matching = losses
    found = []
    if family in ("rt_detr", "rt_detr_v2", "d_fine"):
        matching = sys.modules["transformers.loss.loss_rt_detr"]
        criterion = matching.RTDetrLoss
        found += [
            Plant("input_projection", body.encoder_input_proj[0], "forward"),
            Plant("encoder.layers", body.encoder.aifi[0], "forward"),
            Plant("encoder.fusion_up", body.encoder.fpn_blocks[0], "forward"),
            Plant("encoder.fusion_up", torch.nn.functional, "interpolate", file=f"modeling_{family}", nth=3),
            Plant("encoder.fusion_down", body.encoder.pan_blocks[0], "forward"),
            Plant("decoder.input_projection", body.decoder_input_proj[0], "forward"),
            Plant("denoising", library, "get_contrastive_denoising_training_group"),
            Plant("query_selection", body, "generate_anchors"),
            Plant("query_selection", torch, "topk"),
            Plant("decoder.positions", body.decoder.query_pos_head, "forward"),
            Plant("heads", body.decoder.class_embed[0], "forward"),
            Plant("heads", body.decoder.bbox_embed[1], "forward"),
        ]
    elif family in ("lw_detr", "rf_detr"):
        criterion = sys.modules["transformers.loss.loss_lw_detr"].LwDetrImageLoss
        matching = sys.modules["transformers.loss.loss_lw_detr"]
        found += [
            Plant("input_projection", body.backbone.projector, "forward"),
            Plant("query_selection", torch, "topk"),
            Plant("decoder.positions", body.decoder.ref_point_head, "forward"),
            Plant("heads", model.class_embed, "forward"),
        ]
    else:
        criterion = losses.ImageLoss
    if family in ("detr", "conditional_detr", "deformable_detr"):
        found += [
            Plant("encoder.positions", body.position_embedding, "forward"),
            Plant("encoder.layers.layer_1.self_attention", body.encoder.layers[1].self_attn, "forward"),
            Plant("encoder.layers.layer_0.feed_forward", body.encoder.layers[0].mlp, "forward"),
        ]
    if family in ("conditional_detr", "deformable_detr"):
        matching = sys.modules["transformers.loss.loss_deformable_detr"]
    if family == "deformable_detr":
        found += [
            Plant("query_selection", body.reference_points, "forward"),
            Plant("input_projection", body, "get_valid_ratio"),
            Plant("heads", model.bbox_embed[2], "forward"),
        ]
    if family == "yolos":
        layer = body.encoder.layer[1]
        found += [
            Plant("input_projection", body.embeddings, "forward"),
            Plant("encoder.layers.layer_1.self_attention", layer.attention, "forward"),
            Plant("encoder.layers.layer_1.feed_forward", layer.intermediate, "forward"),
            Plant("heads", model.bbox_predictor, "forward"),
        ]
    else:
        layer = body.decoder.layers[1]
        cross = next(getattr(layer, name) for name in ("encoder_attn", "cross_attn") if hasattr(layer, name))
        found += [
            Plant("decoder.layer_1.self_attention", layer.self_attn, "forward"),
            Plant("decoder.layer_1.cross_attention", cross, "forward"),
            Plant("decoder.layer_1.feed_forward", layer.mlp, "forward"),
        ]
    if hasattr(body, "backbone") and hasattr(body.backbone, "model"):
        found += [
            Plant("backbone.stem", body.backbone.model.embedder, "forward"),
            Plant("backbone.stage_2", body.backbone.model.encoder.stages[1], "forward"),
        ]
    # boxes have one loss in each part, one after the other
    found += [
        Plant(f"loss.{name}", criterion, "loss_boxes", nth=nth) for nth, name in enumerate(LOSSES[family])
    ]
    return [
        *found,
        Plant("matcher.cost", torch, "cdist"),
        Plant("matcher.copy_to_host", torch.Tensor, "cpu"),
        Plant("matcher.assignment", matching, "linear_sum_assignment"),
        Plant("matcher.indices", torch, "as_tensor", file=matching.__name__.rpartition(".")[2]),
    ]


def times_by_stage(run: Path, loop: str = "forward") -> dict[int, dict[str, float]]:
    """Own milliseconds of every stage, by step."""
    spans = load_run(run).table("spans").filter((pl.col("kind") == "stage") & (pl.col("direction") == loop))
    steps: dict[int, dict[str, float]] = {}
    for step, path, self_ns in spans.select("step", "path", "self_ns").iter_rows():
        steps.setdefault(step, {})[path] = self_ns / 1e6
    return steps


class Least:
    """Own time of stages in steps with each of the sleeps and without any: the least, as noise adds."""

    def __init__(self, family: str, model: nn.Module) -> None:
        self._model = model
        # little to compute, so that neighbours slow down little; tokens enough for all queries
        self._inputs = make_inputs(size=128 if family in ("lw_detr", "rf_detr") else 64)
        self._found: dict[tuple[int, str], float] = {}
        self._names: set[str] = set()

    def record_rounds(self, plants: Sequence[Plant], folder: Path) -> None:
        order: list[Plant | None] = [None, None, *[None, *plants] * 3]

        def batches() -> Iterator[Any]:
            for wanted in order:
                for plant in plants:
                    plant.wanted, plant.calls = plant is wanted, 0
                yield self._inputs

        steps = times_by_stage(record(self._model, batches(), folder))
        assert len(steps) == len(order) - 2
        self._names |= {name for step in steps.values() for name in step}
        for step, times in steps.items():
            for name in self._names:
                key = (id(order[step]), name)
                self._found[key] = min(self._found.get(key, float("inf")), times.get(name, 0.0))

    def find_more(self, plant: Plant) -> dict[str, float]:
        """Milliseconds that a sleep adds to stages, those that matter."""
        more = {name: self._found[id(plant), name] - self._found[id(None), name] for name in self._names}
        return {name: ms for name, ms in more.items() if abs(ms) >= 2}


@pytest.mark.parametrize("family", DETECTORS)
def test_a_sleep_in_a_named_part_shows_there_and_nowhere_else(family, tmp_path, monkeypatch) -> None:
    torch.manual_seed(0)
    model = DETECTORS[family]()
    least, left = Least(family, model), plants_of(family, model)
    for plant in left:
        plant.put_in(monkeypatch)
    for attempt in range(6):  # on a machine that others use too, some need more steps than others
        least.record_rounds(left, tmp_path / str(attempt))
        if not (left := [plant for plant in left if least.find_more(plant) != {plant.stage: SLEEP}]):
            break
    assert {(plant.stage, plant.name): least.find_more(plant) for plant in left} == {}


@pytest.mark.parametrize("family", DETECTORS)
@pytest.mark.parametrize("loop", [train, infer])
def test_little_of_a_step_has_no_name(family, loop, tmp_path) -> None:
    torch.manual_seed(0)
    model = DETECTORS[family]()
    assert recognise_family(model).name == FAMILY.get(family, family)
    summary = summarize(record(model, [make_inputs(images=8)] * 10, tmp_path, loop))
    stages = {stage.name: stage for stage in summary.stages}
    rest = stages.pop("(rest of the model)")
    assert rest.share <= (0.03 if loop is train else 0.05), (family, rest)
    whole = [stage for stage in stages.values() if stage.self_ms / (stage.total_ms or 1) == 1]
    assert max(stage.share for stage in whole) <= 0.5
    if loop is train:
        assert set(LOSSES[family]) == {name.partition(".")[2] for name in stages if name.startswith("loss.")}
        parts = {name.partition(".")[2] for name in stages if name.startswith("matcher.")}
        assert parts == {"cost", "copy_to_host", "assignment", "indices"}
        assert all(stages[f"loss.{name}"].backward_ms > 0 for name in LOSSES[family])
        assert summary.backward_attributed is not None


@pytest.mark.parametrize("family", ["rt_detr_v2", "d_fine"])
def test_backward_belongs_to_modules_where_there_is_something_to_compute(family, tmp_path) -> None:
    torch.manual_seed(0)
    model = DETECTORS[family]()
    for parameter in model.parameters():
        parameter.requires_grad_(True)
    # before it begins, the engine looks at the whole graph: that takes as long for small images as for large
    summary = summarize(record(model, [make_inputs(images=4, size=512)] * 6, tmp_path))
    assert summary.backward_attributed is not None
    assert summary.backward_attributed >= 0.99


def test_the_matcher_grows_with_the_boxes(tmp_path) -> None:
    torch.manual_seed(0)
    model = make_hybrid("RTDetrV2", num_queries=100)
    few, many = (
        {
            stage.name: stage
            for stage in summarize(record(model, [make_inputs(boxes)] * 8, tmp_path / str(boxes))).stages
        }
        for boxes in (5, 100)
    )
    assert many["matcher"].share > few["matcher"].share
    assert many["matcher.assignment"].total_ms > few["matcher.assignment"].total_ms


def test_stages_of_a_network_inside_another_module_are_the_same() -> None:
    class Wrapper(nn.Module):
        def __init__(self, network: nn.Module) -> None:
            super().__init__()
            self.network = network

    network = DETECTORS["rt_detr_v2"]()
    family, stages, _ = recognise_parts(network)
    inside, found, _ = recognise_parts(Wrapper(network))
    assert inside == family == "rt_detr"
    assert [stage.name for stage in found] == [stage.name for stage in stages]
    assert {stage.target for stage in found} >= {"network", "network.model", "network.loss_function()"}


def test_a_loss_that_somebody_sets_while_recorded_is_used_and_stays(tmp_path) -> None:
    torch.manual_seed(0)
    model: Any = DETECTORS["detr"]()
    asked = []

    def own_loss(logits: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, dict[str, Any], None]:
        asked.append(logits.shape)
        return logits.square().mean(), {}, None

    def loop(model: Any, steps: Iterator[Any]) -> None:
        for index, inputs in enumerate(steps):
            if index == 3:
                model.loss_function = own_loss
            model(**inputs).loss.backward()

    record(model, [make_inputs()] * 6, tmp_path, loop)
    assert len(asked) == 3
    assert model.loss_function is own_loss
    assert "loss_function" not in vars(model)
