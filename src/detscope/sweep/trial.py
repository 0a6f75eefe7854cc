"""The process of trials: `python -m detscope.sweep.trial LIFELINE RESULTS`, started by a sweep.

Requests are lines of JSON on standard input; every answer is one line on the descriptor RESULTS.
Standard output belongs to whatever the networks print.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from typing import Any

from detscope.sweep.limits import end_with_pipe
from detscope.sweep.outcome import classify_exception

Work = Callable[[Mapping[str, Any]], Mapping[str, Any]]


def serve_requests(work: Work, prepare: Callable[[], None] = lambda: None) -> None:
    """Answer requests until there are no more; `prepare` runs once and is not part of a trial's time."""
    lifeline, results = (int(text) for text in sys.argv[1:3])
    os.set_inheritable(results, False)
    end_with_pipe(lifeline)
    faulthandler.enable()
    faulthandler.register(signal.SIGUSR1, all_threads=True)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the sweep hears Ctrl-C and ends us
    prepare()
    _write_message(results, {"event": "ready"})
    for line in sys.stdin:
        _write_message(results, _answer_request(work, json.loads(line)))
    sys.stdout.flush()
    os._exit(0)  # results are out; torch's own taking down takes a third of a second


def _answer_request(work: Work, request: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {"kind": "ok", "result": dict(work(request))}
    except Exception as error:
        import traceback

        traceback.print_exc()
        found = classify_exception(error)
        answer = {"kind": found.kind, "detail": found.detail, "message": found.message}
        return answer | {"luck": found.luck}


def _write_message(descriptor: int, message: Mapping[str, Any]) -> None:
    data = json.dumps(message, allow_nan=False).encode() + b"\n"
    while data:
        data = data[os.write(descriptor, data) :]


def _import_torch() -> None:
    """The slow part of a process, and its thread pools, before any limit is set."""
    import torch

    torch.nn.functional.conv2d(torch.rand(1, 3, 8, 8), torch.rand(4, 3, 3, 3))
    import torchvision  # noqa: F401


def main() -> None:
    """The process that measures networks."""
    from detscope.sweep.measure import measure_trial

    serve_requests(measure_trial, _import_torch)


if __name__ == "__main__":
    main()
