"""`detscope prune` behind the command line: models and levels in, folders of checked networks out."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detscope.errors import InputError, MachineError, UsageError
from detscope.machine.facts import package_version
from detscope.report.progress import Progress
from detscope.runs.atomic import fill_folder
from detscope.zoo.networks import Network, NetworkBase, build_network, find_base
from detscope.zoo.pruning.folder import cuts_to_json, is_network_folder, write_folder
from detscope.zoo.pruning.layers import list_widths
from detscope.zoo.pruning.plan import Mode, Plan
from detscope.zoo.pruning.pruner import Pruner, count_flops, try_out

_MADE_BY = ("detscope", "torch", "torchvision", "timm", "effdet", "torch-pruning")
_BYTES_EACH = 4


@dataclass(frozen=True)
class PruneRequest:
    """What the user asked for; levels in percent of the parameters."""

    models: Sequence[str]
    levels: Sequence[float]
    mode: Mode
    seed: int
    out: Path
    force: bool = False


def run_prune(request: PruneRequest, progress: Progress) -> dict[str, Any]:
    """Prune every model to every level; a model that cannot be pruned is reported and the rest goes on."""
    bases = _find_bases(request.models)
    _check_free(request, bases)
    made: list[dict[str, Any]] = []
    failed: list[dict[str, Any]] = []
    progress.start(len(bases) * len(request.levels), "pruning")
    for base in bases:
        before = len(made)
        try:
            _prune_one(base, request, progress, made)
        except InputError as problem:
            progress.note(problem.message)
            progress.advance(len(request.levels) - (len(made) - before), network=base.full_name)
            failed.append({"model": base.full_name, "reason": problem.message, "hint": problem.hint})
    progress.finish()
    settings = {"out": str(request.out), "mode": request.mode, "seed": request.seed}
    return {**settings, "networks": made, "failed": failed}


def folder_name(base: NetworkBase, mode: Mode, level: float, seed: int) -> str:
    """`resnet18-random-p30-s0`."""
    return f"{base.full_name.replace('/', '-')}-{mode}-p{level:g}-s{seed}"


def _find_bases(models: Sequence[str]) -> list[NetworkBase]:
    bases = list(dict.fromkeys(find_base(name) for name in models))
    for base in bases:
        if base.source == "user":
            raise UsageError(
                f"{base.name}: a model of your own cannot be kept as a network folder",
                "a folder is rebuilt from names and never runs code that it names; prune a model by name",
            )
    return bases


def _check_free(request: PruneRequest, bases: Sequence[NetworkBase]) -> None:
    """Before hours of work: nothing may be in the way."""
    for base in bases:
        for level in request.levels:
            folder = request.out / folder_name(base, request.mode, level, request.seed)
            if not folder.exists():
                continue
            if not request.force:
                raise UsageError(f"{folder} is there already", "use --force to replace it, or another --out")
            if not is_network_folder(folder):
                raise UsageError(f"{folder} is no network folder and is not replaced", "use another --out")


def _prune_one(
    base: NetworkBase, request: PruneRequest, progress: Progress, made: list[dict[str, Any]]
) -> None:
    network = build_network(base, seed=request.seed)
    _check_disk(network, request)
    pruner = Pruner(network, request.mode, request.seed)
    for level in request.levels:
        plan = pruner.plan_level(level)
        name = folder_name(base, request.mode, level, request.seed)
        pruned = pruner.prune_network(plan, name)
        card = _describe_network(pruned, plan, network, request)
        with fill_folder(request.out / name, replace=request.force) as aside:
            write_folder(aside, pruned.module, card)
            try_out(pruned, aside)
        made.append(_make_row(card, request.out / name))
        if plan.why_not:
            progress.note(f"{name}: {level:g} % asked: {plan.why_not}")
        progress.advance(1, network=base.full_name, reached=f"{plan.level_reached:.2f} %")


def _describe_network(pruned: Network, plan: Plan, network: Network, request: PruneRequest) -> dict[str, Any]:
    base = network.base
    return {
        "name": pruned.name,
        "base": {
            "name": base.name,
            "source": base.source,
            "kind": base.kind,
            "image_size": network.image_size,
            "num_classes": network.num_classes,
            "parameters": network.parameters,
        },
        "pruning": {
            "mode": request.mode,
            "seed": request.seed,
            "level_asked": plan.level_asked,
            "level_reached": round(plan.level_reached, 4),
            "why_not": plan.why_not,
        },
        "parameters": pruned.parameters,
        "flops": count_flops(pruned),
        "flops_definition": "multiply and add count as two; forward pass of one image in evaluation mode",
        "made_by": {name: package_version(name) for name in _MADE_BY},
        "widths": list_widths(pruned.module),
        "plan": cuts_to_json(plan.cuts),
    }


def _make_row(card: dict[str, Any], folder: Path) -> dict[str, Any]:
    outputs = sorted(out for _, out in card["widths"].values())
    return {
        "network": card["name"],
        "folder": str(folder),
        "model": card["base"]["name"],
        "source": card["base"]["source"],
        "kind": card["base"]["kind"],
        **card["pruning"],
        "parameters": card["parameters"],
        "base_parameters": card["base"]["parameters"],
        "flops": card["flops"],
        "widths": {
            "layers": len(outputs),
            "smallest": outputs[0],
            "median": outputs[len(outputs) // 2],
            "largest": outputs[-1],
        },
    }


def _check_disk(network: Network, request: PruneRequest) -> None:
    there = next(folder for folder in (request.out, *request.out.absolute().parents) if folder.exists())
    needed = sum(network.parameters * _BYTES_EACH * (1 - level / 100) for level in request.levels)
    free = shutil.disk_usage(there).free
    if free < needed:
        raise MachineError(
            f"{network.name} needs {needed / 1e9:.1f} GB in {request.out}, {free / 1e9:.1f} GB are free",
            "free some space or choose another --out folder",
        )
