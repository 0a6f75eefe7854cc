"""Recording memory beside everything else: loader workers, mixed precision, inference, the end of memory."""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

import detscope
from detscope.record.memory.failures import find_out_of_memory, read_requested_bytes
from detscope.runs.reader import Run, load_run

ROWS, WIDTH = 4, 1000


class Rows(Dataset):
    """Tensors made in whichever process loads them."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.full((WIDTH,), float(index))


class Net(nn.Module):
    """Two layers; asks for too much when told to."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, 64)
        self.last = nn.Linear(64, 8)
        self.greedy = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.relu(self.first(x))
        if self.greedy:
            torch.empty(1 << 50, dtype=torch.uint8)
        return self.last(hidden)


def recorder_of(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer | None, **options):
    gc.collect()
    options = {"warmup_steps": 1, "memory_steps": 2, "telemetry_hz": 0, **options}
    return detscope.Recorder(model, optimizer, folder, stages=(), observers=(), memory=True, **options)


def train(folder: Path, loader, autocast: bool = False, **options) -> Run:
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with recorder_of(folder, model, optimizer, **options) as recorder:
        for x in recorder.steps(loader):
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                loss = model(x).float().sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return load_run(recorder.run)


def test_memory_steps_come_after_the_warm_up_and_their_times_are_not_shown(tmp_path):
    run = train(tmp_path, [torch.rand(ROWS, WIDTH) for _ in range(6)], bare_every=0)
    whole = run.table("steps").filter(pl.col("phase") == "step").sort("step")
    assert whole["mode"].to_list() == ["warmup", "memory", "memory", "recorded", "recorded", "recorded"]
    assert run.info["memory"]["steps"] == [1, 2]
    from detscope.analyze.summary import summarize

    assert summarize(run.folder).step_ms.n == 3


def test_without_the_option_nothing_is_watched(tmp_path):
    model = Net()
    with detscope.Recorder(model, None, tmp_path, stages=(), observers=(), telemetry_hz=0) as recorder:
        for x in recorder.steps([torch.rand(ROWS, WIDTH)] * 3):
            model(x)
    run = load_run(recorder.run)
    assert run.table("memory").is_empty()
    assert "memory" not in run.info


@pytest.mark.parametrize("workers", [0, 1])  # of two, the second may be ahead with its batch
def test_batches_are_inputs_wherever_they_were_made(tmp_path, workers):
    run = train(tmp_path, DataLoader(Rows(), batch_size=ROWS, num_workers=workers))
    blocks = run.table("memory")
    inputs = blocks.filter(pl.col("category") == "inputs")
    one = (ROWS * WIDTH * 4, "batch", f"{ROWS}x{WIDTH}", "float32", "data")
    assert inputs.select("bytes", "name", "shape", "dtype", "phase").rows() == [one] * 3
    # that of the warm-up is there before; each goes when the loop has taken the next one
    assert inputs["alloc_ns"].null_count() == 1
    assert inputs["free_step"].to_list() == [1, 2, None]
    assert blocks.filter(pl.col("category") == "unknown")["bytes"].sum() <= 64
    levels = run.table("memory_levels")["level"].unique().to_list()
    assert {"process", "process_peak"} <= set(levels)
    assert len([level for level in levels if level.startswith("worker ")]) == workers


def test_inputs_in_one_buffer_count_once_and_until_the_last_of_them_goes(tmp_path):
    def batches():
        for _ in range(3):
            yield list(torch.from_numpy(np.zeros((2, ROWS, WIDTH), np.float32)).unbind())

    torch.manual_seed(0)
    model, kept = Net(), []
    with recorder_of(tmp_path, model, None) as recorder:
        for batch in recorder.steps(batches()):
            kept[:] = [batch.pop()]  # goes when the next one has come; the other at the end of its own step
            model(batch.pop())
    inputs = load_run(recorder.run).table("memory").filter(pl.col("category") == "inputs")
    one = (2 * ROWS * WIDTH * 4, "batch[0] and 1 more", str(2 * ROWS * WIDTH * 4), "uint8")
    assert inputs.select("bytes", "name", "shape", "dtype").rows() == [one] * 3
    assert inputs["free_step"].to_list() == [1, 2, None]


def test_copies_of_weights_in_low_precision_count_by_their_life(tmp_path):
    run = train(tmp_path, [torch.rand(ROWS, WIDTH) for _ in range(3)], autocast=True)
    blocks = run.table("memory").filter(pl.col("step") == 2)
    # what a processor's own kernels take for themselves meanwhile may be of any size
    copies = blocks.filter(
        (pl.col("phase") == "forward")
        & (pl.col("category") != "workspace")
        & pl.col("bytes").is_in([WIDTH * 64 * 2, 64 * 8 * 2])
    )
    # the first layer's input needs no gradient, so its weights are not needed again
    assert copies.select("module", "category").rows() == [("first", "temporary"), ("last", "activations")]
    gradients = blocks.filter(pl.col("category") == "gradients")
    assert gradients["bytes"].sum() == sum(p.nbytes for p in Net().parameters())


