"""Checkpoints without pickle: tensors in safetensors, all else in JSON, each folder whole or not there.

    RUN/checkpoints/step-00000192-0003/  of the last completed epoch, or of where it was stopped
        model.safetensors                weights as trained
        training.safetensors             optimizer, random states, averaged weights
        state.json                       position, settings of the optimizer, best so far
    RUN/checkpoints/best.safetensors     weights of the best evaluation; best.json tells which

Files are never changed once they have their name, so that a resumed run may share them by hard links.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detscope.errors import InputError, MachineError
from detscope.faults import describe_error
from detscope.machine.accelerator import Accelerator, find_accelerator
from detscope.runs.atomic import fill_folder, write_atomically, write_text

if TYPE_CHECKING:
    import torch
    from torch import nn

    from detscope.loops.ema import WeightAverage
    from detscope.loops.train import Position

FORMAT = 1
FOLDER = "checkpoints"
BEST = "best.safetensors"
_STATE, _MODEL, _TRAINING = "state.json", "model.safetensors", "training.safetensors"


@dataclass
class TrainingParts:
    """Everything a checkpoint holds the state of."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    average: WeightAverage | None = None


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint on disk."""

    folder: Path
    state: Mapping[str, Any] = field(repr=False)

    @property
    def position(self) -> Position:
        """Where the training goes on."""
        from detscope.loops.train import Position

        return Position(**self.state["position"])

    @property
    def weights(self) -> Path:
        """The weights as trained."""
        return self.folder / _MODEL


def save_checkpoint(run: Path, parts: TrainingParts, position: Position, more: Mapping[str, Any]) -> Path:
    """Write a checkpoint; the one before it goes once this one is whole."""
    target = run / FOLDER / f"step-{position.steps:08d}-{position.epochs:04d}"
    if (target / _STATE).is_file():  # resumed and stopped again before the first step
        return target
    tensors, described = _training_state(parts)
    state = {"format": FORMAT, "position": asdict(position), **described, **more}
    with fill_folder(target) as partial:
        write_tensors(partial / _MODEL, model_tensors(parts.model))
        write_tensors(partial / _TRAINING, tensors)
        write_text(partial / _STATE, json.dumps(state, allow_nan=False))
    for older in _list_complete(run):
        if older != target:
            shutil.rmtree(older, ignore_errors=True)
    return target


def update_state(checkpoint: Path, **changes: Any) -> None:
    """Add what became known since the checkpoint was written, such as its accuracy."""
    state = json.loads((checkpoint / _STATE).read_text(encoding="utf-8"))
    write_text(checkpoint / _STATE, json.dumps({**state, **changes}, allow_nan=False))


def save_best(run: Path, model: nn.Module, facts: Mapping[str, Any]) -> Path:
    """Keep the weights that the model has now as the best."""
    path = run / FOLDER / BEST
    path.parent.mkdir(exist_ok=True)
    write_tensors(path, model_tensors(model))
    write_text(path.with_suffix(".json"), json.dumps(dict(facts), allow_nan=False))
    return path


def latest_checkpoint(run: Path) -> Checkpoint | None:
    """The newest whole checkpoint of a run; None where there is none."""
    found = _list_complete(run)
    if not found:
        return None
    try:
        state = json.loads((found[-1] / _STATE).read_text(encoding="utf-8"))
        if state["format"] != FORMAT:
            raise ValueError(f"format {state['format']}, this detscope reads {FORMAT}")
    except (ValueError, KeyError, OSError) as error:
        raise InputError(f"checkpoint {found[-1]} cannot be read: {error}", "resume another run") from error
    return Checkpoint(found[-1], state)


def weights_of_run(run: Path) -> Path:
    """The weights a training left: the best where it evaluated, else the last."""
    best = run / FOLDER / BEST
    if best.is_file():
        return best
    last = latest_checkpoint(run)
    if last is None:
        raise InputError(
            f"{run} has no checkpoint", "train with --eval-every, --epochs or --set training.checkpoints=true"
        )
    return last.weights


def share_checkpoints(old: Path, new: Path) -> None:
    """Give a resumed run the checkpoints it starts from, by hard links where the file system has them."""

    def link(source: str, target: str) -> None:
        try:
            os.link(source, target)
        except OSError:
            shutil.copy2(source, target)

    names = [found.name for found in _list_complete(old)[-1:]]
    names += [name for name in (BEST, "best.json") if (old / FOLDER / name).is_file()]
    for name in names:
        source, target = old / FOLDER / name, new / FOLDER / name
        target.parent.mkdir(exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, copy_function=link)
        else:
            link(str(source), str(target))


def restore_parts(checkpoint: Checkpoint, parts: TrainingParts) -> None:
    """Put everything back as it was; random states last, as making the model drew from them."""
    weights = read_tensors(checkpoint.weights)
    tensors = read_tensors(checkpoint.folder / _TRAINING)
    try:
        parts.model.load_state_dict(weights)
        _restore_optimizer(
            parts.optimizer, checkpoint.state["optimizer"], _select_under(tensors, "optimizer")
        )
        if parts.scaler.is_enabled():
            parts.scaler.load_state_dict(checkpoint.state["scaler"])
        if parts.average is not None:
            parts.average.restore_from(_select_under(tensors, "average"), checkpoint.state["average_updates"])
        kept = _select_under(tensors, "random")
        _restore_random(checkpoint.state["random"], kept, _device_of(parts.model))
    except (KeyError, RuntimeError, ValueError, TypeError) as error:
        raise InputError(
            f"checkpoint {checkpoint.folder} does not fit this training: {describe_error(error)}",
            "resume with the settings it was made with",
        ) from error


def model_tensors(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state of a model, copied: modules that share a tensor write it twice."""
    return {name: tensor.detach().cpu().contiguous().clone() for name, tensor in model.state_dict().items()}


