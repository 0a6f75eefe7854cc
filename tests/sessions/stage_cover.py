"""Which modules of a run belong to a stage of the detector."""

from __future__ import annotations

from typing import Any


def modules_without_a_stage(summary: dict[str, Any]) -> list[str]:
    """Modules with weights of their own that belong to no stage, themselves or with what they are part of."""
    rows = [row for row in summary["modules"] if row["kind"] == "module" and row["path"] != "(model)"]
    staged = tuple(f"{row['path']}." for row in rows if row["stage"])
    paths = [f"{row['path']}." for row in rows if row["parameters"]]
    leaves = [path for path in paths if not any(other != path and other.startswith(path) for other in paths)]
    assert leaves and staged
    return [path for path in leaves if not path.startswith(staged)]
