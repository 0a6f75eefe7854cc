"""What label 18 means: class names by data set or by the weights of a model; the index is the label.

Labels are those that detectors give: 0 is the background. COCO's 80 categories have ids from 1 to 90
with gaps. torchvision keeps the ids (91 outputs, background first), and so does effdet: it has 90
outputs without background, its first is id 1, and the zoo's adapter gives labels from 1 again.
"""

from __future__ import annotations

import re
from pathlib import PurePath

from detscope.data.shapes import CLASSES as SHAPES

BACKGROUND = "background"
UNUSED = "N/A"


def _listed(names: str) -> list[str]:
    return names.split(", ")


_COCO_NAMES = _listed(
    "person, bicycle, car, motorcycle, airplane, bus, train, truck, boat, traffic light, fire hydrant, "
    "stop sign, parking meter, bench, bird, cat, dog, horse, sheep, cow, elephant, bear, zebra, giraffe, "
    "backpack, umbrella, handbag, tie, suitcase, frisbee, skis, snowboard, sports ball, kite, "
    "baseball bat, baseball glove, skateboard, surfboard, tennis racket, bottle, wine glass, cup, fork, "
    "knife, spoon, bowl, banana, apple, sandwich, orange, broccoli, carrot, hot dog, pizza, donut, cake, "
    "chair, couch, potted plant, bed, dining table, toilet, tv, laptop, mouse, remote, keyboard, "
    "cell phone, microwave, oven, toaster, sink, refrigerator, book, clock, vase, scissors, teddy bear, "
    "hair drier, toothbrush"
)
# Categories that were planned (street sign, hat, shoe, ...) and never annotated.
_COCO_UNUSED_IDS = frozenset({12, 26, 29, 30, 45, 66, 68, 69, 71, 83})
_COCO_LAST_ID = 90

_VOC_NAMES = _listed(
    "aeroplane, bicycle, bird, boat, bottle, bus, car, cat, chair, cow, diningtable, dog, horse, "
    "motorbike, person, pottedplant, sheep, sofa, train, tvmonitor"
)

_PET_NAMES = _listed(
    "Abyssinian, American Bulldog, American Pit Bull Terrier, Basset Hound, Beagle, Bengal, Birman, "
    "Bombay, Boxer, British Shorthair, Chihuahua, Egyptian Mau, English Cocker Spaniel, English Setter, "
    "German Shorthaired, Great Pyrenees, Havanese, Japanese Chin, Keeshond, Leonberger, Maine Coon, "
    "Miniature Pinscher, Newfoundland, Persian, Pomeranian, Pug, Ragdoll, Russian Blue, Saint Bernard, "
    "Samoyed, Scottish Terrier, Shiba Inu, Siamese, Sphynx, Staffordshire Bull Terrier, Wheaten Terrier, "
    "Yorkshire Terrier"
)


def _coco_by_id() -> list[str]:
    names = iter(_COCO_NAMES)
    ids = range(1, _COCO_LAST_ID + 1)
    return [UNUSED if number in _COCO_UNUSED_IDS else next(names) for number in ids]


# beginning of a word in the given name -> the lists of names it may stand for, without background
_KNOWN: dict[str, tuple[list[str], ...]] = {
    "coco": (_coco_by_id(), _COCO_NAMES, ["person"]),  # one class: COCO's keypoints
    "voc": (_VOC_NAMES,),
    "pet": (_PET_NAMES, ["pet"]),
    "synthetic": ([shape.name for shape in SHAPES],),
}


def class_names(dataset_or_weights: str, num_classes: int) -> tuple[str, ...]:
    """Names by label: `class_names("coco", 91)[18]` is "dog"; "class 7" where nothing is known.

    `num_classes` counts the background as everywhere in the zoo; for the known sets the count
    without it (effdet's 90) is understood too, and the answer has the background all the same.
    """
    # of a path only the file speaks: a folder called coco says nothing about the weights in it
    words = re.split(r"[^a-z0-9]+", PurePath(dataset_or_weights).name.lower())
    for beginning, choices in _KNOWN.items():
        if any(word.startswith(beginning) for word in words):
            for names in choices:
                if num_classes == len(names) + 1 or (num_classes == len(names) > 1):
                    return (BACKGROUND, *names)
    return (BACKGROUND, *(f"class {label}" for label in range(1, num_classes)))


def voc_names() -> tuple[str, ...]:
    """PASCAL VOC's twenty classes, without background."""
    return tuple(_VOC_NAMES)
