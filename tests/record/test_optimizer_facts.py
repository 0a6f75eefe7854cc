"""What a run says of its optimizers and its model's tensors, read when an optimizer steps first."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from detscope.analyze.summary import OptimizerFacts, summarize
from detscope.record.optimizer_facts import describe_optimizer, describe_tensors
from detscope.record.recorder import Recorder


def layers(count: int = 3) -> nn.Sequential:
    return nn.Sequential(*(nn.Linear(2, 2) for _ in range(count)))


def groups_of(model: nn.Module, **settings: list[float]) -> list[dict[str, object]]:
    """A group per parameter, with these settings in turn."""
    return [
        {"params": [one], **{key: values[index % len(values)] for key, values in settings.items()}}
        for index, one in enumerate(model.parameters())
    ]


def test_groups_are_counted_and_those_of_equal_settings_once() -> None:
    facts = describe_optimizer(torch.optim.AdamW(groups_of(layers(), weight_decay=[0.0, 0.1]), lr=1e-3))
    assert facts == {
        "name": "AdamW",
        "groups": 6,
        "different_groups": 2,
        "tensors": 6,
        "parameters": 18,
        "way": "loop",
        "way_given": False,
    }


def test_a_label_makes_no_group_different_and_a_rate_of_its_own_does() -> None:
    model = layers()
    named = [{**group, "name": str(number)} for number, group in enumerate(groups_of(model))]
    assert describe_optimizer(torch.optim.SGD(named, lr=0.1))["different_groups"] == 1
    rated = groups_of(model, lr=[0.1, 0.2, 0.3])
    assert describe_optimizer(torch.optim.SGD(rated, lr=0.1))["different_groups"] == 3


@pytest.mark.parametrize(
    ("asked", "way"), [({}, "loop"), ({"foreach": True}, "foreach"), ({"fused": True}, "fused")]
)
def test_the_way_over_the_tensors_is_the_one_that_torch_takes(asked, way) -> None:
    facts = describe_optimizer(torch.optim.SGD(layers().parameters(), lr=0.1, **asked))
    assert (facts["way"], facts["way_given"]) == (way, bool(asked))
    unasked = torch.optim.SGD([torch.empty(2, device="meta", requires_grad=True)], lr=0.1)
    assert describe_optimizer(unasked)["way"] is None, "nobody knows what torch does there"


def test_an_optimizer_that_cannot_be_looked_at_is_known_by_name_alone() -> None:
    class Strange:
        @property
        def param_groups(self) -> None:
            raise RuntimeError("not now")

    assert describe_optimizer(Strange()) == {"name": "Strange"}


def test_tensors_of_a_model_are_those_an_average_keeps_each_once() -> None:
    model = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    model.append(model[0])  # shared
    # weight and bias of both, mean and variance; the count of batches is a whole number
    assert describe_tensors(model) == {"tensors": 6, "one_to_one_head": False}
    head = nn.ModuleDict({"cv2": nn.Identity(), "one2one_cv2": nn.Identity()})
    assert describe_tensors(nn.Sequential(head))["one_to_one_head"]
    head.one2one_cv2 = None
    assert describe_tensors(nn.Sequential(head))["one_to_one_head"], (
        "dropped for this inference, not for good"
    )


def test_a_recorded_loop_tells_its_optimizers_in_the_summary(tmp_path) -> None:
    model = layers()
    optimizer = torch.optim.SGD(groups_of(model), lr=0.1)
    with Recorder(model, optimizer, tmp_path, warmup_steps=0, telemetry_hz=0) as recorder:
        for batch in recorder.steps([torch.ones(1, 2)] * 3):
            optimizer.zero_grad()
            model(batch).sum().backward()
            optimizer.step()
    summary = summarize(recorder.run)
    assert summary.optimizers == (
        OptimizerFacts(
            name="SGD", groups=6, different_groups=1, tensors=6, parameters=18, way="loop", way_given=False
        ),
    )
    assert summary.model is not None and summary.model.tensors == 6
