"""Processes that a recorded script starts: ranks are recorded too, others that may train are named.

A child of multiprocessing is handed the recording with its target; it listens once the child is part of a
process group of several. Loader workers and pools are let alone. Other programs run as they are, and are
remembered.
"""

from __future__ import annotations

import functools
import json
import os
import pickle
import shlex
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from detscope.record.foreign import Patches
from detscope.record.script.endings import ScriptStopped, clean_error
from detscope.record.script.options import ScriptOptions

_HELPERS = ("torch.utils.data", "multiprocessing", "concurrent.futures", "joblib", "detscope")
_MOST_NAMED = 3
_PYTHON = ("python", "torchrun", "accelerate", "deepspeed", "horovodrun", "mpirun", "mpiexec", "srun", "ray")


@dataclass(frozen=True)
class HandedRecording:
    """What a child needs to record itself."""

    options: ScriptOptions
    quiet: bool
    json_file: Path | None
    folder: str  # where it leaves word


# run in the process that was started; `target` is the script's own
_UNPACK = """
try:
    import pickle
    from detscope.sessions.run.children import RecordedTarget
    target = RecordedTarget(target, pickle.loads(handed))
except ImportError:
    pass
"""


@dataclass(frozen=True)
class RecordedTarget:
    """A process's target, with somebody ready to listen."""

    target: Callable[..., Any]
    handed: HandedRecording

    def __reduce__(self) -> tuple[Any, ...]:
        """What is sent to the process names nothing of ours: without detscope there the target is itself."""
        names = {"target": self.target, "source": _UNPACK, "handed": pickle.dumps(self.handed)}
        return eval, ("exec(source) or target", names)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """As the target itself."""
        from detscope.sessions.run.watch import listen_as_rank

        watch = listen_as_rank(self.handed.options, self.handed.quiet, self.handed.json_file)
        error: BaseException | None = None
        try:
            return self.target(*args, **kwargs)
        except ScriptStopped as stopped:  # by us: to whoever started this process it has ended well
            error = stopped
        except BaseException as raised:
            error = raised
            clean_error(raised, __file__)
            raise
        finally:
            if watch.has_begun:
                watch.stop(error)
                word = {"pid": os.getpid(), "run": None if watch.run is None else str(watch.run)}
                folder = Path(self.handed.folder)
                if folder.is_dir():
                    (folder / f"{os.getpid()}.json").write_text(json.dumps(word), encoding="utf-8")


@dataclass(frozen=True)
class StartedProcess:
    """A process that the script started."""

    pid: int | None  # none is known of what a shell ran
    command: tuple[str, ...]  # empty: a child of multiprocessing
    name: str = ""

    def describe_process(self) -> str:
        """As a person would name it."""
        what = shlex.join(self.command) if self.command else self.name
        return what if self.pid is None else f"{self.pid} ({what})"


