"""TOML in and out: a file with a clear complaint when it is broken, a value of `--set`, a dump."""

from __future__ import annotations

import json
import re
import tomllib
from pathlib import Path
from typing import Any

from detscope.config.schema import Settings
from detscope.errors import UsageError
from detscope.faults import one_line
from detscope.limits import read_limit, require_within

_POSITION = re.compile(
    r"^(?P<what>.*?) \(at (?:line (?P<line>\d+), column \d+|end of document)\)$", re.DOTALL
)
_DEEP_KEY = re.compile(r"""(?m)(?:^|[\[{,])(?:[ \t]*+(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.){200}""")
_QUOTING = "texts need quotes and every line is `key = value` under a [section]"


def read_toml(path: Path) -> dict[str, Any]:
    """The tables of a TOML file; every way in which that can fail is a UsageError of one line."""
    text = _read_text(path)
    try:
        return _parse(text)
    except RecursionError:
        raise UsageError(f"{path}: nested too deeply to be a configuration", _QUOTING) from None
    except ValueError as error:  # TOMLDecodeError, and int() on numbers of thousands of digits
        raise _syntax_error(path, text, str(error)) from None


def _parse(text: str) -> dict[str, Any]:
    if _DEEP_KEY.search(text):  # the parser's time grows with the square of a key's parts
        raise RecursionError
    return tomllib.loads(text)


def _read_text(path: Path) -> str:
    if path.is_dir():
        inside = path / "config.toml"
        hint = f"did you mean {inside}?" if inside.is_file() else "give the path of a TOML file"
        raise UsageError(f"{path}: is a folder, not a configuration file", hint)
    try:
        with path.open("rb") as file:
            content = file.read(read_limit("settings_bytes") + 1)
    except FileNotFoundError:
        raise UsageError(f"{path}: no such configuration file", _suggest_beside(path)) from None
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}", "look at the path") from None
    require_within("settings_bytes", len(content), f"{path}: not a configuration file", UsageError)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UsageError(f"{path}, line {line}: not UTF-8 text", "save the file as UTF-8") from None


def _suggest_beside(path: Path) -> str:
    from difflib import get_close_matches

    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.suffix == ".toml"]
    except OSError:
        names = []
    close = get_close_matches(path.name, names, n=1)
    return f"did you mean {path.parent / close[0]}?" if close else "check the path given to --config"


def _syntax_error(path: Path, text: str, message: str) -> UsageError:
    match = _POSITION.match(message)
    if match is None:
        return UsageError(f"{path}: {one_line(message, 200)}", _QUOTING)
    what = one_line(match["what"], 200)
    if match["line"] is None:
        return UsageError(f"{path}, at its end: {what}", _QUOTING)
    number = int(match["line"])
    lines = text.splitlines()
    shown = lines[number - 1].strip()[:80] if 0 < number <= len(lines) else ""
    return UsageError(f"{path}, line {number}: {what}", f"the line is {show_value(shown)}; {_QUOTING}")


def parse_value(text: str) -> object:
    """The value of `--set section.key=TEXT`: a TOML value, or the text itself where it is none."""
    try:
        tables = _parse(f"value = {text}")
    except (ValueError, RecursionError):
        return text
    # A line break in the text could have smuggled in further keys: then it was not one value.
    return tables["value"] if tables.keys() == {"value"} else text


def show_value(value: object, limit: int = 60) -> str:
    """A value as one would write it in TOML, shortened, safe to print on a terminal."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, str):
        shown = "".join(char if char.isprintable() else f"\\u{ord(char):04x}" for char in value)
        return f'"{_shorten_text(shown, limit)}"'
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return "a list"
    try:
        return _shorten_text(str(value), limit)
    except ValueError:  # Python refuses to print integers beyond 4300 digits
        return "a number of thousands of digits"


def _shorten_text(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def dump_settings(settings: Settings, verb: str = "train") -> str:
    """The settings as a `config.toml` that repeats the run; what is not set is left out."""
    lines = [f"# Repeats the run: detscope {verb} --config THIS_FILE"]
    for section, values in settings.model_dump(exclude_none=True).items():
        lines += ["", f"[{section}]"]
        lines += [f"{key} = {_write_value(value)}" for key, value in values.items()]
    return "\n".join(lines) + "\n"


def _write_value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, str):
        # JSON's escapes are TOML's, except that JSON leaves DEL alone.
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(_write_value(item) for item in value)}]"
    raise TypeError(f"settings hold numbers, truth values, texts and lists, not {type(value).__name__}")
