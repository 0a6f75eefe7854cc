"""Raw facts of recorded Kineto traces, as published or counted by others."""

from __future__ import annotations

import sys
from pathlib import Path

import polars as pl
import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "ingest"))

from kineto_maker import Read, read


@pytest.fixture
def trace(recorded: Path):
    def open_(name: str) -> Read:
        return read(recorded / "traces" / "kineto" / name)

    return open_


def span_ms(events: pl.DataFrame) -> float:
    return ((events["start_ns"] + events["wall_ns"]).max() - events["start_ns"].min()) / 1e6


def of_kind(events: pl.DataFrame, kind: str) -> pl.DataFrame:
    return events.filter(pl.col("kind") == kind)


def test_old_categories_have_all_events_steps_and_estimates(trace):
    found = trace("v100_resnet50_train_workers0.json.gz")
    device = found.table("device_events")
    assert dict(device["kind"].value_counts().iter_rows()) == {"kernel": 8772, "copy": 12, "set": 312}
    assert found.host("runtime").height == 11923
    assert found.host("step")["name"].to_list() == [f"ProfilerStep#{number}" for number in range(5, 11)]
    assert of_kind(device, "kernel")["blocks_per_sm"].null_count() == 0
    assert device["launch_ns"].null_count() == 0
    assert found.host("loader").height == 6
    assert found.host("operator")["stack"].drop_nulls().str.contains("/").sum() == 0


def test_nanosecond_trace_has_its_gpu_events_and_those_before_the_last_step(trace):
    found = trace("v100_ddp_train_ns.json.gz")
    device, steps = found.table("device_events"), found.host("step").sort("start_ns")
    assert device.height == 6095
    assert dict(device["kind"].value_counts().iter_rows()) == {"kernel": 4350, "copy": 1600, "set": 145}
    assert device.filter(pl.col("launch_ns") < steps["start_ns"][-1]).height == 4876
    assert span_ms(device) == pytest.approx(480.02925, abs=1e-3)
    assert steps["name"].to_list() == [f"ProfilerStep#{number}" for number in range(101, 106)]


def test_gpu_annotations_and_the_kernels_under_the_optimizer(trace):
    found = trace("v100_ddp_train_ns.json.gz")
    device, marks = found.table("device_events"), found.host("device_annotation")
    assert set(marks["name"]) == {
        "DistributedDataParallel.forward",
        "## backward ##",
        "Optimizer.step#SGD.step",
    }
    # the published 27 leave out what ran on the device after the last step began on the host
    last = found.host("step")["start_ns"].max()
    optimizer = marks.filter((pl.col("name") == "Optimizer.step#SGD.step") & (pl.col("start_ns") < last))
    under = optimizer.select(
        pl.col("start_ns").alias("begin"), (pl.col("start_ns") + pl.col("wall_ns")).alias("end")
    ).join(of_kind(device, "kernel"), how="cross")
    inside = under.filter(
        (pl.col("start_ns") >= pl.col("begin")) & (pl.col("start_ns") + pl.col("wall_ns") <= pl.col("end"))
    )
    assert inside.height == 27
    assert inside["phase"].unique().to_list() == ["optimizer"]
    assert device.filter(pl.col("phase") == "optimizer").height == 45


def test_kernels_without_a_launch_record_are_counted_and_kept(trace):
    found = trace("a100_6streams_unlinked.json.gz")
    device = found.table("device_events")
    assert device.height == 7747
    assert device["stream"].n_unique() == 6
    assert of_kind(device, "copy")["name"].n_unique() == 4
    assert found.sink.counts["device events without a launch record"] == 872
    assert device["launch_ns"].null_count() == 872
    # a queue is never shorter than nothing: no event begins before its launch
    assert device.filter(pl.col("launch_ns") > pl.col("start_ns")).height == 0


def test_counters_without_kernel_times_are_kept_as_metrics(trace):
    found = trace("a100_alexnet_cupti_counters.json.gz")
    metrics = found.table("kernel_metrics")
    assert metrics["kernel"].n_unique() == 77
    sixth = metrics.filter((pl.col("kernel") == 5) & pl.col("metric").str.contains("fadd_pred_on.sum"))
    assert sixth["value"].to_list() == [86114304]
    assert "fft2d_r2c_32x32" in sixth["name"][0]
    assert "device_events" not in found.frames
    assert any("no kernel times" in text for text in found.sink.unknown)


def test_synchronisations_of_the_device_are_events(trace):
    found = trace("a100_simple_add_sync.json.gz")
    assert of_kind(found.table("device_events"), "sync").height == 41


