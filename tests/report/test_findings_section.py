"""Findings and the census as sections: what they tell on every medium, and on a page that a browser opens."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import Visit
from jsonschema import Draft202012Validator
from typer.testing import CliRunner

from counted_runs import CHECK_RULE, place, rules, write_counted
from detscope.analyze.drawing import ReportData, report_data
from detscope.cli.main import app
from detscope.report.files import write_report
from detscope.report.model import Absent
from detscope.report.sections.lines import census, findings
from detscope.runs.reader import load_run

EVIL = "assert x # <img src=x onerror=alert(1)> | `"
OWN = ("train.py", 30, "main")
PACKAGE = "transformers/loss/loss.py"


@pytest.fixture(autouse=True, scope="module")
def check_rule() -> Iterator[None]:
    with rules(CHECK_RULE):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    places = [
        place(PACKAGE, 429, "generalized_box_iou", count=11, code=EVIL, own=OWN),
        place(PACKAGE, 431, "generalized_box_iou", count=11, own=OWN),
        place("losses.py", 3, "check_boxes", count=2),
        *(place("train.py", 100 + line, "main", kind="launch", around="") for line in range(60)),
    ]
    return write_counted(tmp_path_factory.mktemp("runs"), places, {"losses.py": "parts/losses.py"})


def data_of(folder: Path) -> ReportData:
    return report_data(load_run(folder))


def test_without_a_census_both_sections_say_how_to_make_one(tmp_path: Path) -> None:
    data = data_of(write_counted(tmp_path, [], census=None))
    for part in (findings, census):
        told = part.section(data)
        assert isinstance(told, Absent) and "detscope run --census" in told.why


def test_a_census_without_a_finding_is_no_gap_of_the_recording(tmp_path: Path) -> None:
    told = findings.section(data_of(write_counted(tmp_path, [place(kind="launch", around="")])))
    assert isinstance(told, Absent) and "no rule found a line" in told.why


def test_sections_are_told_on_a_terminal_in_markdown_and_csv(folder: Path, tmp_path: Path) -> None:
    shown = CliRunner().invoke(app, ["show", str(folder), "--section", "findings,census"]).stdout
    text = " ".join(shown.split())
    assert "would cost about 0.66 ms: 22 waits per step on a device" in text
    assert "would wait for the device 24 times and launch 60 operators per step" in text
    assert "13 more are in the table `census`" in text
    markdown = write_report(folder, "md", tmp_path / "report.md").read_text()
    assert f"`{PACKAGE}:429 generalized_box_iou and 1 more line`" in markdown
    rows = write_report(folder, "csv", tmp_path / "report.csv").read_text()
    assert "findings,findings-list,planted_check-" in rows


def test_the_json_of_a_run_lists_fifty_places_and_says_how_many_more(folder: Path) -> None:
    told = json.loads(CliRunner().invoke(app, ["show", str(folder), "--json"]).stdout)["census"]
    assert (len(told["places"]), told["left_out"], told["waits"]) == (50, 13, 24)


def _shape(needs: str = "", **properties: Any) -> dict[str, Any]:
    """An object of SARIF's: what it needs, and no property beside these."""
    known = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**known, "required": needs.split()}


