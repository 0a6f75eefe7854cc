"""What a detector found, kept beside the times: counts of every image, some detections for pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detscope.zoo.outputs import is_detection

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from detscope.loops.infer import Batch
    from detscope.report.drawing import Picture

MOST_PICTURES = 12
MASK_THRESHOLD = 0.5
ImageRow = tuple[int, int, str, int, int, int | None, int | None]  # of the table `images`


@dataclass(frozen=True)
class DetectedImage:
    """Detections of one image above the score, as arrays on the host."""

    name: str
    pixels: npt.NDArray[Any]  # uint8 [H, W, 3]
    boxes: npt.NDArray[Any]  # [N, 4]
    labels: tuple[int, ...]
    scores: npt.NDArray[Any]  # [N]
    masks: npt.NDArray[Any] | None  # bool [N, H, W]


class DetectionKeeper:
    """Takes a step's output inside the step, which costs nothing; looks at it between steps."""

    def __init__(self, score: float, name_of: Callable[[int], str], most: int = MOST_PICTURES) -> None:
        self._score = score
        self._name_of = name_of
        self._most = most
        self._last: tuple[Batch, Any] | None = None
        self._images: dict[int, DetectedImage] = {}
        self.understood = True  # whether outputs look like detections

    def take_output(self, batch: Batch, output: Any) -> None:
        """Hold on to the output of the step that is about to end."""
        self._last = (batch, output)

    def make_rows(self, step: int) -> list[ImageRow]:
        """Rows of the step that has just ended; its first images are kept for pictures."""
        if self._last is None:
            return []
        (images, numbers), output = self._last
        self._last = None
        per_image = output if isinstance(output, (list, tuple)) and len(output) == len(images) else ()
        rows: list[ImageRow] = []
        for position, (image, number) in enumerate(zip(images, numbers, strict=True)):
            detected: Any = per_image[position] if per_image else None
            height, width = image.shape[-2:]
            about = (step, position, self._name_of(number), int(width), int(height))
            if not is_detection(detected):
                self.understood = False
                rows.append((*about, None, None))
                continue
            scores = detected["scores"]
            rows.append((*about, len(scores), int((scores > self._score).sum())))
            if number not in self._images and len(self._images) < self._most:
                self._images[number] = self._copy_detections(self._name_of(number), image, detected)
        return rows

    def _copy_detections(self, name: str, image: torch.Tensor, detected: Mapping[str, Any]) -> DetectedImage:
        chosen = detected["scores"] > self._score
        masks = detected.get("masks")
        if masks is not None:
            masks = (masks[chosen] > MASK_THRESHOLD).flatten(0, 1).cpu().numpy()
        pixels = (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).contiguous().cpu().numpy()
        return DetectedImage(
            name,
            pixels,
            detected["boxes"][chosen].float().cpu().numpy(),
            tuple(int(label) for label in detected["labels"][chosen].tolist()),
            detected["scores"][chosen].float().cpu().numpy(),
            masks,
        )

    def make_pictures(self, class_names: Sequence[str]) -> list[Picture]:
        """Pictures of all kept images, also of those without a detection above the score."""
        from detscope.report.drawing import Picture

        known = dict(enumerate(class_names))
        return [
            Picture(
                item.name,
                item.pixels,
                item.boxes,
                [known.get(label, f"class {label}") for label in item.labels],
                item.scores,
                item.masks,
            )
            for item in self._images.values()
        ]
