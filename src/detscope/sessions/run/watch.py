"""`detscope run` and `detscope.watch()`: a script as it is, with somebody listening."""

from __future__ import annotations

import atexit
import json
import multiprocessing
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType, TracebackType
from typing import TYPE_CHECKING, Any, TextIO

from detscope.faults import describe_error
from detscope.record.script.endings import ScriptStopped, clean_error
from detscope.record.script.options import ScriptOptions, make_options
from detscope.sessions.run import script as script_main
from detscope.sessions.run.children import ChildProcesses, when_group_comes
from detscope.sessions.run.script import ScriptTarget, end_threads, execute_script, own_imports

if TYPE_CHECKING:
    from detscope.analyze.summary import RunSummary
    from detscope.record.script.hooks import Hooks
    from detscope.record.script.tracker import ScriptTracker
    from detscope.sessions.ranks.meeting import Meeting

_PREFIX = "detscope: "
_STOPPED = "stopped here by --max-steps; the script would have gone on"
_UNWRITABLE = (OSError, ValueError, AttributeError)  # of a stream that was closed, or is a stranger's own
_current: Watch | None = None


class Watch:
    """A script that is being listened to, from now on or from when it imports torch."""

    def __init__(self, options: ScriptOptions, quiet: bool = False, json_file: Path | None = None) -> None:
        self._options = options
        self._quiet = quiet
        self._json_file = json_file
        self._out, self._err = sys.stdout, sys.stderr  # a script may put files of its own there
        self._tracker: ScriptTracker | None = None
        self._hooks: Hooks | None = None
        self._finder: _TorchImport | None = None
        self._children: ChildProcesses | None = None
        self._meeting: Meeting | None = None  # with ranks that torchrun did not start
        self._process = os.getpid()
        self._closed = False
        self.run: Path | None = None  # once it has ended

    def begin_listening(self) -> None:
        """Listen. torch is not imported here: a script may set its threads or devices before it does so."""
        self._children = ChildProcesses(self._options, self._quiet, self._json_file, self.stop)
        self._children.begin_watching()
        self._when_torch_is_there(self._attach_hooks)

    def begin_as_rank(self) -> None:
        """Listen once this process is part of a group of several; until then it is none of our business."""
        self._when_torch_is_there(lambda _new: when_group_comes(self._attach_hooks))

    def _when_torch_is_there(self, then: Callable[[bool], None]) -> None:
        """Call back now, or when the script imports torch; whether it is new is told."""
        if "torch" in sys.modules:
            then(False)
        else:
            self._finder = _TorchImport(lambda: then(True))
            sys.meta_path.insert(0, self._finder)

    @property
    def has_begun(self) -> bool:
        """Whether it listens to torch."""
        return self._tracker is not None

    def _attach_hooks(self, torch_is_new: bool = False) -> None:
        from detscope.record.script.hooks import Hooks
        from detscope.record.script.tracker import ScriptTracker

        self._tracker = ScriptTracker(self._options)
        if self._options.rank is None:
            from detscope.sessions.ranks.meeting import Meeting

            self._meeting = Meeting()
            ranks = self._tracker.recording.ranks
            ranks.group_seen, ranks.look = self._meeting.see_group, self._meeting.look_for_leader
        self._hooks = Hooks(self._tracker)
        self._hooks.install(torch_is_new)

    @property
    def is_here(self) -> bool:
        """Whether this is the process that listens, and not a child of it."""
        return os.getpid() == self._process

    def stop(self, error: BaseException | None = None) -> Path | None:
        """End the recording and write the run; returns its folder."""
        global _current
        if self._closed or not self.is_here:
            return self.run
        self._closed = True
        _current = None
        if self._finder is not None:
            self._finder.leave_path()
        recorded = [] if self._children is None else self._children.end_watching()
        reason = None if self._children is None else self._children.explain_nothing()
        if self._tracker is None or self._hooks is None:
            failure = None if self._finder is None else self._finder.failure
            why = reason or (
                "the script never imported torch" if failure is None else describe_error(failure)
            )
            if not recorded:
                self._print_lines([f"nothing was recorded: {why}"])
            return None
        if recorded and not self._tracker.roots.all:  # which said what there is to say
            self._tracker.active = self._tracker.writing = False
            self._hooks.remove()
            self.run = recorded[0]
            return self.run
        from detscope.runs.writer import OWN_FAILURES

        unwritten = "the run"
        try:
            self._tracker.recording.no_step = reason
            self.run = self._tracker.close_run(error)
            self.run = self._join_ranks(self.run, error)
            if self.run is not None:
                unwritten = f"the report of {self.run}"  # whose recording is safe
                self._publish(self.run, error)
        except OWN_FAILURES as failure:  # never instead of what the script did
            self._print_lines([f"{unwritten} could not be written: {type(failure).__name__}: {failure}"])
        finally:
            self._hooks.remove()
        return self.run

    def _join_ranks(self, run: Path, error: BaseException | None) -> Path | None:
        """Of several ranks, rank 0 shows what all of them recorded; one that failed keeps its own run."""
        failed = error is not None and not (isinstance(error, SystemExit) and not error.code)
        if self._meeting is not None:
            return self._meeting.finish_run(run, self._options.script, failed=failed)
        if failed:
            return run
        from detscope.sessions.ranks.merge import finish_rank

        return finish_rank(run)

    def _publish(self, run: Path, error: BaseException | None) -> None:
        from detscope.report.publish import publish_run
        from detscope.runs.standard_json import as_standard_json

        summary = publish_run(run)
        if self._json_file is not None:
            text = json.dumps(as_standard_json(summary), indent=2) + "\n"
            if str(self._json_file) == "-":
                self._out.write(text)
                self._out.flush()
            else:
                self._json_file.write_text(text, encoding="utf-8")
        stopped = isinstance(error, ScriptStopped)
        if self._quiet or not _is_terminal(self._err):
            self._print_lines(_summary_lines(summary, stopped))
            return
        self._print_lines([_STOPPED] if stopped else [])
        _print_screen(run, summary, self._err)

    def _print_lines(self, lines: Sequence[str]) -> None:
        """On stderr, after everything the script wrote; its stdout is its own."""
        if self._quiet or self._err is None:
            return
        with suppress(*_UNWRITABLE):
            self._err.write("".join(f"{_PREFIX}{line}\n" for line in lines))
            self._err.flush()

    def __enter__(self) -> Watch:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(error)


