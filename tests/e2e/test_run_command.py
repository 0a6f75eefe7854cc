"""`detscope run` as a person types it: the script must not notice, and its exit must be its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest
from torch_process import wait_for

from detscope.cli.main import app
from detscope.runs.reader import load_run
from named_rows import by_name
from schema_check import check_summary

EXAMPLES = Path(__file__).parents[2] / "examples"
# no optimizer: making one imports torch's compiler, for seconds
HEADER = """
import atexit, os, sys
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).eval()
def step(batch):
    with torch.no_grad():
        return model(batch).sum().item()
"""


def environment() -> dict[str, str]:
    return {**os.environ, "OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PYTHONWARNINGS": "ignore"}


def python(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def recorded(*arguments: str, folder: Path) -> tuple[subprocess.CompletedProcess[str], dict]:
    done = python("-m", "detscope", "run", "--json", "figures.json", *arguments, folder=folder)
    return done, figures(folder, done.stderr)


def figures(folder: Path, said: str) -> dict:
    assert (folder / "figures.json").exists(), said
    found = json.loads((folder / "figures.json").read_text())
    check_summary(found)
    return found


def own_words(text: str) -> str:
    """What the script wrote to stderr: our lines come after it and say whose they are."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.startswith("detscope: "))


def same_as_plain(arguments: list[str], folder: Path) -> dict:
    plain = python(*arguments, folder=folder)
    heard, summary = recorded(*arguments, folder=folder)
    assert heard.stdout == plain.stdout
    assert own_words(heard.stderr) == plain.stderr
    assert heard.returncode == plain.returncode
    assert summary["script"]["exit_code"] == plain.returncode
    return summary


def write(folder: Path, name: str, body: str, before: str = "") -> None:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(before + HEADER + textwrap.dedent(body))


def test_a_script_that_raises_raises_as_without_us(tmp_path):
    write(
        tmp_path,
        "raises.py",
        """
        class Moody(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.inner = torch.nn.Linear(8, 8)
                self.calls = 0
            def forward(self, x):
                self.calls += 1
                if self.calls == 6:
                    raise ValueError("that is enough")
                return self.inner(x)
        model = torch.nn.Sequential(Moody(), torch.nn.Linear(8, 1))
        atexit.register(lambda: print("atexit", sys.argv, __name__))
        try:
            for batch in torch.utils.data.DataLoader([torch.randn(8) for _ in range(40)], batch_size=4):
                print(step(batch))
        finally:
            print("finally", __file__, sys.path[0], __spec__)
        """,
    )
    summary = same_as_plain(["raises.py", "--lr", "1", "-q"], tmp_path)
    assert summary["status"] == "failed"
    assert summary["reason"] == "the script raised ValueError: that is enough"
    assert by_name(summary["script"]["parts"], "steps")["evaluation"] == 5


def test_memory_and_operators_of_a_script_that_collects_garbage_and_has_spans_of_its_own(
    tmp_path, torch_server
):
    """Steps end inside of `Optimizer.step`, which is a span of torch's profiler: the process used to die."""
    write(
        tmp_path,
        "collects.py",
        """
        import gc
        model = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for epoch in range(8):
            with torch.profiler.record_function("epoch"):
                for _ in range(3):
                    loss = model(torch.rand(2, 3, 64, 64)).square().mean()
                    optimizer.zero_grad()
                    loss.backward()
                    optimizer.step()
                    del loss
                    gc.collect()
        print("done")
        """,
    )
    command = ("run", "--json", "figures.json", "--memory", "--level", "ops", "-q", "collects.py")
    heard = torch_server(*command, folder=tmp_path, teardown=True)
    summary = figures(tmp_path, heard.stderr)
    assert (heard.returncode, heard.stdout) == (0, "done\n"), heard.stderr
    assert summary["status"] == "ok"
    assert by_name(summary["script"]["parts"], "steps")["training"] == 24
    assert summary["memory"]["peak_bytes"] > 0
    assert summary["operators"]


def test_a_module_with_relative_imports_sets_threads_before_torch_and_exits_with_its_own_code(tmp_path):
    early = "import os, sys\nprint('torch' in sys.modules)\nos.environ['OMP_NUM_THREADS'] = '2'\n"
    write(
        tmp_path,
        "package/train.py",
        """
        print(torch.get_num_threads(), type(torch.__loader__).__name__)
        from .data import NUMBERS
        from package.data import NUMBERS as again
        os.chdir("/")
        for number in NUMBERS:
            print(step(torch.full((4, 8), float(number))))
        print(sys.argv[0] == __file__, sys.argv[1:], __package__, __name__, NUMBERS is again)
        sys.stderr.write("to stderr\\n")
        sys.exit(3)
        """,
        early,
    )
    (tmp_path / "package" / "__init__.py").touch()
    (tmp_path / "package" / "data.py").write_text("NUMBERS = list(range(7))\n")
    summary = same_as_plain(["-m", "package.train", "--json", "x", "-m", "--", "y"], tmp_path)
    assert (summary["status"], summary["reason"]) == ("failed", "the script exited with code 3")
    assert by_name(summary["script"]["parts"], "steps")["evaluation"] == 7
    assert Path(summary["run"]).parent == tmp_path / "runs"  # wherever the script went


