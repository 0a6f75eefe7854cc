"""Ultralytics: `attach(YOLO("yolo11n.yaml"))`. Callbacks by name: nothing of that library is imported."""

from __future__ import annotations

import sys
from typing import Any

from detscope.integrations.recording import TrainerRecording

# what is recorded, from which event to which; validation inside of a training is part of it
_EVENTS = {
    "train": ("on_pretrain_routine_start", "teardown"),
    "val": ("on_val_start", "on_val_end"),
    "predict": ("on_predict_start", "on_predict_end"),
}


def attach(yolo: Any, **options: Any) -> TrainerRecording:
    """Record `train`, `val` and `predict` of this model; takes what `detscope.watch` takes."""
    recording = TrainerRecording(**options)
    for what, (first, last) in _EVENTS.items():
        yolo.add_callback(first, lambda _engine, what=what: recording.begin(what))
        yolo.add_callback(last, lambda _engine, what=what: recording.end(what, sys.exception()))
    return recording
