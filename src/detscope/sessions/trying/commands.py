"""The command that made a run, as `try` starts it again; what cannot be started again is said in a line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from detscope.analyze.rerun import MADE_BY_SETTINGS
from detscope.errors import InputError, UsageError
from detscope.runs.reader import Run
from detscope.sessions.trying.copies import Workplace
from detscope.sessions.trying.processes import detscope_command

_MODEL = "model.name"
_STEPS = {"train": "training.steps", "infer": "inference.limit"}
_EXAMPLE = "detscope try RUN --patch FILE, with a run of detscope run, train or infer"


@dataclass(frozen=True)
class TriedCommand:
    """A verb of ours, and what stands behind its options."""

    verb: str
    words: tuple[str, ...]  # script and arguments, or where the settings are
    folder: Path  # where it was typed
    code: Path | None = None  # the script, or the file of the user's model; None: not a file
    model: str = ""  # the user's model behind that file's name, with its colon
    max_steps: int | None = None

    def make_words(
        self, place: Workplace, out: Path, settings: Sequence[str], seed: int | None, steps: int | None
    ) -> list[str]:
        """The whole command of one side."""
        words = [*detscope_command(), self.verb, "--out", str(out), "--level", "phases", "--quiet"]
        if self.verb == "run":
            words += ["--seed", str(seed)] if seed is not None else []
            limit = steps or self.max_steps
            words += ["--max-steps", str(limit)] if limit else []
            return [*words, *self._placed(place)]
        settings = [*settings, *([f"{_STEPS[self.verb]}={steps}"] if steps else [])]
        if seed is not None:
            settings.append(f"training.seed={seed}")
        if self.code is not None:
            settings.append(f"{_MODEL}={place.place(self.code)}{self.model}")
        return [*words, *self.words, *(word for one in settings for word in ("--set", one))]

    def _placed(self, place: Workplace) -> list[str]:
        """The script in its copy: a relative name goes with its folder, a whole one is changed."""
        name, *arguments = self.words
        goes_along = place.place(self.folder) != self.folder and not Path(name).is_absolute()
        if self.code is None or place.place(self.code) == self.code or goes_along:
            return list(self.words)
        return [str(place.place(self.code)), *arguments]


def find_command(run: Run) -> TriedCommand:
    """How the run's command is started again; `InputError` with the reason where it cannot be."""
    verb, info = str(run.info.get("verb")), run.info
    ranks = (info.get("ranks") or {}).get("count") or (info.get("rank") or {}).get("ranks") or 1
    if ranks > 1:
        raise _cannot_try(run, f"it is a job of {ranks} ranks, whose launcher's command is not known")
    if verb in MADE_BY_SETTINGS:
        return _find_settings(run, verb)
    if verb != "run":
        kinds = {"import": "it was imported", "record": "a loop of one's own has no command"}
        raise _cannot_try(run, kinds.get(verb, f"runs of `{verb}` are not tried"))
    script = info.get("script") or {}
    words, folder = tuple(script.get("command") or ()), Path(script.get("folder") or "")
    if not words or not script.get("folder"):
        raise _cannot_try(run, "its command is not known: it came by standard input, or from a notebook")
    if not folder.is_dir():
        raise _cannot_try(run, f"the folder {folder} is gone")
    code = None
    if words[0] != "-m" and (folder / words[0]).is_file():
        code = (folder / words[0]).absolute()
    elif words[0] != "-m" and ("/" in words[0] or words[0].endswith(".py")):
        raise _cannot_try(run, f"its script {folder / words[0]} is gone")
    return TriedCommand(verb, words, folder, code, max_steps=script.get("max_steps"))


def _find_settings(run: Run, verb: str) -> TriedCommand:
    config, here = (run.folder / "config.toml").absolute(), Path.cwd()
    if not config.is_file():
        raise _cannot_try(run, "it has no config.toml")
    named = str(((run.info.get("settings") or {}).get("model") or {}).get("name") or "")
    file, colon, factory = named.rpartition(":")
    code = (here / file).absolute() if file.endswith(".py") else None
    if code is not None and not code.is_file():
        raise _cannot_try(run, f"its model's file {code} is gone")
    return TriedCommand(verb, ("--config", str(config)), here, code, colon + factory)


def _cannot_try(run: Run, why: str) -> InputError:
    return InputError(f"{run.folder.name} cannot be tried: {why}", _EXAMPLE)


def check_change(command: TriedCommand, settings: Sequence[str], environment: Sequence[str]) -> None:
    """Refuse what the command does not take, before anything runs."""
    if settings and command.verb == "run":
        raise UsageError(
            "--set is of runs of train and infer; a script has no settings of ours", "try --patch or --env"
        )
    for word in environment:
        if not word.partition("=")[1] or not word.partition("=")[0]:
            raise UsageError(f"--env {word!r} is not NAME=VALUE", "for example --env OMP_NUM_THREADS=1")
    if settings:
        from detscope.config.load import load_settings

        load_settings(Path(command.words[1]), settings, {})
