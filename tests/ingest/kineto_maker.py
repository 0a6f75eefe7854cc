"""Small traces with a known answer, for the tests of the Kineto reader."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import polars as pl

from detscope.ingest.formats.kineto import read_trace
from detscope.ingest.sink import Sink

MAIN, AUTOGRAD, STREAM = 10, 11, 7
ENGINE = "autograd::engine::evaluate_function"
COPY = "Memcpy HtoD (Pageable -> Device)"


@dataclass
class Read:
    """What the reader made of a file."""

    sink: Sink
    frames: dict[str, list[pl.DataFrame]] = field(default_factory=dict)

    def table(self, name: str) -> pl.DataFrame:
        return pl.concat(self.frames[name])

    def host(self, kind: str) -> pl.DataFrame:
        return self.table("host_events").filter(pl.col("kind") == kind)


def read(path: Path) -> Read:
    frames: dict[str, list[pl.DataFrame]] = {}
    sink = Sink(write=lambda table, frame: frames.setdefault(table, []).append(frame))
    read_trace(path, sink)
    return Read(sink, frames)


def read_events(tmp_path: Path, events: list[dict[str, Any]], **around: Any) -> Read:
    path = tmp_path / "trace.json"
    path.write_text(json.dumps({**around, "traceEvents": events}))
    return read(path)


def event(category: str, name: str, ts: float, dur: float, tid: Any = MAIN, **args: Any) -> dict[str, Any]:
    pid = 0 if category in ("kernel", "gpu_memcpy", "gpu_memset", "cuda_sync") else 1
    given = {key.replace("_", " "): value for key, value in args.items()}
    renamed = {"External id": given.pop("external", None), "Sequence number": given.pop("sequence", None)}
    given |= {key: value for key, value in renamed.items() if value is not None}
    return {
        "ph": "X",
        "cat": category,
        "name": name,
        "pid": pid,
        "tid": tid,
        "ts": ts,
        "dur": dur,
        "args": given,
    }


def launch(
    correlation: int, ts: float, start: float, dur: float, tid: int = MAIN, name: str = "gemm"
) -> list[dict[str, Any]]:
    """A call that launches a kernel, and the kernel."""
    return [
        event("cuda_runtime", "cudaLaunchKernel", ts, 2, tid, correlation=correlation),
        event("kernel", name, start, dur, STREAM, correlation=correlation, device=0, stream=STREAM),
    ]


def training_step(at: float = 1000.0, number: int = 1) -> list[dict[str, Any]]:
    """One step of 1000 us: data 100, copy, forward of two modules, backward on its own thread, optimizer."""
    c = number * 100
    return [
        event("user_annotation", f"ProfilerStep#{number}", at, 1000),
        event("user_annotation", "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__", at, 100),
        event("cpu_op", "aten::to", at + 110, 20, external=c),
        event("cpu_op", "aten::copy_", at + 112, 15, external=c + 1),
        event("cuda_runtime", "cudaMemcpyAsync", at + 115, 5, correlation=c + 1),
        event("gpu_memcpy", COPY, at + 118, 10, STREAM, correlation=c + 1, device=0, stream=7, bytes=4096),
        event("python_function", "nn.Module: Net_0", at + 200, 200),
        event("python_function", "nn.Module: Conv2d_0", at + 210, 80),
        event("cpu_op", "aten::conv2d", at + 220, 60, external=c + 2, sequence=c),
        *launch(c + 2, at + 230, at + 240, 40, name="conv"),
        event("python_function", "nn.Module: Linear_0", at + 300, 90),
        event("cpu_op", "aten::linear", at + 310, 60, external=c + 3, sequence=c + 1),
        *launch(c + 3, at + 320, at + 330, 30, name="linear"),
        event("cpu_op", f"{ENGINE}: LinearBackward0", at + 500, 50, AUTOGRAD, sequence=c + 1),
        event("cpu_op", "LinearBackward0", at + 505, 40, AUTOGRAD, sequence=c + 1),
        *launch(c + 4, at + 510, at + 520, 60, AUTOGRAD, "linear_back"),
        event("cpu_op", f"{ENGINE}: torch::autograd::AccumulateGrad", at + 555, 10, AUTOGRAD),
        *launch(c + 5, at + 557, at + 585, 5, AUTOGRAD, "accumulate"),
        event("cpu_op", f"{ENGINE}: ConvBackward0", at + 600, 100, AUTOGRAD, sequence=c),
        *launch(c + 6, at + 610, at + 620, 90, AUTOGRAD, "conv_back"),
        event("user_annotation", "Optimizer.step#SGD.step", at + 800, 100),
        event("cpu_op", "aten::_foreach_add_", at + 810, 50),
        *launch(c + 7, at + 820, at + 830, 20, name="sgd"),
    ]  # fmt: skip
