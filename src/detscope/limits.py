"""What a file from elsewhere may ask for: every limit in one table, with its reason and how to raise it.

A limit is raised, or lowered, by an environment variable of its name: `DETSCOPE_LIMIT_PLAN_TRIALS=500000`.
"""

from __future__ import annotations

import csv
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detscope.errors import DetscopeError, InputError, UsageError

PREFIX = "DETSCOPE_LIMIT_"
MIB, GIB = 1 << 20, 1 << 30


@dataclass(frozen=True)
class Limit:
    """The most of something, in whole units."""

    value: int
    unit: str
    reason: str


LIMITS: Mapping[str, Limit] = {
    # data sets
    "archive_bytes": Limit(200 * 10**9, "bytes", "ten times the largest archive that can be prepared"),
    "archive_ratio": Limit(100, "times", "annotations pack twentyfold at most; bombs a thousandfold"),
    "archive_members": Limit(2_000_000, "files", "more than any data set that detectors are trained on"),
    "archive_member_bytes": Limit(
        12, "packed bytes", "at least, per file: an empty one packs to six, a label to twenty"
    ),
    "annotation_bytes": Limit(
        512 * MIB, "bytes", "COCO's largest file has 427 MiB; memory takes ten times as much"
    ),
    "label_bytes": Limit(16 * MIB, "bytes", "of one image: VOC's XML and YOLO's text have some kilobytes"),
    "description_bytes": Limit(1 * MIB, "bytes", "data.yaml names folders and classes, nothing else"),
    "yaml_nodes": Limit(200_000, "values", "aliases repeat what they stand for: nine levels make a billion"),
    "image_objects": Limit(50_000, "objects", "of one image: crowds and aerial pictures have thousands"),
    "classes": Limit(100_000, "classes", "each is an output of the network; large sets have 20,000"),
    "image_bytes": Limit(512 * MIB, "bytes", "an image file is read whole"),
    "image_pixels": Limit(100_000_000, "pixels", "decoded, three bytes each; as floats twelve"),
    "synthetic_images": Limit(1_000_000, "images", "drawn one by one, 20 kB each: hours"),
    "results_bytes": Limit(2 * GIB, "bytes", "detections of COCO's test images in full have half of it"),
    # recorded files
    "recording_ratio": Limit(100, "times", "traces pack fifteen- to fortyfold; a bomb a thousandfold"),
    "recording_bytes": Limit(32 * GIB, "unpacked bytes", "hours of reading"),
    "recording_events": Limit(20_000_000, "events", "a step of a detector has 20,000"),
    "packed_events": Limit(300_000, "events", "of a packed file, however small; more where its size allows"),
    "packed_event_bytes": Limit(
        4, "packed bytes", "at least, per event: real ones have ten, a bomb's below one"
    ),
    "event_memory_bytes": Limit(900, "bytes", "an event takes in memory; all together 60 % of what is free"),
    "event_bytes": Limit(32 * MIB, "bytes", "of one event; the longest stacks have some hundred kilobytes"),
    "snapshot_bytes": Limit(2 * GIB, "unpacked bytes", "a snapshot is read whole"),
    "snapshot_values": Limit(8_000_000, "values", "lists and tables of a pickle: two gigabytes of memory"),
    "database_value_bytes": Limit(50_000_000, "bytes", "of one value; names and stacks have some kilobytes"),
    "database_seconds": Limit(60, "seconds", "without a row: a table of real rows gives one at once"),
    "listing_line_bytes": Limit(1 * MIB, "bytes", "of one line of an Nsight Compute listing"),
    # runs, plans, stores, models
    "patch_bytes": Limit(16 * MIB, "bytes", "a change that somebody reads has some kilobytes"),
    "copied_tree_bytes": Limit(
        1 * GIB, "bytes", "copied for a patch: code has megabytes; data that git does not hold is linked"
    ),
    "copied_tree_files": Limit(
        2_000_000, "files", "looked at for Python files before a patch: seconds on a disk"
    ),
    "settings_bytes": Limit(1_000_000, "bytes", "plans and settings are typed by hand"),
    "plan_trials": Limit(200_000, "trials", "each takes seconds, so that these are days; a kilobyte each"),
    "plan_comparisons": Limit(20_000_000, "comparisons", "of trials with what is excluded: half a minute"),
    "store_rows": Limit(400_000, "rows", "twice the largest plan; five kilobytes each in memory"),
    "device_model_bytes": Limit(256 * MIB, "bytes", "a forest of 300 trees has some megabytes"),
    "layer_graph_bytes": Limit(256 * MIB, "bytes", "lists of layers have a hundred bytes per layer"),
}


def read_limit(name: str) -> int:
    """The limit of this name, as the environment or the table has it."""
    given = os.environ.get(limit_variable(name), "")
    if not given:
        return LIMITS[name].value
    if not given.isdecimal() or len(given) > 18:
        raise UsageError(f"{limit_variable(name)}={given[:40]!r} is not a whole number", "give digits alone")
    return int(given)


def limit_variable(name: str) -> str:
    """The environment variable that sets a limit."""
    return PREFIX + name.upper()


def raise_hint(name: str) -> str:
    """Why the limit is there, and how to raise it."""
    return f"{LIMITS[name].reason}; if it is meant, set {limit_variable(name)}=N"


def over_limit(
    name: str, what: str, amount: int | None = None, error: type[DetscopeError] = InputError
) -> DetscopeError:
    """The error for something beyond its limit; without an amount it was not counted to its end."""
    unit, most = LIMITS[name].unit, read_limit(name)
    text = (
        f"more than {most:,} {unit}, the limit"
        if amount is None
        else f"{amount:,} {unit}, the limit is {most:,}"
    )
    return error(f"{what}: {text}", raise_hint(name))


def require_within(name: str, amount: int, what: str, error: type[DetscopeError] = InputError) -> None:
    """Refuse an amount beyond its limit."""
    if amount > read_limit(name):
        raise over_limit(name, what, amount, error)


def read_within_limit(
    name: str, path: Path, error: type[DetscopeError] = InputError, hint: str = "look at the path"
) -> bytes:
    """The content of a file that is not beyond its limit."""
    try:
        if path.is_fifo() and path.parts[:2] not in ((os.sep, "dev"), (os.sep, "proc")):  # a shell's <(...)
            raise error(f"{path}: is a pipe, not a file", hint)
        require_within(name, path.stat().st_size, f"{path}", error)
        return path.read_bytes()
    except OSError as failure:
        raise error(f"{path}: cannot be read: {failure.strerror or failure}", hint) from failure


def read_csv_rows(path: Path, lines: Iterable[str], delimiter: str = ",") -> csv.DictReader[str]:
    """The rows of a CSV; what the parser refuses is said with its place."""

    class NamedReader(csv.DictReader):  # type: ignore[type-arg]
        def __next__(self) -> dict[str | Any, str | Any]:
            try:
                return super().__next__()
            except csv.Error as error:
                raise InputError(
                    f"{path}, line {self.line_num + 1}: {error}", "is a quote left open?"
                ) from error

    return NamedReader(lines, delimiter=delimiter)
