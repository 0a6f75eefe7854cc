from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from detscope.analyze.drawing import ReportData
from detscope.analyze.summary import RunSummary
from detscope.cli.main import app
from detscope.config.schema import Settings
from detscope.report.progress import Progress
from detscope.runs.reader import load_run
from detscope.runs.writer import RunWriter
from made_figures import made_figure

FLAGS = {
    "": {"--version", "--debug", "--install-completion", "--show-completion"},
    "train": {
        "MODEL", "--config", "--set", "--data", "--on-bad-data", "--weights", "--batch-size", "--image-size",
        "--num-workers", "--device", "--precision", "--threads", "--steps", "--epochs", "--eval-every",
        "--resume", "--seed", "--level", "--tensorboard", "--modules", "--memory", "--census", "--try",
        "--nsight", "--window",
        "--batch-sizes", "--out", "--strict", "--json", "--ranks", "--nodes", "--rendezvous",
        "--quiet", "-q", "--verbose", "-v",
    },
    "infer": {
        "MODEL", "IMAGES", "--model", "--config", "--set", "--data", "--on-bad-data", "--weights",
        "--image-size", "--limit",
        "--repeat",
        "--batch-size", "--device", "--precision", "--threads", "--score", "--level", "--modules", "--memory",
        "--census", "--stage",
        "--nsight", "--window", "--batch-sizes", "--tensorboard", "--out", "--json", "--quiet", "-q",
        "--verbose", "-v",
    },
    "run": {
        "SCRIPT [ARGS]...", "-m", "--level", "--memory", "--census", "--window",
        "--max-steps", "--seed", "--out", "--json", "--json-file", "--quiet", "-q",
    },
    "import": {"FILE...", "--out", "--name", "--json"},
    "eval": {
        "MODEL", "--weights", "--data", "--on-bad-data", "--split", "--detections", "--config", "--set",
        "--batch-size",
        "--device", "--out", "--json", "--quiet", "-q",
    },
    "show": {"RUN", "--section", "--json"},
    "report": {"RUN", "--format", "--out", "--markdown", "--html", "--open"},
    "mcp": {"--runs"},
    "why": {"RUN", "--json", "--limit", "--sarif"},
    "try": {
        "RUN", "--patch", "--set", "--env", "--finding", "--seed", "--steps", "--rounds", "--budget",
        "--tolerance", "--markdown", "--out", "--json",
    },
    "tune": {"MODEL", "--config", "--set", "--budget", "--steps", "--data", "--device", "--out", "--json"},
    "compare": {
        "BASE", "RUN...", "--repeat", "--budget", "--by", "--fail-if", "--markdown", "--html",
        "--strict", "--json",
    },
    "runs": {"DIR", "--model", "--device", "--since", "--sort", "--json"},
    "data": set(),
    "data list": {"--root", "--json"},
    "data prepare": {"NAME", "--root", "--url", "--trust-url", "--json", "--quiet", "-q"},
    "data check": {"NAME|DIR", "--root", "--out", "--json", "--quiet", "-q"},
    "models": {"GLOB", "--json"},
    "prune": {
        "MODEL...", "--levels", "--mode", "--seed", "--out", "--force", "--json", "--quiet", "-q",
    },
    "sweep": set(),
    "sweep run": {
        "PLAN", "--dry-run", "--resume", "--till-first-fail", "--isolation", "--on", "--store", "--json",
        "--quiet", "-q",
    },
    "sweep status": {"DB", "--json"},
    "sweep merge": {"DB...", "--out", "--json"},
    "sweep export": {"DB", "--format", "--out"},
    "sweep import": {"FILE...", "--store", "--device", "--workload", "--stage", "--json"},
    "doctor": {"--selftest", "--device", "--json"},
    "schema": {"SUBJECT"},
    "fit": {
        "FILE...", "--out", "--target", "--workload", "--stage", "--method", "--device", "--where",
        "--microbench",
        "--microbench-seconds", "--layer-times", "--transfer", "--json",
    },
    "score": {
        "FILE...", "--target", "--workload", "--stage", "--method", "--protocol", "--device", "--where",
        "--layer-times", "--picture", "--json",
    },
    "predict": {
        "NETWORK", "--device-model", "--batch-sizes", "--image-size", "--memory-limit", "--workload",
        "--stage", "--optimizer", "--picture", "--html", "--json",
    },
}  # fmt: skip


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DETSCOPE_DEBUG", raising=False)