@pytest.mark.processes
def test_workers_that_are_spawned_and_classes_of_main_that_are_pickled(tmp_path, torch_server):
    write(
        tmp_path,
        "spawns.py",
        """
        import pickle
        from torch.utils.data import DataLoader, Dataset, get_worker_info

        class Own(Dataset):
            start = 0
            def __len__(self):
                return 24
            def __getitem__(self, index):
                return torch.full((8,), float(index + self.start))

        def begin(worker):
            dataset = get_worker_info().dataset
            assert type(dataset) is Own
            dataset.start = 100

        if __name__ == "__main__":
            loader = DataLoader(
                Own(), batch_size=4, num_workers=1, worker_init_fn=begin, multiprocessing_context="spawn"
            )
            for batch in loader:
                print(batch[0, 0].item(), step(batch))
            assert loader.worker_init_fn is begin
            print(type(pickle.loads(pickle.dumps(Own()))), Own.__module__)
        """,
    )
    done = torch_server("run", "--json", "figures.json", "spawns.py", folder=tmp_path, teardown=True)
    summary = figures(tmp_path, done.stderr)
    assert (done.returncode, own_words(done.stderr)) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()[:6]] == [
        f"{100 + 4 * number}.0" for number in range(6)
    ]
    assert done.stdout.splitlines()[6] == "<class '__main__.Own'> __main__"
    assert summary["status"] == "ok"
    assert by_name(summary["script"]["parts"], "steps")["evaluation"] == 6
    assert summary["loader"]["num_workers"] == 1  # measured inside the worker


@pytest.mark.processes
def test_a_worker_s_error_reads_as_without_us(tmp_path, torch_server):
    write(
        tmp_path,
        "broken.py",
        """
        class Broken(torch.utils.data.Dataset):
            def __len__(self):
                return 40
            def __getitem__(self, index):
                if index == 30:
                    raise KeyError("no such image")
                return torch.randn(8)

        for batch in torch.utils.data.DataLoader(Broken(), batch_size=4, num_workers=1):
            step(batch)
        """,
    )
    done = torch_server("run", "--json", "figures.json", "broken.py", folder=tmp_path, teardown=True)
    summary = figures(tmp_path, done.stderr)
    words = own_words(done.stderr)
    assert done.returncode == 1
    assert words.startswith("Traceback (most recent call last):\n")
    assert "Original Traceback (most recent call last):" in words
    assert words.rstrip().endswith("KeyError: 'no such image'")
    assert "detscope" not in words.replace(str(tmp_path), "")
    assert summary["status"] == "failed"
    assert by_name(summary["script"]["parts"], "steps")["evaluation"] == 7


ENDLESS = """
atexit.register(lambda: print("atexit ran"))
try:
    number = 0
    while True:
        step(torch.randn(4, 8))
        number += 1
        if number == 20:
            open("begun", "w").close()
finally:
    print("finally ran")
"""


def interrupt(folder: Path) -> Callable[[int], None]:
    def when_begun(process: int) -> None:
        wait_for(folder, "begun")
        os.kill(process, signal.SIGINT)

    return when_begun


@pytest.mark.processes
def test_an_interrupted_script_dies_of_it_and_its_run_is_kept(tmp_path, torch_server):
    write(tmp_path, "endless.py", ENDLESS)
    stop = interrupt(tmp_path)
    heard = torch_server("run", "endless.py", folder=tmp_path, meanwhile=stop, teardown=True)
    assert heard.returncode == -signal.SIGINT
    assert heard.stdout == "finally ran\natexit ran\n"
    words = own_words(heard.stderr)
    assert words.splitlines()[0] == "Traceback (most recent call last):"
    assert words.splitlines()[-1] == "KeyboardInterrupt"
    assert "record/" not in words
    info = json.loads((tmp_path / "runs" / "latest" / "run.json").read_text())
    assert (info["status"], info["reason"]) == ("partial", "interrupted")