# of the standard what we write; it knows more properties, and allows none that it does not know
WORD, NUMBER, BAG = {"type": "string", "minLength": 1}, {"type": "integer", "minimum": 1}, {"type": "object"}
TEXT = _shape("text", text=WORD)
LEVEL = {"enum": ["none", "note", "warning", "error"]}
ADDRESS = _shape("uri uriBaseId", uri={**WORD, "format": "uri-reference"}, uriBaseId=WORD)
PLACE = _shape("artifactLocation", artifactLocation=ADDRESS, region=_shape(startLine=NUMBER, snippet=TEXT))
NAMED = {"type": "array", "items": _shape(name=WORD, kind=WORD)}
LOCATION = _shape("physicalLocation", physicalLocation=PLACE, logicalLocations=NAMED, message=TEXT)
LOCATIONS = {"type": "array", "items": LOCATION}
RULE = _shape(
    "id shortDescription fullDescription help",  # code hosts need more than the standard
    id=WORD,
    shortDescription=TEXT,
    fullDescription=TEXT,
    help=TEXT,
    defaultConfiguration=_shape(level=LEVEL),
)
RESULT = _shape(
    "message locations",
    ruleId=WORD,
    ruleIndex={"type": "integer", "minimum": 0},
    level=LEVEL,
    message=TEXT,
    locations={**LOCATIONS, "minItems": 1},
    relatedLocations=LOCATIONS,
    partialFingerprints={"type": "object", "additionalProperties": WORD},
    properties=BAG,
)
DRIVER = _shape("name", name=WORD, version=WORD, rules={"type": "array", "items": RULE, "uniqueItems": True})
RUN = _shape(
    "tool",
    tool=_shape("driver", driver=DRIVER),
    originalUriBaseIds={"type": "object", "additionalProperties": _shape(description=TEXT)},
    automationDetails=_shape(id=WORD),
    columnKind={"enum": ["utf16CodeUnits", "unicodeCodePoints"]},
    results={"type": "array", "items": RESULT},
    properties=BAG,
)
LOG = {"$schema": WORD, "version": {"const": "2.1.0"}, "runs": {"type": "array", "items": RUN}}
SARIF = _shape("version runs", **LOG)


def test_sarif_has_what_the_standard_and_code_hosts_ask_for(folder: Path) -> None:
    done = CliRunner().invoke(app, ["why", str(folder), "--sarif", "-"])
    log = json.loads(done.stdout)  # alone on standard output
    (run,) = log["runs"]
    driver = run["tool"]["driver"]
    Draft202012Validator(SARIF).validate(log)
    assert len({rule["id"] for rule in driver["rules"]}) == len(driver["rules"])
    for result in run["results"]:
        assert driver["rules"][result["ruleIndex"]]["id"] == result["ruleId"]
        for location in (*result["locations"], *result.get("relatedLocations", ())):
            address = location["physicalLocation"]["artifactLocation"]
            assert not address["uri"].startswith(("/", "file:")) and " " not in address["uri"]
            assert address["uriBaseId"] in run["originalUriBaseIds"]
    in_package, own = (one["locations"][0]["physicalLocation"] for one in run["results"])
    assert in_package["artifactLocation"] == {"uri": PACKAGE, "uriBaseId": "SITE_PACKAGES"}
    assert own["artifactLocation"] == {"uri": "parts/losses.py", "uriBaseId": "SRCROOT"}
    assert run["results"][0]["properties"]["on_device"]["waits"] == 22
    both = CliRunner().invoke(app, ["why", str(folder), "--sarif", "-", "--json"])
    assert both.exit_code == 2


@pytest.mark.parametrize(
    "context",
    [
        {"viewport": {"width": 1200, "height": 900}, "color_scheme": "light"},
        {"viewport": {"width": 1200, "height": 900}, "color_scheme": "dark"},
        {"viewport": {"width": 420, "height": 900}},
    ],
    ids=["light", "dark", "narrow"],
)
def test_a_person_finds_the_line_on_the_page_and_can_send_its_address(
    folder: Path, tmp_path: Path, browser: Any, context: dict[str, Any]
) -> None:
    page_file = write_report(folder, "html", tmp_path / "report.html")
    visit = Visit(browser, page_file, **context)
    page = visit.page
    row = page.locator("#findings-list tbody tr").first
    assert "transformers/loss/loss.py:429 generalized_box_iou and 1 more line" in row.inner_text()
    row.locator("td").first.click()
    assert page.evaluate("location.hash").startswith("#findings-list.planted_check-")
    assert page.locator("#findings-list summary button").count() == 3  # Markdown, CSV, link
    lines = page.locator("#findings-lines tbody tr")
    assert lines.count() == 3 and EVIL in lines.first.inner_text()
    verdict = page.locator("#verdict ol.findings li").first.inner_text()
    assert "22 times a step" in verdict and "about 0.66 ms on a device" in verdict
    assert page.evaluate("document.documentElement.scrollWidth") <= context["viewport"]["width"]
    assert visit.complaints == []
