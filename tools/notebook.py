"""Runs the cells of a notebook and keeps what they show: `python -m tools.notebook NOTEBOOK [TARGET]`.

Enough of Jupyter for an example without it: code, `!command` lines, printed text, the last value of a cell.
"""

from __future__ import annotations

import ast
import io
import json
import re
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any


def run_notebook(source: Path, target: Path) -> None:
    """Run all code cells in order, in this process and folder; what a cell raises ends it."""
    notebook = json.loads(source.read_text(encoding="utf-8"))
    names: dict[str, Any] = {"__name__": "__main__"}
    code_cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    for number, cell in enumerate(code_cells, start=1):
        cell["execution_count"] = number
        cell["outputs"] = run_cell("".join(cell["source"]), number, names)
    target.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def run_cell(code: str, number: int, names: dict[str, Any]) -> list[dict[str, Any]]:
    """What a cell prints, then its last value."""
    names["_shell"] = _run_shell
    plain = re.sub(r"^!(.*)$", lambda found: f"_shell({found[1]!r})", code, flags=re.MULTILINE)
    tree = ast.parse(plain, f"cell {number}")
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    value, printed = None, io.StringIO()
    with redirect_stdout(printed):
        exec(compile(tree, f"cell {number}", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), f"cell {number}", "eval"), names)
    outputs: list[dict[str, Any]] = []
    if printed.getvalue():
        outputs.append({"name": "stdout", "output_type": "stream", "text": _split(printed.getvalue())})
    if value is not None:
        data = {"text/plain": _split(repr(value))}
        if hasattr(value, "_repr_html_"):
            data["text/html"] = _split(value._repr_html_())
        outputs.append(
            {"data": data, "execution_count": number, "metadata": {}, "output_type": "execute_result"}
        )
    return outputs


def _run_shell(command: str) -> None:
    ended = subprocess.run(
        command,
        shell=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    print(ended.stdout, end="")
    if ended.returncode:
        raise RuntimeError(f"{command} ended with exit code {ended.returncode}: {ended.stdout[-400:]}")


def _split(text: str) -> list[str]:
    """Lines as notebooks keep them; the folder it ran in is nobody's business."""
    return text.replace(f"{Path.cwd()}/", "").splitlines(keepends=True)


if __name__ == "__main__":
    run_notebook(Path(sys.argv[1]), Path(sys.argv[-1]))
