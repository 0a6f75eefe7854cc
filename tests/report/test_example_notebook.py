"""The example notebook runs from its first cell to its last, and keeps what its cells show."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "look_into_a_run.ipynb"


def code_cells(path: Path) -> list[dict[str, Any]]:
    notebook = json.loads(path.read_text(encoding="utf-8"))
    assert notebook["nbformat"] == 4
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


@pytest.mark.processes
def test_every_cell_of_the_example_notebook_runs(tmp_path: Path) -> None:
    made = tmp_path / "made.ipynb"
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    code = "import sys; from pathlib import Path; from tools.notebook import run_notebook as run;"
    subprocess.run(
        [sys.executable, "-c", f"{code} run(Path(sys.argv[1]), Path(sys.argv[2]))", NOTEBOOK, made],
        cwd=tmp_path,
        env={**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])},
        check=True,
    )
    for shown, kept in zip(code_cells(made), code_cells(NOTEBOOK), strict=True):
        assert shown["source"] == kept["source"]
        assert [sorted(one) for one in shown["outputs"]] == [sorted(one) for one in kept["outputs"]]
        assert [sorted(one.get("data", ())) for one in shown["outputs"]] == [
            sorted(one.get("data", ())) for one in kept["outputs"]
        ]
    first_screen = "".join(code_cells(made)[1]["outputs"][0]["data"]["text/html"])
    assert "tiny_maskrcnn" in first_screen and "forward" in first_screen and "<script" not in first_screen
    assert "has no kernels" in "".join(code_cells(made)[-1]["outputs"][0]["text"])


def test_what_is_kept_in_the_notebook_was_made_by_running_it_in_order() -> None:
    cells = code_cells(NOTEBOOK)
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    assert all(cell["outputs"] for cell in cells)
    assert NOTEBOOK.stat().st_size < 60_000
