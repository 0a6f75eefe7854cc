"""Version pairs of libraries with a published fix: what was slow, where, and which rule has to say so."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KnownDefect:
    """What the older version does and the newer does not: the rule and the place."""

    rule: str
    file: str  # as it is told of packages: with its folders below site-packages
    function: str
    what: str


@dataclass(frozen=True)
class VersionPair:
    """Two versions of a package and the training, by its name in `family_scripts`, that both go through."""

    package: str
    older: str
    newer: str
    case: str
    defects: tuple[KnownDefect, ...]
    beside: tuple[str, ...] = ()  # requirements of these versions that the newest, in the base, no longer has
    further: bool = False  # found by us in the differences, not named by the issue


_TAL = "ultralytics/utils/tal.py"
_TORCH_UTILS = "ultralytics/utils/torch_utils.py"
_YOLO_LOSS = "ultralytics/utils/loss.py"

_EVALUATOR = ("faster-coco-eval==1.7.2",)

PAIRS = (
    VersionPair(
        "ultralytics",
        "8.4.96",
        "8.4.108",
        "yolov8n",
        (KnownDefect("ema_loop", _TORCH_UTILS, "ModelEMA.update", "EMA by a loop over tensors"),),
    ),
    VersionPair(
        "ultralytics",
        "8.4.150",
        "8.4.156",
        "yolov8n",
        (
            KnownDefect(
                "inplace_clone",
                "ultralytics/nn/modules/conv.py",
                "Conv.forward",
                "in-place SiLU, of which autograd keeps a clone",
            ),
            KnownDefect("deterministic_fill", _TORCH_UTILS, "init_seeds", "every new tensor is filled"),
        ),
    ),
    VersionPair(
        "rfdetr",
        "1.9.0",
        "1.9.4",
        "rfdetr nano",
        (
            KnownDefect(
                "cost_over_images",
                "rfdetr/models/matcher.py",
                "HungarianMatcher.forward",
                "cost over all images of which the diagonal is used",
            ),
        ),
        _EVALUATOR,
    ),
)
