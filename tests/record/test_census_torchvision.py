"""Where torchvision's detectors wait for a device, against a count by hand from their source."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import torch
from torchvision.models import detection

from census_runs import count_waits, record_census

IMAGES = 3
POOLED = 4  # levels that regions are pooled from
PLAIN: dict[str, Any] = {"weights": None, "weights_backbone": None, "num_classes": 4}
SIZED: dict[str, Any] = {**PLAIN, "min_size": 96, "max_size": 128}
# so few that suppression takes one call for all levels: torchvision looks at the kind of device to decide,
# a CPU goes level by level from 4,000 numbers on, a device from 20,000
FEW = {f"rpn_pre_nms_top_n_{mode}": 100 for mode in ("train", "test")}

# of the RPN: what is small, what scores too little and what overlaps, for every image
PROPOSALS = {
    ("remove_small_boxes", "nonzero"): IMAGES,
    ("RegionProposalNetwork.filter_proposals", "nonzero"): IMAGES,
    ("nms", "nms"): IMAGES,
}
REGIONS = {
    ("GeneralizedRCNN.forward", "_local_scalar_dense"): IMAGES,  # `if degenerate_boxes.any()`
    **PROPOSALS,
    # the RPN's matcher alone takes matches of low quality too
    ("Matcher.set_low_quality_matches_", "nonzero"): IMAGES,
    # positive and negative ones, for the RPN and for the RoI heads
    ("BalancedPositiveNegativeSampler.__call__", "nonzero"): 2 * 2 * IMAGES,
    ("RegionProposalNetwork.compute_loss", "nonzero"): 2,  # of all images together
    ("RoIHeads.subsample", "nonzero"): IMAGES,
    ("fastrcnn_loss", "nonzero"): 1,
    ("_multiscale_roi_align", "nonzero"): POOLED,
}
TRAINING: dict[str, tuple[Callable[[], Any], dict[tuple[str, str], int]]] = {
    "fasterrcnn": (lambda: detection.fasterrcnn_resnet50_fpn(**SIZED, **FEW), REGIONS),
    "maskrcnn": (
        lambda: detection.maskrcnn_resnet50_fpn(**SIZED, **FEW),
        {
            **REGIONS,
            ("_multiscale_roi_align", "nonzero"): 2 * POOLED,  # for boxes and for masks
            ("RoIHeads.forward", "nonzero"): IMAGES,  # what has a mask
        },
    ),
    "retinanet": (
        lambda: detection.retinanet_resnet50_fpn(**SIZED),
        {
            ("RetinaNet.forward", "_local_scalar_dense"): IMAGES,
            ("Matcher.set_low_quality_matches_", "nonzero"): IMAGES,
            # `max(1, num_foreground)` of Python's
            ("RetinaNetClassificationHead.compute_loss", "_local_scalar_dense"): IMAGES,
            # labels of the foreground, and logits and targets of what is valid
            ("RetinaNetClassificationHead.compute_loss", "index by a mask"): 3 * IMAGES,
            ("RetinaNetClassificationHead.compute_loss", "index_put_ by a mask"): IMAGES,
            ("RetinaNetRegressionHead.compute_loss", "nonzero"): IMAGES,
            ("run_training_step", "index_put by a mask"): IMAGES,  # of the logits, backward
        },
    ),
    "fcos": (
        lambda: detection.fcos_resnet50_fpn(**SIZED),
        {
            ("FCOS.forward", "_local_scalar_dense"): IMAGES,
            # all images together from here on; `matched_idx[...] = -1` is filled where it lies: no wait
            ("FCOSHead.compute_loss", "_local_scalar_dense"): 1,  # `foregroud_mask.sum().item()`
            # classes; predicted and true boxes; predicted and true centerness
            ("FCOSHead.compute_loss", "index by a mask"): 5,
            ("FCOSHead.compute_loss", "index_put_ by a mask"): 1,
            # `intsctk[mask] = (xkis2[mask] - xkis1[mask]) * (ykis2[mask] - ykis1[mask])`
            ("_loss_inter_union", "index by a mask"): 4,
            ("_loss_inter_union", "index_put_ by a mask"): 1,
            # backward: of the four, of boxes and centerness; and of what was put
            ("run_training_step", "index_put by a mask"): 4 + 2,
            ("run_training_step", "index by a mask"): 1,
        },
    ),
    "ssd": (
        lambda: detection.ssdlite320_mobilenet_v3_large(**PLAIN),
        {
            ("SSD.forward", "_local_scalar_dense"): IMAGES,
            ("SSD.compute_loss", "nonzero"): IMAGES,
            ("SSD.compute_loss", "index by a mask"): 2,  # losses of the foreground and of the background
            ("run_training_step", "index_put by a mask"): 2,
        },
    ),
}
INFERENCE = {
    **PROPOSALS,
    # of the RoI heads, for every image
    ("RoIHeads.postprocess_detections", "nonzero"): IMAGES,
    ("remove_small_boxes", "nonzero"): 2 * IMAGES,
    ("nms", "nms"): 2 * IMAGES,
    ("_multiscale_roi_align", "nonzero"): POOLED,
}


def make_batches() -> list[tuple[list[torch.Tensor], list[dict[str, torch.Tensor]]]]:
    torch.manual_seed(0)

    def make_target() -> dict[str, torch.Tensor]:
        boxes = torch.tensor([[8.0, 8.0, 60.0, 60.0], [30.0, 20.0, 110.0, 90.0]])
        masks = torch.ones(2, 96, 128, dtype=torch.uint8)
        return {"boxes": boxes, "labels": torch.tensor([1, 2]), "masks": masks}

    images = [[torch.rand(3, 96, 128) for _ in range(IMAGES)] for _ in range(2)]
    return [(of_step, [make_target() for _ in range(IMAGES)]) for of_step in images]


@pytest.mark.parametrize("name", TRAINING)
def test_the_waits_of_a_training_step_are_those_counted_by_hand(name, tmp_path):
    make, expected = TRAINING[name]
    model = make().train()

    def run_training_step(batch: Any) -> None:
        sum(model(*batch).values()).backward()

    table = record_census(model, make_batches(), run_training_step, tmp_path)
    assert count_waits(table) == expected
    checks = table.filter(pl.col("code").str.contains("degenerate_boxes.any()", literal=True))
    checks = checks.filter(pl.col("kind") == "read")
    assert (checks["count"].to_list(), checks["around"].to_list()) == ([IMAGES], ["check"])


def test_the_waits_of_inference_are_those_counted_by_hand(tmp_path):
    torch.manual_seed(0)
    model = detection.fasterrcnn_resnet50_fpn(**SIZED, **FEW, box_score_thresh=0.0).eval()

    @torch.no_grad()
    def detect(batch: Any) -> None:
        model(batch[0])

    assert count_waits(record_census(model, make_batches(), detect, tmp_path)) == INFERENCE


def test_no_wait_is_launched_by_nobody(tmp_path: Path) -> None:
    """Every row names a file, a line and its text; the script's own line is this file's."""
    model = detection.ssdlite320_mobilenet_v3_large(**PLAIN).train()
    table = record_census(model, make_batches(), lambda batch: sum(model(*batch).values()), tmp_path)
    assert table.filter((pl.col("file") == "") | (pl.col("code") == "")).height == 0
    assert set(table["own_file"]) <= {Path(__file__).name, "census_runs.py"}
