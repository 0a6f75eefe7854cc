"""What a run says of a script that has ended: how, with which parts, and where `other` went."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

import polars as pl

from detscope.faults import error_text
from detscope.machine.facts import gather_facts
from detscope.record.script.endings import ScriptStopped
from detscope.record.script.options import ScriptOptions
from detscope.record.script.pacing import StepPacer
from detscope.record.script.recorder import EVALUATION
from detscope.record.steps.schedule import RECORDED
from detscope.runs.definitions import DEFINITIONS
from detscope.runs.writer import RunWriter, read_table

if TYPE_CHECKING:
    from detscope.record.script.recording import ScriptRecording

COMPILED = "torch.compile: modules inside compiled code cannot be told apart, so only phases are recorded"
SCRIPTED = (
    "TorchScript: modules inside cannot be told apart, so only phases are recorded, and no memory by blocks"
)
NEW_MODULES = (
    "modules of the model were added or replaced while it ran: the new ones' time is part of what they are in"
)
NO_MODULE = (
    "cannot tell forward from other: no module was called from Python (compiled code, or plain functions)"
)
_REPLICAS = (
    "DataParallel: copies of the model run in threads of their own, one per device: their modules cannot be"
    " told apart, and times of a device are the first one's"
)
_SHARDS = (
    "FSDP: parameters are gathered and gradients scattered beside the model's own stream: a module's time"
    " holds its waiting for them"
)
NO_STEP = "no step was seen: the script ended before it had called a model and gone on"
OWN_PROFILER = (
    "the script has a profiler of its own, and only one can run at a time: operators and memory by blocks are"
    " not recorded from then on"
)
_LARGE = 0.05  # share of the step from which `other` is worth a word
_ENOUGH_LOOKS = 10
_RARE = 0.5  # share of the steps up to which it is said in how many something was seen


def find_outcome(
    error: BaseException | None, failure: BaseException | None, interrupted: bool = False
) -> tuple[str, str | None, int | None]:
    """Status of the run, its reason, and the exit code of the script as far as it is known here."""
    if failure is not None:
        reason = f"the recording failed, the script went on: {type(failure).__name__}: {failure}"
        if interrupted:
            reason = (
                f"a signal handler of the script's raised {type(failure).__name__} while a step was being"
                " written: what followed is not recorded"
            )
        return "partial", reason.splitlines()[0][:500], find_exit_code(error)
    if error is None or isinstance(error, ScriptStopped):
        return "ok", None, 0
    if isinstance(error, SystemExit):
        code = find_exit_code(error)
        return ("ok", None, 0) if code == 0 else ("failed", f"the script exited with code {code}", code)
    if isinstance(error, KeyboardInterrupt):
        return "partial", "interrupted", 130
    words = error_text(error).splitlines() or [""]
    return "failed", f"the script raised {type(error).__name__}: {words[0]}"[:500], 1


def find_exit_code(error: BaseException | None) -> int:
    """What the script's process would have ended with."""
    if not isinstance(error, SystemExit):
        return int(error is not None)
    return error.code if isinstance(error.code, int) else int(error.code is not None)


def note_wrappers(outermost: Any, wrappers: Sequence[str]) -> list[str]:
    """What is to be known of a model that is wrapped to run on several devices."""
    kinds = {kind.__name__ for kind in type(outermost).__mro__} | set(wrappers)
    notes = [_REPLICAS] if "DataParallel" in kinds and len(outermost.device_ids) > 1 else []
    return notes + ([_SHARDS] if kinds & {"FullyShardedDataParallel", "FSDPModule"} else [])


@dataclass(frozen=True)
class ScriptStepFigures:
    """What the closed run tells of its steps."""

    other_share: float | None = None
    other_ms: float | None = None
    images: float | None = None
    steps: int = 0  # that were recorded
    unheard: float = 1.0  # share of `other` in no part that was measured


def read_step_figures(folder: Path) -> ScriptStepFigures:
    """`other` of the recorded steps, which are those that were looked at, and images per step.

    Means and not medians: looks come from all of these steps, and most of them from the longest.
    """
    paths = [folder / f"{table}.parquet" for table in ("steps", "content")]
    if not all(path.exists() for path in paths):
        return ScriptStepFigures()
    steps, content = (read_table(path) for path in paths)
    recorded = steps.filter(pl.col("mode") == RECORDED)
    other, whole = (
        recorded.filter(pl.col("phase") == phase)["wall_ns"].to_list() for phase in ("other", "step")
    )
    numbers = steps.filter(pl.col("mode") != EVALUATION)["step"].implode()
    images = content.filter(pl.col("step").is_in(numbers))["images"].drop_nulls().to_list()
    return ScriptStepFigures(
        sum(other) / sum(whole) if whole else None,
        sum(other) / len(other) / 1e6 if other else None,
        median(images) if images else None,
        len(whole),
        _find_unheard(folder / "spans.parquet", recorded),
    )


def _find_unheard(path: Path, recorded: pl.DataFrame) -> float:
    if not path.exists():
        return 1.0
    spans = read_table(path).filter(pl.col("step").is_in(recorded["step"].unique().implode()))
    heard = spans.filter((pl.col("direction") == "other") & ~pl.col("kind").is_in(["stage", "outside"]))
    with_spans = pl.col("step").is_in(spans["step"].unique().implode())
    whole = sum(recorded.filter((pl.col("phase") == "other") & with_spans)["wall_ns"].to_list())
    return max(0.0, 1 - sum(heard["self_ns"].to_list()) / whole) if whole else 1.0


