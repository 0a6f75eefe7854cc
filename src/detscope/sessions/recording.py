"""Who listens to a run, made from its settings: the same for training and inference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detscope.config.load import dump_settings
from detscope.config.schema import Settings
from detscope.zoo.contract import BuiltModel

if TYPE_CHECKING:
    import torch

    from detscope.record.recorder import Recorder


def make_recorder(
    settings: Settings,
    built: BuiltModel,
    optimizer: torch.optim.Optimizer | None,
    info: dict[str, Any],
    verb: str,
) -> Recorder:
    """A recorder for `train` or `infer`; it attaches when it is entered."""
    from detscope.record.recorder import Recorder

    record = settings.record
    part = settings.training if verb == "train" else settings.inference
    return Recorder(
        built.module,
        optimizer,
        settings.output.runs,
        level=record.level,
        modules=record.modules,
        stages=built.stages,
        observers=built.observers,
        warmup_steps=part.warmup_steps,
        bare_every=record.bare_every,
        ops_steps=record.ops_steps,
        traced_steps=record.traced_steps,
        memory=record.memory,
        memory_steps=record.memory_steps,
        telemetry_hz=record.telemetry_hz,
        seed=settings.training.seed,
        name=built.card.name,
        verb=verb,
        info=info,
        config_toml=dump_settings(settings, verb),
    )
