"""What a detector found, kept beside the times: counts of every image, some detections for pictures."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from detscope.zoo.outputs import is_detection

if TYPE_CHECKING:
    import numpy.typing as npt
    import torch

    from detscope.loops.infer import Batch

MOST_PICTURES = 12
MASK_THRESHOLD = 0.5
Row = tuple[int, int, str, int, int, int | None, int | None]  # of the table `images`


@dataclass(frozen=True)
class Found:
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
        self.found: dict[int, Found] = {}
        self.understood = True  # whether outputs look like detections

    def take(self, batch: Batch, output: Any) -> None:
        """Hold on to the output of the step that is about to end."""
        self._last = (batch, output)

    def rows(self, step: int) -> list[Row]:
        """Rows of the step that has just ended; its first images are kept for pictures."""
        if self._last is None:
            return []
        (images, numbers), output = self._last
        self._last = None
        per_image = output if isinstance(output, (list, tuple)) and len(output) == len(images) else ()
        rows: list[Row] = []
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
            if number not in self.found and len(self.found) < self._most:
                self.found[number] = self._kept(self._name_of(number), image, detected)
        return rows

    def _kept(self, name: str, image: torch.Tensor, detected: Mapping[str, Any]) -> Found:
        chosen = detected["scores"] > self._score
        masks = detected.get("masks")
        if masks is not None:
            masks = (masks[chosen] > MASK_THRESHOLD).flatten(0, 1).cpu().numpy()
        pixels = (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).contiguous().cpu().numpy()
        return Found(
            name,
            pixels,
            detected["boxes"][chosen].float().cpu().numpy(),
            tuple(int(label) for label in detected["labels"][chosen].tolist()),
            detected["scores"][chosen].float().cpu().numpy(),
            masks,
        )
