"""A sweep from its plan to its store: what is left is run, every ending is kept, stopping loses nothing."""

from __future__ import annotations

import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detscope.errors import InterruptedRun
from detscope.extras import require_package
from detscope.report.sweep_progress import SweepLines
from detscope.sweep.cluster import RayMachines
from detscope.sweep.keys import read_environment
from detscope.sweep.outcome import Outcome, is_open
from detscope.sweep.plan import SweepPlan
from detscope.sweep.prepare import (
    PreparedTrial,
    describe_identity,
    list_labels,
    prepare_trials,
    require_one_machine,
)
from detscope.sweep.process import TRIAL_COMMAND, ProcessRunner
from detscope.sweep.schedule import (
    FirstFailures,
    QueueRules,
    StopSignals,
    TrialEnd,
    TrialRunner,
    run_queues,
)
from detscope.sweep.status import read_accepted, refuse_other_identity, refuse_unfinished, summarize_store
from detscope.sweep.store import SweepStore, lock_store

ROW_BYTES = 3_000
STORE_BYTES = 60_000
ASSUMED_START_S = 8.0  # a process, torch and torchvision


@dataclass(frozen=True)
class SweepOptions:
    """How a plan is run this time."""

    resume: bool = False
    till_first_fail: bool = False
    isolation: str | None = None  # None: as the plan says
    on: str | None = None  # ray, ray://ADDRESS
    command: Sequence[str] = TRIAL_COMMAND  # tests bring trials of their own


class ThisMachine:
    """Processes here."""

    def __init__(self, plan: SweepPlan, options: SweepOptions) -> None:
        require_package("torch")  # said once, not by the process of every trial
        labels = list_labels(plan)
        require_one_machine(labels)
        self.facts: Mapping[str, Mapping[str, Any]] = {labels[0]: read_environment()}
        self._limits, self._command = plan.limits, options.command
        self._reuse = (options.isolation or plan.isolation) == "batch"

    def make_runner(self, device: str) -> TrialRunner:  # noqa: ARG002  (all devices are here)
        """A process for each trial, or one for many."""
        return ProcessRunner(self._limits, self._reuse, self._command)

    def count_lanes(self, devices: Sequence[str]) -> Mapping[str, int]:
        """One trial per device."""
        return dict.fromkeys(devices, 1)

    def limit_retries(self, planned: int) -> int:
        """As the plan says."""
        return planned

    def take_late(self) -> list[tuple[Mapping[str, Any], Outcome]]:
        """A process that was given up has been ended."""
        return []

    def close_machines(self) -> None:
        """Runners end their own processes."""


def run_sweep(plan: SweepPlan, options: SweepOptions, lines: SweepLines) -> dict[str, Any]:
    """Run what the store does not have yet; the store's status afterwards."""
    with ExitStack() as stack:
        machines: ThisMachine | RayMachines
        if options.on is None:
            machines = ThisMachine(plan, options)
        else:
            reuse = (options.isolation or plan.isolation) == "batch"
            machines = RayMachines(plan, options.on, options.command, reuse=reuse)
        stack.callback(machines.close_machines)
        stack.enter_context(lock_store(plan.store))
        store = stack.enter_context(SweepStore(plan.store, create=True))
        trials, waiting = _begin_sweep(plan, options, machines.facts, store)
        ran = _run_trials(plan, options, machines, store, waiting, lines) if waiting else 0
        found = summarize_store(store)
    return {"plan": plan.name, "planned": len(trials), "ran": ran, **found}


def _begin_sweep(
    plan: SweepPlan, options: SweepOptions, facts: Mapping[str, Mapping[str, Any]], store: SweepStore
) -> tuple[list[PreparedTrial], list[PreparedTrial]]:
    """All trials of the plan, and those without a result yet; refuses what would mix figures."""
    identity = describe_identity(plan, facts)
    refuse_other_identity(store, identity)
    keys = {label: store.keep_environment(own) for label, own in facts.items()}
    trials = prepare_trials(plan, facts, keys)
    done = read_accepted(store)
    if options.resume:
        reopened = [
            one.trial_key for one in trials if one.trial_key in done and is_open(done[one.trial_key][1])
        ]
        store.reopen_trials(reopened)
        done = {key: ending for key, ending in done.items() if key not in set(reopened)}
    refuse_unfinished(store, trials, done, options.resume)
    waiting = [one for one in trials if one.trial_key not in done]
    if waiting:
        planned = [(one.trial_key, one.trial.describe_trial(), one.device_name) for one in trials]
        store.keep_plan(plan.name, plan.text, identity, planned)
    return trials, waiting