class ChildProcesses:
    """Listens to what the script starts, from `begin` to `end`."""

    def __init__(
        self,
        options: ScriptOptions,
        quiet: bool,
        json_file: Path | None,
        before_leaving: Callable[[], object] = lambda: None,
    ) -> None:
        self._before_leaving = before_leaving  # this process becomes another program
        self._folder = ""
        self._handed = HandedRecording(options, quiet, json_file, "")
        self._patches = Patches()
        self._process = os.getpid()
        self._started: list[StartedProcess] = []

    def begin_watching(self) -> None:
        """Replace what starts processes."""
        self._patches.put(BaseProcess, "start", self._wrap_start(BaseProcess.start))
        self._patches.put(subprocess.Popen, "__init__", self._wrap_popen(subprocess.Popen.__init__))
        self._replace_function("system", self._wrap_system)
        for name in ("posix_spawn", "posix_spawnp", "spawnv", "spawnve", "spawnvp", "spawnvpe"):
            self._replace_function(name, self._wrap_spawn)
        for name in ("execv", "execve"):  # all others end there
            self._replace_function(name, self._wrap_exec)

    def _replace_function(self, name: str, make: Callable[[Callable[..., Any]], Callable[..., Any]]) -> None:
        """A function of `os`; what stands in for it is pickled as `os` and its name, as pools do."""
        plain = getattr(os, name, None)
        if plain is not None:
            stand_in = functools.wraps(plain)(make(plain))
            stand_in.__module__, stand_in.__qualname__ = "os", name
            self._patches.put(os, name, stand_in)

    def end_watching(self) -> list[Path]:
        """Listen no more; runs that children have recorded."""
        self._patches.undo()
        found = []
        if self._folder:
            for path in sorted(Path(self._folder).glob("*.json")):
                told = json.loads(path.read_text(encoding="utf-8"))
                found += [Path(told["run"])] if told["run"] else []
            shutil.rmtree(self._folder, ignore_errors=True)
        return found

    def _wrap_start(self, plain: Callable[[Any], None]) -> Callable[[Any], None]:
        @functools.wraps(plain)
        def start_recorded(process: Any) -> None:
            target = getattr(process, "_target", None)
            if target is None or not self._may_train(target):
                plain(process)
                return
            process._target = RecordedTarget(target, self._hand_over())
            try:
                plain(process)
            except BaseException:
                process._target = target
                raise
            self._started.append(StartedProcess(process.pid, (), f"process {process.name}"))

        return start_recorded

    def _may_train(self, target: Any) -> bool:
        place = getattr(target, "__module__", None) or ""
        known = any(place == helper or place.startswith(f"{helper}.") for helper in _HELPERS)
        return os.getpid() == self._process and not known

    def _hand_over(self) -> HandedRecording:
        if not self._folder:
            self._folder = tempfile.mkdtemp(prefix="detscope-children-")
            self._handed = replace(self._handed, folder=self._folder)
        return self._handed

    def _wrap_popen(self, plain: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(plain)
        def init_remembered(child: Any, *args: Any, **kwargs: Any) -> None:
            plain(child, *args, **kwargs)
            self._remember_process(child.pid, child.args)

        return init_remembered

    def _wrap_system(self, plain: Callable[[Any], int]) -> Callable[[Any], int]:
        def run_system(command: Any) -> int:
            code = plain(command)
            self._remember_process(None, command)
            return code

        return run_system

    def _wrap_spawn(self, plain: Callable[..., int]) -> Callable[..., int]:
        place, knows_pid = (1, True) if plain.__name__.startswith("posix") else (2, False)

        def run_spawn(*args: Any, **kwargs: Any) -> int:
            answer = plain(*args, **kwargs)
            given = args[place] if len(args) > place else kwargs.get("argv" if knows_pid else "args", ())
            is_pid = knows_pid or (args[0] if args else kwargs.get("mode")) == os.P_NOWAIT
            self._remember_process(answer if is_pid else None, given)
            return answer

        return run_spawn

    def _wrap_exec(self, plain: Callable[..., Any]) -> Callable[..., Any]:
        def run_exec(path: Any, *args: Any, **kwargs: Any) -> Any:
            given = args[0] if args else kwargs.get("argv")
            if os.getpid() == self._process and isinstance(given, (list, tuple)) and _can_be_run(path):
                self._remember_process(None, given)
                self._before_leaving()
            return plain(path, *args, **kwargs)

        return run_exec

    def _remember_process(self, pid: int | None, given: Any) -> None:
        if os.getpid() != self._process or (pid is not None and any(one.pid == pid for one in self._started)):
            return
        parts = [given] if isinstance(given, (str, bytes, os.PathLike)) else list(given)
        if not all(isinstance(part, (str, bytes, os.PathLike)) for part in parts):
            return  # what starts it says so
        command = tuple(os.fsdecode(part) for part in parts)
        if len(command) == 1:
            with suppress(ValueError):
                command = tuple(shlex.split(command[0])) or command
        if _is_python(command):
            self._started.append(StartedProcess(pid, command))

    def explain_nothing(self) -> str | None:
        """Why this process itself may have had nothing to record; None where it started nobody."""
        if not self._started:
            return None
        named = ", ".join(child.describe_process() for child in self._started[:_MOST_NAMED])
        more = len(self._started) - _MOST_NAMED
        named += f" and {more} more" if more > 0 else ""
        words = f"no step was seen in this process, and it started others, which are not recorded: {named}"
        commands = {shlex.join(how) for one in self._started if (how := recording_command(one.command))}
        if commands:
            return f"{words}; to record what they do: {'; '.join(sorted(commands)[:_MOST_NAMED])}"
        return f"{words}; call detscope.watch() in what they run"


def when_group_comes(then: Callable[[], None]) -> None:
    """Call back, once, when this process has become part of a process group of several."""
    from torch import distributed

    if not distributed.is_available():
        return
    # by whatever name a script calls `init_process_group`, this is where it keeps the group
    plain = distributed.distributed_c10d._update_default_pg
    patches = Patches()

    def update_group(group: Any) -> None:
        plain(group)
        if isinstance(group, distributed.ProcessGroup) and group.size() > 1:
            patches.undo()
            then()

    patches.put(distributed.distributed_c10d, "_update_default_pg", update_group)


def recording_command(command: Sequence[str]) -> list[str] | None:
    """The same command with `detscope run` before its script or module; None where there is none to see."""
    if any("detscope" in part for part in command):
        return None
    scripts = [position for position, part in enumerate(command) if part.endswith(".py") and position]
    if not scripts and "-m" in command[:-1]:
        scripts = [command.index("-m")]
    if not scripts:
        return None
    return [*command[: scripts[0]], "-m", "detscope", "run", *command[scripts[0] :]]


def _is_python(command: Sequence[str]) -> bool:
    names = [Path(part).name for part in command[:1]]
    starts = any(name.startswith(_PYTHON) or name == Path(sys.executable).name for name in names)
    return starts or any(part.endswith(".py") for part in command)


def _can_be_run(path: Any) -> bool:
    """A search along PATH tries names that are not there; a program may be an open file, too."""
    return isinstance(path, int) or (isinstance(path, (str, bytes, os.PathLike)) and os.access(path, os.X_OK))
