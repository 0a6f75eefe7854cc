"""How a command ends when it does not end well: words on stderr and an exit code."""

from __future__ import annotations

import os
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from detscope.cli.output import print_json
from detscope.cli.signals import heard_signals
from detscope.cli.streams import BROKEN_PIPE, OutputLost, guarded_streams
from detscope.extras import MissingExtraError
from detscope.faults import classify_fault, describe_error, escape_unprintable

_INTERRUPTED = 130
_QUOTED = re.compile(r"'([^']+)'")
_NO_SUCH = re.compile(r"[Nn]o such option:? (\S+?)\.?$")
_OUTPUT_HINT = "what was measured is in its run: detscope show"


def run_guarded(command: Callable[[], object], args: Sequence[str]) -> int:
    """Run a command; its exit code, after telling on stderr what went wrong."""
    with heard_signals() as heard:
        code = _ended(command, args)
    return heard.exit_code or code if code == _INTERRUPTED else code


def _ended(command: Callable[[], object], args: Sequence[str]) -> int:
    try:
        with guarded_streams():
            return _run(command, args)
    except OutputLost as lost:
        if lost.nobody_reads:
            return BROKEN_PIPE
        return _tell([f"error: cannot write to standard output: {lost}", *_hint(_OUTPUT_HINT)], 4)


def _run(command: Callable[[], object], args: Sequence[str]) -> int:
    try:
        code = command()
    except KeyboardInterrupt:
        return _tell(["interrupted"], _INTERRUPTED)
    except OutputLost:
        raise
    except SystemExit as stop:
        fault = classify_fault(stop)
        if fault is None:
            raise
        return _explain(fault, args)
    except Exception as error:
        if _debugging(args):
            traceback.print_exception(error)
        return _explain(error, args)
    except BaseException as error:  # which only a user's code raises: nobody of ours would hear it
        fault = classify_fault(error)
        if fault is None:
            raise
        return _explain(fault, args)
    # Click gives the code of `typer.Exit` as the result, and 130 after Ctrl-C without a word.
    if code == _INTERRUPTED:
        return _tell(["interrupted"], _INTERRUPTED)
    return code if isinstance(code, int) else 0


def _debugging(args: Sequence[str]) -> bool:
    """`--debug` stands before the verb; looked up here, because parsing itself may have failed."""
    before_verb = []
    for arg in args:
        if not arg.startswith("-"):
            break
        before_verb.append(arg)
    return "--debug" in before_verb or os.environ.get("DETSCOPE_DEBUG", "") not in ("", "0")


def _explain(error: Exception, args: Sequence[str]) -> int:
    if hasattr(error, "format_message"):  # click's and typer's usage errors, whichever click typer brings
        return _tell(list(_usage_lines(error)), int(getattr(error, "exit_code", 2)))
    if type(error).__name__ == "Abort":
        return _tell(["interrupted"], _INTERRUPTED)
    fault = classify_fault(error)
    if isinstance(fault, MissingExtraError):
        verb = next((arg for arg in args if not arg.startswith("-")), "")
        fault = MissingExtraError(fault.package, verb=verb)
    if fault is not None:
        if fault.exit_code == 0 and "--json" in args:  # who reads a success reads something
            print_json({"status": "ended", "reason": fault.message, "hint": fault.hint})
        lines = [f"error: {line}" for line in fault.message.splitlines() or ["unknown"]]
        return _tell([*lines, *_hint(fault.hint)], fault.exit_code)
    return _tell([f"internal error: {_one_line(error)}", *_hint(_where_traceback_is(error, args))], 1)


def _hint(hint: str) -> list[str]:
    return [f"hint: {hint}"] if hint else []


def _one_line(error: Exception) -> str:
    place = ""
    # Frames of frozen or generated code say nothing to a reader.
    frames = [
        frame for frame in traceback.extract_tb(error.__traceback__) if not frame.filename.startswith("<")
    ]
    if frames:
        place = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
    return describe_error(error) + place


def _where_traceback_is(error: Exception, args: Sequence[str]) -> str:
    """Whoever keeps a log attaches it to the error as `detscope_log` before letting it pass."""
    log = getattr(error, "detscope_log", None)
    if log is not None:
        return f"the traceback is in {log}"
    if _debugging(args):
        return "the traceback is above; please report it"
    return f"for the traceback: {shlex.join(['detscope', '--debug', *args])}"


def _usage_lines(error: Exception) -> Iterator[str]:
    """A usage error in our words: what, and what was probably meant."""
    message, _, meant = str(getattr(error, "message", "") or "").partition(". Did you mean ")
    near = _near_words(message, [*_QUOTED.findall(meant), *(getattr(error, "possibilities", None) or ())])
    option = getattr(error, "option_name", None)
    context = getattr(error, "ctx", None)
    path = getattr(context, "command_path", "detscope")
    if not (meant or option):
        message = str(error.format_message())  # type: ignore[attr-defined]
    message = " ".join(message.split()).rstrip(".") or type(error).__name__
    yield f"error: {message[0].lower()}{message[1:]}"
    if near:
        yield f"hint: did you mean {' or '.join(near)}?"
    elif option is not None and _belongs_before_the_verb(context, option):
        yield f"hint: {option} goes before the verb: detscope {option} {path.split()[-1]} ..."
    else:
        yield f"hint: see {path} --help"


def _near_words(message: str, offered: Sequence[str]) -> list[str]:
    """Of what click offers that which is but a slip away from what was typed."""
    typed = next(iter(_QUOTED.findall(message)), None)
    if typed is None:
        match = _NO_SUCH.search(message)
        typed = match.group(1) if match else ""
    bare = typed.lstrip("-")
    slips = {word: count_slips(bare, word.lstrip("-")) for word in offered}
    begun = [word for word in slips if len(bare) >= 3 and word.lstrip("-").startswith(bare)]
    least = min(slips.values(), default=0)
    near = [word for word, count in slips.items() if count == least and count <= max(1, len(bare) // 3)]
    return (near or begun)[:2]


def count_slips(one: str, other: str) -> int:
    """Letters to insert, leave out, replace or swap with their neighbour until one is the other."""
    rows = [list(range(len(other) + 1))]
    for i, letter in enumerate(one, 1):
        row = [i]
        for j, wanted in enumerate(other, 1):
            least = min(rows[-1][j] + 1, row[-1] + 1, rows[-1][j - 1] + (letter != wanted))
            if i > 1 and j > 1 and letter == other[j - 2] and one[i - 2] == wanted:
                least = min(least, rows[-2][j - 2] + 1)
            row.append(least)
        rows.append(row)
    return rows[-1][-1]


def _belongs_before_the_verb(context: object, option: str) -> bool:
    parent = getattr(context, "parent", None)
    params = getattr(getattr(parent, "command", None), "params", ())
    return any(option in getattr(param, "opts", ()) for param in params)


def _tell(lines: Sequence[str], code: int) -> int:
    with suppress(OSError, ValueError):  # standard error may be closed, and there is nowhere else to say it
        for line in lines if sys.stderr is not None else ():
            print(escape_unprintable(line), file=sys.stderr)
    return code
