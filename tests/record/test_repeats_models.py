"""Real models: what a run has of repeated steps is what the general replay makes of the same events."""

from __future__ import annotations

import pytest
import torch

from detscope.loops.train import TrainHooks, TrainPlan, train_model
from detscope.record.recorder import Recorder
from detscope.record.steps.replay import replay_events
from detscope.record.steps.rows import make_span_rows, make_step_rows
from detscope.record.steps.tables import StepTables
from detscope.runs.reader import load_run
from detscope.zoo.contract import BuildOptions
from detscope.zoo.registry import build_model


def batches(count):
    generator = torch.Generator().manual_seed(3)
    box = torch.tensor([[8.0, 8.0, 60.0, 50.0]])
    target = {"boxes": box, "labels": torch.tensor([1]), "masks": torch.ones(1, 96, 96, dtype=torch.uint8)}
    return [([torch.rand(3, 96, 96, generator=generator)], [target]) for _ in range(count)]


@pytest.mark.parametrize("name", ["tiny_fasterrcnn", "tiny_maskrcnn", "tiny_ssd"])
def test_rows_of_a_recording_are_those_of_the_general_replay(name, tmp_path, monkeypatch):
    built = build_model(name, BuildOptions(num_classes=3, weights="none", seed=5))
    model = built.module.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5)
    expected_steps, expected_spans, kept = [], [], []
    plain = StepTables._write_step

    def write(tables, step):
        nodes = tables._nodes
        data = nodes.phase_node("data").number * 4
        events = [data, step.start_ns, -1, data + 1, step.waited_ns, -1, *step.events]
        account = replay_events(events, nodes, step.start_ns, step.end_ns)
        expected_steps.extend(make_step_rows(step.index, step.epoch, step.mode, account))
        expected_spans.extend(make_span_rows(step.index, nodes, account))
        plain(tables, step)
        kept.append(sum(len(steps) for _, steps in tables._repeats._kept.values()))

    monkeypatch.setattr(StepTables, "_write_step", write)
    recorder = Recorder(
        model,
        optimizer,
        tmp_path,
        stages=built.stages,
        observers=built.observers,
        warmup_steps=0,
        bare_every=0,
        traced_steps=1,
        telemetry_hz=0,
    )
    with recorder:
        train_model(model, batches(6), optimizer, TrainPlan(), hooks=TrainHooks(recorder.steps))
    run = load_run(recorder.run)
    assert run.table("steps").rows() == expected_steps
    assert run.table("spans").rows() == expected_spans
    assert max(kept) > 0  # else this compares the general replay with itself
