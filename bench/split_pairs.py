"""Pairs found by one protocol, half to develop rules on, half scored once: written before anything was run.

1. Packages: those of the index that train or evaluate detectors in PyTorch and have at least two wheels of
   1 May 2026 or later: ultralytics, rfdetr, libreyolo, transformers (models and losses of detectors),
   torchvision (detection, ops), lightning, pytorch-lightning, torchmetrics (detection), supervision,
   trackers, kornia, effdet, yolov5, super-gradients, mmdet, detrex, yolox, deimkit, dfine, rtdetr and what
   a search of the index by such names finds besides.
2. Versions: the last one before 1 May 2026 and every one after it; each is compared with the next by `diff
   -ru` of its files. Where versions come more often than weekly, every few of them are compared. Pairs that
   `known_pairs` has already are not taken again.
3. A difference counts if all of this can be said from the two texts alone:
   - the code runs in a training, evaluation or prediction step of a detector, on a CPU too;
   - what it computes stays the same (but for rounding), or the change says itself that it is for speed;
   - it takes away one of: a read of the device by the host (item, bool, a branch, max() of Python's, tolist,
     assert), a selection whose size the device alone knows, copies to or from the device one by one, an
     index of the host's, launches in a Python loop (loss by image, layer or class, average of weights,
     optimizer), cdist(p=1) of few columns, a cost over all images, clones of in-place operators,
     deterministic filling, padding of boxes, GradScaler with bfloat16, suppression class by class,
     evaluation in the step, float batches or transforms where bytes would do.
   Changes of options, of what is logged, of NumPy code and of export do not count.
4. Each has the rule, file and function that are expected of the older version, written down before either
   version was run. One row is one function and one rule.
5. The rows, sorted by their text, are shuffled with seed 20; the first half (rounded up) is `develop`, the
   rest `held`. Rules and patterns may be changed for what `develop` misses, never with a package's name in
   them. `held` is run once, with the code of the commit before the table below, and its verdicts stand as
   they came. What cannot run here is told with the reason and counts as neither found nor missed.

What came of it on 18 November 2026, of 25 rows (13 `develop`, 12 `held`). The differences of transformers
(losses and most detectors, 5.5.0 to 5.23.0), torchmetrics (detection) and the trainer of rtdetr had none; all
other packages were not looked through, for want of time. Some rows of both halves come from one training.

- `develop`: 11 found, 1 missed, 1 not run. Missed: an optimizer that is not fused (SGD of 3 groups: foreach
  has as few launches, and on a CPU the newer is not fused either). Not run: 8.4.130 raises by itself when it
  writes masks; the older is named (1200 reads in a step). Mended for it: the diagonal of all pairs, values
  that only a check looks at, tensors that the host makes of sizes alone.
- `held`, scored once: 6 found, 2 not silent, 4 missed. Not silent: `nonzero` is gone from the function, and
  another mask of the same function stays. Missed: reads of tensors that lie on the host by the code, so that
  a device waits for none; float() once per call, named by `item_per_key`; one index of the host's; pads of
  0.5 MB each, which are no tiny operators.
- `held` once more, after rules were mended for what had been missed: 8 found, 2 not silent, 2 missed. That is
  no score.
"""

from __future__ import annotations

import random
from dataclasses import dataclass

SEED = 20


@dataclass(frozen=True)
class FoundRow:
    """What one difference says: the pair, the training that goes through it, and what is expected."""

    pair: str  # package older newer
    case: str  # in `family_scripts` or `pair_scripts`
    rule: str
    file: str
    function: str
    what: str
    options: str = ""


_COST = "cost_over_all_images"
_LIBRE = "libreyolo 1.5.0 1.6.0"
_SET = "SetCriterion"
_MATCHER = "HungarianMatcher.forward"
_DENOISE = "get_contrastive_denoising_training_group"

