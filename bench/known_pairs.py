"""Version pairs of libraries with a published fix: what was slow, where, and which rule has to say so."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from bench.split_pairs import FoundRow, split_rows

OF_THE_ISSUE, FURTHER = "of the issue", "further"  # found in the differences; rules were developed on them
DEVELOP, HELD = "develop", "held"  # of `split_pairs`


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
    options: str = ""  # more arguments of the call that trains
    part: str = OF_THE_ISSUE


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
        (KnownDefect("average_of_weights", _TORCH_UTILS, "ModelEMA.update", "EMA by a loop over tensors"),),
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
                "cost_over_all_images",
                "rfdetr/models/matcher.py",
                "HungarianMatcher.forward",
                "cost over all images of which the diagonal is used",
            ),
        ),
        _EVALUATOR,
    ),
    VersionPair(
        "ultralytics",
        "8.4.96",
        "8.4.108",
        "yolov8n",
        (
            KnownDefect(
                "pageable_feed",
                _TAL,
                "TaskAlignedAssigner.get_box_metrics",
                "scores indexed by a host tensor",
            ),
            KnownDefect(
                "launch_loop",
                _TAL,
                "TaskAlignedAssigner.select_topk_candidates",
                "one scatter for each of top k",
            ),
            KnownDefect("launch_loop", "ultralytics/optim/muon.py", "MuSGD.step", "one parameter at a time"),
        ),
        options='optimizer="MuSGD"',
        part=FURTHER,
    ),
    VersionPair(
        "ultralytics",
        "8.4.130",
        "8.4.150",
        "yolov8n",
        (
            KnownDefect(
                "mask_indexing",
                _TAL,
                "TaskAlignedAssigner.get_box_metrics",
                "one mask counted for every tensor it selects from",
            ),
        ),
        part=FURTHER,
    ),
    VersionPair(
        "ultralytics",
        "8.4.130",
        "8.4.150",
        "rtdetr-l",
        (
            KnownDefect(
                "cost_over_all_images",
                "ultralytics/models/utils/ops.py",
                "HungarianMatcher.forward",
                "cost over all images of which the diagonal is used",
            ),
        ),
        part=FURTHER,
    ),
    VersionPair(
        "ultralytics",
        "8.4.150",
        "8.4.156",
        "yolov8n",
        (
            KnownDefect(
                "mask_indexing", _YOLO_LOSS, "BboxLoss.forward", "one mask counted for every selection"
            ),
            KnownDefect(
                "host_reads",
                _TAL,
                "TaskAlignedAssigner.select_highest_overlaps",
                "a branch on a maximum of the device",
            ),
            KnownDefect(
                "host_reads",
                _YOLO_LOSS,
                "v8DetectionLoss.get_assigned_targets_and_loss",
                "max() and a branch on sums of the device",
            ),
        ),
        part=FURTHER,
    ),
    VersionPair(
        "rfdetr",
        "1.8.3",
        "1.9.0",
        "rfdetr nano",
        (
            KnownDefect(
                "average_of_weights",
                "rfdetr/training/callbacks/ema.py",
                "RFDETREMACallback._avg_fn",
                "EMA tensor by tensor, called by torch",
            ),
            KnownDefect(
                "host_reads",
                "rfdetr/training/callbacks/ema.py",
                "RFDETREMACallback._avg_fn",
                "the count of updates read for every tensor",
            ),
            KnownDefect(
                "tensor_check",
                "rfdetr/models/ops/modules/ms_deform_attn.py",
                "MSDeformAttn.forward",
                "assert on the sizes of feature maps",
            ),
        ),
        _EVALUATOR,
        part=FURTHER,
    ),
    VersionPair(
        "rfdetr",
        "1.9.4",
        "1.10.1",
        "rfdetr nano",
        (
            KnownDefect(
                "parameter_groups",
                "pytorch_lightning/plugins/precision/precision.py",
                "Precision.optimizer_step",
                "one parameter group for every parameter",
            ),
        ),
        _EVALUATOR,
        part=FURTHER,
    ),
    VersionPair(
        "rfdetr",
        "1.10.1",
        "1.11.2",
        "rfdetr nano",
        (
            KnownDefect(
                "cdist_few_columns",
                "rfdetr/models/matcher.py",
                "HungarianMatcher._compute_compact_detection_cost_matrix",
                "cdist(p=1) of boxes",
            ),
        ),
        _EVALUATOR,
        part=FURTHER,
    ),
    VersionPair(
        "libreyolo",
        "1.5.0",
        "1.6.0",
        "libreyolo yolo9",
        (
            KnownDefect(
                "item_per_key",
                "libreyolo/models/yolo9/loss.py",
                "YOLO9Loss.__call__",
                "item() for every loss",
            ),
            KnownDefect(
                "host_reads",
                "libreyolo/training/distributed.py",
                "all_reduce_avg_scalar",
                "a denominator read from the device",
            ),
        ),
        part=FURTHER,
    ),
    VersionPair(
        "libreyolo",
        "1.5.0",
        "1.6.0",
        "libreyolo dfine",
        (
            KnownDefect(
                "cdist_few_columns",
                "libreyolo/models/dfine/matcher.py",
                "HungarianMatcher.forward",
                "cdist(p=1) of boxes",
            ),
            KnownDefect(
                "host_reads",
                "libreyolo/models/dfine/loss.py",
                "DFINECriterion._normalizer",
                "a denominator read from the device",
            ),
        ),
        part=FURTHER,
    ),
)


def list_pairs() -> tuple[VersionPair, ...]:
    """All of them: those above, and those of `split_pairs` in their two halves."""
    develop, held = split_rows()
    return (*PAIRS, *_gather_pairs(develop, DEVELOP), *_gather_pairs(held, HELD))


def _gather_pairs(rows: Iterable[FoundRow], part: str) -> list[VersionPair]:
    """One pair for the rows of one training."""
    found: defaultdict[tuple[str, str, str], list[KnownDefect]] = defaultdict(list)
    for row in rows:
        found[row.pair, row.case, row.options].append(KnownDefect(row.rule, row.file, row.function, row.what))
    return [
        VersionPair(
            *pair.split(),  # package, older, newer
            case=case,
            defects=tuple(defects),
            beside=_EVALUATOR if pair.startswith("rfdetr") else (),
            options=options,
            part=part,
        )
        for (pair, case, options), defects in found.items()
    ]
