"""A sweep as one offline page: what ran, how it ended, curves over the batch size, failures, environment."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detscope.report.figures import count, mapping, number, plain, rows
from detscope.report.model import Absent, Block, Card, Cards, Column, Notes, Section, Table
from detscope.report.pages.sweep_curves import curve_sections
from detscope.report.progress import duration_text
from detscope.report.render.page import render_page
from detscope.runs.atomic import write_text

MOST_FAILURES = 500


def write_sweep_report(page: Mapping[str, Any], store: Path, target: Path | None = None) -> Path:
    """Write the page of a sweep beside its store, or where asked; `page` is what `sweep_page` gives."""
    path = target or store.with_name(f"{store.stem}-report.html")
    write_text(path, sweep_html(page, store.name))
    return path


def sweep_html(page: Mapping[str, Any], name: str) -> str:
    """The whole page."""
    status = mapping(page, "status")
    devices = ", ".join(plain(row["device"]) for row in rows(status, "devices"))
    plans = ", ".join(dict.fromkeys(plain(plan.get("name") or "") for plan in rows(status, "plans")))
    sections: list[Section] = [_overview(page)]
    absent: list[Absent] = []
    for part in curve_sections(page):
        if isinstance(part, Absent):
            absent.append(part)
        else:
            sections.append(part)
    sections += [_failures(page)] if rows(page, "failures") else []
    sections += [_results(page), _method(page)]
    made = "Made by detscope from this sweep's store. The file needs no network and sends nothing."
    subtitle = f"sweep{f' on {devices}' if devices else ''}, {name}"
    return render_page(plain(plans or name), plain(subtitle), sections, absent, made)


def _overview(page: Mapping[str, Any]) -> Section:
    status = mapping(page, "status")
    done, failed, skipped, left = (int(status.get(key) or 0) for key in ("done", "failed", "skipped", "left"))
    unstable = sum(len(batches) for batches in mapping(page, "unstable").values())
    cards = [
        Card("Measured", count(done), f"{len(rows(page, 'networks'))} networks", "good" if done else ""),
        Card("Failed", count(failed), "see below" if failed else "", "bad" if failed else ""),
        Card("Skipped", count(skipped)),
    ]
    if left:
        cards.append(Card("Not run yet", count(left), "detscope sweep PLAN --resume", "warn"))
    if unstable:
        cards.append(Card("To be read with care", count(unstable), "interval wider than asked for", "warn"))
    cards.append(Card("Time in trials", duration_text(float(page.get("measured_s") or 0.0))))
    columns = [Column("Network", "code"), Column("parameters", "count"), Column("measured", "count")]
    columns += [Column("failed", "count"), Column("skipped", "count"), Column("largest batch", "count")]
    columns += [Column("best images/s", "number")]
    keys = ("name", "parameters", "measured", "failed", "skipped", "largest_batch", "best_images_per_s")
    body = [[row.get(key) for key in keys] for row in rows(page, "networks")]
    endings = [[name, number_of] for name, number_of in page.get("endings") or []]
    axes = [[plain(name), plain(words)] for name, words in page.get("axes") or []]
    blocks: list[Block] = [
        Cards(cards),
        Table("networks", "What ran", columns, body, searchable=len(body) > 12),
        Table("endings", "How trials ended", [Column("status"), Column("trials", "count")], endings),
        Table("axes", "What was varied", [Column("axis"), Column("values", "sentence")], axes),
    ]
    return Section("overview", "Overview", _verdict(done, failed, skipped, left), "", blocks)


def _verdict(done: int, failed: int, skipped: int, left: int) -> str:
    if not done + failed + skipped:
        return "No trial of this sweep has ended yet"
    words = [f"{count(done)} trials measured"]
    words += [f"{count(failed)} failed"] if failed else []
    words += [f"{count(skipped)} skipped"] if skipped else []
    words += [f"{count(left)} still to run"] if left else []
    return ", ".join(words)


def _failures(page: Mapping[str, Any]) -> Section:
    found = rows(page, "failures")
    columns = [Column("Network", "code"), Column("stage"), Column("device"), Column("batch", "count")]
    columns += [Column("status", "sentence"), Column("its last words", "sentence")]
    keys = ("name", "stage", "device", "batch_size", "status")
    body = [[*(row.get(key) for key in keys), row.get("message") or ""] for row in found[:MOST_FAILURES]]
    blocks: list[Block] = [Table("failures-table", "Not measured, and why", columns, body, searchable=True)]
    if len(found) > MOST_FAILURES:
        blocks.append(Notes([f"and {len(found) - MOST_FAILURES} more: detscope sweep export"]))
    networks = len({row["network"] for row in found})
    title = f"{count(len(found))} trials of {count(networks)} networks gave no figure"
    text = "Out of memory, a time limit, a signal or an exception; what was skipped says after which failure."
    return Section("failures", "Failures", title, text, blocks)


def _results(page: Mapping[str, Any]) -> Section:
    columns = [Column("Network", "code"), Column("stage"), Column("device"), Column("batch", "count")]
    columns += [Column("step ms", "ms"), Column("95 % interval"), Column("images/s", "number")]
    columns += [Column("allocated", "bytes"), Column("reserved", "bytes"), Column("process", "bytes")]
    columns += [Column("steadiness"), Column("status", "sentence")]
    body = []
    for row in rows(page, "rows"):
        ends = [row.get(key) for key in ("step_low_ms", "step_high_ms")]
        between = f"[{number(ends[0])}, {number(ends[1])}]" if None not in ends else None
        care = "" if row.get("interval_reached") != 0 else f"wide, stopped by {plain(row.get('stopped_by'))}"
        figures = [row.get(key) for key in ("allocated_bytes", "reserved_bytes", "process_bytes")]
        body.append(
            [
                *(row.get(key) for key in ("name", "stage", "device", "batch_size", "step_ms")),
                between,
                row.get("images_per_s"),
                *figures,
                plain(care or row.get("stability") or ""),
                row.get("status"),
            ]
        )
    table = Table("results-table", "Every trial", columns, body, searchable=True)
    return Section("results", "Every trial", f"{count(len(body))} results, one row each", "", [table])


def _method(page: Mapping[str, Any]) -> Section:
    environments = rows(page, "environments")
    blocks: list[Block] = []
    for place, environment in enumerate(environments, 1):
        facts = [[plain(name), plain(text)] for name, text in environment.get("facts") or []]
        caption = f"Environment {place} of {len(environments)}: {count(environment.get('rows'))} results"
        blocks.append(
            Table(f"environment-{place}", caption, [Column("what"), Column("value", "sentence")], facts)
        )
    span = page.get("from_to")
    if span:
        blocks.append(Notes([f"results arrived between {plain(span[0])} and {plain(span[1])} (UTC)"]))
    title = "Measured in one environment" if len(environments) == 1 else f"{len(environments)} environments"
    text = (
        "Every trial ran in a process of its own. Latency: steps until the 95 % interval of their median was"
        " as narrow as asked for, or until a limit came first, which is marked. Memory: allocated is the"
        " highest sum of live tensors, process the resident peak."
    )
    return Section("method", "How it was measured", title, text, blocks)
