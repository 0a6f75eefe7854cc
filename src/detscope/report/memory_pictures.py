"""The pictures of a run's memory as PNG files in its `pictures/`."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from detscope.analyze.memory.timeline import PeakTree, Timeline
from detscope.report.figures import plain, with_unit
from detscope.report.memory_timeline_picture import timeline_picture
from detscope.report.memory_treemap import treemap_picture
from detscope.runs.atomic import storage_error, write_bytes

TIMELINE_NAME, PEAK_NAME = "memory_timeline.png", "memory_peak.png"


def write_memory_pictures(
    folder: Path, info: dict[str, Any], timeline: Timeline | None, tree: PeakTree | None
) -> list[Path]:
    """Draw what there is; gives the files."""
    pictures = folder / "pictures"
    try:
        pictures.mkdir(exist_ok=True)
    except OSError as error:
        raise storage_error(pictures, error) from error
    name = plain((info.get("model") or {}).get("name") or "model")
    setting = ", ".join(
        str(part)
        for part in (
            f"batch {info['batch_size']}" if info.get("batch_size") else None,
            info.get("precision"),
            timeline.device if timeline else tree.device if tree else None,
        )
        if part
    )
    files = []
    if timeline is not None:
        title = f"{name}: allocated memory in step {timeline.step} ({setting})"
        files.append(_save(pictures / TIMELINE_NAME, timeline_picture(timeline, title)))
    if tree is not None:
        title = f"{name}: the peak of {with_unit(tree.peak_bytes, 'bytes')}, step {tree.step} ({setting})"
        files.append(_save(pictures / PEAK_NAME, treemap_picture(tree, title)))
    return files


def _save(path: Path, pixels: npt.NDArray[np.uint8]) -> Path:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG", optimize=True)
    write_bytes(path, buffer.getvalue())
    return path
