"""Telemetry: what came to a running total, in how many samples a bit was set; no means of either."""

from __future__ import annotations

import polars as pl
import pytest

from detscope.analyze.device.processor import telemetry_figures
from detscope.runs.writer import polars_schema


def samples(source: str, metric: str, unit: str, values: list[float]) -> list[tuple[object, ...]]:
    return [(10 * at, source, metric, value, unit) for at, value in enumerate(values)]


def figures(*rows: list[tuple[object, ...]]) -> dict[str, object]:
    table = pl.DataFrame(
        [row for part in rows for row in part], schema=polars_schema("telemetry"), orient="row"
    )
    return {row.metric: row for row in telemetry_figures(table)}


def test_a_running_total_is_what_came_to_it_during_the_run() -> None:
    found = figures(samples("gpu:0", "energy_joules", "J", [7_000_000.0, 7_000_150.0, 7_000_400.0]))
    energy = found["energy_joules"]
    assert (energy.total, energy.mean, energy.max, energy.n) == (400.0, None, None, 3)


def test_each_reason_for_throttling_has_its_share_of_the_samples() -> None:
    found = figures(samples("gpu:0", "throttle_reasons", "bits", [0.0, 4.0, 4.0 + 32.0, 0.0]))
    assert {name: row.mean for name, row in found.items()} == {
        "throttled: power cap": 50.0,
        "throttled: temperature (software)": 25.0,
    }
    assert {row.unit for row in found.values()} == {"%"}


def test_all_else_has_a_mean_and_a_maximum() -> None:
    power = figures(samples("gpu:0", "power_watts", "W", [100.0, 300.0]))["power_watts"]
    assert (power.mean, power.max, power.total) == (200.0, 300.0, None)


def test_a_device_that_was_never_throttled_has_no_row_of_it() -> None:
    assert figures(samples("gpu:0", "throttle_reasons", "bits", [0.0, 0.0])) == {}
    assert telemetry_figures(pl.DataFrame(schema=polars_schema("telemetry"))) == ()
    assert figures(samples("process", "read_bytes", "bytes", [5.0]))["read_bytes"].total == pytest.approx(0.0)
