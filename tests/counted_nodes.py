"""Nodes of autograd that no module made, by number: how long one took, a busy machine says."""

from __future__ import annotations

from pathlib import Path

import polars as pl

from detscope.runs.reader import load_run

NODE = "autograd::engine::evaluate_function: "


def count_nodes_of_nobody(run: Path) -> dict[str, int]:
    """Of the nodes that the engine ran in a run's operator steps, by name."""
    nodes = _read_nodes(run)
    found = nodes.filter(pl.col("module").is_null()).group_by("name").agg(pl.col("count").sum())
    assert nodes["count"].sum() > found["count"].sum()
    return {name.removeprefix(NODE): count for name, count in found.iter_rows()}


def share_in_modules(run: Path) -> float:
    """Of the time in all nodes, that in those of modules."""
    nodes = _read_nodes(run)
    return nodes.drop_nulls("module")["total_ns"].sum() / nodes["total_ns"].sum()


def _read_nodes(run: Path) -> pl.DataFrame:
    return load_run(run).table("ops").filter(pl.col("name").str.starts_with(NODE))
