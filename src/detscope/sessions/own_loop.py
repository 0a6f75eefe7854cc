"""`detscope.Recorder`: a recorder in anybody's loop, whose run has its report when the loop has ended."""

from __future__ import annotations

import sys
from types import TracebackType
from typing import Literal

from detscope.faults import describe_error
from detscope.record.recorder import Recorder


class PublishingRecorder(Recorder):
    """Listens to a training (or inference) loop and writes a run with all its views."""

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        super().__exit__(kind, error, trace)
        if kind is None or not issubclass(kind, KeyboardInterrupt):  # who stops a loop does not want to wait
            from detscope.report.publish import publish_run

            try:
                publish_run(self.run)
            except Exception as problem:  # the recording is safe: never instead of what the loop did
                words = f"detscope: the report of {self.run} could not be written: {describe_error(problem)}"
                print(words, file=sys.stderr)
        return False
