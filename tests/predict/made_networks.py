"""Small layer graphs whose memory and cost can be counted by hand."""

from __future__ import annotations

from detscope.predict.layers.graph import Convolution, LayerGraph, Operation
from detscope.predict.layers.kinds import ADD, CONVOLUTION, RELU
from detscope.predict.samples import StepCase, StepSample


def conv(source: int, output: int, inside: int, outside: int, size: int, kernel: int = 1) -> Operation:
    layer = Convolution(inside, outside, (kernel, kernel), padding=(kernel // 2, kernel // 2))
    return Operation(
        CONVOLUTION,
        (source,),
        ((1, inside, size, size),),
        output,
        (1, outside, size, size),
        (inside * outside * kernel**2,),
        layer,
    )


def relu(tensor: int, channels: int, size: int) -> Operation:
    shape = (1, channels, size, size)
    return Operation(RELU, (tensor,), (shape,), tensor, shape)


def add(one: int, other: int, output: int, channels: int, size: int) -> Operation:
    shape = (1, channels, size, size)
    return Operation(ADD, (one, other), (shape, shape), output, shape)


def chain(channels: int, depth: int = 3, size: int = 32, name: str = "chain") -> LayerGraph:
    operations = [conv(0, 1, 3, channels, size)]
    for place in range(1, depth):
        operations += [
            relu(place, channels, size),
            conv(place, place + 1, channels, channels, size, kernel=3),
        ]
    return LayerGraph(name, tuple(operations), family=name)


def made_samples(networks: int = 3) -> list[StepSample]:
    """Latencies by a rule that the physical model can express, at several levels and batch sizes."""
    from detscope.predict.models.physical import Tiles, count_step_cost

    samples = []
    for number in range(networks):
        for level in (0, 20, 40, 60, 80):
            channels = round((64 + 32 * number) * (1 - level / 100))
            graph = chain(channels, depth=3 + number, name=f"net{number}")
            for batch in (2, 8, 16, 32, 64):
                cost = count_step_cost(graph, batch, Tiles())
                latency = max(2.0 + 0.2 * cost.calls, sum(cost.terms) * 40.0)
                samples.append(
                    StepSample(
                        StepCase(graph, batch),
                        f"net{number}",
                        level,
                        latency_ms=latency,
                        process_bytes=1e9 + 1e6 * channels * batch,
                        reserved_bytes=1e6 * channels * batch,
                    )
                )
    return samples
