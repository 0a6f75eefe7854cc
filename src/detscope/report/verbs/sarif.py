"""Findings as SARIF 2.1.0: code hosts and editors show them at the line."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any
from urllib.parse import quote

from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.findings.finding import ASSUMES, Finding, name_function
from detscope.analyze.step.beside import CodePlace
from detscope.analyze.summary import RunSummary
from detscope.parts import find_part
from detscope.report.blocks.suggestions import device_text, name_in_command, place_text
from detscope.runs.standard_json import Json, as_standard_json

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
OWN_ROOT, PACKAGES_ROOT = "SRCROOT", "SITE_PACKAGES"
_LEVELS = {"certain": "warning", "likely": "warning", "possible": "note", None: "note"}
_KEPT = ("cost_ms", "cost_low_ms", "cost_high_ms", "clock", "on_device", "confidence", "cannot_tell", "diff")


def make_sarif(summary: RunSummary, info: Mapping[str, Any], version: str) -> str:
    """All findings that have a line; advice on the whole run has no place that could be shown."""
    found = [one for one in summary.findings if one.where]
    rules = list(dict.fromkeys(one.rule for one in found))
    files = FileAddresses(info)
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {
                    "driver": {
                        "name": "detscope",
                        "version": version,
                        "rules": [_describe_rule(rule, found) for rule in rules],
                    }
                },
                "originalUriBaseIds": {
                    OWN_ROOT: {"description": {"text": "The folder in which the run was started."}},
                    PACKAGES_ROOT: {"description": {"text": "The folder of installed packages."}},
                },
                "automationDetails": {"id": "detscope/"},
                "columnKind": "unicodeCodePoints",
                "results": [_make_result(one, rules.index(one.rule), files, summary) for one in found],
                "properties": {"run": PurePath(summary.run).name, "assumes": ASSUMES},
            }
        ],
    }
    return json.dumps(as_standard_json(log), indent=1, allow_nan=False, ensure_ascii=False) + "\n"


class FileAddresses:
    """Where files lie, as far as others can open them."""

    def __init__(self, info: Mapping[str, Any]) -> None:
        self._own: dict[str, str] = dict((info.get("census") or {}).get("files") or {})

    def locate(self, place: CodePlace, code: str | None = None) -> dict[str, Json]:
        """A location; own files from the folder of the run where they lie below it, packages from theirs."""
        address, root = self._address(place.file)
        physical: dict[str, Json] = {"artifactLocation": {"uri": quote(address), "uriBaseId": root}}
        if place.line > 0:
            snippet = {"snippet": {"text": code}} if code else {}
            physical["region"] = {"startLine": place.line, **snippet}
        named = [{"name": name_function(place), "kind": "function"}] if place.function else []
        return {"physicalLocation": physical, **({"logicalLocations": named} if named else {})}

    def _address(self, file: str) -> tuple[str, str]:
        if file in self._own:
            return self._own[file], OWN_ROOT
        return file, PACKAGES_ROOT if "/" in file else OWN_ROOT


def _describe_rule(name: str, found: Sequence[Finding]) -> dict[str, Json]:
    part = find_part("advice", AdviceRule, name)
    lines = part.lines if part is not None else None
    told = getattr(lines, "__doc__", None) or name.replace("_", " ")
    whole = getattr(sys.modules.get(getattr(lines, "__module__", "")), "__doc__", None) or told
    change = next(one.change for one in found if one.rule == name)
    return {
        "id": name,
        "shortDescription": {"text": told.strip().splitlines()[0]},
        "fullDescription": {"text": " ".join(whole.split())},
        "help": {"text": change},
        "defaultConfiguration": {"level": "warning"},
    }


def _make_result(one: Finding, rule: int, files: FileAddresses, summary: RunSummary) -> dict[str, object]:
    first, *others = one.where
    cost = device_text(one)
    told = f"{one.claim[:1].upper()}{one.claim[1:]}."
    told += f" On a device {cost}, per step, by estimate." if one.device_ms else ""
    related = [files.locate(place) for place in others]
    if one.called_from is not None:
        called = files.locate(one.called_from)
        related.append({**called, "message": {"text": f"called from {place_text(one.called_from)}"}})
    kept = {name: getattr(one, name) for name in _KEPT}
    return {
        "ruleId": one.rule,
        "ruleIndex": rule,
        "level": _LEVELS[one.confidence],
        "message": {"text": f"{told} {one.change[:1].upper()}{one.change[1:]}".strip()},
        "locations": [files.locate(first, one.code)],
        **({"relatedLocations": related} if related else {}),
        "partialFingerprints": {"detscope/v1": one.id},
        "properties": {
            **kept,
            "verify": name_in_command(one.verify, summary, PurePath(summary.run).name),
        },
    }
