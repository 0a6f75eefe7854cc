"""What sweeping and predicting get of a network: the module, what to feed it, and its loss.

Random batches are enough where only the cost matters.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from detscope.errors import UsageError
from detscope.zoo.outputs import check_losses

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Kind = Literal["classifier", "detector"]
BOXES_PER_IMAGE = 5
KEYPOINTS = 17
_AUXILIARY_WEIGHT = 0.3  # as GoogLeNet was trained: each side classifier counts a third of the main one


@dataclass(frozen=True)
class NetworkBase:
    """A model by name, before it is built."""

    name: str  # as its source knows it
    source: str  # "torchvision", "timm", "zoo" or "user"
    kind: Kind

    @property
    def full_name(self) -> str:
        """The name that finds it again; a timm model may share its name with one of torchvision."""
        return f"timm/{self.name}" if self.source == "timm" else self.name


@dataclass(frozen=True)
class Batch:
    """What one training step is fed: a tensor and labels, or a list of images and of targets."""

    inputs: Any
    targets: Any


@dataclass(frozen=True)
class Network:
    """A network ready to run, with its random weights or with those of its folder."""

    name: str  # "resnet18", or the folder's: "resnet18-random-p30-s0"
    base: NetworkBase
    module: nn.Module
    image_size: int  # pixels of the square images that are fed to it
    num_classes: int  # of a detector: with background
    parameters: int
    min_train_batch: int = 1
    needs: tuple[str, ...] = ()  # extra targets of a detector: "masks", "keypoints"
    card: dict[str, Any] | None = None  # the folder's network.json; None where there is no folder

    @property
    def kind(self) -> Kind:
        """Whether it gives class scores or detections."""
        return self.base.kind

    def example_input(self, batch_size: int = 1, *, seed: int = 0, device: str = "cpu") -> Any:
        """Random square images: a tensor for a classifier, a list for a detector; the same for a seed."""
        import torch

        if batch_size < 1:
            raise UsageError(f"batch size {batch_size}: a batch has at least one image", "use 1 or more")
        generator = torch.Generator().manual_seed(seed)
        side = self.image_size
        images = torch.rand(batch_size, 3, side, side, generator=generator).to(device)
        return images if self.kind == "classifier" else list(images)

    def random_batch(self, batch_size: int, *, seed: int = 0, device: str = "cpu") -> Batch:
        """Random images with labels or boxes to train on; the same for the same seed."""
        import torch

        images = self.example_input(batch_size, seed=seed, device=device)
        generator = torch.Generator().manual_seed(seed + 1)
        if self.kind == "classifier":
            labels = torch.randint(self.num_classes, (batch_size,), generator=generator)
            return Batch(images, labels.to(device))
        return Batch(images, [_draw_target(self, generator, device) for _ in range(batch_size)])

    def loss(self, batch: Batch) -> Tensor:
        """Forward in training mode: cross entropy (of side classifiers too), or the sum of all losses."""
        import torch

        module = self.module.train()
        if self.kind == "detector":
            losses: dict[str, Tensor] = module(batch.inputs, batch.targets)
            check_losses(losses, module)
            return torch.stack([loss.reshape(()) for loss in losses.values()]).sum()
        main, *auxiliary = list_outputs(module(batch.inputs))
        cross_entropy = torch.nn.functional.cross_entropy
        total = cross_entropy(main, batch.targets)
        for logits in auxiliary:
            total = total + _AUXILIARY_WEIGHT * cross_entropy(logits, batch.targets)
        return total

    def infer(self, inputs: Any) -> Any:
        """Forward in evaluation mode, without gradients."""
        import torch

        self.module.eval()
        with torch.no_grad():
            return self.module(inputs)

    def to(self, device: str | torch.device) -> Network:
        """The same network, its module moved."""
        self.module.to(device)
        return self


def list_outputs(output: Any) -> list[Tensor]:
    """The tensors that a classifier gave, its own before those of side classifiers."""
    parts = [output] if hasattr(output, "shape") else list(output)
    return [part for part in parts if part is not None]


def _draw_target(network: Network, generator: Any, device: str) -> dict[str, Tensor]:
    import torch

    side = network.image_size
    corners = torch.rand(BOXES_PER_IMAGE, 2, generator=generator) * 0.6 * side
    sizes = (0.1 + 0.3 * torch.rand(BOXES_PER_IMAGE, 2, generator=generator)) * side
    boxes = torch.cat([corners, corners + sizes], dim=1)
    labels = torch.randint(1, max(2, network.num_classes), (BOXES_PER_IMAGE,), generator=generator)
    target = {"boxes": boxes, "labels": labels}
    if "masks" in network.needs:
        target["masks"] = masks = torch.zeros(len(boxes), side, side, dtype=torch.uint8)
        for mask, (left, top, right, bottom) in zip(masks, boxes.round().long().tolist(), strict=True):
            mask[top:bottom, left:right] = 1
    if "keypoints" in network.needs:
        places = torch.rand(BOXES_PER_IMAGE, KEYPOINTS, 2, generator=generator)
        points = boxes[:, None, :2] + places * sizes[:, None, :]
        target["keypoints"] = torch.cat([points, torch.ones(BOXES_PER_IMAGE, KEYPOINTS, 1)], dim=2)
    return {name: value.to(device) for name, value in target.items()}
