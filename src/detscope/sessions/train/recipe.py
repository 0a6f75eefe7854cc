"""What training for real (`--eval-every`) fills in where the user said nothing."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from detscope.config.schema import Settings
from detscope.zoo.contract import ModelCard

# Enough to learn the shapes in eight passes, and still a minute or so per pass on two cores.
SYNTHETIC_IMAGES = 256
SYNTHETIC_HELD_OUT = 64


def trains_for_real(settings: Settings) -> bool:
    """Whether the run is a training with a curve and not only a measurement."""
    return settings.evaluation.every is not None


def keeps_checkpoints(settings: Settings) -> bool:
    """Whether the run can be resumed."""
    training = settings.training
    if training.checkpoints is not None:
        return training.checkpoints
    return trains_for_real(settings) or (training.steps is None and training.num_epochs > 1)


def apply_recipe(settings: Settings, card: ModelCard) -> tuple[Settings, dict[str, Any]]:
    """The settings completed by the model's recipe, and which keys it decided."""
    if not (trains_for_real(settings) and settings.training.recipe):
        return settings, {}
    wanted: dict[str, dict[str, Any]] = {
        "training": {name: value for name, value in asdict(card.recipe).items() if value is not None},
        "record": {"level": "phases"},
    }
    if settings.data.name == "synthetic":
        wanted["data"] = {"images": SYNTHETIC_IMAGES}
        wanted["evaluation"] = {"images": SYNTHETIC_HELD_OUT}
    changed: dict[str, Any] = {}
    sections: dict[str, Any] = {}
    for name, values in wanted.items():
        section = getattr(settings, name)
        free = {key: value for key, value in values.items() if key not in section.model_fields_set}
        changed |= {f"{name}.{key}": value for key, value in free.items()}
        sections[name] = section.model_copy(update=free)
    # the stored configuration is complete: repeated, it asks no recipe again
    sections["training"] = sections["training"].model_copy(update={"recipe": False})
    return settings.model_copy(update=sections), changed


def recipe_note(card: ModelCard, changed: dict[str, Any]) -> str:
    """One line on what the recipe decided."""
    told = ", ".join(f"{key.partition('.')[2]} = {value}" for key, value in changed.items())
    return f"recipe of {card.name}: {told}"
