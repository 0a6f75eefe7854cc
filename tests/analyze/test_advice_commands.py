"""Every rule on every kind of run: what it tells people to type can be typed, and its words fit the run."""

from __future__ import annotations

import io
import shlex
from pathlib import Path
from typing import Any

import msgspec
import pytest
import typer
from rich.console import Console

from detscope.analyze.advice import advise_on_memory, advise_on_time
from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.drawing import ReportData
from detscope.analyze.memory.account import memory_account
from detscope.analyze.rerun import rerun_command
from detscope.analyze.summary import RunSummary
from detscope.analyze.verdict import training_verdict
from detscope.cli.main import app
from detscope.config.load import dump_settings, load_settings
from detscope.parts import parts_of
from detscope.report.render.terminal import print_sections
from detscope.report.sections.files import section as files_section
from detscope.runs.reader import load_run
from made_figures import made_figure
from memory_samples import a_step, made_run, state, write_run

TRAINING_WORDS = ("optimizer", "backward", "learning rate", "gradient", "loss", "trained")
KINDS = (
    "train",
    "infer",
    "eval",
    "run",
    "run -m",
    "run of ranks",
    "evaluating run",
    "watch",
    "record",
    "import",
)
TRAINS = ("train", "run", "run -m", "run of ranks", "watch", "record", "import")


def folder_of(kind: str, place: Path) -> tuple[Path, dict[str, Any]]:
    """A run's folder with what that kind writes, and its run.json."""
    folder = place / "a run"
    folder.mkdir()
    verb = "run" if "run" in kind or kind == "watch" else kind
    info: dict[str, Any] = {"verb": verb}
    if verb in ("train", "infer", "eval"):
        (folder / "config.toml").write_text(dump_settings(load_settings(None, (), {}).settings, verb))
    if verb == "run":
        script = place / "my train.py"
        script.write_text("print('hello')\n")
        typed = {"run -m": ["-m", "json.tool", "--help"], "watch": []}
        info["script"] = {
            "command": typed.get(kind, ["my train.py", "--level", "3"]),
            "folder": "" if kind == "watch" else str(place),
        }
        info["rank"] = {"rank": 0, "ranks": 2 if kind == "run of ranks" else 1}
    return folder, info


def telling(
    kind: str, folder: Path, info: dict[str, Any], quiet_loader: bool = False, boxed: bool = False
) -> RunSummary:
    """Figures that make rules speak; of an inference nothing goes backward and no optimizer steps."""
    detector = ("matcher", "loss.auxiliary_0", "loss.auxiliary_1") if kind in TRAINS else ()
    phases = {"data": 0.2, "transfer": 0.1, "forward": 0.3, "backward": 0.2, "optimizer": 0.1, "other": 0.1}
    if kind not in TRAINS:
        phases |= {"backward": 0.0, "optimizer": 0.0, "forward": 0.6}
    figures = {"wait_ms": 20.0, "receive_ms": 18.0, "ready_share": 0.9, "tensors_per_batch": 14.0}
    loader = {"num_workers": 1, "capacity_images_per_s": 20.0, "demand_images_per_s": 40.0}
    if quiet_loader:
        blur = {"name": "Blur", "kind": "transform", "share": 0.5, "ms_per_image": 5.0}
        loader |= {"capacity_images_per_s": 60.0, "transforms": [blur]}
    else:
        loader |= figures
    own = {"self_forward_ms": 30.0, "self_backward_ms": 0.0}
    idle = [{"name": name, "share": 0.2} for name in ("host", "data")]
    blame = [{"cause": "synchronisation", "call": "aten::item", "share": 0.2, "gaps": 3}]
    given = {
        "verb": info["verb"],
        "run": str(folder),
        "rerun": rerun_command(folder, info),
        "device": "V100",
        "device_use": {"blame": blame, "idle": {"causes": idle, "window_ns": 100}},
        "precision": "fp32",
        "batch_size": 2,
        "step_ms": {"p50": 100.0},
        "phases": [{"name": name, "share": share, "ms": 100 * share} for name, share in phases.items()],
        "stages": [{"name": name, "share": 0.2, "total_ms": 20.0} for name in ("nms", *detector)],
        "modules": [{"path": "a", "type": "Conv2d", **own}, {"path": "b", "type": "BatchNorm2d", **own}],
        "operators": [{"name": "aten::conv2d", "self_ms": 5.0, "phase": "forward"}],
        "loader": loader,
        "content": {"padding_share": 0.4, "input_sizes": 1 if boxed else 9},
        "model": {"tensors": 100, "parameters": 1000, "one_to_one_head": boxed},
        "parts": [{"name": "ema", "phase": "other", "ms": 8.0, "share": 0.08}],
        "optimizers": [{"name": "SGD", "groups": 400, "different_groups": 2, "tensors": 400, "way": "loop"}],
        "level": "modules",
    }
    return made_figure(RunSummary, given)


