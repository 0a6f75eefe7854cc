"""What was in the steps: boxes, proposals, pixels, padding."""

from __future__ import annotations

import polars as pl

from detscope.analyze.curve import RATE, LossPart
from detscope.analyze.figure import Figure
from detscope.analyze.step.columns import mean, total

LEAST_STEPS = 3  # that tell whether the network's input has always the same size


class ContentFigures(Figure, frozen=True, kw_only=True):
    """What was in an image of the measured steps; None where it was not recorded."""

    boxes_per_image: float | None  # annotated
    proposals_per_image: float | None  # of the region proposals
    sampled_rois_per_image: float | None  # that the heads trained on
    pixels_per_image: float | None  # as it is stored
    padding_share: float | None  # of the pixels in the network's input
    input_sizes: int | None = None  # of that input, over the steps: 1 where all images are padded to one size


class LossFigures(Figure, frozen=True, kw_only=True):
    """The first and the last loss; None where the loop did not say."""

    first: float | None = None  # of the run
    last: float | None = None  # of the run
    parts: tuple[LossPart, ...] = ()  # of the last


class BatchFigures(Figure, frozen=True, kw_only=True):
    """One of the batches whose gradients a step accumulates."""

    per_step: float  # how many batches
    images: float | None  # mean, in a batch
    images_per_step: float | None  # mean, in all its batches
    ms: float | None  # the median step over its batches


def batch_figures(
    per_step: float | None, images_per_step: float | None, step_ms: float | None
) -> BatchFigures | None:
    """Per batch beside per step; None where a step is one batch."""
    if per_step is None or per_step <= 1:
        return None
    return BatchFigures(
        per_step=per_step,
        images=None if images_per_step is None else images_per_step / per_step,
        images_per_step=images_per_step,
        ms=None if step_ms is None else step_ms / per_step,
    )


def content_figures(content: pl.DataFrame, steps: list[int]) -> ContentFigures:
    """Per image, over the measured steps; None where it was not recorded."""
    chosen = content.filter(pl.col("step").is_in(steps))

    def per_image(column: str) -> float | None:
        both = chosen.filter(pl.col(column).is_not_null() & pl.col("images").is_not_null())
        images = total(both["images"])
        return total(both[column]) / images if images else None

    padding = chosen.filter(pl.col("padded_pixels").is_not_null() & pl.col("network_pixels").is_not_null())
    padded = total(padding["padded_pixels"])
    return ContentFigures(
        boxes_per_image=per_image("boxes"),
        proposals_per_image=per_image("proposals"),
        sampled_rois_per_image=per_image("sampled_rois"),
        pixels_per_image=per_image("pixels"),
        padding_share=1 - total(padding["network_pixels"]) / padded if padded else None,
        input_sizes=_count_sizes(padding),
    )


def _count_sizes(padding: pl.DataFrame) -> int | None:
    """How many pixels an image is padded to; None where too few steps tell whether that changes."""
    sizes = padding.filter(pl.col("images") > 0).select(pl.col("padded_pixels") / pl.col("images"))
    return sizes.n_unique() if sizes.height >= LEAST_STEPS else None


def images_per_step(content: pl.DataFrame, steps: list[int]) -> float | None:
    """Mean number of images in the measured steps."""
    return mean(content.filter(pl.col("step").is_in(steps))["images"].drop_nulls())


def loss_figures(losses: pl.DataFrame) -> LossFigures:
    """The first and the last loss and the parts of the last."""
    whole = losses.filter(pl.col("name") == "loss").sort("step")
    if whole.height == 0:
        return LossFigures()
    last = losses.filter((pl.col("step") == whole["step"][-1]) & ~pl.col("name").is_in(["loss", RATE]))
    parts = tuple(LossPart(name=row["name"], value=row["value"]) for row in last.to_dicts())
    return LossFigures(first=whole["value"][0], last=whole["value"][-1], parts=parts)
