"""What one rank alone does with the same settings, where such a run lies beside: the measure of scaling."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detscope.analyze.summary import summarize
from detscope.errors import InputError
from detscope.runs.reader import Run, load_run

# settings that may differ: they say how many ranks there are, how long it is measured, or where files go
_FREE = {
    "training": {
        "ranks",
        "nodes",
        "rendezvous",
        "rank_timeout_s",
        "find_unused_parameters",
        "steps",
        "num_epochs",
        "warmup_steps",
        "tensorboard",
        "checkpoints",
        "resume",
    },
    "record": {"ops_steps", "bare_every", "memory_steps", "telemetry_hz", "traced_steps"},
}
_COMPARED = ("training", "model", "data", "record")
MOST_RUNS = 200


def one_rank_run(runs: Path, settings: Mapping[str, Any], device: str) -> dict[str, Any] | None:
    """The newest run of one rank with these settings, and its images/s; None where there is none."""
    kind = device.split(":")[0]
    for path in sorted(runs.glob("*-train-*/run.json"), reverse=True)[:MOST_RUNS]:
        try:
            found = load_run(path.parent)
        except InputError:  # a run that was written by others, or damaged: not the one that is looked for
            continue
        if _fits(found, settings, kind):
            speed = summarize(found).get("images_per_s")
            if speed:
                return {"run": found.folder.name, "images_per_s": speed}
    return None


def _fits(run: Run, settings: Mapping[str, Any], device: str) -> bool:
    own = run.info.get("settings")
    if run.status != "ok" or run.info.get("ranks") or not isinstance(own, Mapping):
        return False
    if str(run.info.get("device")).split(":")[0] != device:
        return False
    return all(_chosen(own, section) == _chosen(settings, section) for section in _COMPARED)


def _chosen(settings: Mapping[str, Any], section: str) -> dict[str, Any]:
    return {
        key: value
        for key, value in (settings.get(section) or {}).items()
        if key not in _FREE.get(section, ())
    }
