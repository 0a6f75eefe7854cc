"""Continuing a training in a run of its own: what must be the same, and the curve so far."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detscope.config.schema import Settings
from detscope.errors import DetscopeError, InputError, InterruptedRun, MachineError, UsageError
from detscope.record.memory.failures import find_out_of_memory
from detscope.runs.folder import find_run
from detscope.runs.reader import Run, load_run
from detscope.sessions.train.checkpoints import Checkpoint, latest_checkpoint, share_checkpoints

if TYPE_CHECKING:
    from detscope.record.recorder import Recorder

# What may differ from the run that is continued: it changes neither the model nor the order of the data.
# The learning rate may, because a loss that was not finite needs another one; the run says so.
_FREE = {
    "training.resume",
    "training.recipe",
    "training.num_epochs",
    "training.learning_rate",
    "training.num_workers",
    "training.prefetch_factor",
    "training.pin_memory",
    "training.device",
    "training.threads",
    "training.checkpoints",
    "training.tensorboard",
    "training.warmup_steps",
    "evaluation.every",
    "data.root",
}
_FREE_SECTIONS = ("record", "output", "inference")
_WORTH_TELLING = ("training.num_epochs", "training.learning_rate", "training.device")


@dataclass(frozen=True)
class EarlierRun:
    """The run that is continued, and where from."""

    run: Run
    checkpoint: Checkpoint
    changed: tuple[str, ...]  # "training.num_epochs: 4 -> 8"


def find_earlier(settings: Settings) -> EarlierRun | None:
    """The run that `training.resume` names; None where the training begins anew."""
    name = settings.training.resume
    if name is None:
        return None
    run = load_run(find_run(name, Path(settings.output.runs)))
    checkpoint = latest_checkpoint(run.folder)
    if checkpoint is None:
        raise InputError(
            f"{run.folder} has no checkpoint to resume from",
            "checkpoints are made after every epoch, with --eval-every or more than one epoch",
        )
    differing = _find_differences(run.info.get("settings") or {}, settings.model_dump())
    refused = [
        text
        for key, text in differing.items()
        if key not in _FREE and key.partition(".")[0] not in _FREE_SECTIONS
    ]
    if refused:
        raise UsageError(
            f"cannot resume {run.folder.name} with other settings: {'; '.join(refused)}",
            "leave them as they were, or start a new training",
        )
    told = tuple(text for key, text in differing.items() if key in _WORTH_TELLING)
    return EarlierRun(run, checkpoint, told)


def _find_differences(old: dict[str, Any], new: dict[str, Any]) -> dict[str, str]:
    """Keys that both know and that differ; a key that one of them does not know has its default there."""
    found = {}
    for section, values in new.items():
        before = old.get(section) or {}
        for key, value in values.items():
            if key in before and before[key] != value:
                found[f"{section}.{key}"] = f"{section}.{key}: {before[key]} -> {value}"
    return found


def continue_curve(recorder: Recorder, earlier: EarlierRun) -> None:
    """Take over the curve and the checkpoints; steps and passes are numbered on."""
    import polars as pl

    position = earlier.checkpoint.position
    # an evaluation that was under way is done again
    until = {
        "losses": position.steps,
        "accuracy": position.steps + bool(earlier.checkpoint.state["evaluated"]),
    }
    for name, end in until.items():
        recorder.writer.append_frame(name, earlier.run.table(name).filter(pl.col("step") < end))
    share_checkpoints(earlier.run.folder, recorder.run)
    recorder.writer.info["resumed_from"] = {
        "run": earlier.run.folder.name,
        "step": position.steps,
        "epoch": position.epochs,
        "changed": list(earlier.changed),
    }
    recorder.writer.save_info()
    told = f"; changed: {', '.join(earlier.changed)}" if earlier.changed else ""
    recorder.note(f"continues {earlier.run.folder.name} from step {position.steps}{told}")


@contextmanager
def tell_how_to_resume(recorder: Recorder, device: str, stopped_by: list[int]) -> Iterator[None]:
    """However a training ends before its end: say what is kept and how to go on."""
    try:
        yield
    except InterruptedRun as error:
        again = InterruptedRun(error.message, _resume_command(recorder) or error.hint)
        if stopped_by:
            again.exit_code = 128 + stopped_by[0]
        raise again from None
    except (DetscopeError, RuntimeError, MemoryError, OSError) as error:
        how = _resume_command(recorder)
        failure = find_out_of_memory(error, device) if recorder.begun else None
        if failure is not None:
            kept = f"; or free memory and go on from the last checkpoint: {how}" if how else ""
            raise MachineError(
                f"out of memory on {failure.device} at step {recorder.steps_done} of {recorder.run}: "
                f"{failure.message[:200]}",
                f"use a smaller --batch-size or --image-size{kept}",
            ) from error
        if how is not None and isinstance(error, DetscopeError):
            error.hint = f"{error.hint}; go on from the last checkpoint: {how}"
        raise


def _resume_command(recorder: Recorder) -> str | None:
    if not recorder.begun or latest_checkpoint(recorder.run) is None:
        return None
    return f"detscope train --resume {recorder.run}"
