"""`--try`: run what the memory advice says, and set its prediction beside what was measured."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from detscope.analyze.advice.case import Advice
from detscope.analyze.summary import RunSummary, summarize
from detscope.config.schema import Settings
from detscope.errors import UsageError
from detscope.report.progress import Progress
from detscope.report.publish import publish_page
from detscope.runs.reader import load_run
from detscope.runs.writer import update_info
from detscope.sessions.train.training import run_training

# variant -> what changes in [training] when its advice is followed
VARIANTS: dict[str, Callable[[Advice], dict[str, Any]]] = {
    "bf16": lambda _: {"precision": "bf16"},
    "checkpoint": lambda advice: {"recompute": list(advice.paths)},
    "batch": lambda advice: {"batch_size": advice.batch_size},
}


def parse_variants(text: str) -> tuple[str, ...]:
    """The variants named in `bf16,checkpoint`."""
    names = tuple(name.strip() for name in text.split(",") if name.strip())
    for name in names:
        if name not in VARIANTS:
            raise UsageError(f"--try {name!r} is not a variant", f"one or more of {', '.join(VARIANTS)}")
    if not names:
        raise UsageError("--try names no variant", f"one or more of {', '.join(VARIANTS)}")
    return names


def train_and_try(settings: Settings, text: str, *, progress: Progress, notes: Sequence[str]) -> Path:
    """Train as asked with memory recorded, then with each variant, compared in the first run; gives that."""
    variants = parse_variants(text)
    settings = settings.with_section("record", memory=True)
    base = run_training(settings, progress=progress, notes=notes)
    if load_run(base).status != "ok":
        return base
    before = summarize(base)
    advice = {row.rule: row for row in before.advice if row.about == "memory"}
    rows = []
    for name in variants:
        if name not in advice:
            rows.append({"variant": name, "why": "this run leaves nothing to change"})
            progress.note(f"--try {name}: skipped, this run leaves nothing to change")
            continue
        progress.note(f"trying {name}")
        changed = settings.with_section("training", **VARIANTS[name](advice[name]))
        after = summarize(run_training(changed, progress=progress))
        rows.append({"variant": name, **_compare_memory(before, after, advice[name])})
    update_info(base, {"memory_tried": rows})
    publish_page(base)
    return base


def _compare_memory(before: RunSummary, after: RunSummary, predicted: Advice) -> dict[str, Any]:
    assert before.memory is not None and after.memory is not None  # both were recorded with --memory
    measured = before.memory.peak_bytes - after.memory.peak_bytes
    saving = predicted.saves_bytes or 0
    step, was = after.step_ms.p50, before.step_ms.p50
    return {
        "predicted_saving_bytes": saving,
        "measured_saving_bytes": measured,
        "error_share": abs(saving - measured) / abs(measured) if measured else None,
        "predicted_peak_bytes": predicted.peak_bytes,
        "peak_bytes": after.memory.peak_bytes,
        "step_ratio": step / was if step and was else None,
        "run": after.run,
        "why": None,
    }
