"""Who may import whom: data flows one way, and a run opens without torch."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "detscope"
BELOW_ALL = {"errors", "extras", "faults", "limits", "marks", "parts", "run_lengths", "web"}
MAY_IMPORT = {
    "config": BELOW_ALL,
    "runs": BELOW_ALL,
    "machine": BELOW_ALL,
    "zoo": BELOW_ALL | {"config"},
    "data": BELOW_ALL | {"config", "machine"},
    "loops": BELOW_ALL | {"config", "machine", "zoo", "data"},
    "traces": BELOW_ALL | {"runs", "zoo"},
    "record": BELOW_ALL | {"runs", "machine", "zoo", "traces"},
    "analyze": BELOW_ALL | {"runs"},
    "report": BELOW_ALL | {"runs", "analyze"},
    "agents": BELOW_ALL | {"runs", "analyze", "report"},
    "ingest": BELOW_ALL | {"runs", "machine", "zoo", "traces"},
    "accuracy": BELOW_ALL,
    "predict": BELOW_ALL | {"config", "runs", "machine", "zoo", "analyze"},
    "sweep": BELOW_ALL | {"config", "runs", "machine", "zoo"},
    "sessions": BELOW_ALL
    | {"config", "runs", "machine", "zoo", "data", "loops", "record", "analyze", "report"}
    | {"ingest", "accuracy", "predict", "sweep", "traces"},
    "integrations": BELOW_ALL | {"sessions"},
}
WITHOUT_TORCH = ("config", "runs", "traces", "analyze", "report", "agents", "ingest", "accuracy", "cli")
WITHOUT_TORCH += tuple(f"{name}.py" for name in sorted(BELOW_ALL))


def imports_of(path: Path) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= (
                {f"{node.module}.{alias.name}" for alias in node.names}
                if node.module == "detscope"
                else {node.module}
            )
    return found


@pytest.mark.parametrize("room", MAY_IMPORT)
def test_a_room_imports_only_what_lies_before_it(room):
    for path in (SOURCE / room).rglob("*.py"):
        rooms = {name.split(".")[1] for name in imports_of(path) if name.startswith("detscope.")}
        assert rooms - {room} <= MAY_IMPORT[room], path


def test_a_trainer_s_library_is_imported_by_its_own_integration_alone():
    libraries = {"transformers": "huggingface", "lightning": "lightning", "pytorch_lightning": "lightning"}
    for path in (SOURCE / "integrations").glob("*.py"):
        named = {name.split(".")[0] for name in imports_of(path)}
        own = {library for library, file in libraries.items() if file == path.stem}
        assert named & {*libraries, "ultralytics", "accelerate"} <= own, path
        assert path.read_text().count("\n") <= 40, path  # the recorder does the rest


@pytest.mark.parametrize("room", WITHOUT_TORCH)
def test_what_is_needed_to_read_a_run_never_imports_torch(room):
    place = SOURCE / room
    for path in [place] if place.is_file() else place.rglob("*.py"):
        assert not {name for name in imports_of(path) if name.split(".")[0] in ("torch", "torchvision")}, path


def test_every_file_says_what_it_is_for_and_can_be_read_in_one_sitting():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        assert ast.get_docstring(ast.parse(text)), path
        assert text.count("\n") <= 700, path


def test_every_error_that_a_user_can_cause_has_a_hint():
    """Of what is raised by its own name; a bad annotation is a line of a list and its list has one."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                raised = node.func.id in ("InputError", "UsageError", "MachineError", "VocXmlError")
                assert not raised or len(node.args) + len(node.keywords) > 1, f"{path}:{node.lineno}"
