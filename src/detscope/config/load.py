"""Settings from everywhere: defaults < file < `--set` < flags, with all problems reported at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from detscope.config.problems import accepts_type, find_name_problems, find_value_problems, list_sections
from detscope.config.schema import Settings
from detscope.config.toml import dump_settings, parse_value, read_toml, show_value
from detscope.errors import SettingsError

__all__ = ["DEFAULT_FILE", "FLAGS", "LoadedSettings", "dump_settings", "load_settings"]

DEFAULT_FILE = Path(".config") / "config.toml"

# The command line's own name of a key, for messages; a flag's key decides what it sets.
FLAGS: Mapping[str, str] = {
    "model.name": "MODEL",
    "model.weights": "--weights",
    "model.image_size": "--image-size",
    "training.batch_size": "--batch-size",
    "training.num_workers": "--num-workers",
    "training.device": "--device",
    "training.steps": "--steps",
    "training.num_epochs": "--epochs",
    "training.precision": "--precision",
    "training.seed": "--seed",
    "training.resume": "--resume",
    "training.tensorboard": "--tensorboard",
    "evaluation.every": "--eval-every",
    "evaluation.split": "--split",
    "evaluation.detections": "--detections",
    "data.name": "--data",
    "data.on_bad_data": "--on-bad-data",
    "inference.images": "IMAGES",
    "inference.limit": "--limit",
    "inference.repeat": "--repeat",
    "inference.batch_size": "--batch-size",
    "inference.device": "--device",
    "inference.precision": "--precision",
    "inference.threads": "--threads",
    "inference.score": "--score",
    "inference.stages": "--stage",
    "inference.tensorboard": "--tensorboard",
    "record.level": "--level",
    "record.modules": "--modules",
    "output.runs": "--out",
}
_HINT = "the config.toml of every run lists all keys with the values it used"


@dataclass(frozen=True)
class LoadedSettings:
    """The settings of a run, who decided each of them, and what a person should know about them."""

    settings: Settings
    origins: Mapping[str, str]  # "training.batch_size" -> "--set", a flag or a file; absent: the default
    notes: tuple[str, ...]


@dataclass(frozen=True)
class SettingsLayer:
    """Settings that came from one place."""

    origin: str
    tables: Mapping[str, object]


def load_settings(path: Path | None, overrides: Sequence[str], flags: Mapping[str, object]) -> LoadedSettings:
    """Settings from a TOML file, `--set section.key=value` texts and flags by dotted key.

    A flag's value may be a text as typed or a value of its type; None means not given.
    Without `path`, `.config/config.toml` in the current folder is taken when it is there.
    """
    problems: list[str] = []
    file = path or (DEFAULT_FILE if DEFAULT_FILE.exists() else None)
    layers = [SettingsLayer(str(file), read_toml(file))] if file is not None else []
    layers += [*_override_layers(overrides, problems), *_flag_layers(flags)]
    merged: dict[str, dict[str, object]] = {}
    origins: dict[str, str] = {}
    for layer in layers:
        unknown, tables = find_name_problems(layer.tables, layer.origin)
        problems += unknown + find_value_problems(tables, layer.origin)
        for section, content in tables.items():
            merged.setdefault(section, {}).update(content)
            origins.update({f"{section}.{key}": layer.origin for key in content})
    if problems:
        raise SettingsError(problems, _HINT)
    settings = Settings.model_validate(merged)
    return LoadedSettings(settings, origins, tuple(_list_notes(settings, path is None and file is not None)))


def _override_layers(overrides: Sequence[str], problems: list[str]) -> Iterator[SettingsLayer]:
    """One layer per `--set`, so that each is judged by itself and later ones win."""
    for override in overrides:
        name, equals, text = override.partition("=")
        section, dot, key = (part.strip() for part in name.partition("."))
        if not equals:
            problems.append(
                f"--set {show_value(override)}: expected section.key=value, as in training.batch_size=4"
            )
        elif not dot:
            yield SettingsLayer("--set", {section: parse_value(text.strip())})
        else:
            yield SettingsLayer("--set", {section: {key: _parse_text(section, key, text.strip())}})


def _parse_text(section: str, key: str, text: str) -> object:
    """What a text on the command line means for a key."""
    field = list_sections().get(section, {}).get(key)
    value = parse_value(text)
    if field is None:
        return value
    if accepts_type(field, str):
        return value if isinstance(value, str) else text  # `modules=2` and `runs=2026` are texts here
    return None if text == "none" and accepts_type(field, None) else value


def _flag_layers(flags: Mapping[str, object]) -> Iterator[SettingsLayer]:
    for dotted, value in flags.items():
        if value is None:
            continue
        section, _, key = dotted.partition(".")
        field = list_sections().get(section, {}).get(key)
        # texts stay as typed where a key takes texts; `--batch-size 4` arrives as a text and means a number
        if isinstance(value, str) and field is not None and not accepts_type(field, str):
            value = _parse_text(section, key, value)
        yield SettingsLayer(FLAGS.get(dotted, dotted), {section: {key: value}})


def _list_notes(settings: Settings, found_file: bool) -> Iterator[str]:
    if found_file:
        yield f"settings taken from {DEFAULT_FILE}, found in the current folder"
    training = settings.training
    if training.num_workers == 0 and training.prefetch_factor is not None:
        yield (
            f"prefetch_factor = {training.prefetch_factor} has no effect: "
            "with num_workers = 0 the loop loads its data itself"
        )