@pytest.mark.processes
def test_enough_steps_end_an_endless_script_with_finally_and_atexit(tmp_path, torch_server):
    write(tmp_path, "endless.py", ENDLESS)
    command = ("run", "--json", "figures.json", "--max-steps", "5", "endless.py")
    done = torch_server(*command, folder=tmp_path, teardown=True)
    summary = figures(tmp_path, done.stderr)
    assert done.returncode == 0
    assert done.stdout == "finally ran\natexit ran\n"
    assert "detscope: stopped here by --max-steps" in done.stderr
    assert summary["step_ms"]["n"] <= 5
    assert summary["status"] == "ok"


def test_watch_does_the_same_from_inside_and_leaves_spawned_workers_alone(tmp_path):
    (tmp_path / "watched.py").write_text(
        "import detscope\ndetscope.watch(out='kept')\n"
        + HEADER
        + textwrap.dedent("""
        from torch.utils.data import DataLoader
        if __name__ == "__main__":
            loader = DataLoader(
                [torch.full((8,), float(i)) for i in range(24)],
                batch_size=4, num_workers=1, multiprocessing_context="spawn",
            )
            for batch in loader:
                step(batch)
            print("done")
        """)
    )
    done = python("watched.py", folder=tmp_path)
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr
    assert len(list((tmp_path / "kept").glob("*-run-*"))) == 1
    info = json.loads((tmp_path / "kept" / "latest" / "run.json").read_text())
    assert (info["status"], info["script"]["name"]) == ("ok", "watched.py")
    assert (tmp_path / "kept" / "latest" / "report.html").is_file()
    assert info["script"]["parts"]["evaluation"]["steps"] == 6


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        ([], 2, "error: no script"),
        (["nothing.py"], 3, "error: no script nothing.py"),
        (["."], 3, "error: . is a folder"),
        (["--level", "deep", "x.py"], 2, "error: level 'deep'"),
        (["--window", "5", "x.py"], 2, "is not FIRST:END"),
        (["--max-steps", "0", "x.py"], 2, "records nothing"),
    ],
)
def test_wrong_use_is_said_before_anything_runs(tmp_path, monkeypatch, capsys, arguments, code, words):
    (tmp_path / "x.py").write_text("print('ran')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        app(["run", *arguments])
    said = capsys.readouterr()
    assert (ended.value.code, said.out) == (code, "")
    assert words in said.err


def test_a_script_comes_by_standard_input_forks_and_leaves_by_the_shortest_way(tmp_path):
    script = HEADER + textwrap.dedent("""
        print(sys.argv, sys.path[0] == "", __name__, flush=True)
        for number in range(8):
            step(torch.randn(4, 8))
            if number == 4 and os.fork() == 0:
                for _ in range(5):
                    step(torch.randn(4, 8))
                sys.exit(0)
        os.wait()
        import glob
        parts = "runs/*-run-*/parts/steps-*.arrow"  # every few seconds; one may lack the last steps
        earlier = set(glob.glob(parts))
        while set(glob.glob(parts)) <= earlier:
            step(torch.randn(4, 8))
        os._exit(7)
        """)
    done = subprocess.run(
        [sys.executable, "-m", "detscope", "run", "-", "--x", "-m"],
        input=script, cwd=tmp_path, env=environment(), capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (7, "['-', '--x', '-m'] True __main__\n"), done.stderr
    runs = list((tmp_path / "runs").glob("*-run-*"))
    assert len(runs) == 1  # the fork has none
    run = load_run(runs[0])
    assert run.status == "partial"
    assert run.table("steps")["step"].n_unique() >= 8


def test_a_script_that_first_asks_whether_there_is_a_torch_is_recorded(tmp_path):
    before = 'import importlib.util\nassert importlib.util.find_spec("torch").name == "torch"\n'
    body = """
        from importlib.machinery import SourceFileLoader
        assert type(torch.__spec__.loader) is type(torch.__loader__) is SourceFileLoader
        for _ in range(6):
            step(torch.ones(2, 8))
    """
    write(tmp_path, "asks.py", body, before)
    done, summary = recorded("asks.py", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert by_name(summary["script"]["parts"], "steps")["evaluation"] >= 5


def test_functions_that_a_script_holds_are_pickled_as_without_us(tmp_path):
    body = """
        import io, pickle
        from torch.nn.utils import clip_grad_norm_
        held = (torch.save, clip_grad_norm_, torch.nn.utils.clip_grad_value_)
        for _ in range(6):
            step(torch.ones(2, 8))
            torch.save(model, io.BytesIO())
            print(pickle.dumps(held), pickle.dumps((torch.save, clip_grad_norm_)))
    """
    write(tmp_path, "holds.py", body)
    same_as_plain(["holds.py"], tmp_path)
