"""`detscope train` behind the command line: settings in, run folder out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from detscope.config.schema import Settings
from detscope.extras import require_package
from detscope.machine.devices import take_device
from detscope.sessions.recording import open_data
from detscope.sessions.train.resume import EarlierRun, find_earlier
from detscope.zoo.contract import ModelCard
from detscope.zoo.registry import check_trainable, get_card

if TYPE_CHECKING:
    from detscope.data.contract import DetectionDataset
    from detscope.loops.train import Batch
    from detscope.report.progress import Progress
    from detscope.sessions.ranks.team import Team
    from detscope.sessions.train.held_out import HeldOutImages

Made = TypeVar("Made")
# With --eval-every: enough to learn the shapes in eight passes, each still a minute or so on two cores.
SYNTHETIC_IMAGES = 256
SYNTHETIC_HELD_OUT = 64


@dataclass(frozen=True)
class TrainingJob:
    """What is to be trained, on what and from where, before anything is built."""

    settings: Settings
    device: str
    card: ModelCard
    dataset: DetectionDataset
    held_out: HeldOutImages | None
    earlier: EarlierRun | None
    notes: tuple[str, ...]
    recipe: dict[str, Any]
    team: Team | None  # the other ranks, where this is one of several

    @property
    def leads_ranks(self) -> bool:
        """Whether this process is the one that evaluates and keeps what is common."""
        return self.team is None or self.team.leads_ranks

    def read_first_batch(self) -> Batch:
        """The first images of the data set, as many as a step has."""
        from detscope.data.loading import collate_batch

        images = min(self.settings.training.batch_size, len(self.dataset))
        batch: Batch = collate_batch([self.dataset[index] for index in range(images)])
        return batch


def run_training(
    settings: Settings, *, progress: Progress, notes: Sequence[str] = (), team: Team | None = None
) -> Path:
    """Profile a training; what cannot work is said before anything is downloaded or built."""
    device = team.device if team else take_device(settings.training.device)
    if settings.training.tensorboard:
        require_package("tensorboard")
    card = get_card(settings.model.name)
    settings, recipe = apply_recipe(settings, card)
    training = settings.training
    check_trainable(card, training.batch_size, settings.model.image_size)
    earlier = find_earlier(settings)
    said = (*notes, recipe_note(card, recipe)) if recipe else tuple(notes)
    for note in said:
        progress.note(note)
    let_model_bring_data(settings)
    dataset = take_turn(team, lambda: open_data(settings, settings.data, card.needs, progress))
    check_trainable(card, min(training.batch_size, len(dataset)), settings.model.image_size)
    held_out = None
    if trains_for_real(settings) and (team is None or team.leads_ranks):
        from detscope.sessions.train.held_out import open_held_out

        held_out = open_held_out(settings, card, device, progress)
    job = TrainingJob(settings, device, card, dataset, held_out, earlier, said, recipe, team)
    from detscope.sessions.train.loop import train_job

    return train_job(job, progress)


def take_turn(team: Team | None, make: Callable[[], Made]) -> Made:
    """Ranks of a host do not download the same file at the same time."""
    return make() if team is None else team.take_turn(make)


def let_model_bring_data(settings: Settings) -> None:
    """A user's model file may register data sets: it is read before a name that nobody knows is refused."""
    from detscope.data.registry import list_datasets
    from detscope.zoo import user

    name = settings.data.name
    if ":" not in settings.model.name or Path(name).exists():
        return
    if name not in {entry.name for entry in list_datasets()}:
        user.import_own(settings.model.name)


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
    for name, values in wanted.items():
        given = getattr(settings, name).model_fields_set
        free = {key: value for key, value in values.items() if key not in given}
        changed |= {f"{name}.{key}": value for key, value in free.items()}
        settings = settings.with_section(name, **free)
    # the stored configuration is complete: repeated, it asks no recipe again
    return settings.with_section("training", recipe=False), changed


def recipe_note(card: ModelCard, changed: dict[str, Any]) -> str:
    """One line on what the recipe decided."""
    told = ", ".join(f"{key.partition('.')[2]} = {value}" for key, value in changed.items())
    return f"recipe of {card.name}: {told}"
