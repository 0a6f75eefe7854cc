"""What a trace says about itself, and what in it is nobody else's business."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any

from detscope.ingest.kineto.naming import has_home
from detscope.ingest.kineto.stream import TraceText

_PRIVATE_KEY = re.compile(
    r"env(iron(ment)?)?$|_env(_|$)|token|secret|passw(or)?d|api_?key|credential|cookie|"
    r"(^|_)user(name)?(_|$)|(^|_)host_?name|(^|_)home(_|$)",
    re.IGNORECASE,
)
# as environment variables spell them; each word costs a pass over the text
_SUSPECT_WORDS = (b"TOKEN", b"SECRET", b"PASSWORD")
_SUSPECT_KEY = re.compile(
    rb'"([A-Za-z0-9_. -]{0,60}(?:token|secret|password|api_key)[A-Za-z0-9_. -]{0,60})"\s*:', re.IGNORECASE
)
_MOST_NODES = 20_000
_DEVICE_FACTS = ("id", "name", "totalGlobalMem", "computeMajor", "computeMinor", "numSms", "warpSize")
_FACTS = (
    *("schemaVersion", "displayTimeUnit", "baseTimeNanoseconds"),
    *("record_shapes", "with_stack", "with_modules", "with_flops", "profile_memory"),
    *("cuda_runtime_version", "cuda_driver_version", "hip_runtime_version"),
    *("cupti_version", "roctracer_version"),
)


def read_metadata(text: TraceText, count: Callable[[str, int], None]) -> dict[str, Any]:
    """The object around the list of events; what of it cannot be read is left out and counted."""
    before, after = text.before.strip().rstrip(b","), text.after.strip().lstrip(b",")
    found: dict[str, Any] = {}
    parts = [before + b"}"] if before.startswith(b"{") else []
    parts += [b"{" + after] if after.endswith(b"}") else []
    for part in parts:
        try:
            value = json.loads(part.decode("utf-8", errors="replace"))
        except (ValueError, RecursionError):
            count("unreadable parts of the metadata", 1)
            continue
        found |= value if isinstance(value, dict) else {}
    return found


def select_facts(metadata: dict[str, Any]) -> dict[str, Any]:
    """What may be kept: versions, settings, devices and ranks; by name, so that nothing else slips in."""
    facts = {key: metadata[key] for key in _FACTS if isinstance(metadata.get(key), int | str)}
    devices = metadata.get("deviceProperties")
    if isinstance(devices, list):
        facts["devices"] = [
            {key: device[key] for key in _DEVICE_FACTS if isinstance(device.get(key), int | str)}
            for device in devices[:64]
            if isinstance(device, dict)
        ]
    job = metadata.get("distributedInfo")
    if isinstance(job, dict):
        for key in ("rank", "world_size"):
            if isinstance(job.get(key), int) and not isinstance(job.get(key), bool):
                facts[key] = job[key]
        if isinstance(job.get("backend"), str):
            facts["backend"] = job["backend"][:40]
    return facts


def find_private_keys(metadata: dict[str, Any]) -> list[str]:
    """Keys whose names or values look private. Only keys, never values."""
    found: dict[str, None] = {}
    waiting: list[tuple[str, object]] = [(str(key), value) for key, value in metadata.items()]
    for key, value in islice(waiting, _MOST_NODES):  # breadth first: it grows while it is walked
        if _PRIVATE_KEY.search(key) or (isinstance(value, str) and has_home(value)):
            found[key] = None
        if isinstance(value, dict):
            waiting.extend((str(inner), item) for inner, item in value.items())
        elif isinstance(value, list):
            waiting.extend((key, item) for item in value[:1000])
    return list(found)


def find_suspicious_keys(batch: bytes) -> set[str]:
    """Keys in the text of events that look like secrets."""
    if not any(word in batch for word in _SUSPECT_WORDS):
        return set()
    return {match.decode("ascii", "replace") for match in _SUSPECT_KEY.findall(batch)[:1000]}


def find_home_places(names: Iterable[object], stacks: Iterable[object]) -> list[str]:
    """Which parts of the events name somebody's home folder."""
    parts = (("names of events", names), ("Call stack", stacks))
    return [key for key, texts in parts if any(isinstance(text, str) and has_home(text) for text in texts)]
