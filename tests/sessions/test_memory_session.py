"""Memory for real: views of a training, variants tried, running out of it."""

from __future__ import annotations

import copy
import csv
import json
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from detscope.analyze.memory.figures import MemoryAccount
from detscope.analyze.summary import summarize
from detscope.config.schema import Settings
from detscope.errors import UsageError
from detscope.report.progress import QuietProgress
from detscope.sessions.train.variants import parse_variants, train_and_try
from detscope.zoo.recompute import recompute_in_backward
from schema_check import check_summary

LIMITED = Path(__file__).with_name("limited_train.py")


def settings_for(tmp_path: Path, model: str) -> Settings:
    return Settings.model_validate(
        {
            "training": {"steps": 1, "warmup_steps": 1, "num_workers": 0, "device": "cpu", "batch_size": 4},
            "model": {"name": model, "weights": "none"},
            "data": {"root": str(tmp_path / "data"), "images": 8, "image_width": 160, "image_height": 128},
            "record": {"telemetry_hz": 0.0, "memory_steps": 2},
            "output": {"runs": str(tmp_path / "runs")},
        }
    )


def test_savings_predicted_by_replay_are_within_a_tenth_of_those_measured(tmp_path):
    run = train_and_try(
        settings_for(tmp_path, "tiny_fasterrcnn"), "bf16,checkpoint", progress=QuietProgress(), notes=()
    )
    memory = summarize(run).memory
    assert memory.unknown_share < 0.02
    assert memory.peak_bytes == sum(row.bytes for row in memory.categories)
    assert memory.peak_bytes == sum(row.bytes for row in memory.modules)
    assert [row.variant for row in memory.tried] == ["bf16", "checkpoint"]
    # the rules are those of processors with AVX-512; elsewhere torch computes bf16 by single-precision copies
    as_ruled = {"bf16": torch.ops.mkldnn._is_mkldnn_bf16_supported(), "checkpoint": True}
    for row in memory.tried:
        assert row.measured_saving_bytes > 0.02 * memory.peak_bytes, row
        assert row.error_share < 0.1 or not as_ruled[row.variant], row
        assert Path(row.run, "run.json").is_file()
    _check_files(run, memory)


def _check_files(run: Path, memory: MemoryAccount) -> None:
    header, *rows = list(csv.reader((run / "memory.csv").read_text().splitlines()))
    assert header[:6] == [
        *("epoch", "iteration", "peak_cached", "current_cached"),
        *("total_feature_map_usage", "total_weight_usage"),
    ]
    assert "backbone.body.conv1.weight" in header and "backbone.body.conv1.weight_grad" in header
    maps = [float(row[4]) for row in rows]
    assert max(maps) < 1.2 * min(maps), "feature maps do not grow from iteration to iteration"
    assert max(float(row[2]) for row in rows) == pytest.approx(memory.peak_bytes / 1e6, abs=0.001)
    drawn = {file.name for file in (run / "pictures").iterdir()}
    assert drawn == {"memory_timeline.png", "memory_peak.png", "modules.png", "curve.png"}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux: reads /proc/self/status")
def test_a_step_that_does_not_fit_says_what_would_and_that_runs(tmp_path):
    small = "--set data.images=16 --set data.image_width=160 --set data.image_height=128 --steps 1"
    quiet = "--set record.telemetry_hz=0.0 --set record.memory_steps=1 --set training.warmup_steps=1"
    first = f"train tiny_ssd --memory --num-workers 0 --batch-size 16 {small} {quiet} --json"
    failed = run_limited(tmp_path, first)
    assert failed.returncode == 4, failed.stderr
    assert "out of memory" in failed.stderr
    summary = json.loads(failed.stdout)
    assert summary["status"] == "oom_host"
    check_summary(summary)
    oom = summary["memory"]["oom"]
    assert oom["request_bytes"] is None or oom["request_bytes"] > 0, "None where a library does not say"
    assert 1 <= oom["suggested_batch"] < 16
    categories = {row["name"]: row["bytes"] for row in summary["memory"]["categories"]}
    assert categories["parameters"] > 4_000_000
    assert sum(categories.values()) == summary["memory"]["peak_bytes"]
    assert summary["run"] in failed.stderr and oom["command"] in failed.stderr
    command = oom["command"].removeprefix("detscope ")
    again = run_limited(tmp_path, f"{command} --json")
    assert again.returncode == 0, again.stderr
    assert json.loads(again.stdout)["status"] == "ok"


def run_limited(folder: Path, command: str) -> subprocess.CompletedProcess[str]:
    # the limit counts addresses: the C library must not keep freed blocks or reserve arenas for threads
    environment = os.environ | {
        "MALLOC_ARENA_MAX": "1",
        "MALLOC_MMAP_THRESHOLD_": "131072",
        "POLARS_MAX_THREADS": "1",
        "OMP_NUM_THREADS": "1",
    }
    arguments = [sys.executable, str(LIMITED), "350", *shlex.split(command)]
    return subprocess.run(
        arguments, cwd=folder, env=environment, capture_output=True, text=True, timeout=900, check=False
    )


def test_an_unknown_variant_is_refused_before_anything_runs():
    with pytest.raises(UsageError, match="'fp8' is not a variant"):
        parse_variants("bf16,fp8")
    assert parse_variants("bf16, checkpoint") == ("bf16", "checkpoint")


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 4))
        self.last = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x))


def gradients(model: nn.Module) -> list[torch.Tensor]:
    torch.manual_seed(1)
    model.zero_grad()
    model(torch.arange(8.0).reshape(2, 4)).sum().backward()
    return [parameter.grad.clone() for parameter in model.parameters()]


def test_computing_again_changes_neither_gradients_nor_copies_nor_evaluation():
    torch.manual_seed(0)
    model = Net()
    expected = gradients(model)
    recompute_in_backward(model, ["first"])
    recompute_in_backward(model, ["first"])
    again = gradients(model)
    assert all(torch.equal(one, other) for one, other in zip(expected, again, strict=True))
    assert type(model.first).__name__ == "Sequential"
    twin = copy.deepcopy(model)
    with torch.no_grad():
        twin.first[0].weight.zero_()
        twin.first[0].bias.zero_()
    model.eval(), twin.eval()
    probe = torch.ones(1, 4)
    assert not torch.equal(model(probe), twin(probe)), "a copy uses its own weights"


def test_a_module_that_is_not_there_is_named_with_what_was_probably_meant():
    with pytest.raises(UsageError, match="no module 'frist'") as caught:
        recompute_in_backward(Net(), ["frist"])
    assert "first" in caught.value.hint