def write_tensors(path: Path, tensors: Mapping[str, torch.Tensor]) -> None:
    """Write tensors atomically."""
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    try:
        write_atomically(path, lambda temporary: save_file(dict(tensors), temporary))
    except SafetensorError as error:  # a full disk arrives as this, without its number
        raise MachineError(
            f"cannot write {path}: {error}", "free some space or choose another --out folder"
        ) from error


def read_tensors(path: Path) -> dict[str, torch.Tensor]:
    """Read tensors back; a damaged file is named."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        return dict(load_file(path))
    except (SafetensorError, OSError) as error:
        raise InputError(f"checkpoint file {path} cannot be read: {error}", "resume another run") from error


def _list_complete(run: Path) -> list[Path]:
    """Whole checkpoints, oldest first; one that was being written when the process died is not."""
    return sorted(state.parent for state in (run / FOLDER).glob(f"step-*/{_STATE}"))


def _select_under(tensors: Mapping[str, torch.Tensor], name: str) -> dict[str, torch.Tensor]:
    prefix = f"{name}."
    return {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}


def _training_state(parts: TrainingParts) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    import torch

    tensors: dict[str, torch.Tensor] = {}
    state = parts.optimizer.state_dict()
    plain: dict[str, dict[str, Any]] = {}
    for index, values in state["state"].items():
        for name, value in values.items():
            if isinstance(value, torch.Tensor):
                tensors[f"optimizer.{index}.{name}"] = value.detach().cpu().contiguous().clone()
            else:
                plain.setdefault(str(index), {})[name] = value
    random_state, random_tensors = _random_state(_device_of(parts.model))
    tensors |= {f"random.{name}": tensor for name, tensor in random_tensors.items()}
    average = parts.average
    if average is not None:
        tensors |= {
            f"average.{name}": tensor.cpu().clone() for name, tensor in average.list_tensors().items()
        }
    return tensors, {
        "optimizer": {"state": plain, "param_groups": state["param_groups"]},
        "scaler": parts.scaler.state_dict(),
        "average_updates": average.updates if average is not None else 0,
        "random": random_state,
    }


def _restore_optimizer(
    optimizer: torch.optim.Optimizer, described: Mapping[str, Any], tensors: Mapping[str, torch.Tensor]
) -> None:
    state: dict[int, dict[str, Any]] = {int(index): dict(v) for index, v in described["state"].items()}
    for key, tensor in tensors.items():
        index, _, name = key.partition(".")
        state.setdefault(int(index), {})[name] = tensor
    # the base rate is a setting: a resumed training may have been given another
    rates = [group.get("initial_lr", group["lr"]) for group in optimizer.param_groups]
    optimizer.load_state_dict({"state": state, "param_groups": described["param_groups"]})
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        group["initial_lr"] = rate


def _device_of(model: nn.Module) -> Accelerator:
    return find_accelerator(str(next(model.parameters()).device))


def _random_state(device: Accelerator) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The states of every generator the loop may draw from: torch, the device's, numpy, Python."""
    import numpy as np
    import torch

    version, words, gauss = random.getstate()
    keys: Any = np.random.get_state(legacy=False)
    tensors = {
        "torch": torch.get_rng_state(),
        "numpy": torch.from_numpy(keys["state"]["key"].astype("int64")),
    }
    own = device.read_random_state()
    if own is not None:
        tensors[f"{device.kind}{device.index}"] = own
    numpy_rest = {"pos": keys["state"]["pos"], "has_gauss": keys["has_gauss"], "gauss": keys["gauss"]}
    return {"python": [version, list(words), gauss], "numpy": numpy_rest}, tensors


def _restore_random(
    described: Mapping[str, Any], tensors: Mapping[str, torch.Tensor], device: Accelerator
) -> None:
    import numpy as np
    import torch

    version, words, gauss = described["python"]
    random.setstate((version, tuple(words), gauss))
    rest, keys = described["numpy"], tensors["numpy"].numpy().astype("uint32")
    np.random.set_state(("MT19937", keys, rest["pos"], rest["has_gauss"], rest["gauss"]))
    torch.set_rng_state(tensors["torch"])
    # its own; or, where the training goes on upon another of the same kind, the only one that was kept
    alike = sorted(key for key in tensors if key.startswith(device.kind))
    wanted = f"{device.kind}{device.index}"
    if wanted in alike or len(alike) == 1:
        device.restore_random_state(tensors[wanted if wanted in alike else alike[0]])
