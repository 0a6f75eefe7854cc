from __future__ import annotations

import numpy as np
from made_networks import chain, conv

from detscope.predict.layers.graph import LayerGraph, Operation
from detscope.predict.models.older import sum_older_features

ONE = LayerGraph("x", (conv(0, 1, 8, 16, 10, kernel=3),))  # ic 8, oc 16, k 3, ip = op = 10


def test_there_are_56_training_and_15_inference_features() -> None:
    assert sum_older_features(ONE, 2).shape == (56,)
    assert sum_older_features(ONE, 2, training=False).shape == (15,)


def test_features_of_one_layer_are_those_counted_by_hand() -> None:
    b, ic, oc, k, ip = 2, 8, 16, 3, 10
    found = sum_older_features(ONE, b)
    weights, inputs, outputs = oc * ic * k * k, 2 * b * ic * ip**2, 2 * b * oc * ip**2
    assert found[:5].tolist() == [weights, b * weights, inputs, outputs, (1 + b) * weights + inputs + outputs]
    im2col = b * ip**2 * k * k * ic
    assert found[5:12].tolist() == [200, im2col, 200, im2col, im2col, 3 * im2col, 600]
    gemm = b * oc * ip**2 * k * k * ic
    assert found[12:15].tolist() == [gemm, gemm, 3 * gemm]
    plane = ip * (1 + ip)
    assert found[15:20].tolist() == [plane * n for n in (oc * ic, b * ic, b * oc, oc * ic, b * oc)]
    tiles, area = 9, 36  # ceil(10 / 4) squared, (4 + 3 - 1) squared
    assert found[28:31].tolist() == [3 * b * n * area * tiles for n in (oc, ic, oc * ic)]
    assert found[42] == b * oc * ic * tiles * area  # Winograd operations follow both Winograd memories


def test_features_are_summed_over_convolutions_and_nothing_else() -> None:
    graph = chain(16, depth=2, size=10)
    alone = [LayerGraph("x", (one,)) for one in graph.operations if one.convolution]
    assert np.allclose(sum_older_features(graph, 4), sum(sum_older_features(one, 4) for one in alone))
    without = LayerGraph("x", (Operation("add", (0, 1), ((1, 1), (1, 1)), 2, (1, 1)),))
    assert not sum_older_features(without, 4).any()


def test_a_rectangular_image_counts_by_its_area() -> None:
    tall = conv(0, 1, 8, 16, 10)
    shape = ((1, 8, 4, 25),)
    wide = Operation(tall.kind, (0,), shape, 1, (1, 16, 4, 25), tall.parameters, tall.convolution)
    assert np.allclose(
        sum_older_features(LayerGraph("x", (wide,)), 2)[:15],
        sum_older_features(LayerGraph("x", (tall,)), 2)[:15],
    )