def test_inference_keeps_nothing_for_a_backward_pass(tmp_path):
    model = Net().eval()
    kept = []
    with recorder_of(tmp_path, model, None) as recorder, torch.inference_mode():
        for x in recorder.steps([torch.rand(ROWS, WIDTH) for _ in range(3)]):
            kept.append(model(x))
    blocks = load_run(recorder.run).table("memory")
    sizes = dict(
        blocks.filter(pl.col("alloc_ns").is_not_null())
        .group_by("category")
        .agg(pl.col("bytes").sum())
        .iter_rows()
    )
    assert set(sizes) <= {"temporary", "workspace", "unknown"}
    # outputs that pile up are not explained by the loop: 4x8 floats of the first measured pass
    assert sizes.get("unknown", 0) <= ROWS * 8 * 4


def test_what_is_made_between_steps_is_no_part_of_the_account(tmp_path):
    model, kept = Net(), []
    recorder = recorder_of(tmp_path, model, None)
    recorder.between_steps = lambda _done: kept.append(torch.rand(50_000))
    with recorder, torch.no_grad():
        for x in recorder.steps([torch.rand(ROWS, WIDTH) for _ in range(3)]):
            model(x)
    blocks = load_run(recorder.run).table("memory")
    assert blocks.filter(pl.col("alloc_ns").is_not_null()).height
    assert blocks.filter(pl.col("bytes") == 200_000).is_empty()
    assert blocks.filter(pl.col("category") == "unknown").is_empty()


def test_arrays_of_numpy_are_inputs_of_the_step_they_come_in(tmp_path):
    run = train(tmp_path, (torch.from_numpy(np.ones((ROWS, WIDTH), np.float32)) for _ in range(3)))
    inputs = run.table("memory").filter(pl.col("category") == "inputs")
    assert inputs.select("step", "free_step").rows() == [(None, 1), (1, 2), (2, None)]
    assert set(inputs["bytes"].to_list()) == {ROWS * WIDTH * 4}


def test_a_pause_between_steps_is_not_part_of_the_account(tmp_path):
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kept = []
    with recorder_of(tmp_path, model, optimizer, warmup_steps=0) as recorder:
        for _ in range(2):
            for x in recorder.steps([torch.rand(ROWS, WIDTH)]):
                optimizer.zero_grad()
                model(x).sum().backward()
                optimizer.step()
            recorder.rest()
            kept.append(torch.rand(100_000))
    run = load_run(recorder.run)
    assert run.info["memory"]["steps"] == [0, 1]
    assert 400_000 not in run.table("memory")["bytes"].to_list()
    alive = run.table("memory").filter(pl.col("free_ns").is_null())
    assert alive.filter(pl.col("category") == "gradients")["bytes"].sum() == sum(
        p.nbytes for p in model.parameters()
    )


@pytest.mark.parametrize("failing_step", [0, 2])
def test_running_out_of_memory_closes_the_run_with_the_account(tmp_path, failing_step):
    torch.manual_seed(0)
    model = Net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    recorder = recorder_of(tmp_path, model, optimizer)
    with pytest.raises(RuntimeError, match="can't allocate memory"), recorder:
        for number, x in enumerate(recorder.steps(torch.rand(ROWS, WIDTH) for _ in range(9))):
            model.greedy = number == failing_step
            loss = model(x).sum()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    run = load_run(recorder.run)
    assert run.status == "oom_host"
    oom = run.info["oom"]
    assert (oom["request_bytes"], oom["device"], oom["step"]) == (1 << 50, "cpu", failing_step)
    assert (oom["phase"], oom["operator"]) == ("forward", "aten::empty")
    assert oom["module"] == ""  # the model itself, not one of its parts
    assert "you tried to allocate" in oom["message"]
    blocks = run.table("memory")
    unfinished = blocks.filter(pl.col("step") == failing_step)
    assert {"first"} <= set(unfinished["module"].drop_nulls().to_list())
    alive = blocks.filter(
        (pl.col("alloc_ns").fill_null(0) <= oom["time_ns"])
        & (pl.col("free_ns").is_null() | (pl.col("free_ns") > oom["time_ns"]))
    )
    sizes = dict(alive.group_by("category").agg(pl.col("bytes").sum()).iter_rows())
    weights = sum(p.nbytes for p in model.parameters())
    assert sizes["parameters"] == weights
    assert sizes.get("gradients", 0) == sizes.get("optimizer", 0) == (weights if failing_step else 0)


