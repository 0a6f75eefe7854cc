"""Trials as tasks of a Ray cluster: the label is a resource, our own process runs inside the task.

Install with `detscope[ray]`. A node offers its label as `ray start --resources '{"jetson": 1}'`.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

from detscope.errors import MachineError, UsageError
from detscope.sweep.keys import list_differences, read_environment
from detscope.sweep.outcome import LOST, NO_NODE, Outcome, shorten_text
from detscope.sweep.plan import SweepPlan
from detscope.sweep.prepare import list_labels
from detscope.sweep.process import ProcessRunner, SweepStoppedError
from detscope.sweep.schedule import TrialRunner
from detscope.sweep.settings import TrialLimits, split_device

LOST_RETRIES = 3
WAIT_FOR_NODE_S = 60.0
_TICK_S = 0.25
_GRACE_S = 30.0


# Ray hides devices from tasks that ask for none and renumbers them for others; a trial names its own.
_ALL_DEVICES = {
    "env_vars": {
        f"RAY_EXPERIMENTAL_NOSET_{name}": "1"
        for name in (
            "CUDA_VISIBLE_DEVICES",
            "HIP_VISIBLE_DEVICES",
            "ROCR_VISIBLE_DEVICES",
            "ONEAPI_DEVICE_SELECTOR",
        )
    }
}


def choose_task_options(device: str) -> dict[str, Any]:
    """What a task on this device asks of Ray besides its label: one GPU, and to see all of its node's."""
    return {} if device == "cpu" else {"num_gpus": 1, "runtime_env": _ALL_DEVICES}