# As they were found in the texts on 18 November 2026, before any of these versions was run by this part.
ROWS = (
    FoundRow("ultralytics 8.4.75 8.4.96", "rtdetr-l", "pageable_feed",
             "ultralytics/nn/modules/transformer.py", "AIFI.forward",
             "positions are made on the host and moved in every step"),
    FoundRow("ultralytics 8.4.108 8.4.120", "yolo26n predicts", "pageable_feed",
             "ultralytics/nn/modules/head.py", "Detect.get_topk_index", "indexed by a range of the host"),
    FoundRow("ultralytics 8.4.120 8.4.130", "yolov8n-seg validates", "item_per_key",
             "ultralytics/models/yolo/segment/val.py", "SegmentationValidator.pred_to_json",
             "three numbers read of every mask"),
    FoundRow("ultralytics 8.4.130 8.4.140", "yolov8n", "launch_loop",
             "ultralytics/optim/muon.py", "muon_update", "one pad for every weight", 'optimizer="MuSGD"'),
    FoundRow("rfdetr 1.8.3 1.9.0", "rfdetr nano", _COST,
             "rfdetr/models/criterion.py", f"{_SET}.loss_labels", "diagonal of all pairs of boxes"),
    FoundRow("rfdetr 1.8.3 1.9.0", "rfdetr nano", _COST,
             "rfdetr/models/criterion.py", f"{_SET}.loss_boxes", "diagonal of all pairs of boxes"),
    FoundRow("rfdetr 1.9.4 1.10.1", "rfdetr nano", "matcher_copy",
             "rfdetr/models/matcher.py", _MATCHER, "a copy for every layer before the next is computed"),
    FoundRow("rfdetr 1.9.4 1.10.1", "rfdetr seg nano", "host_reads",
             "rfdetr/models/criterion.py", f"{_SET}.loss_masks", "float() of a count on the device"),
    FoundRow("rfdetr 1.9.4 1.10.1", "rfdetr nano predicts", "float_batches",
             "rfdetr/detr.py", "RFDETR.predict", "images become floats before they are moved"),
    FoundRow("libreyolo 1.4.0 1.5.0", "libreyolo dfine", "item_per_key",
             "libreyolo/models/dfine/loss.py", "DFINECriterion._get_go_indices", "two reads for every pair"),
    FoundRow(_LIBRE, "libreyolo dfine", "mask_indexing",
             "libreyolo/models/dfine/denoising.py", _DENOISE, "nonzero of what the host knows"),
    FoundRow(_LIBRE, "libreyolo deim", "cdist_few_columns",
             "libreyolo/models/deim/matcher.py", _MATCHER, "cdist(p=1) of boxes"),
    FoundRow(_LIBRE, "libreyolo deim", "mask_indexing",
             "libreyolo/models/deim/denoising.py", _DENOISE, "nonzero of what the host knows"),
    FoundRow(_LIBRE, "libreyolo deim", "host_reads",
             "libreyolo/models/deim/loss.py", "DEIMCriterion._normalizer", "item() of a denominator"),
    FoundRow(_LIBRE, "libreyolo deim", "matcher_copy",
             "libreyolo/models/deim/matcher.py", _MATCHER, "a copy for every layer before the next"),
    FoundRow(_LIBRE, "libreyolo deimv2", "cdist_few_columns",
             "libreyolo/models/deimv2/matcher.py", _MATCHER, "cdist(p=1) of boxes"),
    FoundRow(_LIBRE, "libreyolo rtdetr", "cdist_few_columns",
             "libreyolo/models/rtdetr/loss.py", _MATCHER, "cdist(p=1) of boxes"),
    FoundRow(_LIBRE, "libreyolo rtdetr", "matcher_copy",
             "libreyolo/models/rtdetr/loss.py", _MATCHER, "a copy for every layer before the next"),
    FoundRow(_LIBRE, "libreyolo rfdetr", "cdist_few_columns",
             "libreyolo/models/rfdetr/matcher.py", _MATCHER, "cdist(p=1) of boxes"),
    FoundRow(_LIBRE, "libreyolo rfdetr", _COST,
             "libreyolo/models/rfdetr/loss.py", f"{_SET}.loss_labels", "diagonal of all pairs of boxes"),
    FoundRow(_LIBRE, "libreyolo rfdetr", _COST,
             "libreyolo/models/rfdetr/loss.py", f"{_SET}.loss_boxes", "diagonal of all pairs of boxes"),
    FoundRow(_LIBRE, "libreyolo rfdetr", "host_reads",
             "libreyolo/models/rfdetr/loss.py", f"{_SET}._box_count_normalizer", "item() of a denominator"),
    FoundRow(_LIBRE, "libreyolo rfdetr", "tensor_check",
             "libreyolo/models/rfdetr/transformer.py", "MSDeformAttn.forward", "int() of sizes, for a check"),
    FoundRow(_LIBRE, "libreyolo rfdetr", "item_per_key",
             "libreyolo/models/rfdetr/trainer.py", "RFDETRTrainer.get_loss_components", "item() per loss"),
    FoundRow(_LIBRE, "libreyolo yolox", "fused_optimizer",
             "libreyolo/training/trainer.py", "BaseTrainer._train_epoch", "an optimizer that is not fused"),
)  # fmt: skip


def split_rows() -> tuple[tuple[FoundRow, ...], tuple[FoundRow, ...]]:
    """Those to develop on, and those that are scored once."""
    rows = sorted(ROWS, key=repr)
    random.Random(SEED).shuffle(rows)
    half = (len(rows) + 1) // 2
    return tuple(rows[:half]), tuple(rows[half:])
