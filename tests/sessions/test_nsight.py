"""`--nsight` with stand-in tools on PATH: they check their command line and leave files behind."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from detscope.cli.main import app, main
from detscope.config.schema import Settings
from detscope.errors import MachineError, UsageError
from detscope.machine.programs import METRICS, explain_failure, run_tool, unknown_metrics
from detscope.record.device.nsight import ENVIRONMENT, StepWindow, parse_window, watch_window
from detscope.runs.reader import load_run
from detscope.sessions.nsight import child_settings, make_nsight_plan

WIDE = '"ID","Process ID","Kernel Name","Device",' + ",".join(f'"{metric}"' for metric in METRICS[:5])
NSYS = """
    import os, pathlib, shutil, sys, tomllib
    here = pathlib.Path(__file__).parent
    with (here / "calls").open("a") as calls:
        print(*sys.argv[1:], sep="\\t", file=calls)
    output = next(a.split("=", 1)[1] for a in sys.argv if a.startswith("--output="))
    if sys.argv[1] == "profile":
        assert "--capture-range=cudaProfilerApi" in sys.argv and "--capture-range-end=stop" in sys.argv
        assert os.environ["DETSCOPE_NSIGHT_WINDOW"] == "3:5", os.environ["DETSCOPE_NSIGHT_WINDOW"]
        command = sys.argv[sys.argv.index("-m") - 1:]
        settings = tomllib.loads(pathlib.Path(command[command.index("--config") + 1]).read_text())
        assert settings["training"]["device"] == "cuda"
        assert settings["training"]["steps"] == 6 and settings["record"]["level"] == "phases"
        pathlib.Path(output + ".nsys-rep").write_text(str(settings["training"]["batch_size"]))
    else:
        assert sys.argv[1:3] == ["export", "--type=sqlite"]
        shutil.copy(here / f"batch{pathlib.Path(sys.argv[-1]).read_text()}.sqlite", output)
"""
NCU = """
    import pathlib, sys, tomllib
    here = pathlib.Path(__file__).parent
    with (here / "calls").open("a") as calls:
        print(*sys.argv[1:], sep="\\t", file=calls)
    value = lambda flag: sys.argv[sys.argv.index(flag) + 1]
    assert value("--profile-from-start") == "off" and value("--page") == "raw" and "--csv" in sys.argv
    command = sys.argv[sys.argv.index("-m") - 1:]
    settings = tomllib.loads(pathlib.Path(command[command.index("--config") + 1]).read_text())
    section = settings["training" if "train" in command else "inference"]
    words = (here / "listing").read_text().replace("BATCH", str(section["batch_size"]))
    pathlib.Path(value("--log-file")).write_text(words)
    sys.exit(int((here / "code").read_text()) if (here / "code").exists() else 0)