class RayMachines:
    """A cluster: every label of the plan is a resource of at least one of its nodes."""

    def __init__(
        self,
        plan: SweepPlan,
        on: str,
        command: Sequence[str],
        *,
        reuse: bool = False,
        wait_for_node_s: float = WAIT_FOR_NODE_S,
    ) -> None:
        if reuse:
            raise UsageError("--isolation batch and --on ray exclude each other", "leave one of them out")
        labels = list_labels(plan)
        if "" in labels:
            raise UsageError(
                "on a cluster every device needs the label of its machine",
                'write axes.device = ["jetson/cuda:0"], and start that node with resources={"jetson": 1}',
            )
        self._ray, self._started_here = _connect_ray(on)
        self._limits, self._command, self._wait_s = plan.limits, tuple(command), wait_for_node_s
        self._task = self._ray.remote(num_cpus=0, max_retries=0)(run_in_task)
        self._overdue: list[tuple[Any, Mapping[str, Any]]] = []
        self._lock = threading.Lock()
        self._gone: set[str] = set()
        on_device = {one.machine_label for one in plan.trials if split_device(one.device)[1] != "cpu"}
        self.facts: Mapping[str, Mapping[str, Any]] = {
            label: self._facts_of(label, label in on_device) for label in labels
        }
        seen = sorted(label for label in on_device if self.facts[label].get("gpus"))
        if seen and not self._ray.cluster_resources().get("GPU"):
            raise MachineError(
                f"{', '.join(seen)} has GPUs, but the cluster offers none",
                "start its node with: ray start --address=HEAD --num-gpus 1",
            )

    def _facts_of(self, label: str, on_device: bool) -> dict[str, Any]:
        if label not in self._ray.cluster_resources():
            raise MachineError(
                f"the cluster has no node with the label {label!r}",
                f"start it with: ray start --address=HEAD --resources '{{\"{label}\": 1}}'",
            )
        task = self._ray.remote(num_cpus=0, max_retries=LOST_RETRIES)(read_environment)
        seeing = {"runtime_env": _ALL_DEVICES} if on_device else {}
        asked = task.options(resources={label: 0.001}, **seeing)
        found: dict[str, Any] = self._ray.get(asked.remote())
        return found

    def make_runner(self, device: str) -> TrialRunner:
        """A runner whose trials need the device's label."""
        label = split_device(device)[0]
        assert label is not None
        return _TaskRunner(self, label)

    def count_lanes(self, devices: Sequence[str]) -> Mapping[str, int]:
        """As many trials at a time as nodes have the label; each node has one."""
        have = self._ray.cluster_resources()
        return {device: max(1, int(have.get(split_device(device)[0], 1))) for device in devices}

    def limit_retries(self, planned: int) -> int:
        """Nodes come and go: what was lost is tried more often than what was killed."""
        return max(planned, LOST_RETRIES)

    def run_task(self, label: str, request: Mapping[str, Any], stop: threading.Event) -> Outcome:
        """Queue a trial for a node of that label; what became of it. `SweepStoppedError` ends it."""
        task = self._task.options(resources={label: 1}, **choose_task_options(str(request["device"])))
        reference = task.remote(dict(request), asdict(self._limits), list(self._command))
        began = time.monotonic()
        unseen_since: float | None = None
        longest = self._limits.start_s + self._limits.time_s + _GRACE_S
        while True:
            done, _ = self._ray.wait([reference], timeout=_TICK_S)
            if done:
                return self._read_outcome(label, reference)
            if stop.is_set():
                self._ray.cancel(reference, force=True)
                raise SweepStoppedError
            now = time.monotonic()
            if label in self._ray.cluster_resources():
                unseen_since = None
                self._gone.discard(label)
            elif now - (unseen_since := unseen_since or now) > (0 if label in self._gone else self._wait_s):
                self._gone.add(label)  # its other trials need not wait as long again
                self._ray.cancel(reference, force=True)
                return Outcome("error", f"{NO_NODE} with the label {label} is left")
            if now - began > longest:
                with self._lock:  # believed lost; if it delivers after all, that is kept apart
                    self._overdue.append((reference, request))
                return Outcome("error", f"{LOST}: no answer from its node", seconds=now - began, luck=True)

    def _read_outcome(self, label: str, reference: Any) -> Outcome:
        try:
            found = self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            words = shorten_text(str(error), 300)
            lost = not isinstance(error, self._ray.exceptions.RayTaskError)
            name = type(error).__name__
            return Outcome("error", f"{LOST} its node: {name}" if lost else name, words, luck=lost)
        outcome = Outcome(**found)
        other = list_differences(self.facts[label], outcome.environment or {})
        if other:
            return Outcome("error", f"another environment on this node: {other[0]}", "; ".join(other))
        return outcome

    def take_late(self) -> list[tuple[Mapping[str, Any], Outcome]]:
        """Results that came after their trial was given up."""
        found = []
        for reference, request in self._overdue:
            done, _ = self._ray.wait([reference], timeout=0)
            if done:
                try:
                    found.append((request, Outcome(**self._ray.get(reference))))
                except self._ray.exceptions.RayError:
                    continue  # it was lost indeed
            else:
                self._ray.cancel(reference, force=True)
        return found

    def close_machines(self) -> None:
        """The cluster belongs to whoever started it; one that we started ends with us."""
        if self._started_here:
            self._ray.shutdown()


class _TaskRunner:
    """One trial at a time as a task."""

    def __init__(self, machines: RayMachines, label: str) -> None:
        self._machines, self._label = machines, label

    def run_trial(self, request: Mapping[str, Any], stop: threading.Event) -> Outcome:
        """Run one on whichever node has the label."""
        return self._machines.run_task(self._label, request, stop)

    def close_runner(self) -> None:
        """Tasks end by themselves."""


def run_in_task(request: dict[str, Any], limits: dict[str, Any], command: list[str]) -> dict[str, Any]:
    """Inside the task: our own process, so that its cause of death is known and not just a lost worker."""
    runner = ProcessRunner(TrialLimits(**limits), reuse=False, command=command)
    outcome = runner.run_trial(request, threading.Event())
    return {**asdict(outcome), "environment": read_environment()}


def _connect_ray(on: str) -> tuple[Any, bool]:
    """The library, and whether the cluster was started here."""
    import ray

    if ray.is_initialized():
        return ray, False
    address = on if on.startswith("ray://") else "auto"
    try:
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise MachineError(
            f"no Ray cluster at {address}: {shorten_text(str(error), 200)}",
            "start one: ray start --head, and ray start --address=HEAD on every node",
        ) from error
    return ray, True
