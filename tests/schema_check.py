"""What `--json` prints against the schema that `detscope schema summary` prints."""

from __future__ import annotations

from functools import cache
from typing import Any

from jsonschema import Draft202012Validator

from detscope.analyze.schema import make_schema
from detscope.analyze.summary import RunSummary
from detscope.runs.standard_json import as_standard_json


@cache
def summary_validator() -> Draft202012Validator:
    return Draft202012Validator(make_schema("summary"))


def check_summary(told: RunSummary | dict[str, Any]) -> None:
    """Every figure of a run is what the schema says, and nothing else is there."""
    told = as_standard_json(told)
    errors = [f"{error.json_path}: {error.message[:200]}" for error in summary_validator().iter_errors(told)]
    assert errors == []