def invoke(*args: str) -> Any:
    return CliRunner().invoke(app, args)


def names_of(command: Any) -> set[str]:
    """Options by their spellings, arguments by what help calls them."""
    names: set[str] = set()
    for param in command.params:
        names.update(
            [param.metavar] if param.param_type_name == "argument" else param.opts + param.secondary_opts
        )
    return names


def test_every_flag_of_every_verb_is_listed_here_so_that_adding_one_is_deliberate() -> None:
    group: Any = get_command(app)
    found = {"": names_of(group)} | {name: names_of(command) for name, command in group.commands.items()}
    for name, command in group.commands.items():
        found |= {f"{name} {part}": names_of(verb) for part, verb in getattr(command, "commands", {}).items()}
    assert found == FLAGS


def test_without_a_verb_the_help_is_shown() -> None:
    result = invoke()
    assert result.exit_code == 0
    assert "Usage: detscope" in result.stdout


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["train", "--debug"], "hint: --debug goes before the verb: detscope --debug train ..."),
        (["train", "a", "b"], "error: got unexpected extra argument"),
        (["train", "--set"], "error: option '--set' requires an argument"),
        (["train", "-q", "-v"], "error: -q and -v exclude each other"),
        (
            ["train", "--batch-size", "x"],
            'error: --batch-size: training.batch_size: expected a whole number, got "x"',
        ),
        (
            ["train", "--steps", "0", "--level", "op"],
            'error: --level: record.level: expected one of "phases"',
        ),
        (["train", "--set", "training.steps=0"], "error: --set: training.steps: expected at least 1, got 0"),
        (["--zzz"], "hint: see detscope --help"),
    ],
)
def test_wrong_usage_is_explained_on_stderr_with_exit_2(args: list[str], message: str) -> None:
    result = invoke(*args)
    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


class StandIn:
    """Stands where measuring is: notes what it was asked for, prints as a user's model might."""

    def __init__(self, stability: str, folder: Path) -> None:
        self.folder = folder
        self.settings: Settings | None = None
        self.notes: Sequence[str] = ()
        self.stability = stability

    def run_training(self, settings: Settings, *, progress: Progress, notes: Sequence[str]) -> Path:
        print("a model that prints")
        self.settings, self.notes = settings, notes
        progress.start(2, "training")
        progress.advance(loss=1.5)
        progress.advance(loss=1.25)
        return Path("runs/a-run")

    def read_finished(self, run: Path) -> ReportData:
        given = {
            "run": str(run),
            "status": "ok",
            "verdict": "waiting for data",
            "images_per_s": float("nan"),
            "stability": {"verdict": self.stability, "reason": "spread 15 %"},
        }
        writer = RunWriter(self.folder, "train", "model", {})
        writer.close_run("ok")
        return ReportData(load_run(writer.folder), made_figure(RunSummary, given), just_ended=True)


@pytest.fixture
def measuring(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., StandIn]:
    def install(stability: str = "stable") -> StandIn:
        stand_in = StandIn(stability, tmp_path)
        module = ModuleType("detscope.sessions.train.training")
        module.run_training = stand_in.run_training  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, module.__name__, module)
        monkeypatch.setattr("detscope.cli.measure.train.read_finished", stand_in.read_finished)
        return stand_in

    return install


