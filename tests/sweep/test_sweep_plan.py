from __future__ import annotations

import signal
from pathlib import Path

import pytest
from sweep_samples import write_plan

from detscope.errors import InputError, SettingsError, UsageError
from detscope.sessions.sweep import describe_sweep
from detscope.sweep.plan import SweepPlan, load_plan
from detscope.sweep.schedule import StopSignals


def plan_of(folder: Path, text: str) -> SweepPlan:
    path = folder / "plan.toml"
    path.write_text(text, encoding="utf-8")
    return load_plan(path)


def points(plan: SweepPlan, *names: str) -> list[tuple[object, ...]]:
    return [tuple(trial.values[name] for name in names) for trial in plan.trials]


def test_a_grid_is_all_combinations_with_batches_ascending_within_a_network(tmp_path: Path) -> None:
    axes = 'network = ["b", "a"]\nbatch_size = [4, 1, 2]\nstage = ["training", "inference"]'
    plan = plan_of(tmp_path, f"[axes]\n{axes}\n")
    assert points(plan, "network", "stage", "batch_size")[:7] == [
        ("b", "training", 1),
        ("b", "training", 2),
        ("b", "training", 4),
        ("b", "inference", 1),
        ("b", "inference", 2),
        ("b", "inference", 4),
        ("a", "training", 1),
    ]
    assert len(plan.trials) == 12


def test_lists_stand_beside_the_grid_and_share_its_single_values(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        '[axes]\nnetwork = ["a"]\nbatch_size = [1, 2]\nprecision = "bf16"\n'
        '[[trials]]\nnetwork = "c"\nbatch_size = [8, 16]\n[[trials]]\nnetwork = "a"\nbatch_size = 2\n',
    )
    assert points(plan, "network", "batch_size", "precision") == [
        ("a", 1, "bf16"),
        ("a", 2, "bf16"),
        ("c", 8, "bf16"),
        ("c", 16, "bf16"),
    ]


def test_excludes_take_values_patterns_and_comparisons(tmp_path: Path) -> None:
    plan = plan_of(
        tmp_path,
        '[axes]\nnetwork = ["vgg11", "vgg16", "small"]\nbatch_size = [1, 2, 4]\n'
        '[[exclude]]\nnetwork = "vgg*"\nbatch_size = ">= 2"\n[[exclude]]\nnetwork = "vgg16"\n',
    )
    assert points(plan, "network", "batch_size") == [("vgg11", 1), ("small", 1), ("small", 2), ("small", 4)]
    assert plan.excluded == 5


def test_random_order_depends_on_its_seed_alone(tmp_path: Path) -> None:
    def order(seed: int) -> list[tuple[object, ...]]:
        text = '[axes]\nnetwork = ["a"]\nbatch_size = [1, 2, 3, 4, 5, 6]\n'
        return points(plan_of(tmp_path, f'{text}[sweep]\norder = "random"\nseed = {seed}\n'), "batch_size")

    assert order(1) == order(1) != order(2)
    assert sorted(order(1)) == [(number,) for number in range(1, 7)]


def test_repetitions_come_round_by_round(tmp_path: Path) -> None:
    plan = plan_of(tmp_path, '[sweep]\nrepetitions = 2\n[axes]\nnetwork = "a"\nbatch_size = [1, 2]\n')
    assert [(trial.repetition, trial.batch_size) for trial in plan.trials] == [(0, 1), (0, 2), (1, 1), (1, 2)]


def test_all_problems_of_a_plan_come_at_once_with_what_was_meant(tmp_path: Path) -> None:
    text = """
[swep]
name = "x"
[axes]
bach_size = [1]
batch_size = [0, "two"]
stage = "trainig"
device = "gpu"
time_s = 3
[limits]
memory = "lots"
max_steps = 3
[measure]
min_steps = 9
max_steps = 8
[[exclude]]
batch_size = "over 9"
"""
    with pytest.raises(SettingsError) as caught:
        plan_of(tmp_path, text)
    lines = [line.partition("plan.toml: ")[2] for line in caught.value.problems]
    assert lines == [
        "swep: no such section; did you mean sweep?",
        "axes.bach_size: no such axis; did you mean batch_size?",
        "axes.batch_size: expected a whole number of at least 1, got 0",
        'axes.batch_size: expected a whole number of at least 1, got "two"',
        'axes.stage: expected one of "training", "inference", got "trainig"; did you mean training?',
        'axes.device: expected "auto", "cpu", "cuda:0" or "LABEL/cuda:0", got "gpu"',
        "axes.time_s: no such axis; it belongs in [limits]",
        'limits.memory: expected a size such as "4GiB", got "lots"',
        "limits.max_steps: no such key; it belongs in [measure]",
        '[[exclude]] 1: batch_size: expected a whole number of at least 1, got "over 9"',
        'axes.network: a plan needs networks, as in network = ["resnet18"]',
        "measure.min_steps: expected at most max_steps (8), got 9",
    ]


def test_a_pattern_finds_the_folders_beside_the_plan(tmp_path: Path) -> None:
    for name in ("nets/r-p30", "nets/r-p50"):
        (tmp_path / name).mkdir(parents=True)
    plan = plan_of(tmp_path, '[axes]\nnetwork = "nets/*"\n')
    assert points(plan, "network") == [("nets/r-p30",), ("nets/r-p50",)]
    with pytest.raises(UsageError, match="no folder of a network matches"):
        plan_of(tmp_path, '[axes]\nnetwork = "nowhere/*"\n')


def test_a_dry_run_tells_count_time_and_disk_and_writes_nothing(tmp_path: Path) -> None:
    plan = load_plan(write_plan(tmp_path, 'network = ["a", "b"]\nprefetch_factor = 2\nnum_workers = [0, 1]'))
    found = describe_sweep(plan)
    assert (found["trials"], len(found["cannot_run"]), found["devices"]) == (
        4,
        2,
        [{"device": "cpu", "trials": 2}],
    )
    assert found["estimated_s"] > 2 * 10
    assert 60_000 < found["disk_bytes"] < 100_000
    assert [path.name for path in tmp_path.iterdir()] == ["plan.toml"]


def test_networks_that_are_not_there_are_all_named(tmp_path: Path) -> None:
    plan = load_plan(write_plan(tmp_path, 'network = ["nets/a", "resnet18", "mine.py:make"]'))
    with pytest.raises(InputError) as caught:
        describe_sweep(plan)
    assert [line.rpartition("/")[2] for line in caught.value.message.splitlines()] == ["mine.py", "a"]


@pytest.mark.processes
def test_a_second_signal_stops_at_once() -> None:
    with StopSignals() as signals:
        signal.raise_signal(signal.SIGINT)
        assert signals.stop.is_set()
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
