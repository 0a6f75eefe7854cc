"""What label 18 means: class names by data set or by the weights of a model; the index is the label.

Labels are those that detectors give: 0 is the background. torchvision's detectors have 91 outputs for
COCO, background first, and keep its ids with their gaps; so does effdet: it has 90 outputs without
background, its first is id 1, and the zoo's adapter gives labels from 1 again.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from detscope.data.registry import list_datasets

BACKGROUND = "background"


def class_names(dataset_or_weights: str, num_classes: int) -> tuple[str, ...]:
    """Names by label: `class_names("coco", 91)[18]` is "dog"; "class 7" where nothing is known.

    `num_classes` counts the background as everywhere in the zoo; for the known sets the count
    without it (effdet's 90) is understood too, and the answer has the background all the same.
    """
    # of a path only the file speaks: a folder called coco says nothing about the weights in it
    words = re.split(r"[^a-z0-9]+", PurePath(dataset_or_weights).name.lower())
    for dataset in reversed(list_datasets()):
        beginning = dataset.name.removesuffix("s")  # weights may be called "pet37"
        if any(word.startswith(beginning) for word in words):
            for names in dataset.class_lists:
                if num_classes == len(names) + 1 or (num_classes == len(names) > 1):
                    return (BACKGROUND, *names)
    return (BACKGROUND, *(f"class {label}" for label in range(1, num_classes)))
