"""`detscope infer --batch-sizes 1,2,4 --threads 1,2 --precision fp32,bf16`: every combination, one table."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

from detscope.analyze.scan import InferenceScan, ScanRow, make_scan, scan_row
from detscope.config.schema import Settings
from detscope.errors import DetscopeError, InterruptedRun
from detscope.report.progress import Progress
from detscope.runs.reader import load_run


def run_scan(
    asked: Sequence[Settings],
    *,
    progress: Progress,
    notes: Sequence[str] = (),
    keep: Callable[[InferenceScan], None] = lambda _: None,
) -> InferenceScan:
    """Measure one after the other; that one combination cannot run is its own row and not the others'.

    `keep` gets what is known after each of them, so that a stop loses nothing that was measured.
    """
    from detscope.analyze.summary import summarize
    from detscope.sessions.infer.inference import run_inference

    rows: list[ScanRow] = []
    failure: DetscopeError | None = None
    device, images = None, None
    for number, settings in enumerate(asked, start=1):
        own = settings.inference
        setting = (own.batch_size, own.threads, own.precision)
        words = f"batch {own.batch_size}, {own.threads or 'auto'} threads, {own.precision}"
        progress.note(f"{number} of {len(asked)}: {words}")
        try:
            run = run_inference(settings, progress=progress, notes=notes)
        except InterruptedRun:
            raise
        except DetscopeError as error:
            failure = failure or error
            threads, precision = setting[1:]
            why = error.message.splitlines()[0]
            rows.append(ScanRow(batch_size=own.batch_size, threads=threads, precision=precision, why=why))
        else:
            found = summarize(load_run(run))
            device, images = found.device or device, found.images or images
            rows.append(scan_row(*setting, found))
        keep(make_scan(settings.model.name, device, images, rows))
    if failure is not None and all(row.run is None for row in rows):
        raise failure
    return make_scan(asked[0].model.name, device, images, rows)


def scan_folder(runs: str, model: str) -> Path:
    """A folder of its own for what a scan writes, beside its runs."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
    name = "".join(letter if letter.isalnum() or letter in "._-" else "-" for letter in model)[-60:]
    return Path(runs) / f"{stamp}-scan-{name}"
