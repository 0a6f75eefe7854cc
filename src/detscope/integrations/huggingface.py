"""transformers: `Trainer(..., callbacks=[HuggingFaceRecording()])`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from detscope.integrations.recording import TrainerRecording


class HuggingFaceRecording(TrainerCallback):
    """Records `trainer.train()`, evaluation inside of it counted apart; takes what `detscope.watch` takes."""

    def __init__(self, **options: Any) -> None:
        self._recording = TrainerRecording(**options)

    @property
    def run(self) -> Path | None:
        """The run's folder, once training has ended."""
        return self._recording.run

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Before the first batch is asked for."""
        self._recording.begin("train")

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """After the last evaluation; where training raised, the run is written when the process ends."""
        self._recording.end("train")