def test_train_hands_over_the_settings_of_its_flags(measuring: Callable[..., StandIn]) -> None:
    stand_in = measuring()
    flags = (
        "tiny_ssd --batch-size 4 --num-workers 0 --device cpu --steps 7 --epochs 2 --data pets --level ops "
    )
    flags += "--modules 2 --weights none --precision bf16 --image-size 320 --seed 9 --out there "
    result = invoke("train", *flags.split(), "--set", "training.prefetch_factor=2")
    assert result.exit_code == 0, result.stderr
    settings = stand_in.settings
    assert settings is not None
    model = settings.model
    assert (model.name, model.weights, model.image_size) == ("tiny_ssd", "none", 320)
    training = settings.training
    assert (training.batch_size, training.num_workers, training.device, training.steps) == (4, 0, "cpu", 7)
    assert (training.num_epochs, training.precision, training.seed) == (2, "bf16", 9)
    assert (settings.data.name, settings.record.level, settings.record.modules) == ("pets", "ops", "2")
    assert settings.output.runs == "there"
    assert len(stand_in.notes) == 1
    assert "prefetch_factor = 2 has no effect" in stand_in.notes[0]


def test_json_stands_alone_on_stdout(measuring: Callable[..., StandIn]) -> None:
    measuring()
    result = invoke("train", "--json")
    assert json.loads(result.stdout)["images_per_s"] is None  # JSON has no NaN
    assert "a model that prints" in result.stderr
    assert "training: 2/2 (100 %)" in result.stderr


def test_a_person_gets_verdict_path_and_next_command(measuring: Callable[..., StandIn]) -> None:
    measuring()
    result = invoke("train")
    assert "Waiting for data" in result.stdout
    assert "detscope report runs/a-run" in result.stdout


def test_quiet_prints_the_path_alone(measuring: Callable[..., StandIn]) -> None:
    measuring()
    result = invoke("train", "-q")
    assert (result.exit_code, result.stdout) == (0, "runs/a-run\n")
    assert result.stderr == "a model that prints\n"


def test_verbose_says_where_each_setting_came_from(measuring: Callable[..., StandIn]) -> None:
    measuring()
    result = invoke("train", "-v", "--batch-size", "3", "--set", "training.seed=4")
    assert (
        "setting: training.seed = 4 (--set)\nsetting: training.batch_size = 3 (--batch-size)\n"
        in result.stderr
    )


@pytest.mark.parametrize(
    ("stability", "strict", "code"),
    [
        ("unstable", True, 5),
        ("error", True, 5),
        ("stable", True, 0),
        ("too few", True, 0),
        ("unstable", False, 0),
    ],
)
def test_unstable_measurements_fail_only_when_strict(
    measuring: Callable[..., StandIn], stability: str, strict: bool, code: int
) -> None:
    measuring(stability)
    result = invoke("train", "--json", *(["--strict"] if strict else []))
    assert result.exit_code == code
    assert json.loads(result.stdout)["run"] == "runs/a-run"
    assert ("spread 15 %" in result.stderr) == (strict and stability != "stable")


@pytest.mark.parametrize("verb", ["show", "why", "report", "runs"])
def test_without_any_run_every_verb_says_how_to_make_one(
    measuring: Callable[..., StandIn], verb: str
) -> None:
    measuring()
    result = invoke(verb)
    assert (result.exit_code, result.stdout) == (3, "")
    assert "hint: make one: detscope train" in result.stderr


def test_show_finds_a_run_by_the_beginning_of_its_name() -> None:
    for name in ("20260101-train-x", "20260202-train-y"):
        writer = RunWriter(Path("made"), "train", "x", {})
        writer.close_run("ok")
        Path("runs").mkdir(exist_ok=True)
        writer.folder.rename(Path("runs") / name)
    result = invoke("show", "202602", "--json")
    assert Path(json.loads(result.stdout)["run"]).name == "20260202-train-y"


def test_models_are_listed_with_family_parameters_size_and_licence() -> None:
    result = invoke("models")
    assert result.exit_code == 0, result.stderr
    for words in ("fasterrcnn_resnet50_fpn", "family", "parameters", "input", "licence of weights"):
        assert words in result.stdout


def test_models_by_glob_as_json() -> None:
    cards = json.loads(invoke("models", "ssd300*", "--json").stdout)
    assert cards
    assert all(card["name"].startswith("ssd300") for card in cards)
    assert {"family", "parameters", "input_size", "weights_licence"} <= cards[0].keys()


def test_a_glob_that_matches_nothing_is_an_error_with_a_hint() -> None:
    result = invoke("models", "zzz")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "no model matches 'zzz'" in result.stderr
