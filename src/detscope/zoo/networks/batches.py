"""Random batches and losses: what a network of either kind trains on when only its cost matters."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from detscope.errors import UsageError
from detscope.zoo.outputs import check_losses
from detscope.zoo.networks.network import Batch, Network

if TYPE_CHECKING:
    from torch import Tensor

BOXES_PER_IMAGE = 5
KEYPOINTS = 17
_AUXILIARY_WEIGHT = 0.3  # as GoogLeNet was trained: each side classifier counts a third of the main one


def random_images(network: Network, batch_size: int, seed: int, device: str) -> Any:
    """Square images of the network's size: one tensor for a classifier, a list for a detector."""
    import torch

    _check(batch_size)
    generator = torch.Generator().manual_seed(seed)
    side = network.image_size
    images = torch.rand(batch_size, 3, side, side, generator=generator).to(device)
    return images if network.kind == "classifier" else list(images)


def random_batch(network: Network, batch_size: int, seed: int, device: str) -> Batch:
    """Images with labels, or with boxes and what else the detector learns from."""
    import torch

    images = random_images(network, batch_size, seed, device)
    generator = torch.Generator().manual_seed(seed + 1)
    if network.kind == "classifier":
        labels = torch.randint(network.num_classes, (batch_size,), generator=generator)
        return Batch(images, labels.to(device))
    return Batch(images, [_target(network, generator, device) for _ in range(batch_size)])


def loss_of(network: Network, batch: Batch) -> Tensor:
    """One scalar to call backward on; side classifiers of GoogLeNet and Inception are counted in."""
    import torch

    module = network.module.train()
    if network.kind == "detector":
        losses: dict[str, Tensor] = module(batch.inputs, batch.targets)
        check_losses(losses, module)
        return torch.stack([loss.reshape(()) for loss in losses.values()]).sum()
    main, *auxiliary = _logits(module(batch.inputs))
    cross_entropy = torch.nn.functional.cross_entropy
    total = cross_entropy(main, batch.targets)
    for logits in auxiliary:
        total = total + _AUXILIARY_WEIGHT * cross_entropy(logits, batch.targets)
    return total


def infer(network: Network, inputs: Any) -> Any:
    """Outputs in evaluation mode."""
    import torch

    network.module.eval()
    with torch.no_grad():
        return network.module(inputs)


def _logits(output: Any) -> list[Tensor]:
    parts = [output] if hasattr(output, "shape") else list(output)
    return [part for part in parts if part is not None]


def _target(network: Network, generator: Any, device: str) -> dict[str, Tensor]:
    import torch

    side = network.image_size
    corners = torch.rand(BOXES_PER_IMAGE, 2, generator=generator) * 0.6 * side
    sizes = (0.1 + 0.3 * torch.rand(BOXES_PER_IMAGE, 2, generator=generator)) * side
    boxes = torch.cat([corners, corners + sizes], dim=1)
    labels = torch.randint(1, max(2, network.num_classes), (BOXES_PER_IMAGE,), generator=generator)
    target = {"boxes": boxes, "labels": labels}
    if "masks" in network.needs:
        target["masks"] = _filled_boxes(boxes, side)
    if "keypoints" in network.needs:
        places = torch.rand(BOXES_PER_IMAGE, KEYPOINTS, 2, generator=generator)
        points = boxes[:, None, :2] + places * sizes[:, None, :]
        target["keypoints"] = torch.cat([points, torch.ones(BOXES_PER_IMAGE, KEYPOINTS, 1)], dim=2)
    return {name: value.to(device) for name, value in target.items()}


def _filled_boxes(boxes: Tensor, side: int) -> Tensor:
    import torch

    masks = torch.zeros(len(boxes), side, side, dtype=torch.uint8)
    for mask, (left, top, right, bottom) in zip(masks, boxes.round().long().tolist(), strict=True):
        mask[top:bottom, left:right] = 1
    return masks


def _check(batch_size: int) -> None:
    if batch_size < 1:
        raise UsageError(f"batch size {batch_size}: a batch has at least one image", "use 1 or more")
