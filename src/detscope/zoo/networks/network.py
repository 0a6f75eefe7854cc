"""What sweeping and predicting get of a network: the module, what to feed it, and its loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

Kind = Literal["classifier", "detector"]


@dataclass(frozen=True)
class Base:
    """A model by name, before it is built."""

    name: str  # as its source knows it
    source: str  # "torchvision", "timm", "zoo" or "user"
    kind: Kind

    @property
    def spelled(self) -> str:
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
    base: Base
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
        """Random images: a tensor for a classifier, a list for a detector; the same for the same seed."""
        from detscope.zoo.networks.batches import random_images

        return random_images(self, batch_size, seed, device)

    def random_batch(self, batch_size: int, *, seed: int = 0, device: str = "cpu") -> Batch:
        """Random images with labels or boxes to train on; the same for the same seed."""
        from detscope.zoo.networks.batches import random_batch

        return random_batch(self, batch_size, seed, device)

    def loss(self, batch: Batch) -> Tensor:
        """Forward in training mode: cross entropy, or the sum of the detector's losses."""
        from detscope.zoo.networks.batches import loss_of

        return loss_of(self, batch)

    def infer(self, inputs: Any) -> Any:
        """Forward in evaluation mode, without gradients."""
        from detscope.zoo.networks.batches import infer

        return infer(self, inputs)

    def to(self, device: str | torch.device) -> Network:
        """The same network, its module moved."""
        self.module.to(device)
        return self
