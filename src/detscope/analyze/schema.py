"""JSON Schema of what `--json` prints and run.json holds: types, and the comments behind their fields."""

from __future__ import annotations

import ast
import inspect
import io
import sys
import tokenize
from collections.abc import Iterator
from functools import cache
from types import GenericAlias
from typing import Any, is_typeddict

import msgspec

from detscope.analyze.figure import Figure
from detscope.runs import info

DIALECT = "https://json-schema.org/draft/2020-12/schema"
SUBJECTS = ("summary", "run", "sweep", "findings", "try")
Schema = dict[str, Any]  # a JSON Schema is what others may read; ours holds nothing untyped


def make_schema(subject: str) -> Schema:
    """The schema of one of the SUBJECTS."""
    if subject == "run":
        from detscope.runs.schema import SCHEMA_VERSION

        return schema_of(info.RunInfo, "run.json of a detscope run", SCHEMA_VERSION)
    if subject == "sweep":
        from detscope.analyze.sweep.figures import SWEEP_SCHEMA, SweepSummary

        return schema_of(SweepSummary, "Figures of a sweep: detscope sweep status --json", SWEEP_SCHEMA)
    if subject == "try":
        from detscope.analyze.compare.trying import TRY_SCHEMA, TryResult

        return schema_of(TryResult, "A change that was tried: detscope try --json", TRY_SCHEMA)
    from detscope.analyze.findings.listing import RunFindings
    from detscope.analyze.summary import SUMMARY_SCHEMA, RunSummary

    if subject == "findings":
        return schema_of(RunFindings, "What costs time, and where: detscope why --json", SUMMARY_SCHEMA)
    return schema_of(RunSummary, "Figures of a run: detscope show --json", SUMMARY_SCHEMA)


def schema_of(kind: type | GenericAlias, title: str, version: int) -> Schema:
    """The schema of a figure and of all that it holds; nothing beside what it names is allowed.

    What run.json may say beside the known is nobody's business: its objects stay open.
    """
    (root,), definitions = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    of_run = (one for one in vars(info).values() if is_typeddict(one))
    classes: dict[str, type] = {one.__name__: one for one in (*_all_figures(Figure), *of_run)}
    for name, definition in definitions.items():
        if "properties" not in definition or name not in classes:
            continue
        if issubclass(classes[name], Figure):
            definition["additionalProperties"] = False
        for field, text in field_comments(classes[name]).items():
            definition["properties"][_encoded_name(classes[name], field)]["description"] = text
    return {"$schema": DIALECT, "title": title, "version": version, **root, "$defs": definitions}


def _all_figures(base: type[Figure]) -> Iterator[type[Figure]]:
    for one in base.__subclasses__():
        yield one
        yield from _all_figures(one)


def _encoded_name(kind: type, field: str) -> str:
    if not issubclass(kind, Figure):
        return field
    return kind.__struct_encode_fields__[kind.__struct_fields__.index(field)]


def field_comments(kind: type) -> dict[str, str]:
    """What stands behind each field, of the types it is made from as well."""
    found: dict[str, str] = {}
    for one in reversed(kind.__mro__):
        if issubclass(one, Figure) or is_typeddict(one):
            found |= _comments_by_class(one.__module__).get(one.__name__, {})
    return found


@cache
def _comments_by_class(module: str) -> dict[str, dict[str, str]]:
    source = inspect.getsource(sys.modules[module])
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    behind = {token.start[0]: token.string for token in tokens if token.type == tokenize.COMMENT}
    return {
        node.name: {
            item.target.id: behind[item.end_lineno or 0].removeprefix("#").strip()
            for item in node.body
            if isinstance(item, ast.AnnAssign)
            and isinstance(item.target, ast.Name)
            and item.end_lineno in behind
        }
        for node in ast.parse(source).body
        if isinstance(node, ast.ClassDef)
    }
