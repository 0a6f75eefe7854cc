"""Lightning: `Trainer(..., callbacks=[LightningRecording()])`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detscope.integrations.recording import TrainerRecording

if TYPE_CHECKING or "lightning" in sys.modules or "pytorch_lightning" not in sys.modules:
    from lightning.pytorch import Callback
else:  # the same library under its older name
    from pytorch_lightning import Callback


class LightningRecording(Callback):
    """Records `fit`, `validate`, `test` and `predict`; takes what `detscope.watch` takes."""

    def __init__(self, **options: Any) -> None:
        self._recording = TrainerRecording(**options)

    @property
    def run(self) -> Path | None:
        """The run's folder, once the trainer has ended."""
        return self._recording.run

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """Before anything is called, the sanity check too."""
        self._recording.begin(stage)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """After everything."""
        self._recording.end(stage)

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """Training was interrupted or raised: what was recorded until then is kept."""
        self._recording.end(error=exception)
