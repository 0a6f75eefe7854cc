"""Device use of files that others recorded, against published figures and our own earlier readings."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path

import pytest

from detscope.analyze.device.figures import DeviceFigures
from detscope.analyze.summary import RunSummary, summarize
from detscope.sessions.importing import run_import

US = 1000


@pytest.fixture(scope="module")
def summary(recorded, tmp_path_factory):
    """The summary of a recorded file; each is imported once."""
    out = tmp_path_factory.mktemp("imported")

    @lru_cache
    def of(*names: str) -> RunSummary:
        files = [Path(recorded) / "traces" / name for name in names]
        (run,) = run_import(files, out).runs
        return summarize(run)

    return of


def only_device(found: RunSummary) -> DeviceFigures:
    (device,) = found.device_use.devices
    return device


def test_the_published_utilisation_of_a_v100_training_comes_out(summary):
    found = summary("kineto/v100_resnet50_train_workers0.json.gz")
    device = found.device_use
    assert round(device.utilisation.kernels, 4) == 0.5551
    assert round(device.sm_efficiency.value, 4) == 0.5468
    assert round(device.occupancy.value, 4) == 0.4913
    assert device.utilisation.kernels_ns == 591_532 * US
    assert device.utilisation.window_ns == 1_065_553 * US
    assert round(device.utilisation.tensorboard.kernels, 4) == 0.5551
    assert device.utilisation.linked_ns == device.utilisation.kernels_ns, "all were launched in the window"
    assert 0.5551 < device.utilisation.with_copies < 0.57
    assert device.steps == found.imported.steps == 6


def test_the_published_average_step_of_a_v100_training_comes_out_role_by_role(summary):
    breakdown = summary("kineto/v100_resnet50_train_workers0.json.gz").device_use.breakdown
    average = {role.name: role.average_us for role in breakdown.roles} | {"step": breakdown.average_step_us}
    published = {
        "step": 177592,
        "kernel": 98589,
        "memcpy": 1915,
        "memset": 89,
        "runtime": 2908,
        "loader": 59262,
        "cpu": 13674,
        "other": 1156,
    }
    for role, us in published.items():
        assert average[role] == pytest.approx(us, abs=1), role


def test_idle_time_of_the_v100_training_is_the_loaders_and_the_verdict_says_so(summary):
    found = summary("kineto/v100_resnet50_train_workers0.json.gz")
    idle = found.device_use.idle
    assert idle.total_ns == sum(cause.idle_ns for cause in idle.causes)
    assert idle.total_ns + found.device_use.utilisation.with_copies_ns == idle.window_ns
    assert max(idle.causes, key=lambda cause: cause.idle_ns).name == "data"
    assert "loader" in found.verdict
    assert found.device_use.blame[0].cause == "data"


def test_a_training_starved_by_its_loader_is_called_waiting_for_data(summary):
    found = summary("kineto/rtx2080ti_resnet_train.json.gz")
    assert "waiting for data" in found.verdict
    span = only_device(found).span
    assert (span.span_ns, span.busy_ns) == (14_522_911 * US, 4_733_822 * US)


@pytest.mark.parametrize(
    ("name", "total_ms", "busy_ms", "idle_ms"),
    [
        ("h100_Falconsai_nsfw_image_detection", 7.559844, 1.225309, 6.334535),
        ("h100_facebook_timesformer-base-finetuned-k400", 159.992427, 158.433173, 1.559254),
        ("h100_gaunernst_bert-small-uncased", 3.907825, 0.309438, 3.598387),
        ("mi210_gpu_only", 5.979503, 5.343370, 0.636133),
        ("torch_compile_triton", 12.549032, 12.549021, 0.000011),
    ],
)
def test_published_span_busy_and_idle_times_come_out_to_a_microsecond(
    summary, name, total_ms, busy_ms, idle_ms
):
    span = only_device(summary(f"kineto/{name}.json.gz")).span
    assert span.span_ns / 1e6 == pytest.approx(total_ms, abs=1e-3)
    assert span.busy_ns / 1e6 == pytest.approx(busy_ms, abs=1e-3)
    assert span.idle_ns / 1e6 == pytest.approx(idle_ms, abs=1e-3)


def test_our_own_readings_of_two_v100_jobs_stay(summary):
    ddp = only_device(summary("kineto/v100_ddp_train_ns.json.gz"))
    assert ddp.events == 6095
    # the earlier reading rounded times of a date to 0.25 us; this one is exact
    assert ddp.span.span_ns / 1e6 == pytest.approx(480.02925, abs=1e-3)
    assert ddp.span.busy_ns / 1e6 == pytest.approx(472.4625, abs=0.01)
    two = only_device(summary("kineto/v100_rank1of2_memory_events.json.gz")).span
    assert (two.span_ns, two.busy_ns, two.communication_ns) == (
        1_732_965 * US,
        1_000_613 * US,
        357_343 * US,
    )


def test_events_of_a_job_with_six_streams_are_all_counted_linked_or_not(summary):
    device = summary("kineto/a100_6streams_unlinked.json.gz").device_use
    assert device.devices[0].streams == 6
    assert device.honesty.unlinked == 872
    assert device.utilisation.linked < device.utilisation.kernels
    assert any("872" in remark for remark in device.honesty.remarks)
    assert len([row for row in device.copies.rows if row.direction != "set"]) == 4


@pytest.mark.parametrize("name", ["cpu_only", "rank_non_gpu", "no_distributed_info"])
def test_without_a_gpu_the_answer_is_cannot_tell_and_not_zero(summary, name):
    found = summary(f"kineto/{name}.json.gz")
    assert found.device_use.utilisation is None
    assert any("device use" in reason for reason in found.cannot_tell)


def test_two_ranks_are_two_devices_with_a_word_on_who_waits(summary):
    device = summary("kineto/multirank_rank0.json.gz", "kineto/multirank_rank1.json.gz").device_use
    assert [(row.rank, row.steps) for row in device.devices] == [(0, 2), (1, 2)]
    assert device.straggler.why
    assert device.communication.exposed_ns <= device.communication.busy_ns


def test_two_ranks_have_the_view_of_ranks_and_it_agrees_with_that_of_devices(summary):
    found = summary("kineto/multirank_rank0.json.gz", "kineto/multirank_rank1.json.gz")
    assert found.ranks.count == 2
    for row in found.ranks.rows:
        assert sum(phase.ms for phase in row.phases) == pytest.approx(row.step_ms, rel=0.005)
    talk, devices = found.ranks.communication, found.device_use.communication
    assert talk.hidden_share == pytest.approx(devices.hidden_share)
    assert talk.ms * talk.n == pytest.approx(devices.busy_ns / 1e6)
    assert talk.wait_for_others_ms is None


def test_kernels_alone_and_kernels_with_copies_stand_beside_each_other(summary):
    found = summary("nsys/h100_2gpu_1s.sqlite").device_use
    use = found.utilisation
    assert round(use.kernels, 4) == 0.0233
    assert round(use.with_copies, 3) == 0.993
    first = found.devices[0]
    assert first.kernels_ns / 1e6 == pytest.approx(22.385, abs=1e-3)
    assert first.window_ns / 1e6 == pytest.approx(960.485, abs=1e-3)
    assert first.with_copies_ns / 1e6 == pytest.approx(962.890, abs=1e-3)
    assert first.with_copies_window_ns / 1e6 == pytest.approx(969.448, abs=1e-3)
    assert found.verdict.bound == "copies"
    assert use.definition.kernels and use.definition.with_copies


@pytest.mark.parametrize(
    ("name", "busy_ms", "window_ms"),
    [("t4_power_iteration", 1131.743, 1790.608), ("a100_cloverleaf", 294.405, 342.341)],
)
def test_kernel_times_of_nsight_systems_files_stay(summary, name, busy_ms, window_ms):
    use = summary(f"nsys/{name}.sqlite").device_use.utilisation
    assert use.kernels_ns / 1e6 == pytest.approx(busy_ms, abs=1e-3)
    assert use.window_ns / 1e6 == pytest.approx(window_ms, abs=1e-3)


def test_the_published_idle_share_of_a_healthy_run_comes_out(summary):
    idle = summary("nsys/healthy_1pct.sqlite").device_use.idle
    assert round(100 * idle.total, 4) == 0.9876


@pytest.mark.parametrize(("name", "percent", "digits"), [("conv2d", 3.37, 2), ("bert_attention", 6.1317, 4)])
def test_cycle_weighted_counters_of_nsight_compute_come_out(summary, name, percent, digits):
    cores = summary(f"ncu/{name}.csv").device_use.cores
    wanted = "sm__throughput.avg.pct_of_peak_sustained_elapsed"
    figure = next(counter for counter in cores.counters if counter.name == wanted)
    assert round(100 * figure.value, digits) == percent
    assert figure.coverage == pytest.approx(1.0)
    assert figure.of_window is None, "a listing of counters has no time line"


def test_stages_of_a_detector_on_a_cpu_come_out(summary):
    found = summary("kineto/cpu_fasterrcnn_torch14.json")
    stages = {stage.name: stage.total_ms for stage in found.stages}
    expected = {"preprocess": 44.0, "backbone": 2148.6, "rpn": 613.2, "roi_heads": 775.3, "postprocess": 0.1}
    assert {name: round(stages[name], 1) for name in expected} == expected
