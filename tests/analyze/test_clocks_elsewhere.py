"""Whatever is made of phases, stages and modules is on the device's clock too, and says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from detscope.analyze.advice import spans_on_clock
from detscope.analyze.advice.case import stage_ms
from detscope.analyze.compare.runs import compare_runs
from detscope.analyze.device.imported import judge_import
from detscope.analyze.device.verdict import DeviceVerdict, say_bound
from detscope.analyze.drawing import report_data
from detscope.analyze.step.series import step_points
from detscope.analyze.summary import summarize
from detscope.runs.reader import load_run
from detscope.runs.writer import RunWriter, polars_schema
from planted_device import MS, Plan, typical_plan, write_run

MARKED = [*["warmup"] * 3, *["recorded", "recorded", "bare", "recorded"] * 8]


def with_head(plan: Plan, times: float) -> Plan:
    """The same with a head that takes longer."""
    return replace(
        plan,
        work=[
            replace(work, device_ms=work.device_ms * times) if work.module == "head" else work
            for work in plan.work
        ],
    )


def test_runs_are_compared_on_the_devices_clock_where_both_have_one(tmp_path) -> None:
    plan = typical_plan(waits=True)
    base, slower = (load_run(write_run(tmp_path, one, MARKED)) for one in (plan, with_head(plan, 2.0)))
    (found,) = compare_runs(base, [slower]).comparisons
    assert found.clock == "device"
    phases = {row.name: row for row in found.phases}
    assert phases["backward"].difference == pytest.approx(10.0, rel=0.02)
    assert phases["forward"].difference == pytest.approx(5.0, rel=0.02), (
        "the host's holds the backward pass too"
    )
    stages = {row.name: row for row in found.stages}
    assert stages["head"].relative == pytest.approx(1.0, rel=0.02)
    assert stages["backbone"].difference == pytest.approx(0.0, abs=0.1)
    modules = {row.path: row for row in found.modules}
    assert modules["head"].after == pytest.approx(2 * modules["head"].before, rel=0.05)


def test_a_run_without_a_devices_clock_is_compared_by_the_hosts_and_that_is_said(tmp_path) -> None:
    plan = typical_plan()
    marked = load_run(write_run(tmp_path, plan, MARKED))
    folder = write_run(tmp_path, plan, MARKED, {"device": "cpu", "device_clock": None})
    for table in ("device_steps", "device_spans"):
        (folder / f"{table}.parquet").unlink()
    (found,) = compare_runs(load_run(folder), [marked]).comparisons
    assert found.clock == "host"
    assert any(f"{folder.name} has no device's clock" in note for note in found.notes)
    assert {row.name: row.difference for row in found.phases}["forward"] == pytest.approx(0.0)


def test_series_have_the_devices_phases_and_stages_and_the_hosts_phases_apart(tmp_path) -> None:
    run = load_run(write_run(tmp_path, typical_plan(waits=True), MARKED))
    points = {(point.step, point.group, point.name): point.value for point in step_points(run)}
    assert points[6, "phases_ms", "forward"] == pytest.approx(20.0, rel=0.02)
    assert points[6, "host_phases_ms", "forward"] > 50
    assert points[6, "steps_ms", "device"] == pytest.approx(66.0, rel=0.02)
    assert points[6, "stages_ms", "backbone"] == pytest.approx(45.0, rel=0.02)
    assert (5, "stages_ms", "backbone") not in points, "a bare step has none"


def inference(parent: Path, decode_ms: float = 10.0) -> Path:
    """Decoding takes the host 10 ms, the network the device 20; then the host reads the boxes."""
    base = typical_plan(data_ms=decode_ms)
    forward = [work for work in base.work if work.phase in ("transfer", "forward")]
    forward[-1] = replace(forward[-1], waits=True)
    info = {"verb": "infer", "batch_size": 1, "repeat": 1}
    folder = write_run(parent, replace(base, work=forward), MARKED, info)
    names = [(step, 0, f"{step}.jpg", 64, 48, step % 7, 1) for step in range(len(MARKED))]
    images = pl.DataFrame(names, schema=polars_schema("images"), orient="row")
    images.write_parquet(folder / "images.parquet")
    return folder


def test_an_images_stages_are_the_devices_decoding_the_hosts_and_latency_is_wall_time(tmp_path) -> None:
    summary = summarize(inference(tmp_path))
    stages = {stage.name: stage for stage in summary.stages}
    assert summary.verdict.startswith("input-bound: backbone takes")
    assert stages["decode"].total_ms == pytest.approx(10.0, rel=0.02)
    assert stages["backbone"].total_ms == pytest.approx(15.0, rel=0.05)
    assert stages["head"].total_ms == pytest.approx(5.0, rel=0.05)
    assert stages["transfer"].total_ms == pytest.approx(1.1, rel=0.15)
    assert {name: stage.clock for name, stage in stages.items() if stage.depth == 0} == {
        "decode": "host",
        "transfer": "device",
        "backbone": "device",
        "head": "device",
        "other": "host",
    }
    assert sum(stage.total_ms for stage in summary.stages if stage.depth == 0) == pytest.approx(
        summary.latency_ms.p50
    )
    assert stages["backbone"].p50 == pytest.approx(15.0, rel=0.05)
    assert stages["backbone"].host_ms < 2.0, "queueing it takes the host next to nothing"
    slopes = {(cost.stage, cost.measure): cost for cost in summary.cost_against_content}
    assert slopes["backbone", "detections"].clock == "device"
    assert slopes["decode", "detections"].clock == slopes["whole", "detections"].clock == "host"


def test_arithmetic_is_held_against_the_devices_time(tmp_path) -> None:
    info = {"costs": {"images": 2, "peak": {"peak_flops_per_s": 1e12, "bandwidth_bytes_per_s": 1e11}}}
    folder = write_run(tmp_path, typical_plan(waits=True), MARKED, info)
    flops = 20_000_000_000
    rows = [("module", path, "forward", flops, flops, 10**9, 10**9) for path in ("", "head")]
    costs = pl.DataFrame(rows, schema=polars_schema("costs"), orient="row")
    costs.write_parquet(folder / "costs.parquet")
    roofline = summarize(folder).roofline
    assert roofline.clock == "device"
    assert roofline.gflops_per_s == pytest.approx(20 / 0.020, rel=0.02), "20 ms of the device's forward"
    (point,) = (point for point in roofline.points if point.path == "head")
    assert point.ms == pytest.approx(5.0, rel=0.02)


def test_what_memory_costs_in_time_is_the_devices_time(tmp_path) -> None:
    spans = spans_on_clock(load_run(write_run(tmp_path, typical_plan(waits=True), MARKED)))
    assert stage_ms(spans, "head", "backward") == pytest.approx(10.0, rel=0.02)
    forward = spans.filter((pl.col("path") == "backbone.0") & (pl.col("direction") == "forward"))
    assert forward["total_ns"].to_list() == [5 * MS] * forward.height, "also in steps in which it had no turn"


def test_content_is_held_against_the_devices_step(tmp_path) -> None:
    data = report_data(load_run(write_run(tmp_path, typical_plan(waits=True), MARKED)))
    assert data.device_steps is not None
    assert data.content["ms"].to_list()[6] == pytest.approx(66.0, rel=0.02)


def test_a_run_of_an_older_recorder_on_a_gpu_opens_and_says_that_its_times_are_the_hosts(tmp_path) -> None:
    writer = RunWriter(tmp_path, "train", "net", {"verb": "train", "device": "cuda:0", "level": "modules"})
    for step in range(8):
        rows = [
            ("step", 50 * MS, 49 * MS),
            ("data", 0, 0),
            ("forward", 20 * MS, 15 * MS),
            ("other", 30 * MS, 0),
        ]
        writer.append_rows(
            "steps", [(step, 0, "recorded", phase, step * 50 * MS, ns, own) for phase, ns, own in rows]
        )
    writer.close_run("ok")
    summary = summarize(writer.folder)
    assert summary.clocks.clock == "host"
    assert summary.find_phase("forward").ms == pytest.approx(20.0)
    assert any("before device times were kept" in line for line in summary.cannot_tell)


@pytest.mark.parametrize(
    ("bound", "word", "sentence", "said"),
    [
        ("host", "host-bound", "launch-bound: the host is late", "host-bound: the host is late"),
        ("data", "input-bound", "waiting for data: much", "input-bound: waiting for data: much"),
        ("compute", "device-bound", "compute-bound: kernels", "device-bound: kernels"),
        ("unknown", None, "cannot tell: no records", "cannot tell: no records"),
    ],
)
def test_imported_files_have_the_same_words(bound, word, sentence, said) -> None:
    verdict = DeviceVerdict(bound=bound, word=word, sentence=sentence, evidence=(), losses=())
    assert say_bound(verdict) == said


def test_an_imported_file_is_judged_in_the_words_of_a_step() -> None:
    old = summarize(Path(__file__).parents[1] / "old_runs" / "import")
    assert old.device_use.verdict.word == old.clocks.bound == "host-bound"
    assert judge_import(old.device_use, None, 8)[0] == old.verdict
    assert old.verdict.startswith("host-bound: the host is late with work 64 % of the time")