def describe_script(
    recording: ScriptRecording, pacer: StepPacer, other: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Everything that is known of the script, for `run.json`."""
    training, evaluation = recording.training, recording.evaluation
    return {
        "roots": recording.roots.describe_roots(recording.model),
        "parts": {"training": training.describe_part(), "evaluation": evaluation.describe_part()},
        "optimizers": [facts["name"] for facts in recording.optimizer_facts],
        "optimizer_steps": recording.optimizer_steps,
        "optimizer_steps_skipped": recording.optimizer_steps_skipped,
        "batches_per_step": training.batches / training.steps if training.steps else None,
        "batches_skipped": pacer.skipped,
        "other": list(other),
    }


def note_parts(recording: ScriptRecording, pacer: StepPacer) -> list[str]:
    """What is remarkable about the parts of the script."""
    notes = []
    training, evaluation = recording.training, recording.evaluation
    if training.steps and training.batches > training.steps:
        each = training.batches / training.steps
        notes.append(f"gradients are accumulated: {each:.3g} batches per step")
    if training.steps and evaluation.steps:
        about = evaluation.describe_part()
        notes.append(
            f"besides {training.steps} training steps there were {evaluation.steps} evaluation steps of"
            f" {about['step_p50_ms']:.1f} ms (median), {about['total_s']:.1f} s in all, not in the figures"
        )
    if recording.optimizer_steps_skipped:
        notes.append(f"the gradient scaler left out {recording.optimizer_steps_skipped} optimizer steps")
    if pacer.skipped:
        notes.append(f"{pacer.skipped} batches went through the model and not backward: no steps")
    if training.steps and pacer.by_backward:
        inside = "inside of backward: that is part of `backward`"
        outside = "by no optimizer of torch's: that is part of `other`"
        where = inside if pacer.steps_in_backward else outside
        notes.append(f"weights are updated {where}, and every backward pass is a step")
    notes += _note_models(recording)
    if pacer.unfinished:
        notes.append(f"{pacer.unfinished} accumulated batches were followed by no optimizer step")
    return notes


def _note_models(recording: ScriptRecording) -> list[str]:
    """Where the model that is taken apart is not the whole story."""
    model, trains = recording.model, recording.training.steps > 0
    if model is None:
        return []
    notes = []
    kind = "training" if trains else "evaluation"
    # since it is known which model the run is about
    steps = recording.training.steps or recording.evaluation.steps - recording.steps_before_model
    others = [
        one
        for one in recording.roots.all
        if one is not model
        and one.has_weights
        and (one.calls_training if trains else one.calls_in_evaluation_steps)
        and not model.is_part_of(one)
        and not one.is_part_of(model)
    ]
    if model.steps_called(kind) < steps and others:
        names = ", ".join(f"{one.label} in {one.steps_called(kind)}" for one in others[:3])
        notes.append(
            f"{model.label}, whose modules are told apart, was called in {model.steps_called(kind)} of"
            f" {steps} {kind} steps; the figures also hold steps of other models ({names})"
        )
    usual = [one for one in (model, *others) if 2 * one.steps_called(kind) > steps]
    if any(one.calls_training for one in usual[1:]):
        names = ", ".join(one.label for one in usual[1:4])
        notes.append(
            f"beside {model.label}, whose modules are told apart, a step calls {names}: no module that holds"
            " them all is called, so that each of them is one stage"
        )
    called_by = {one.called_by for one in usual if one.called_by and (one.parts or one.is_forward_called)}
    if called_by:
        names = ", ".join(sorted(called_by))
        notes.append(
            f"{names} was called directly, not the module itself: what it does between its modules is part of"
            " `other`"
        )
    return notes


def note_other(rows: Sequence[Mapping[str, Any]], figures: ScriptStepFigures, looks: int) -> list[str]:
    """Whose `other` is, where it is large."""
    share = figures.other_share
    if share is None or share < _LARGE or not rows:
        return []
    whole = f"other is {share:.0%} of the time of the recorded steps"
    if looks < _ENOUGH_LOOKS:
        return [f"{whole}; cannot tell whose it is: only {looks} looks at it"]
    words = []
    for row in rows[:3]:
        where = f"{row['file']}:{row['line']}"
        for part in row["inside"][:1]:
            where += f", there mostly in {part['function']} of {part['file']}:{part['line']}"
        if row["steps"] <= _RARE * figures.steps:
            where += f", seen in {row['steps']} of {figures.steps} steps"
        words.append(f"{row['share_of_other']:.0%} in {row['function']} ({where})")
    return [f"{whole}: {', '.join(words)} (from {looks} looks at the running function)"]


def write_empty_run(options: ScriptOptions, notes: Sequence[str], reason: str | None) -> RunWriter:
    """The closed run of a script of which no step was seen."""
    name = options.run_name(Path(options.script).stem or "script")
    info: dict[str, Any] = {"level": options.level, "stages": [], "environment": gather_facts()}
    info |= {"definitions": DEFINITIONS, "notes": list(notes), "cannot_tell": [reason or NO_STEP]}
    writer = RunWriter(options.out, "run", name, info)
    writer.close_run("partial", reason or NO_STEP)
    return writer
