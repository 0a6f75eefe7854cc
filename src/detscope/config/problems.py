"""What is wrong with given settings, in words: unknown names with a suggestion, values that do not fit."""

from __future__ import annotations

import types
from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from detscope.config.schema import Settings
from detscope.config.toml import show_value

_EXPECTED = {
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "string_type": "a text in quotes",
    "bool_type": "true or false",
    "list_type": "a list of texts",
    "finite_number": "a finite number",
    "string_too_short": "a text that is not empty",
    "string_unicode": "a text of valid Unicode",
}
_BOUNDS = {
    "greater_than_equal": ("ge", "at least"),
    "greater_than": ("gt", "more than"),
    "less_than_equal": ("le", "at most"),
    "less_than": ("lt", "less than"),
}


def list_sections() -> dict[str, dict[str, FieldInfo]]:
    """The known sections with their keys."""
    found: dict[str, dict[str, FieldInfo]] = {}
    for name, field in Settings.model_fields.items():
        kind = field.annotation
        assert isinstance(kind, type) and issubclass(kind, BaseModel), f"[{name}] must be a section"
        found[name] = dict(kind.model_fields)
    return found


def find_name_problems(
    tables: Mapping[str, object], origin: str
) -> tuple[list[str], dict[str, dict[str, object]]]:
    """Unknown sections and keys as one line each, and what is left when they are taken out."""
    known = list_sections()
    problems: list[str] = []
    good: dict[str, dict[str, object]] = {}
    for section, content in tables.items():
        if section not in known:
            problems += _unknown_section(section, content, origin)
        elif not isinstance(content, Mapping):
            problems.append(f"{origin}: {section}: expected a section [{section}], got {show_value(content)}")
        else:
            problems += [_unknown_key(section, key, origin) for key in content if key not in known[section]]
            good[section] = {key: value for key, value in content.items() if key in known[section]}
    return problems, good


def _unknown_section(section: str, content: object, origin: str) -> list[str]:
    known = list_sections()
    if not isinstance(content, Mapping):
        homes = _list_homes(section)
        if homes:
            return [f"{origin}: {_show_name(section)}: stands outside its section; it belongs in {homes}"]
        return [f"{origin}: {_show_name(section)}: no such section or key{_near_key(section)}"]
    close = _find_closest(section, known)
    if close is None:
        listed = ", ".join(f"[{name}]" for name in known)
        return [f"{origin}: [{_show_name(section)}]: no such section; there are {listed}"]
    problems = [f"{origin}: [{_show_name(section)}]: no such section; did you mean [{close}]?"]
    return problems + [_unknown_key(close, key, origin) for key in content if key not in known[close]]


def _unknown_key(section: str, key: str, origin: str) -> str:
    where = f"{origin}: {section}.{_show_name(key)}: no such key"
    homes = _list_homes(key)
    if homes:
        return f"{where} in [{section}]; it belongs in {homes}"
    close = _find_closest(key, list_sections()[section])
    return f"{where}; did you mean {section}.{close}?" if close else f"{where}{_near_key(key)}"


def _list_homes(key: str) -> str:
    return " or ".join(f"[{section}]" for section, keys in list_sections().items() if key in keys)


def _near_key(key: str) -> str:
    """A suggestion from any section, for a key that is near none of its own."""
    # where several sections have a key of that name, the first of them is meant
    backwards = reversed(list(list_sections().items()))
    all_keys = {name: f"{section}.{name}" for section, keys in backwards for name in keys}
    close = _find_closest(key, all_keys)
    return f"; did you mean {all_keys[close]}?" if close else ""


def _find_closest(word: str, known: Mapping[str, object]) -> str | None:
    """The known word one most likely meant: a near spelling, or the only one that holds it whole."""
    plain = word.lower().replace("-", "_")
    if close := get_close_matches(plain, list(known), n=1, cutoff=0.65):
        return close[0]
    holding = [name for name in known if len(plain) >= 3 and plain in name.split("_")]
    return holding[0] if len(holding) == 1 else None


def _show_name(key: str) -> str:
    return key if key.replace("-", "_").isidentifier() and key.isascii() else show_value(key)


def find_value_problems(tables: Mapping[str, Mapping[str, object]], origin: str) -> list[str]:
    """Values of a wrong type or out of range, one line each: key, what was expected, what was given."""
    try:
        Settings.model_validate({section: dict(content) for section, content in tables.items()})
    except ValidationError as error:
        return [_value_problem(details, origin) for details in error.errors(include_url=False)]
    return []


def _value_problem(details: ErrorDetails, origin: str) -> str:
    section, key = (str(part) for part in details["loc"][:2])
    field = list_sections()[section][key]
    given = details["input"]
    line = (
        f"{origin}: {section}.{key}: expected {_describe_expected(details, field)}, got {show_value(given)}"
    )
    if isinstance(given, str) and (close := get_close_matches(given.lower(), list_choices(field), n=1)):
        line += f'; did you mean "{close[0]}"?'
    return line


def _describe_expected(details: ErrorDetails, field: FieldInfo) -> str:
    kind = details["type"]
    if kind in _BOUNDS:
        name, words = _BOUNDS[kind]
        return f"{words} {show_value(details['ctx'][name])}"
    if options := list_choices(field):
        return "one of " + ", ".join(f'"{option}"' for option in options)
    if kind == "string_pattern_mismatch":
        return str(field.description)  # a field with a pattern describes the texts it takes
    return _EXPECTED.get(kind) or details["msg"].replace("Input should be ", "").lower()


def list_choices(field: FieldInfo) -> tuple[str, ...]:
    """The texts a key may have, where it is a choice."""
    return get_args(field.annotation) if get_origin(field.annotation) is Literal else ()


def accepts_type(field: FieldInfo, kind: type | None) -> bool:
    """Whether a key can hold values of this type (`None`: be left unset)."""
    wanted: Any = types.NoneType if kind is None else kind
    if get_origin(field.annotation) in (Union, types.UnionType):
        return wanted in get_args(field.annotation)
    return field.annotation is wanted or (wanted is str and bool(list_choices(field)))