def _run_trials(
    plan: SweepPlan,
    options: SweepOptions,
    machines: ThisMachine | RayMachines,
    store: SweepStore,
    waiting: Sequence[PreparedTrial],
    lines: SweepLines,
) -> int:
    isolation = options.isolation or plan.isolation
    runnable = [one for one in waiting if not one.cannot_run]
    for one in waiting:
        if one.cannot_run:
            store.record_attempt(one.identity, Outcome("skipped", f"cannot run: {one.cannot_run}"))
            lines.add_note(f"{one.trial.describe_trial()}: cannot run: {one.cannot_run}")
    queues: dict[str, list[PreparedTrial]] = {}
    for one in runnable:
        queues.setdefault(one.device_name, []).append(one)
    rules = QueueRules(
        machines.limit_retries(plan.limits.retries),
        options.till_first_fail or plan.till_first_fail,
        _earlier_failures(plan, machines, store, waiting),
    )
    by_request = {id(one.request): one for one in runnable}
    ran = 0
    lines.begin_sweep(queues)
    try:
        with StopSignals() as signals:
            lanes = machines.count_lanes(list(queues))
            for event in run_queues(queues, machines.make_runner, rules, signals.stop, lanes):
                if isinstance(event, PreparedTrial):
                    lines.start_trial(event)
                elif isinstance(event, TrialEnd):
                    prepared, outcome, final = event.prepared, event.outcome, event.final
                    identity = prepared.identity
                    store.record_attempt(
                        identity, outcome, attempt=event.attempt, final=final, isolation=isolation
                    )
                    lines.end_trial(prepared, outcome, final)
                    ran += final and outcome.kind != "skipped"
                else:
                    lines.redraw_lines()
            for request, outcome in machines.take_late():
                store.record_attempt(by_request[id(request)].identity, outcome, isolation=isolation)
    finally:
        lines.finish_sweep()
    if signals.heard is None:
        return ran
    error = InterruptedRun(
        f"stopped; the trial under way was abandoned, results are in {plan.store}", "--resume runs the rest"
    )
    error.exit_code = 128 + signals.heard if signals.heard == signal.SIGTERM else 130
    raise error


def _earlier_failures(
    plan: SweepPlan, machines: ThisMachine | RayMachines, store: SweepStore, waiting: Sequence[PreparedTrial]
) -> FirstFailures:
    """What earlier parts of this sweep ran into counts when it is resumed."""
    found = FirstFailures()
    done = read_accepted(store)
    if len(waiting) < len(plan.trials):
        keys = {label: store.keep_environment(own) for label, own in machines.facts.items()}
        for one in prepare_trials(plan, machines.facts, keys):
            if one.trial_key in done:
                found.note_failure(one, *done[one.trial_key])
    return found


def describe_sweep(plan: SweepPlan, store: Path | None = None) -> dict[str, Any]:
    """`--dry-run`: how many trials, how long, how much disk; nothing is run, nothing is written."""
    labels = list_labels(plan)
    facts = {label: read_environment() for label in labels}
    trials = prepare_trials(plan, facts, dict.fromkeys(labels, ""))
    each, basis = _estimate_seconds(plan, store or plan.store)
    devices: dict[str, int] = {}
    for one in trials:
        devices[one.device_name] = devices.get(one.device_name, 0) + (not one.cannot_run)
    cannot = [
        {"trial": one.trial.describe_trial(), "why": one.cannot_run} for one in trials if one.cannot_run
    ]
    return {
        "plan": plan.name,
        "store": str(plan.store),
        "trials": len(trials),
        "excluded": plan.excluded,
        "cannot_run": cannot,
        "devices": [{"device": name, "trials": number} for name, number in devices.items()],
        "estimated_s": max(devices.values(), default=0) * each,
        "estimated_from": basis,
        "disk_bytes": STORE_BYTES + ROW_BYTES * len(trials),
        "order": [one.trial.describe_trial() for one in trials],
    }


def _estimate_seconds(plan: SweepPlan, path: Path) -> tuple[float, str]:
    """Of one trial, and where that is known from."""
    start, earlier = ASSUMED_START_S if plan.isolation == "process" else 0.5, []
    if path.exists():
        with SweepStore(path) as store:
            rows = store.query_rows("SELECT seconds FROM attempts WHERE role = 'accepted' AND kind = 'ok'")
        earlier = sorted(row["seconds"] for row in rows if row["seconds"] is not None)
    if earlier:
        return start + earlier[len(earlier) // 2], f"the median of {len(earlier)} trials in the store"
    spent = plan.measure.max_seconds * 1.3 + 1
    return start + spent, f"at most {plan.measure.max_seconds:g} s of steps per trial; nothing measured yet"