def test_the_hand_cut_pair_differs_as_published(trace):
    names, annotations = [], []
    for file in ("compare_base.json.gz", "compare_test.json.gz"):
        found = trace(file)
        step = found.host("step").filter(pl.col("name") == "ProfilerStep#1010").to_dicts()[0]
        within = pl.col("start_ns").is_between(step["start_ns"], step["start_ns"] + step["wall_ns"])
        names.append(set(found.host("operator").filter(within)["name"]))
        annotations.append(
            set(found.table("host_events").filter(within & (pl.col("kind") == "annotation"))["name"])
        )
    assert names[1] - names[0] == {"AddmmBackward0", "All2All_Pooled_Req", "CatBackward0"}
    assert annotations[0] - annotations[1] == {"nccl:all_reduce"}


def test_a_trace_without_step_marks_gets_its_steps_from_the_optimizer(trace):
    found = trace("rtx2080ti_resnet_train.json.gz")
    assert found.host("loader").height == 30
    steps = found.table("steps")
    assert steps.filter(pl.col("phase") == "step").height == 30
    assert found.host("operator").filter(pl.col("name").str.contains("Backward")).height == 4320
    device = found.table("device_events")
    assert span_ms(device.filter(pl.col("kind") != "sync")) == pytest.approx(14522.911, abs=1e-3)
    parts = steps.filter(pl.col("phase") != "step").group_by("step").agg(pl.col("wall_ns").sum())
    whole = steps.filter(pl.col("phase") == "step").join(parts, on="step")
    assert whole["wall_ns"].equals(whole["wall_ns_right"], check_names=False)


@pytest.mark.parametrize(
    ("file", "total_ms"),
    [
        ("h100_Falconsai_nsfw_image_detection.json.gz", 7.559844),
        ("h100_facebook_timesformer-base-finetuned-k400.json.gz", 159.992427),
        ("h100_gaunernst_bert-small-uncased.json.gz", 3.907825),
        ("mi210_gpu_only.json.gz", 5.979503),
        ("torch_compile_triton.json.gz", 12.549032),
        ("v100_rank1of2_memory_events.json.gz", 1732.965),
    ],
)
def test_spans_of_the_device_come_out_to_the_microsecond(trace, file, total_ms):
    device = trace(file).table("device_events")
    assert span_ms(device) == pytest.approx(total_ms, abs=1e-3)
    assert device["launch_ns"].null_count() == 0


def test_module_events_give_every_kernel_a_module_and_calls_a_line(trace):
    found = trace("h100_Falconsai_nsfw_image_detection.json.gz")
    device = found.table("device_events")
    assert device["module"].null_count() == 0
    assert device.filter(pl.col("module").str.contains(r"ViTLayer_3\..*Linear_\d+$")).height > 0
    assert set(device["stage"]) == {"ViTEmbeddings_0", "ViTEncoder_0", "LayerNorm_24", "ViTPooler_0"}
    assert found.host("runtime")["stack"].null_count() == 0
    assert {"env", "HF_TOKEN", "HOSTNAME"} <= set(found.sink.info["private_keys"])


def test_a_list_without_categories_has_its_stages(trace):
    found = trace("cpu_fasterrcnn_torch14.json")
    assert found.sink.info["events"] == 2536
    stages = {
        name: round(wall / 1e6, 1) for name, wall in found.host("stage").select("name", "wall_ns").iter_rows()
    }
    assert stages == {
        "preprocess": 44.0,
        "backbone": 2148.6,
        "rpn": 613.2,
        "roi_heads": 775.3,
        "postprocess": 0.1,
    }
    assert found.host("step")["wall_ns"].to_list() == [3593840195]
    assert found.table("nodes").filter(pl.col("path") == "backbone.body.layer1.0.conv1")[
        "type"
    ].to_list() == ["Conv2d"]


def test_communication_and_memory_events_are_counted(trace):
    found = trace("v100_rank1of2_memory_events.json.gz")
    assert found.sink.info["events"] == 216_092
    assert found.sink.rank == 1
    kernels = of_kind(found.table("device_events"), "kernel")
    assert kernels.filter("communication").height == 2020
    assert found.table("memory_changes").height == 28010


@pytest.mark.parametrize("file", ["cpu_only.json.gz", "rank_non_gpu.json.gz", "no_distributed_info.json.gz"])
def test_without_a_gpu_there_are_no_device_events(trace, file):
    assert "device_events" not in trace(file).frames