def check_typed(command: str) -> None:
    """The command line's own parser takes it, its files are there, its settings are settings."""
    program, *arguments = shlex.split(command)
    assert program == "detscope"
    group: Any = typer.main.get_command(app)
    with group.make_context("detscope", list(arguments)) as context:
        name, verb, rest = group.resolve_command(context, arguments)
        with verb.make_context(name, list(rest), parent=context) as parsed:
            given = parsed.params
    if name == "run":
        assert given["module"] or Path(given["command"][0]).is_file()
    else:
        assert Path(given["config"]).is_file()
        load_settings(Path(given["config"]), given["overrides"] or (), {})


IN_OTHER_CODE = {"letterbox", "average_of_weights"}
SETTINGS = {"training": {"channels_last": False, "pin_memory": False}}


@pytest.mark.parametrize("kind", KINDS)
def test_what_every_rule_says_can_be_typed_and_fits(kind: str, tmp_path: Path) -> None:
    folder, info = folder_of(kind, tmp_path)
    cases = [telling(kind, folder, info, quiet) for quiet in (True, False)]
    cases.append(telling(kind, folder, info, boxed=True))
    unknown = msgspec.structs.replace(cases[0].loader, capacity_images_per_s=None)
    cases.append(msgspec.structs.replace(cases[0], loader=unknown))  # nobody measured the loader
    rows = [row for case in cases for row in advise_on_time(case, SETTINGS if kind in TRAINS else {})]
    said = {row.rule for row in rows}
    if kind in TRAINS:
        rules = {rule.name for rule in parts_of("advice", AdviceRule) if rule.time}
        elsewhere = IN_OTHER_CODE if kind == "train" else set()  # our own training does otherwise
        assert said == rules - {"end_to_end_head"} - elsewhere
    assert ("end_to_end_head" in said) == (kind not in TRAINS)
    assert len(said) >= 6
    for row in rows:
        assert row.how or row.command, row.rule
        if row.command:
            check_typed(row.command)
        if kind in ("train", "infer"):
            assert bool(row.settings) == bool(row.command)
            assert (
                all(key.split(".")[0] != "training" for key in [one.key for one in row.settings])
                or kind == "train"
            )
        else:
            assert not row.settings
            assert bool(row.command) == (kind in ("run", "run -m", "evaluating run"))
        if kind not in TRAINS:
            words = f"{row.title} {row.evidence} {row.how}"
            assert not [word for word in TRAINING_WORDS if word in words], words


@pytest.mark.parametrize("kind", KINDS)
def test_the_verdict_speaks_of_backward_where_something_went_backward(kind: str, tmp_path: Path) -> None:
    folder, info = folder_of(kind, tmp_path)
    summary = telling(kind, folder, info)
    phases = [msgspec.structs.replace(summary.phases[0], share=0.01), *summary.phases[1:]]
    said = training_verdict(summary.step_ms, phases, summary.stages, summary.loader)
    assert ("backward together" in said) == (kind in TRAINS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_command_that_comes_next_can_be_typed(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder, info = folder_of(kind, tmp_path)
    console = Console(width=400, record=True, file=io.StringIO())
    summary = telling(kind, folder, info)
    print_sections([files_section(ReportData(None, summary))], console)  # type: ignore[arg-type]
    (line,) = [one for one in console.export_text().splitlines() if one.strip().startswith("next")]
    command = line.strip().removeprefix("next").strip()
    if "detscope show" in command:
        assert Path(shlex.split(command)[2]).is_dir()
    else:
        check_typed(command)
        assert "--level ops" in command


@pytest.mark.parametrize("kind", ["train", "infer", "run", "record"])
def test_memory_advice_names_options_only_where_there_are_options(kind: str, tmp_path: Path) -> None:
    trains = kind != "infer"
    rows = [*state(), *a_step(0), *a_step(1)]
    if not trains:
        rows = [row for row in rows if row["direction"] != "backward"]
        rows = [row for row in rows if row["category"] not in ("gradients", "optimizer")]
    made = write_run(tmp_path, rows)
    if kind not in ("train", "infer"):
        (made.folder / "config.toml").unlink()
    made.info["verb"] = kind
    account = memory_account(made)
    assert account is not None
    advice = advise_on_memory(made, account)
    assert {"batch", "bf16"} <= {row.rule for row in advice}
    for row in advice:
        if row.how.startswith("--"):
            assert kind in ("train", "infer")
            check_typed(f"detscope {kind} --config {shlex.quote(str(made.folder / 'config.toml'))} {row.how}")
        if not trains:
            assert not [word for word in TRAINING_WORDS if word in row.title + row.costs.split(", until")[0]]
    assert any(row.how.startswith("--") for row in advice) == (kind in ("train", "infer"))


def test_a_run_that_ran_out_of_memory_names_a_command_only_where_there_is_one(tmp_path: Path) -> None:
    about = {"oom": {"step": 1, "request_bytes": 10, "phase": "forward"}}
    for kind, there in (("train", True), ("record", False)):
        made = made_run(tmp_path / kind, status="oom_host", info=about)
        made.info["verb"] = kind
        if not there:
            (made.folder / "config.toml").unlink()
        oom = memory_account(made).oom
        assert oom.suggested_batch is not None
        assert bool(oom.command) == there
        if there:
            check_typed(oom.command)
    assert load_run(made.folder).status == "oom_host"
