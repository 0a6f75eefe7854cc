"""Bottlenecks planted on purpose: each is found, and found first."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from detscope.analyze.summary import summarize
from detscope.cli.main import app
from detscope.config.schema import Settings
from detscope.data.registry import register_dataset
from detscope.record import loader, recorder, step_recorder
from detscope.record.steps.events import EventBuffer
from detscope.record.transforms import timer
from detscope.sessions.train.training import run_training

# bench/comparing.py plants the same on a real clock; here nothing may depend on the machine
GATE = "module.roi_heads.box_head > +50%"
PLANTED = Path(__file__).with_name("planted.py")


class Silence:
    """A progress that says nothing."""

    def start(self, total: int | None, label: str) -> None: ...
    def advance(self, n: int = 1, **info: object) -> None: ...
    def note(self, text: str) -> None: ...
    def finish(self) -> None: ...


class Clock:
    """What the recorder reads: passes by 200 us with every look at it, and where the planted parts sleep."""

    def __init__(self) -> None:
        self.now_ns = 10**15

    def __call__(self) -> int:
        self.now_ns += 200_000
        return self.now_ns

    def sleep(self, seconds: float) -> None:
        self.now_ns += round(seconds * 1e9)


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(PLANTED.parent))
    from planted import open_all_shapes, open_slow

    register_dataset("slow", "a slow disk", open_slow)
    register_dataset("all_shapes", "wide and tall images", open_all_shapes)
    clock = Clock()
    monkeypatch.setattr(time, "sleep", clock.sleep)
    monkeypatch.setattr(recorder, "perf_counter_ns", clock)
    monkeypatch.setattr(step_recorder, "perf_counter_ns", clock)
    monkeypatch.setattr(loader, "perf_counter_ns", clock)
    monkeypatch.setattr(timer, "perf_counter_ns", clock)
    monkeypatch.setattr(EventBuffer.__init__, "__defaults__", (None, clock))


def settings(model: str, data: dict[str, Any] | None = None, **training: Any) -> Settings:
    return Settings.model_validate(
        {
            "model": {"name": model},
            "data": {"images": 16, "image_width": 160, "image_height": 128, **(data or {})},
            "training": {"steps": 12, "threads": 1, "num_workers": 0, **training},
            "record": {"telemetry_hz": 0.0},
        }
    )


def test_a_slow_data_set_is_the_first_finding() -> None:
    """Two images of 100 ms each: most of the time is waiting. tests/e2e/test_try_command.py tunes it."""
    run = run_training(settings("tiny_ssd", {"name": "slow"}, steps=6), progress=Silence())
    base = summarize(run)
    assert base.verdict.startswith("waiting for data")
    assert base.advice[0].rule == "workers"


def test_a_huge_batch_norm_is_the_first_finding() -> None:
    run = run_training(settings(f"{PLANTED}:normalised"), progress=Silence())
    advice = summarize(run).advice
    assert advice[0].rule == "frozen_batch_norm"
    assert "norms." in advice[0].evidence


def test_an_over_padded_data_set_is_the_first_finding() -> None:
    run = run_training(settings(f"{PLANTED}:sleepy_backbone", {"name": "all_shapes"}), progress=Silence())
    summary = summarize(run)
    assert summary.content.padding_share > 0.3
    assert summary.advice[0].rule == "padding"


def synchronising_trace(path: Path) -> Path:
    """Six steps of 10 ms: 4 ms of kernel, then the host reads a result and the device waits 5 ms."""
    events: list[dict[str, Any]] = []
    for step in range(6):
        begin = 1e6 + step * 10_000
        host = {"ph": "X", "pid": 1, "tid": 1}
        events += [
            {**host, "cat": "user_annotation", "name": f"ProfilerStep#{step}", "ts": begin, "dur": 9_990},
            {**host, "cat": "cpu_op", "name": "aten::conv2d", "ts": begin + 10, "dur": 50},
            {
                **host, "cat": "cuda_runtime", "name": "cudaLaunchKernel", "ts": begin + 20, "dur": 10,
                "args": {"correlation": step + 1},
            },
            {
                "ph": "X", "cat": "kernel", "name": "conv", "pid": 0, "tid": 7,
                "ts": begin + 40, "dur": 4_000,
                "args": {"correlation": step + 1, "device": 0, "stream": 7},
            },
            {**host, "cat": "cpu_op", "name": "aten::item", "ts": begin + 100, "dur": 8_900},
            {
                **host, "cat": "cuda_runtime", "name": "cudaStreamSynchronize",
                "ts": begin + 110, "dur": 8_800,
                "args": {"correlation": 1000 + step},
            },
        ]  # fmt: skip
    path.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    return path


def test_a_synchronising_loop_is_the_first_finding(tmp_path: Path) -> None:
    trace = synchronising_trace(tmp_path / "trace.json.gz")
    result = CliRunner().invoke(app, ["import", str(trace), "--json"])
    assert result.exit_code == 0, result.output
    advice = json.loads(result.stdout)["advice"]
    assert advice[0]["rule"] == "synchronisations"
    assert "item" in advice[0]["title"]


def test_a_module_that_became_slower_is_named_first_and_stops_the_gate() -> None:
    runs = [
        str(run_training(settings(f"{PLANTED}:{name}", steps=20), progress=Silence()))
        for name in ("detector", "sleepy")
    ]
    gated = CliRunner().invoke(app, ["compare", *runs, "--fail-if", GATE, "--json"])
    assert gated.exit_code == 7, gated.output
    one = json.loads(gated.stdout)["comparisons"][0]
    assert one["modules"][0]["path"] == "roi_heads.box_head"
    assert one["modules"][0]["verdict"] == "slower"
    assert f"gate failed: {GATE}" in gated.stderr
    shown = CliRunner().invoke(
        app, ["compare", *runs, "--html", "compared.html", "--markdown", "compared.md"]
    )
    assert shown.exit_code == 0, shown.output
    assert "roi_heads.box_head" in Path("compared.html").read_text()
    assert "| `module roi_heads.box_head` |" in Path("compared.md").read_text()