"""


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Puts programs of these names, written in Python, first on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("DETSCOPE_DEBUG", raising=False)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")

    def install(**programs: str) -> Path:
        for name, code in programs.items():
            path = folder / name
            path.write_text(f"#!{sys.executable}\n{textwrap.dedent(code)}")
            path.chmod(0o755)
        return folder

    return install


def export_with(path: Path, kernel_us: int) -> None:
    """Two steps of 1 ms, each with one kernel."""
    connection = sqlite3.connect(path)
    connection.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start, end, deviceId, correlationId, shortName)"
    )
    connection.execute(
        "CREATE TABLE CUPTI_ACTIVITY_KIND_RUNTIME (start, end, globalTid, correlationId, nameId)"
    )
    connection.execute("CREATE TABLE NVTX_EVENTS (start, end, eventType, text, globalTid)")
    for number in range(2):
        begin = number * 1_000_000
        rows = {
            "NVTX_EVENTS": (begin, begin + 1_000_000, 59, f"detscope:step {3 + number}", 9),
            "CUPTI_ACTIVITY_KIND_RUNTIME": (begin + 10, begin + 20, 9, 5 + number, 1),
            "CUPTI_ACTIVITY_KIND_KERNEL": (begin + 100, begin + 100 + kernel_us * 1000, 0, 5 + number, 1),
        }
        for table, values in rows.items():
            connection.execute(f"INSERT INTO {table} VALUES ({','.join('?' * len(values))})", values)
    connection.commit()
    connection.close()


def pipe(row: dict[str, Any], name: str) -> dict[str, Any]:
    return next(found for found in row["pipes"] if found["name"] == name)


def run_json(*args: str) -> tuple[Any, Any]:
    result = CliRunner().invoke(app, args)
    return (json.loads(result.stdout) if result.stdout.startswith("{") else None), result


def test_systems_gives_utilisation_over_batch_sizes(tools: Callable[..., Path]) -> None:
    folder = tools(nsys=NSYS)
    export_with(folder / "batch4.sqlite", 250)
    export_with(folder / "batch8.sqlite", 500)
    flags = ["train", "tiny_fasterrcnn", "--nsight", "systems", "--window", "3:5", "--batch-sizes", "4,8"]
    found, result = run_json(*flags, "--json")
    assert result.exit_code == 0, result.output
    rows = found["batch_sizes"]
    assert [row["batch_size"] for row in rows] == [4, 8]
    assert [row["utilisation"]["kernels"] for row in rows] == [0.25, 0.5]
    assert [row["steps"] for row in rows] == [2, 2]
    run = load_run(rows[1]["run"])
    assert run.info["batch_size"] == 8
    assert run.info["nsight"] == {"tool": "systems", "window": "3:5", "verb": "train"}
    assert run.table("device_events")["step"].to_list() == [3, 4]
    calls = (folder / "calls").read_text().splitlines()
    assert [call.split("\t")[0] for call in calls] == ["profile", "export"] * 2
    shown = CliRunner().invoke(app, flags)
    assert "25.0 %" in shown.stdout and "50.0 %" in shown.stdout
    assert "detscope show" in shown.stdout


LISTING = f"""==PROF== Connected to process 7
{WIDE}
"","","","","cycle","%","%","%","%"
"0","7","conv","0","1,000","BATCH","1","0","0"
==PROF== Disconnected from process 7
"1","7","last","0","3,000","0","0","40","0"
"""


@pytest.mark.parametrize("verb", ["train", "infer"])
def test_compute_gives_core_utilisation_over_all_kernels(tools: Callable[..., Path], verb: str) -> None:
    folder = tools(ncu=NCU)
    (folder / "listing").write_text(LISTING)
    found, result = run_json(verb, "tiny_fasterrcnn", "--nsight", "compute", "--batch-sizes", "4,8", "--json")
    assert result.exit_code == 0, result.output
    first, second = found["batch_sizes"]
    assert found["window"] == "1:2"
    assert first["kernels"] == 2
    assert pipe(first, "fma")["value"] == pytest.approx(4 * 1000 / 4000 / 100)
    assert pipe(second, "fma")["value"] == pytest.approx(8 * 1000 / 4000 / 100)
    assert pipe(first, "tensor")["value"] == pytest.approx(40 * 3000 / 4000 / 100)
    assert pipe(first, "tensor")["coverage"] == 1.0
    asked = (folder / "calls").read_text().splitlines()[0].split("\t")
    assert asked[asked.index("--metrics") + 1] == ",".join(METRICS)


def test_a_metric_the_device_does_not_have_is_left_out_and_said(tools: Callable[..., Path]) -> None:
    lacking = METRICS[2]
    tools(
        ncu=NCU.replace(
            'words = (here / "listing").read_text()',
            f'if "{lacking}" in value("--metrics"):\n'
            f'        print("==ERROR== Failed to find metric {lacking}")\n        sys.exit(1)\n'
            '    words = (here / "listing").read_text()',
        )
    )
    (Path("bin") / "listing").write_text(LISTING)
    found, result = run_json("train", "tiny_fasterrcnn", "--nsight", "compute", "--json")
    assert result.exit_code == 0, result.output
    assert f"has no {lacking}: recorded without" in result.stderr
    assert found["batch_sizes"][0]["kernels"] == 2


def test_without_the_tool_it_is_exit_4_with_a_remedy(tools: Callable[..., Path], monkeypatch, capsys) -> None:
    monkeypatch.setenv("PATH", str(tools()))
    monkeypatch.setattr("detscope.machine.programs.find_nsight", lambda _name: None)
    monkeypatch.setattr(sys, "argv", ["detscope", "train", "tiny_fasterrcnn", "--nsight", "compute"])
    with pytest.raises(SystemExit) as left:
        main()
    assert left.value.code == 4
    said = capsys.readouterr().err
    assert "error: Nsight Compute is not on this machine: no `ncu` on PATH" in said
    assert "hint: install NVIDIA's nsight-compute package" in said


def test_without_permission_it_is_exit_4_with_a_remedy(tools: Callable[..., Path]) -> None:
    folder = tools(ncu=NCU)
    (folder / "listing").write_text("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission\n")
    (folder / "code").write_text("1")
    _, result = run_json("train", "tiny_fasterrcnn", "--nsight", "compute", "--batch-sizes", "4,8")
    assert result.exit_code == 4
    assert "NVreg_RestrictProfilingToAdminUsers=0" in result.stderr
    assert len((folder / "calls").read_text().splitlines()) == 1  # no other batch size can work either


@pytest.mark.skipif(os.path.exists("/dev/nvidia0"), reason="there is a GPU here")  # noqa: PTH110
def test_without_a_device_the_command_itself_says_so(tools: Callable[..., Path]) -> None:
    tools(ncu='import subprocess, sys\nsys.exit(subprocess.call(sys.argv[sys.argv.index("-m") - 1:]))')
    _, result = run_json("train", "tiny_fasterrcnn", "--nsight", "compute")
    assert result.exit_code == 4
    assert 'needs a CUDA device: device "cuda" asked for' in result.stderr


def test_one_batch_size_that_fails_leaves_the_others(tools: Callable[..., Path]) -> None:
    folder = tools(
        ncu=NCU.replace(
            "sys.exit(",
            'if section["batch_size"] == 8:\n        sys.exit("error: out of memory")\n    sys.exit(',
        )
    )
    (folder / "listing").write_text(LISTING)
    found, result = run_json("train", "tiny_ssd", "--nsight", "compute", "--batch-sizes", "4,8,16", "--json")
    assert result.exit_code == 6
    assert [row["status"] for row in found["batch_sizes"]] == ["ok", "failed", "ok"]
    assert found["batch_sizes"][1]["why"] == "out of memory"


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["--nsight", "both"], "is not one of systems, compute"),
        (["--nsight", "systems", "--window", "5"], "is not FIRST:END"),
        (["--nsight", "systems", "--window", "5:5"], "holds no step"),
        (["--nsight", "systems", "--batch-sizes", "4,x"], "is not a list of batch sizes"),
        (["--window", "1:2"], "--window belongs to --nsight"),
        (["--batch-sizes", "1"], "--batch-sizes belongs to --nsight"),
        (["--nsight", "compute", "--device", "cpu"], "measures a CUDA device"),
    ],
)
def test_wrong_flags_are_exit_2(tools: Callable[..., Path], args: list[str], words: str) -> None:
    _, result = run_json("train", "tiny_ssd", *args)
    assert result.exit_code == 2
    assert words in result.stderr


def test_the_plan_of_the_flags() -> None:
    assert make_nsight_plan("compute", None, None, 2).window == StepWindow(1, 2)
    assert make_nsight_plan("systems", None, "8,4,8", 2).batch_sizes == (8, 4)
    with pytest.raises(UsageError):
        make_nsight_plan("systems", None, ",", 2)


def test_the_child_does_the_same_work_and_listens_as_little_as_it_can() -> None:
    child = child_settings(Settings(), "infer", 16, StepWindow(10, 20), Path("there"))
    assert (child.inference.batch_size, child.inference.repeat, child.inference.device) == (16, 21, "cuda")
    assert (child.record.level, child.record.telemetry_hz, child.output.runs) == ("phases", 0.0, "there")


class Listener:
    def __init__(self) -> None:
        self.heard: list[str] = []
        self.between_steps: Callable[[int], None] = lambda done: self.heard.append(f"border {done}")

    def switch_on(self) -> None:
        self.heard.append("on")

    def switch_off(self) -> None:
        self.heard.append("off")

    def begin_step(self, index: int) -> None:
        self.heard.append(f"begin {index}")

    def end_step(self) -> None:
        self.heard.append("end")


@pytest.mark.parametrize("first", [0, 2])
def test_the_profiler_runs_exactly_for_the_window(monkeypatch: pytest.MonkeyPatch, first: int) -> None:
    monkeypatch.setenv(ENVIRONMENT, f"{first}:{first + 2}")
    steps = Listener()
    watch_window(steps, steps)
    with pytest.raises(SystemExit) as left:
        for done in range(1, 10):
            steps.between_steps(done)
    assert left.value.code == 0
    inside = steps.heard[steps.heard.index("on") :]
    assert inside == [
        "on", f"begin {first}", "end", f"border {first + 1}", f"begin {first + 1}", "end",
        f"border {first + 2}", "off",
    ]  # fmt: skip


def test_without_the_variable_nothing_is_watched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    steps = Listener()
    before = steps.between_steps
    watch_window(steps, steps)
    assert steps.between_steps is before
    assert str(parse_window("100:200")) == "100:200"


@pytest.mark.parametrize("verb", ["train", "infer"])
def test_the_command_under_the_tool_ends_well_when_the_window_is_over(
    verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from detscope.report.progress import make_progress
    from detscope.sessions.infer.inference import run_inference
    from detscope.sessions.train.training import run_training

    switch = Listener()
    monkeypatch.setenv(ENVIRONMENT, "1:3")
    monkeypatch.setattr("detscope.record.device.nsight.CudaSwitch", lambda: switch)
    settings = Settings.model_validate(
        {
            "model": {"name": "tiny_ssd"},
            "training": {"device": "cpu", "num_workers": 0},
            "inference": {"device": "cpu", "limit": 2},
        }
    )
    own = child_settings(settings, verb, 2, StepWindow(1, 3), tmp_path)
    with pytest.raises(SystemExit) as left:
        (run_training if verb == "train" else run_inference)(own, progress=make_progress(quiet=True))
    assert left.value.code == 0
    assert switch.heard == ["on", "begin 1", "end", "begin 2", "end", "off"]


def test_words_of_failure_have_a_meaning() -> None:
    assert explain_failure("systems", 0, "Generated: /tmp/x.nsys-rep") is None
    no_device = explain_failure("compute", 0, "==ERROR== no CUDA-capable device is detected")
    assert isinstance(no_device, MachineError)
    assert "needs a CUDA device" in no_device.message
    other = explain_failure("systems", 139, "boom\n\n")
    assert other is not None and other.message == "nsys ended with code 139: boom"
    assert unknown_metrics(f"==ERROR== Failed to find metric {METRICS[1]}.", METRICS) == [METRICS[1]]


FAMILY = """
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
open(sys.argv[1], "w").write(str(child.pid))
time.sleep(600)
"""


def gone(pid: int) -> bool:
    ends = time.monotonic() + 900
    while time.monotonic() < ends:
        try:
            if Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z":
                return True
        except (FileNotFoundError, ProcessLookupError):
            return True
        time.sleep(0.05)
    return False


@pytest.mark.processes
def test_a_tool_that_does_not_end_is_stopped_with_its_children(tmp_path: Path) -> None:
    pid = tmp_path / "pid"
    for limit_s in (1.5, 10, 60, 360):  # the tool must have got so far as to have a child
        with pytest.raises(MachineError, match="did not end within"):
            run_tool([sys.executable, "-c", FAMILY, str(pid)], tmp_path / "log", limit_s, {})
        if pid.exists() and pid.read_text():
            break
    assert gone(int(pid.read_text()))


@pytest.mark.processes
@pytest.mark.parametrize(
    ("number", "ending"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, SystemExit)]
)
def test_a_signal_while_the_tool_is_started_ends_it_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, ending: type[BaseException]
) -> None:
    started: list[subprocess.Popen[bytes]] = []

    class Interrupted(subprocess.Popen):  # type: ignore[type-arg]
        def __init__(self, *args: Any, **more: Any) -> None:
            super().__init__(*args, **more)
            started.append(self)
            signal.raise_signal(number)

    monkeypatch.setattr("detscope.machine.programs.subprocess.Popen", Interrupted)
    with pytest.raises(ending):
        run_tool([sys.executable, "-c", "import time; time.sleep(600)"], tmp_path / "log", 600, {})
    assert started[0].returncode in (-signal.SIGTERM, -signal.SIGKILL)


@pytest.mark.processes
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_leaves_nothing_running(tools: Callable[..., Path], number: int, code: int) -> None:
    folder = tools(
        ncu=FAMILY.replace("sys.argv[1]", "str(__import__('pathlib').Path(__file__).parent / 'pid')")
    )
    command = [sys.executable, "-m", "detscope", "train", "tiny_ssd", "--nsight", "compute"]
    process = subprocess.Popen(
        command, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, start_new_session=True
    )
    pid = folder / "pid"
    deadline = time.monotonic() + 900
    while not (pid.exists() and pid.read_text()) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    process.send_signal(number)
    _, said = process.communicate(timeout=900)
    assert process.returncode == code, said
    assert gone(int(pid.read_text()))
