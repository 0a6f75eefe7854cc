"""`run_training` for real: every family, every figure that must add up."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from stage_cover import file_of, modules_without_a_stage, phases_ms, stages_ms

from counted_nodes import count_nodes_of_nobody, share_in_modules
from detscope.analyze.summary import RunSummary, summarize
from detscope.config.schema import Settings
from detscope.errors import InputError, MachineError, UsageError
from detscope.report.progress import QuietProgress
from detscope.sessions.train.training import run_training
from schema_check import check_summary

LOSSES = {
    "tiny_fasterrcnn": 4,
    "tiny_maskrcnn": 5,
    "tiny_keypointrcnn": 5,
    "tiny_retinanet": 2,
    "tiny_fcos": 3,
    "tiny_ssd": 2,
    "tiny_ssdlite": 2,
    "tiny_efficientdet": 2,
}


@pytest.fixture(scope="session")
def data_root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("data")


def settings_for(model: str, tmp_path: Path, data_root: Path, **sections: dict) -> Settings:
    plain = {
        "training": {"steps": 4, "warmup_steps": 1, "num_workers": 0, "device": "cpu"},
        "model": {"name": model, "weights": "none"},
        "data": {"root": str(data_root), "images": 8, "image_width": 160, "image_height": 128},
        "record": {"level": "ops", "ops_steps": 2, "telemetry_hz": 0.0},
        "output": {"runs": str(tmp_path / "runs")},
    }
    for section, values in sections.items():
        plain[section] = {**plain[section], **values}
    return Settings.model_validate(plain)


def train(*args, **sections) -> RunSummary:
    summary = summarize(run_training(settings_for(*args, **sections), progress=QuietProgress()))
    check_summary(summary)
    return summary


@pytest.mark.parametrize("model", LOSSES)
def test_in_every_family_everything_adds_up_and_backward_belongs_to_modules(model, tmp_path, data_root):
    summary = train(model, tmp_path, data_root)
    assert summary.status == "ok"
    assert summary.step_ms.n == 4
    phases = phases_ms(summary)
    assert sum(phases.values()) == pytest.approx(summary.step_ms.p50, rel=0.005)
    own_forward = sum(row.self_forward_ms for row in summary.modules)
    own_backward = sum(row.self_backward_ms for row in summary.modules)
    assert own_forward == pytest.approx(phases["forward"], rel=0.01)
    assert own_backward == pytest.approx(phases["backward"], rel=0.01)
    assert sum(stages_ms(summary).values()) == pytest.approx(phases["forward"] + phases["backward"], rel=0.01)
    assert summary.backward_attributed_by == "operators"
    run = tmp_path / "runs" / "latest"
    # the loop itself sums the losses up, in each of two operator steps
    assert count_nodes_of_nobody(run) == {"AddBackward0": 2 * LOSSES[model]}
    assert summary.backward_attributed == pytest.approx(share_in_modules(run))
    assert modules_without_a_stage(summary) == []
    assert summary.loss.last > 0
    assert "random" in summary.weights.kind
    assert summary.content.boxes_per_image >= 1


def test_the_trace_nests_and_agrees_with_the_tables(tmp_path, data_root):
    summary = train("tiny_ssd", tmp_path, data_root, training={"num_workers": 1})
    with gzip.open(file_of(summary, "trace"), "rt") as handle:
        events = json.load(handle)["traceEvents"]
    names = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
    assert {"phases", "stages", "modules", "operators", "loader worker 0"} <= set(names.values())
    for track in ("phases", "stages", "modules"):
        check_nesting([e for e in events if e["ph"] == "X" and names[e["tid"]] == track])
    operators = [e for e in events if e["ph"] == "X" and names[e["tid"]] == "operators"]
    steps = [e for e in events if e["ph"] == "X" and names[e["tid"]] == "steps"]
    first, last = min(e["ts"] for e in steps), max(e["ts"] + e["dur"] for e in steps)
    assert all(first <= event["ts"] <= last for event in operators), "both clocks are aligned"


def check_nesting(events: list[dict]) -> None:
    """Every span lies inside the one that is open above it."""
    assert events
    stack: list[dict] = []
    for event in sorted(events, key=lambda e: (e["ts"], -e["dur"])):
        while stack and stack[-1]["ts"] + stack[-1]["dur"] <= event["ts"] + 1e-3:
            stack.pop()
        if stack:
            assert event["ts"] + event["dur"] <= stack[-1]["ts"] + stack[-1]["dur"] + 1e-3
        stack.append(event)


def test_workers_are_named_and_waited_for(tmp_path, data_root):
    summary = train("tiny_ssd", tmp_path, data_root, training={"num_workers": 2}, record={"level": "phases"})
    loader = summary.loader
    assert [row.worker for row in loader.workers] == [0, 1]
    assert all(row.decode_ms > 0 and row.load_ms > 0 for row in loader.workers)
    assert loader.capacity_images_per_s > 0
    assert loader.num_workers == 2


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_other_precisions_train_too(precision, tmp_path, data_root):
    sections = {"training": {"precision": precision, "steps": 1, "learning_rate": 1e-4}}
    summary = train("tiny_ssd", tmp_path, data_root, **sections, record={"level": "phases"})
    assert summary.precision == precision
    assert summary.loss.last > 0


def test_channels_last_adamw_and_a_cosine_schedule_over_epochs(tmp_path, data_root):
    training = {
        "steps": None,
        "num_epochs": 2,
        "optimizer": "adamw",
        "schedule": "cosine",
        "channels_last": True,
        "lr_warmup_steps": 3,
        "learning_rate": 1e-4,
    }
    summary = train("tiny_ssd", tmp_path, data_root, training=training, record={"level": "phases"})
    assert summary.step_ms.n + summary.warmup.n + summary.overhead_ratio.n == 8


def test_the_stored_configuration_repeats_the_run(tmp_path, data_root):
    from detscope.config.load import load_settings

    settings = settings_for("tiny_ssd", tmp_path, data_root, record={"level": "phases"})
    run = run_training(settings, progress=QuietProgress())
    again = load_settings(run / "config.toml", (), {}).settings
    assert again == settings
    first = summarize(run).loss
    assert summarize(run_training(again, progress=QuietProgress())).loss.first == first.first


def test_a_loss_that_is_not_finite_ends_the_run_and_names_step_and_images(tmp_path, data_root):
    sections = {"training": {"learning_rate": 1e30, "steps": 30}, "record": {"level": "phases"}}
    with pytest.raises(InputError, match=r"not finite at step \d+ \(images \d+, \d+\)"):
        train("tiny_ssd", tmp_path, data_root, **sections)
    (run,) = [path for path in (tmp_path / "runs").iterdir() if not path.is_symlink()]
    assert summarize(run).status == "failed"


def test_what_cannot_run_is_said_before_anything_is_made(tmp_path):
    root = tmp_path / "data"
    with pytest.raises(MachineError, match="cuda:7"):
        train("tiny_ssd", tmp_path, root, training={"device": "cuda:7"})
    with pytest.raises(UsageError, match="batch size 1"):
        train("ssdlite320_mobilenet_v3_large", tmp_path, root, training={"batch_size": 1})
    with pytest.raises(UsageError, match="tiny_ss"):
        train("tiny_sssd", tmp_path, root)
    assert not root.exists()
    assert not (tmp_path / "runs").exists()


def test_a_users_own_model_gets_its_own_stages(tmp_path, data_root):
    example = Path(__file__).parents[2] / "examples" / "own_model.py"
    summary = train(f"{example}:detector", tmp_path, data_root)
    assert {"backbone", "head"} <= set(stages_ms(summary))
    assert {row.name for row in summary.stages} >= {"head.box", "head.label"}
    assert count_nodes_of_nobody(tmp_path / "runs" / "latest") == {"AddBackward0": 2 * 2}