class _TorchImport(MetaPathFinder, Loader):
    """Calls back when torch has been imported, and is gone."""

    def __init__(self, then: Callable[[], None]) -> None:
        self._then = then
        self._plain: Loader | None = None
        self.failure: Exception | None = None  # of what was called back
        self._asks = False  # the other finders

    def find_spec(self, name: str, *_: Any) -> ModuleSpec | None:
        """Stand between Python and torch's own loader; who only asks whether there is one imports none."""
        if name != "torch" or self._asks:
            return None
        self._asks = True
        try:
            spec = find_spec("torch")
        finally:
            self._asks = False
        if spec is None or spec.loader is None:
            return None
        self._plain, spec.loader = spec.loader, self
        return spec

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As torch's own loader."""
        return self._plain_loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Import torch, then tell."""
        self.leave_path()
        plain = self._plain_loader
        module.__loader__ = plain
        if module.__spec__ is not None:
            module.__spec__.loader = plain
        plain.exec_module(module)
        try:
            with own_imports():
                self._then()
        except Exception as error:  # the script imports torch all the same
            self.failure = error

    @property
    def _plain_loader(self) -> Loader:
        assert self._plain is not None
        return self._plain

    def leave_path(self) -> None:
        """Python imports without us again."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)


def run_script(
    target: ScriptTarget, options: ScriptOptions, *, quiet: bool = False, json_file: Path | None = None
) -> None:
    """Run a script and record it. Ends as the script ends: returns, or raises what it raised."""
    global _current
    watch = _current = Watch(_with_rank(options), quiet, json_file)
    watch.begin_listening()
    error: BaseException | None = None
    try:
        execute_script(target)
    except BaseException as caught:
        error = caught
    if error is None or (isinstance(error, SystemExit) and not isinstance(error, ScriptStopped)):
        try:
            end_threads()
        except BaseException as caught:
            error = caught
    if error is not None:
        clean_error(error, script_main.__file__)
    if error is not None and not isinstance(error, SystemExit):
        error = _tell_error(error)
    if watch.is_here:
        with own_imports():
            watch.stop(error)
    if error is not None:
        raise error


