from __future__ import annotations

import torch
from torch import nn

from detscope.loops.ema import WeightAverage


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))


def test_the_average_follows_the_weights_slowly_and_the_first_ones_faster():
    net = model()
    average = WeightAverage(net, 0.99)
    start = net[0].weight.detach().clone()
    with torch.no_grad():
        net[0].weight += 1
    average.add_step()
    moved = average.list_tensors()["0"] - start
    assert torch.allclose(moved, torch.full_like(moved, 1 - 2 / 11)), "(1 + n) / (10 + n) in the first steps"


def test_evaluating_with_the_average_leaves_the_weights_as_they_were():
    net = model()
    average = WeightAverage(net, 0.9)
    with torch.no_grad():
        net[0].weight.fill_(5.0)
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    with average.in_place():
        assert not torch.equal(net[0].weight, before["0.weight"])
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_the_running_figures_of_batch_norm_are_averaged_too_and_its_counter_is_left_alone():
    net = model()
    average = WeightAverage(net, 0.9)
    net(torch.randn(8, 3))
    average.add_step()
    with average.in_place():
        assert net[1].running_mean.abs().sum() > 0
        assert int(net[1].num_batches_tracked) == 1


def test_a_restored_average_goes_on_as_the_one_it_came_from():
    first, second = model(), model()
    averages = [WeightAverage(first, 0.9), WeightAverage(second, 0.9)]
    with torch.no_grad():
        first[0].weight += 3
    averages[0].add_step()
    second.load_state_dict(first.state_dict())
    averages[1].restore_from(averages[0].list_tensors(), averages[0].updates)
    for average in averages:
        average.add_step()
    pairs = zip(averages[0].list_tensors().values(), averages[1].list_tensors().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in pairs)
