"""Imports torch once and forks a child for every command, which then is a process of its own.

An order is a line of JSON: modules to import before forking, folder, arguments, files for what it prints.
A child is `detscope ARGUMENTS`, a plain script or a module of tests/, in a session of its own. Answers: the
child's process id, then its exit code.
"""

import atexit
import gc
import importlib
import json
import os
import runpy
import sys
import threading
import warnings
from pathlib import Path


def run(order: dict) -> None:
    """The command; it may raise whatever ends a Python process."""
    sys.argv[:] = order["arguments"]
    if order["working"]:
        sys.path.append(str(Path(__file__).parents[1]))
        from working_time import live_on_working_time

        sys.path.pop()
        live_on_working_time()
    if order["script"]:
        from detscope.sessions.run.script import ScriptTarget, execute_script

        execute_script(ScriptTarget(sys.argv[0], tuple(sys.argv[1:])))
    elif order["module"]:
        sys.path.insert(0, str(Path(__file__).parents[1]))
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    else:
        from detscope.cli.main import main

        main()


def end_early(code: int) -> None:
    """What Python does at its end, up to taking every module apart: with torch's that is a second."""
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


for line in sys.stdin:
    order = json.loads(line)
    for name in order["imports"]:
        importlib.import_module(name)
    gc.freeze()  # a child that goes through all this would copy it
    child = os.fork()
    if child == 0:
        os.setsid()
        print(os.getpid(), flush=True)
        break
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
else:
    os._exit(0)

os.chdir(order["folder"])
os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
sys.stdin = open(0, closefd=False)  # noqa: SIM115
for number, stream in enumerate(order["streams"], start=1):
    os.dup2(os.open(stream, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
warnings.filters.remove(("ignore", None, Warning, None, 0))  # type: ignore[attr-defined]
sys.warnoptions.clear()
if order["teardown"]:
    atexit.register(gc.unfreeze)
    run(order)
else:
    try:
        run(order)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            raise
        end_early(end.code or 0)
    end_early(0)
