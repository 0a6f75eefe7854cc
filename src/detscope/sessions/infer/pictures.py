"""From kept detections to pictures with names on their boxes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from detscope.data.images.files import ImageSource
from detscope.sessions.infer.detections import Found
from detscope.zoo.contract import BuiltModel

if TYPE_CHECKING:
    from detscope.report.drawing import Picture


def as_pictures(found: Iterable[Found], source: ImageSource, built: BuiltModel) -> list[Picture]:
    """Pictures of all kept images, also of those without a detection above the score."""
    from detscope.report.drawing import Picture

    names = _names(source, built)
    return [
        Picture(
            item.name,
            item.pixels,
            item.boxes,
            [names[label] if label < len(names) else f"class {label}" for label in item.labels],
            item.scores,
            item.masks,
        )
        for item in found
    ]


def _names(source: ImageSource, built: BuiltModel) -> tuple[str, ...]:
    """COCO's names for published weights, else those of the data set; nothing where nobody knows."""
    if built.weights.kind == "coco":
        from detscope.data.class_names import class_names

        return class_names("coco", 2 if built.card.family == "keypointrcnn" else 91)
    return source.classes