def _tell_error(error: BaseException) -> BaseException:
    """Tell it now, as Python would, by the script's own hook; what the process then ends with."""
    trace = error.__traceback__
    sys.last_type, sys.last_value, sys.last_traceback = type(error), error, trace
    try:
        sys.excepthook(type(error), error, trace)
    except SystemExit as ended:  # a hook may choose the exit code
        return ended
    except BaseException as failure:
        print("Error in sys.excepthook:", file=sys.stderr)
        sys.__excepthook__(type(failure), failure, failure.__traceback__)
        print("\nOriginal exception was:", file=sys.stderr)
        sys.__excepthook__(type(error), error, trace)
    sys.excepthook = lambda *_: None  # Python tells it once more at the very end
    return error


def find_watch() -> Watch | None:
    """What listens in this process, if anything does."""
    return _current if _current is not None and _current.is_here else None


def watch(
    *,
    level: str = "modules",
    memory: bool = False,
    census: bool = False,
    window: str | None = None,
    max_steps: int | None = None,
    out: str | Path | None = None,
    quiet: bool = False,
) -> Watch:
    """Record this script or notebook from here on, as `detscope run` does, until its end or `stop()`."""
    global _current
    if (listening := find_watch()) is not None:
        return listening  # `detscope run` listens already
    name = getattr(sys.modules.get("__main__"), "__file__", None)
    options = make_options(
        out=out,
        level=level,
        memory=memory,
        census=census,
        window=window,
        max_steps=max_steps,
        script=Path(name).name if name else "notebook",
    )
    started = Watch(_with_rank(options), quiet)
    # a spawned process knows its parent only later
    inherits = getattr(multiprocessing.current_process(), "_inheriting", False)
    if inherits or multiprocessing.parent_process() is not None:
        return started  # a worker imports the script again, and is not the script
    _current = started
    started.begin_listening()
    atexit.register(lambda: started.stop(getattr(sys, "last_value", None)))
    return started


def listen_as_rank(options: ScriptOptions, quiet: bool, json_file: Path | None) -> Watch:
    """In a process that a recorded script has started: record it, should it become a rank."""
    global _current
    watch = _current = Watch(options, quiet, json_file)
    watch.begin_as_rank()
    return watch


def _with_rank(options: ScriptOptions) -> ScriptOptions:
    from detscope.sessions.ranks.exchange import rank_place

    place = rank_place()
    return options if place is None else replace(options, rank=place.rank, ranks=place.ranks)


def _is_terminal(stream: TextIO | None) -> bool:
    try:
        return stream is not None and stream.isatty()
    except _UNWRITABLE:
        return False


def _print_screen(run: Path, summary: RunSummary, terminal: TextIO) -> None:
    """The first screen on a terminal's standard error, as other verbs print it on their output."""
    from rich.console import Console

    from detscope.analyze.drawing import ReportData
    from detscope.report.first_screen import make_first_screen
    from detscope.report.render.screen import print_first_screen
    from detscope.report.sections import make_sections
    from detscope.runs.reader import load_run

    data = ReportData(load_run(run), summary, just_ended=True)
    console = Console(file=terminal, highlight=False)
    print_first_screen(make_first_screen(data, make_sections(data)[0]), console)


def _summary_lines(summary: RunSummary, stopped: bool) -> list[str]:
    from detscope.report.sections.files import path_from_here

    lines = []
    if stopped:
        lines.append(_STOPPED)
    if summary.reason:
        lines.append(f"{summary.status}: {summary.reason}")
    lines.append(summary.verdict)
    phases = [phase for phase in summary.phases if phase.ms > 0]
    step = summary.step_ms
    if phases and step.p50 is not None:
        words = ", ".join(f"{phase.name} {phase.ms:.1f}" for phase in phases)
        whose = " on the device" if summary.clocks.clock == "device" else ""
        lines.append(f"step {step.p50:.1f} ms (median of {step.n}){whose}: {words}")
    if summary.images_per_s is not None and step.mean is not None:
        speed = f"{summary.images_per_s:.1f} images/s"
        lines.append(f"speed {speed}, mean step {step.mean:.1f} ms, over all {step.mean_n} measured steps")
    lines += [f"note: {note}" for note in summary.notes]
    run = path_from_here(summary.run)
    return [*lines, f"run: {run}", f"next: detscope show {run}"]
