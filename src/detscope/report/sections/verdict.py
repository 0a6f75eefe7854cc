"""First: how fast, what limits it, what to change, and whether the figures can be trusted."""

from __future__ import annotations

from detscope.analyze.drawing import ReportData
from detscope.report.figures import ABSENT, interval, is_number, mapping, number, plain, rows, with_unit
from detscope.report.model import Block, Card, Cards, Finding, Findings, Section


def section(data: ReportData) -> Section:
    """The verdict with the figures it rests on."""
    summary = data.summary
    blocks: list[Block] = [Cards(_cards(data))]
    findings = [
        Finding(
            plain(row.get("title", "")),
            plain(row.get("evidence", "")),
            _gain(row),
            "; then: ".join(plain(row[key]) for key in ("how", "command") if row.get(key)),
        )
        for row in rows(summary, "advice")[:3]
    ]
    if findings:
        blocks.append(Findings(findings))
    text = plain(summary.get("verdict") or "cannot tell")
    return Section(
        "verdict",
        "Verdict",
        text[:1].upper() + text[1:],
        "What limits this run, with its evidence. Gains are estimates by Amdahl's law from this run's own"
        " figures; each says how to try it."
        if findings
        else "",
        blocks,
    )


def _gain(row: object) -> str:
    share = row.get("gain_share") if hasattr(row, "get") else None
    return f"saves up to {share * 100:.0f} % of the step" if is_number(share) else ""


def _cards(data: ReportData) -> list[Card]:
    summary = data.summary
    step = mapping(summary, "step_ms")
    what = "per image" if summary.get("verb") == "infer" and summary.get("batch_size") == 1 else "per step"
    cards = []
    if is_number(step.get("p50")):
        cards.append(
            Card(
                f"Median {what}",
                with_unit(step["p50"], "ms"),
                f"95 % interval {interval(step.get('ci95'))}, n = {step.get('n')}",
            )
        )
    if is_number(summary.get("images_per_s")):
        cards.append(
            Card("Speed", f"{number(summary['images_per_s'])} images/s", f"batch {summary.get('batch_size')}")
        )
    accuracy = mapping(summary, "accuracy")
    figures = mapping(accuracy, "figures") or accuracy
    for name in ("AP", "AP50"):
        if is_number(figures.get(name)):
            cards.append(Card(f"Accuracy ({name})", f"{figures[name]:.3f}"))
    peak = mapping(summary, "memory").get("peak_bytes")
    if is_number(peak):
        cards.append(Card("Peak of allocated memory", with_unit(peak, "bytes")))
    used = mapping(mapping(summary, "device"), "utilisation").get("kernels")
    if is_number(used):
        cards.append(Card("Device busy with kernels", f"{used * 100:.1f} %"))
    cards.append(_trust(data))
    return cards


def _trust(data: ReportData) -> Card:
    summary = data.summary
    steady = mapping(summary, "stability")
    verdict = str(steady.get("verdict") or ABSENT)
    cost = mapping(summary, "overhead_ratio").get("value")
    detail = plain(steady.get("reason") or "")
    if is_number(cost):
        detail += f"; recording costs {(cost - 1) * 100:+.1f} %"
    tone = {"stable": "good", "unstable": "warn", "error": "bad"}.get(verdict, "")
    return Card("Trust", verdict, detail, tone)  # type: ignore[arg-type]