def test_memory_may_run_out_in_backward_while_loading_and_without_an_account(tmp_path):
    class Greedy(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return gradient + torch.empty(1 << 50, dtype=torch.uint8).sum()

    def backward(recorder, model):
        for x in recorder.steps([torch.rand(ROWS, WIDTH)] * 4):
            Greedy.apply(model(x)).sum().backward()

    def loading(recorder, model):
        def batches():
            yield torch.rand(ROWS, WIDTH)
            yield np.empty(1 << 47)

        for x in recorder.steps(batches()):
            model(x)

    for loop, phase in ((backward, "backward"), (loading, "data")):
        for memory in (True, False):
            model = Net()
            recorder = detscope.Recorder(
                model, None, tmp_path, stages=(), observers=(), memory=memory, telemetry_hz=0
            )
            with pytest.raises((RuntimeError, MemoryError)), recorder:
                loop(recorder, model)
            run = load_run(recorder.run)
            assert (run.status, run.info["oom"]["phase"]) == ("oom_host", phase)
            assert run.info["oom"]["request_bytes"] == 1 << 50
            assert run.table("memory").is_empty() is not memory


@pytest.mark.parametrize(
    ("error", "status", "request_bytes"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB."), "oom_device", 20 << 20),
        (RuntimeError("can't allocate memory: you tried to allocate 96 bytes. Error"), "oom_host", 96),
        (RuntimeError("not enough memory: you tried to allocate 96 bytes."), "oom_host", 96),
        (MemoryError("Unable to allocate 1.50 GiB for an array with shape (3,)"), "oom_host", 3 << 29),
        (MemoryError(), "oom_host", None),
        (OSError(12, "Cannot allocate memory"), "oom_host", None),
        (RuntimeError("shapes do not fit"), None, None),
        (ValueError("can't allocate memory"), None, None),
    ],
)  # fmt: skip
def test_errors_that_mean_memory_ran_out_are_recognised(error, status, request_bytes):
    found = find_out_of_memory(error, "cuda:0")
    assert (found.status if found else None) == status
    assert read_requested_bytes(str(error)) == request_bytes
    if found:
        assert found.device == ("cuda:0" if status == "oom_device" else "cpu")


RSS_SCRIPT = """
import json, os, sys
import torch
import detscope
from detscope.runs.reader import load_run
from test_memory_recording import recorded_peak
import detscope.record.recorder  # noqa: F401
import polars  # noqa: F401
import torch._dynamo  # noqa: F401  (an optimizer imports it: once here, not in every child)
results = []
for batch in (1, 2, 4, 8):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(write, json.dumps(recorded_peak(batch, sys.argv[1])).encode())
        os._exit(0)
    os.close(write)  # a child that fails says nothing, and nobody waits for it
    os.waitpid(child, 0)
    results.append(json.loads(os.read(read, 1000)))
print(json.dumps(results))
"""


def recorded_peak(batch: int, folder: str) -> tuple[int, int]:
    """Peak of allocated bytes of a training and growth of the process, for a child process."""
    from pathlib import Path

    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Flatten()
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with recorder_of(Path(folder), model, optimizer, warmup_steps=0) as recorder:
        for x in recorder.steps(torch.rand(batch, 3, 256, 256) for _ in range(2)):
            optimizer.zero_grad()
            model(x).sum().backward()
            optimizer.step()
    run = load_run(recorder.run)
    blocks, levels = run.table("memory"), run.table("memory_levels").sort("time_ns")
    gone = blocks.filter(pl.col("free_ns").is_not_null())
    changes = pl.concat(
        [
            blocks.select(pl.col("alloc_ns").fill_null(0).alias("time_ns"), "bytes"),
            gone.select(pl.col("free_ns").alias("time_ns"), -pl.col("bytes")),
        ]
    ).sort("time_ns")
    process = levels.filter(pl.col("level") == "process")["bytes"]
    peak = levels.filter(pl.col("level") == "process_peak")["bytes"]
    return int(changes["bytes"].cum_sum().max()), int(peak.max()) - int(process[0])


def test_the_process_grows_as_the_account_does(tmp_path):
    found = os.pathsep.join([str(Path(__file__).parent), *sys.path])
    environment = {**os.environ, "PYTHONPATH": found, "OMP_NUM_THREADS": "1"}
    # the C library gives blocks above a size back at once, and raises that size as it goes; here it stays
    environment["MALLOC_MMAP_THRESHOLD_"] = str(1 << 17)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", RSS_SCRIPT, str(tmp_path)],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pairs = json.loads(done.stdout.splitlines()[-1])
    allocated, grown = zip(*pairs, strict=True)
    assert list(allocated) == sorted(allocated)
    assert np.corrcoef(allocated, grown)[0, 1] > 0.95, pairs
