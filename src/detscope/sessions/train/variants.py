"""`--try`: run what the memory advice says, and set its prediction beside what was measured."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from detscope.analyze.summary import summarize
from detscope.config.schema import Settings
from detscope.errors import UsageError
from detscope.runs.atomic import write_text
from detscope.runs.reader import load_run
from detscope.sessions.train.training import Progress, run_training

Advice = dict[str, Any]
# variant -> how the settings change when its advice is followed
VARIANTS: dict[str, Callable[[Settings, Advice], Settings]] = {
    "bf16": lambda settings, _: _training(settings, precision="bf16"),
    "checkpoint": lambda settings, advice: _training(settings, recompute=list(advice["paths"])),
    "batch": lambda settings, advice: _training(settings, batch_size=advice["batch_size"]),
}


def variants_in(text: str) -> tuple[str, ...]:
    """The variants named in `bf16,checkpoint`."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in VARIANTS:
            raise UsageError(f"--try {name!r} is not a variant", f"one or more of {', '.join(VARIANTS)}")
    if not names:
        raise UsageError("--try names no variant", f"one or more of {', '.join(VARIANTS)}")
    return names


def train_and_try(settings: Settings, text: str, *, progress: Progress, notes: Sequence[str]) -> Path:
    """Train as asked with memory recorded, then with each variant; gives the first run."""
    variants = variants_in(text)
    settings = settings.model_copy(update={"record": settings.record.model_copy(update={"memory": True})})
    base = run_training(settings, progress=progress, notes=notes)
    if load_run(base).status == "ok":
        try_variants(settings, base, variants, progress)
    return base


def try_variants(settings: Settings, base: Path, variants: Sequence[str], progress: Progress) -> None:
    """Run each variant as a run of its own; the comparison is kept in the base run."""
    before = summarize(base)
    advice = {row["rule"]: row for row in (before.get("memory") or {}).get("advice") or []}
    rows = []
    for name in variants:
        if name not in advice:
            rows.append({"variant": name, "why": "this run leaves nothing to change"})
            progress.note(f"--try {name}: skipped, this run leaves nothing to change")
            continue
        progress.note(f"trying {name}")
        folder = run_training(VARIANTS[name](settings, advice[name]), progress=progress)
        rows.append(_comparison(name, before, summarize(folder), advice[name]))
    _keep(base, rows)


def _training(settings: Settings, **changes: Any) -> Settings:
    return settings.model_copy(update={"training": settings.training.model_copy(update=changes)})


def _comparison(
    name: str, before: dict[str, Any], after: dict[str, Any], predicted: Advice
) -> dict[str, Any]:
    measured = before["memory"]["peak_bytes"] - after["memory"]["peak_bytes"]
    saving = predicted["saves_bytes"]
    step, was = after["step_ms"]["p50"], before["step_ms"]["p50"]
    return {
        "variant": name,
        "predicted_saving_bytes": saving,
        "measured_saving_bytes": measured,
        "error_share": abs(saving - measured) / abs(measured) if measured else None,
        "predicted_peak_bytes": predicted["peak_bytes"],
        "peak_bytes": after["memory"]["peak_bytes"],
        "step_ratio": step / was if step and was else None,
        "run": after["run"],
        "why": None,
    }


def _keep(base: Path, rows: list[dict[str, Any]]) -> None:
    """Write the comparison into the base run, where every view finds it."""
    info = {**load_run(base).info, "memory_tried": rows}
    write_text(base / "run.json", json.dumps(info, indent=1, allow_nan=False, default=str) + "\n")
