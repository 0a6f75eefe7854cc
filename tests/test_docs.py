"""Pages that name files, functions, rooms and snippets are held to the code."""

from __future__ import annotations

import ast
import re
import types
from pathlib import Path

import pytest
import yaml

import detscope
from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.step.steps import PHASES
from detscope.data.contract import DatasetFormat
from detscope.ingest.sink import Format
from detscope.parts import FOLDERS
from detscope.record.census.pattern import CensusPattern
from detscope.report.notebook.frames import FIGURES, RECORDED_BY
from detscope.report.notebook.loaded import LoadedRun
from detscope.report.sections import SectionPart
from detscope.runs.schema import TABLES
from detscope.zoo.family import Family
from test_house import BELOW_ALL, MAY_IMPORT

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "detscope"
ARCHITECTURE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
CONTRIBUTING = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
PAGES = [*sorted(ROOT.glob("docs/*.md")), ROOT / "CONTRIBUTING.md"]
WALK = re.compile(r"^\| (\d+) \| `([^`]+)` \| `([^`]+)` \|", re.MULTILINE)
SNIPPETS = re.findall(r"^### (.+?)$.*?```python\n(.*?)```", CONTRIBUTING, re.MULTILINE | re.DOTALL)
PART_TYPES = (Family, Format, SectionPart, AdviceRule, DatasetFormat, CensusPattern)


def names_in(path: Path) -> set[str]:
    """Functions and classes of a file; methods as Class.method."""
    found = set()
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {f"{node.name}.{one.name}" for one in node.body if isinstance(one, ast.FunctionDef)}
    return found


def test_the_newcomers_page_is_short_and_its_walks_are_files_and_functions() -> None:
    assert ARCHITECTURE.count("\n") <= 250
    walks = re.findall(r"^## One `(\w+)`.*?\n(.*?)(?=^## )", ARCHITECTURE, re.MULTILINE | re.DOTALL)
    assert [name for name, _ in walks] == ["train", "import", "run", "predict"]
    for name, text in walks:
        hops = WALK.findall(text)
        assert [int(number) for number, _, _ in hops] == list(range(1, len(hops) + 1)) and len(hops) <= 12
        for _, file, function in hops:
            assert function in names_in(SOURCE / file), f"{name}: {file}: {function}"
        for file, function in re.findall(r"`([\w/]+\.py): (\w+)`", text):
            assert any(function in names_in(path) for path in SOURCE.rglob(file)), f"{file}: {function}"


def test_the_table_of_rooms_is_the_one_that_is_tested() -> None:
    rows = re.findall(r"^\| `(\w+)/` \| [^|]+ \| ([^|]*?) ?\|$", ARCHITECTURE, re.MULTILINE)
    free = {room for room, allowed in rows if "all of these" in allowed}
    told = {room: set(re.findall(r"`(\w+)`", allowed)) for room, allowed in rows if room not in free}
    assert told == {room: rooms - BELOW_ALL for room, rooms in MAY_IMPORT.items() if room not in free}
    assert free == {"sessions", "cli"}
    assert set(re.findall(r"`(\w+)`", ARCHITECTURE)) >= BELOW_ALL


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_pages_name_are_there(page: Path) -> None:
    named = re.findall(r"`((?:[\w.]+/)+(?:\w+\.(?:py|md|toml|tsv))?)[:`]", page.read_text(encoding="utf-8"))
    rooms = {path.name for path in SOURCE.iterdir() if path.is_dir()}
    for name in named:
        if name.split("/")[0] in rooms:
            assert (SOURCE / name).exists(), name
        elif name.split("/")[0] in ("src", "tests", "docs", "bench", "examples", "tools"):
            assert (ROOT / name).exists(), name


@pytest.mark.parametrize(("subject", "code"), SNIPPETS, ids=[subject for subject, _ in SNIPPETS])
def test_snippets_for_contributors_are_parts(subject: str, code: str) -> None:
    module = types.ModuleType("a_snippet")
    exec(compile(code, subject, "exec"), vars(module))
    if subject == "A verb":
        assert callable(module.steps)
    else:
        assert isinstance(module.PART, PART_TYPES) and len(SNIPPETS) == len(FOLDERS) + 1


def test_every_public_name_is_on_the_page_of_the_api() -> None:
    page = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    for name in set(detscope.__all__) - {"__version__"}:
        assert f"detscope.{name}" in page or re.search(rf"members: \[.*\b{name}\b", page), name
    for name, source in FIGURES.items():
        assert f"| `{name}` | {source.rows} | {source.missing} |" in page
    for name in set(TABLES) - {"steps"}:
        assert f"| `{name}` | {RECORDED_BY[name]} |" in page
    own = {name for name in dir(LoadedRun) if not name.startswith("_")}
    assert own == {"summary", "names", "rows", "to_pandas", "table", "status"}
    for name in (*own, "folder", "info"):
        assert re.search(rf"`run\.{name}\b|members: \[.*\b{name}\b", page), name
    assert all(f"`{name}_ms`" in page for name in ("step", *PHASES))


def test_every_page_is_part_of_the_site() -> None:
    told = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    pages = {path.name for path in (ROOT / "docs").glob("*.md")}
    assert set(re.findall(r": (\w+\.md)$", told, re.MULTILINE)) == pages


@pytest.mark.parametrize("path", sorted((ROOT / ".github").rglob("*.yml")), ids=lambda path: path.name)
def test_workflows_and_forms_are_yaml_and_call_targets_that_exist(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert yaml.safe_load(text)
    targets = set(
        re.findall(r"^([\w.$()/-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )
    for called in re.findall(r"- run: make ([^\n]+)", text):
        names = {word.replace(".venv", "$(VENV)") for word in called.split() if "=" not in word}
        assert names <= targets, called
