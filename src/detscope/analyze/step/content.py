"""What was in the steps: boxes, proposals, pixels, padding."""

from __future__ import annotations

from typing import Any

import polars as pl

from detscope.analyze.curve import RATE
from detscope.analyze.step.columns import mean, total


def content_figures(content: pl.DataFrame, steps: list[int]) -> dict[str, Any]:
    """Per image, over the measured steps; None where it was not recorded."""
    chosen = content.filter(pl.col("step").is_in(steps))

    def per_image(column: str) -> float | None:
        both = chosen.filter(pl.col(column).is_not_null() & pl.col("images").is_not_null())
        images = total(both["images"])
        return total(both[column]) / images if images else None

    padding = chosen.filter(pl.col("padded_pixels").is_not_null() & pl.col("network_pixels").is_not_null())
    padded = total(padding["padded_pixels"])
    return {
        "boxes_per_image": per_image("boxes"),
        "proposals_per_image": per_image("proposals"),
        "sampled_rois_per_image": per_image("sampled_rois"),
        "pixels_per_image": per_image("pixels"),
        "padding_share": 1 - total(padding["network_pixels"]) / padded if padded else None,
    }


def images_per_step(content: pl.DataFrame, steps: list[int]) -> float | None:
    """Mean number of images in the measured steps."""
    return mean(content.filter(pl.col("step").is_in(steps))["images"].drop_nulls())


def loss_figures(losses: pl.DataFrame) -> dict[str, Any]:
    """The first and the last loss and their parts; None where the loop did not say."""
    whole = losses.filter(pl.col("name") == "loss").sort("step")
    if whole.height == 0:
        return {"first": None, "last": None, "parts": {}}
    last = losses.filter(pl.col("step") == whole["step"][-1])
    # the learning rate is kept beside the losses
    parts = {row["name"]: row["value"] for row in last.to_dicts() if row["name"] not in ("loss", RATE)}
    return {"first": whole["value"][0], "last": whole["value"][-1], "parts": parts}
