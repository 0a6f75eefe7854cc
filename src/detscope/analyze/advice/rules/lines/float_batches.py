"""Images that go to the device as floats: four times the bytes they were stored in."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from detscope.analyze.advice.case import AdviceRule
from detscope.analyze.findings.case import LineCase
from detscope.analyze.findings.census import CensusPlace
from detscope.analyze.findings.finding import Finding, estimate_device

_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}
_CHANNELS = ("1", "3", "4")
LEAST_SIDE = 32  # pixels: smaller ones are no images
LEAST_BYTES = 50_000  # per step
LEAST_OFTEN = 0.5  # per step: a batch that was moved before the first of them is moved again there


def find_lines(case: LineCase) -> Iterable[Finding]:
    """Copies of images to the device, by function."""
    rows = case.places("feed", accept=lambda place: _is_image(place) and place.count >= LEAST_OFTEN)
    for found in case.by_function(rows):
        size = sum(row.bytes for row in found)
        saved = sum(row.bytes * (1 - 1 / _BYTES[row.facts["dtype"]]) for row in found)
        if size < LEAST_BYTES:
            continue
        facts = max(found, key=lambda row: row.bytes).facts
        finding = case.make_finding(
            PART.name,
            found,
            f"Images are copied to the device as {facts['dtype']} ({facts['shape']}): {size / 1e6:.3g} MB per"
            f" step, of which {saved / 1e6:.3g} MB would not be moved as bytes.",
            "Keep images uint8 in the loader, move them, and convert there: images.to(device,"
            " non_blocking=True).float().div_(255), then normalise.",
            confidence="likely",
            text="whether the images were bytes before cannot be seen",
        )
        yield msgspec.structs.replace(finding, on_device=estimate_device(0, 0, saved))


def _is_image(place: CensusPlace) -> bool:
    """[images, channels, height, width], or one image of it."""
    facts = place.facts
    shape = facts.get("shape", "").split("x")
    if facts.get("generated") == "True":  # of no data, as embeddings of positions are
        return False
    if facts.get("dtype") not in _BYTES or len(shape) not in (3, 4) or shape[-3] not in _CHANNELS:
        return False
    return min(int(shape[-1]), int(shape[-2])) >= LEAST_SIDE


PART = AdviceRule("float_batches", 104, lines=find_lines)
