"""From a plan to trials that can be run here: devices named, networks found, keys made; no torch needed."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from detscope.errors import DetscopeError, InputError, UsageError
from detscope.sweep.keys import find_network_path, locate_network, make_identity, network_fingerprint
from detscope.sweep.plan import SweepPlan, Trial
from detscope.sweep.settings import AXES, TrialLimits, split_device

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class PreparedTrial:
    """A trial with everything that running and keeping it needs."""

    trial: Trial
    identity: Mapping[str, Any]  # columns of the store
    request: Mapping[str, Any]  # what its process is told
    cannot_run: str = ""

    @property
    def trial_key(self) -> str:
        """Of configuration, device, environment and repetition."""
        return str(self.identity["trial"])

    @property
    def device_name(self) -> str:
        """The place where one trial runs at a time."""
        return str(self.identity["device"])


def list_labels(plan: SweepPlan) -> list[str]:
    """The machines that a plan names; "" stands for whichever runs it."""
    return sorted({trial.machine_label for trial in plan.trials})


def prepare_trials(
    plan: SweepPlan, facts: Mapping[str, Facts], keys: Mapping[str, str]
) -> list[PreparedTrial]:
    """Prepare all trials; `facts` and `keys` are the environments of the plan's labels."""
    fingerprints = fingerprint_networks(plan)
    sized = [trial.network for trial in plan.trials if trial.values["image_size"] is not None]
    own = [name for name in dict.fromkeys(sized) if ":" in name]
    if own:  # nobody can tell a factory its image size: said at once, and not by every trial
        raise UsageError(
            "\n".join(f"image_size is not known for {name}" for name in own),
            "let the factory set it, and leave it out of the axes",
        )
    return [
        _prepare_trial(plan, trial, facts[trial.machine_label], keys[trial.machine_label], fingerprints)
        for trial in plan.trials
    ]


def fingerprint_networks(plan: SweepPlan) -> dict[str, str]:
    """Fingerprints of a plan's networks; an InputError names all that are not there."""
    names = sorted({trial.network for trial in plan.trials})
    named = (name for name in names if ("/" in name or "\\" in name) and not name.startswith("timm/"))
    paths = {*named, *(name for name in names if ".py:" in name)}
    missing = [name for name in names if name in paths and find_network_path(name, plan.folder) is None]
    if missing:
        raise InputError(
            "\n".join(f"no such network: {plan.folder / name.partition(':')[0]}" for name in missing),
            "copy the networks beside the plan, or make them with `detscope prune`",
        )
    return {name: network_fingerprint(name, plan.folder) for name in names}


def describe_identity(plan: SweepPlan, facts: Mapping[str, Facts]) -> dict[str, Any]:
    """What must be the same for results to stand beside each other."""
    return {
        "environment": {label or "here": dict(own) for label, own in facts.items()},
        "limits": _decisive_limits(plan.limits),
        "measure": asdict(plan.measure),
        "networks": fingerprint_networks(plan),
    }


def _decisive_limits(limits: TrialLimits) -> dict[str, Any]:
    return {"time_s": limits.time_s, "memory_bytes": limits.memory_bytes}


def _prepare_trial(
    plan: SweepPlan, trial: Trial, facts: Facts, environment: str, fingerprints: Mapping[str, str]
) -> PreparedTrial:
    device = resolve_plan_device(split_device(trial.device)[1], facts)
    place = f"{trial.machine_label}/{device}" if trial.machine_label else device
    values = {name: trial.values[name] for name in AXES if name != "device"}
    settings = (_decisive_limits(plan.limits), asdict(plan.measure))
    identity = make_identity(
        values, fingerprints[trial.network], settings, place, environment, trial.repetition
    )
    request = {
        "values": values,
        "network": locate_network(trial.network, plan.folder),
        "device": device,
        "repetition": trial.repetition,
        "measure": asdict(plan.measure),
        "memory_bytes": plan.limits.memory_bytes,
    }
    return PreparedTrial(
        trial, identity, request, explain_refusal(trial, device, facts, find_base(trial.network, plan.folder))
    )


def resolve_plan_device(device: str, facts: Facts) -> str:
    """ "cpu", "cuda:N", "xpu:N" or "mps" for what a plan names, on a machine of these facts."""
    if device == "auto":
        device = facts.get("accelerator") or "cpu"
    return f"{device}:0" if device in ("cuda", "xpu") else device


def explain_refusal(trial: Trial, device: str, facts: Facts, base: str = "") -> str:
    """Why a configuration cannot run there, or ""; `base`: the model that a network folder was cut from."""
    values = trial.values
    if device != "cpu":
        kind, _, index = device.partition(":")
        count = len(facts.get("gpus") or ()) if kind == facts.get("accelerator") else 0
        if int(index or 0) >= count:
            return (
                f"{device}: torch sees {count or 'no'} {kind.upper()} device{'' if count == 1 else 's'} there"
            )
    if values["prefetch_factor"] is not None and not values["num_workers"]:
        return "prefetch_factor: with num_workers = 0 nothing is loaded ahead"
    card = _find_card(base or trial.network) if values["stage"] == "training" else None
    if card is not None:  # a detector of the zoo
        from detscope.zoo.registry import check_trainable

        try:
            check_trainable(card, trial.batch_size, values["image_size"])
        except UsageError as error:
            return error.message
    return ""


@lru_cache(maxsize=1024)
def _find_card(base: str) -> Any:
    """Looked up once: what is not there is compared with all names, and a plan may have many trials of it."""
    from detscope.zoo.registry import get_card

    try:
        return get_card(base)
    except DetscopeError:
        return None


@lru_cache(maxsize=1024)
def find_base(network: str, folder: Path) -> str:
    """The name of the model that a network folder was made from; of all others, their own."""
    path = find_network_path(network, folder)
    if path is None or not path.is_dir():
        return network
    try:
        card = json.loads((path / "network.json").read_text(encoding="utf-8"))
        return str(card["base"]["name"])
    except (OSError, ValueError, KeyError, TypeError):
        return network  # what is wrong with it, its trial will say


def require_one_machine(labels: Sequence[str]) -> None:
    """Refuse to run here what is meant for several machines."""
    if len(labels) > 1:
        raise UsageError(
            f"the plan names several machines: {', '.join(label or 'this one' for label in labels)}",
            "run it on a cluster with --on ray, or leave one label in axes.device",
        )
