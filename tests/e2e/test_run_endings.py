"""Scripts that end in ways of their own: threads, pools, streams, hooks, folders; exactly as without us."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

# no optimizer: making one imports torch's compiler, for seconds
HEADER = """
import atexit, os, sys, tempfile, threading, time
import torch
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 1)).eval()
def go(count):
    with torch.no_grad():
        for _ in range(count):
            print(model(torch.randn(4, 8)).sum().item(), flush=True)
overdue = threading.Timer(120, os._exit, (99,))
overdue.daemon = True
overdue.start()
"""
SCRIPTS = {
    "a pool that nobody shuts down": (
        """
from concurrent.futures import ThreadPoolExecutor
pool = ThreadPoolExecutor(1)
print(pool.submit(int, "7").result())
go(6)
pool.submit(print, "last words")
""",
        0,
    ),
    "threads that work on when main has left": (
        """
def work():
    time.sleep(0.2)
    go(6)
threading.Thread(target=work).start()
sys.exit(5)
""",
        5,
    ),
    "a log beside standard error, with a class that can only write": (
        """
class Tee:
    def __init__(self, stream):
        self.file, self.stream = open("errors.log", "w"), stream
    def write(self, text):
        self.file.write(text)
        self.stream.write(text)
    def flush(self):
        self.file.flush()
sys.stderr = Tee(sys.stderr)
go(6)
print("mind this", file=sys.stderr)
""",
        0,
    ),
    "standard error that is closed": (
        """
sys.stderr = open("errors.log", "w")
go(6)
sys.stderr.close()
sys.exit(3)
""",
        3,
    ),
    "a hook for errors that chooses the exit code": (
        """
def tell(kind, error, trace):
    print("told", kind.__name__, error)
    sys.exit(9)
sys.excepthook = tell
atexit.register(lambda: print(repr(sys.last_value)))
go(6)
raise ValueError("half way")
""",
        9,
    ),
    "a folder that is gone": (
        """
gone = tempfile.mkdtemp()
os.chdir(gone)
os.rmdir(gone)
go(6)
""",
        0,
    ),
}


def own_words(text: str) -> list[str]:
    """Lines without ours, and without what torch's compiler says of itself when a process is taken apart."""
    left_out = ("detscope: ", "nanobind: ", " - ", "See https://nanobind")
    return [line for line in text.splitlines() if not line.startswith(left_out)]


@pytest.mark.parametrize("how", SCRIPTS)
def test_a_script_ends_as_without_us_and_its_run_is_kept(how, tmp_path, torch_server):
    text, code = SCRIPTS[how]
    folders = [tmp_path / name for name in ("plain", "heard")]
    for folder in folders:
        folder.mkdir()
        (folder / "script.py").write_text(HEADER + text)
    whole = "closed" in how  # what ends children of the server early flushes it
    plain = torch_server("script.py", folder=folders[0], script=True, teardown=whole)
    command = ("run", "--out", str(tmp_path / "runs"), "--json-file", str(tmp_path / "figures.json"))
    heard = torch_server(*command, "script.py", folder=folders[1], teardown=whole)
    assert (heard.returncode, heard.stdout) == (plain.returncode, plain.stdout)
    assert plain.returncode == code
    assert own_words(heard.stderr) == own_words(plain.stderr)
    written = [{path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders]
    assert written[0] == written[1]
    figures = json.loads((tmp_path / "figures.json").read_text())
    assert [part["steps"] for part in figures["script"]["parts"] if part["name"] == "evaluation"] == [6]
    assert f"detscope: run: {tmp_path / 'runs'}" in heard.stderr
    assert Path(figures["run"], "report.html").exists()


def test_a_project_with_a_module_named_as_one_of_python_s_is_recorded(tmp_path):
    (tmp_path / "statistics.py").write_text("OWN = 'ours'\n")
    script = HEADER + "import statistics\ngo(6)\nprint(statistics.OWN)\n"
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, "-m", "detscope", "run", "--json-file", "figures.json", "script.py"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=900, check=False)
    assert (done.returncode, done.stdout.splitlines()[-1]) == (0, "ours"), done.stderr
    assert '"status": "ok"' in (tmp_path / "figures.json").read_text()
