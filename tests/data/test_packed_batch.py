"""A batch that a worker sends in one piece is the batch the loop itself would have made."""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader

from detscope.data.loading import PackedBatch, collate_batch, count_packed_bytes
from detscope.record.loader import count_tensors


class OwnTensor(torch.Tensor):
    """A class of its own, as torchvision's boxes and masks are."""


class Oddities:
    """Everything that a data set may put into an item, and then some."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[torch.Tensor, dict[str, Any]]:
        random = torch.Generator().manual_seed(index)
        labels = torch.arange(index)
        pixels = torch.randint(0, 256, (40 + index, 50, 3), dtype=torch.uint8, generator=random)
        floats = torch.rand(3, 200, 100, generator=random)
        return (pixels.permute(2, 0, 1), floats)[index % 2], {
            "boxes": torch.rand(index, 4, generator=random),
            "labels": labels,
            "labels_again": labels,
            "masks": torch.rand(index, 300, 300, generator=random) > 0.5,
            "keypoints": torch.rand(17, 3, 2, generator=random).permute(2, 0, 1),
            "scalar": torch.tensor(3.5, dtype=torch.float64),
            "half": torch.ones(3, dtype=torch.bfloat16),
            "repeated": torch.ones(1, 3).expand(4, 3),
            "nested": {"pair": [torch.ones(2), (torch.zeros(1, dtype=torch.int32), "text")]},
            "own": torch.rand(2, generator=random).as_subclass(OwnTensor),
            "trained": torch.ones(2, requires_grad=True),
            "image_id": index,
            "name": f"{index}.jpg",
            "nothing": None,
        }


def batches(workers: int) -> list[Any]:
    return list(DataLoader(Oddities(), 2, collate_fn=collate_batch, num_workers=workers))


def sent(images: list[torch.Tensor], targets: list[dict[str, Any]]) -> Any:
    """The way through a queue between processes."""
    return ForkingPickler.loads(ForkingPickler.dumps(PackedBatch(images, targets)))


def assert_same(one: Any, other: Any, where: str = "batch") -> None:
    assert type(one) is type(other), where
    if isinstance(one, torch.Tensor):
        assert (one.dtype, one.shape, one.requires_grad) == (other.dtype, other.shape, other.requires_grad), (
            where
        )
        assert torch.equal(one, other), where
        assert 0 in one.stride() or one.stride() == other.stride(), where
    elif isinstance(one, dict):
        assert list(one) == list(other), where
        for key in one:
            assert_same(one[key], other[key], f"{where}.{key}")
    elif isinstance(one, (list, tuple)):
        assert len(one) == len(other), where
        for number, (item, other_item) in enumerate(zip(one, other, strict=True)):
            assert_same(item, other_item, f"{where}[{number}]")
    else:
        assert one == other, where


def test_whatever_an_item_holds_arrives_as_without_workers() -> None:
    received = batches(2)
    assert_same(batches(0), received)
    target = received[1][1][0]
    assert target["labels"] is target["labels_again"]


@pytest.mark.parametrize(("numbers", "files"), [((0, 0), 1), ((1, 3), 1), ((0, 3), 2)])
def test_a_batch_is_one_file_or_two_on_its_way_and_their_size_is_known_before(
    numbers: tuple[int, ...], files: int
) -> None:
    items = [Oddities()[number] for number in numbers]  # even ones are uint8, odd ones large floats
    for _, target in items:
        del target["own"], target["trained"]  # these go on their own
    packed = PackedBatch([image for image, _ in items], [target for _, target in items])
    assert count_tensors(packed) == files
    assert all(file.is_shared() for file in packed.tensors)
    assert sum(file.nbytes for file in packed.tensors) == sum(count_packed_bytes(*item) for item in items)
    assert all(
        count_packed_bytes(*Oddities()[number]) > count_packed_bytes(*item)
        for number, item in zip(numbers, items, strict=True)
    )


def test_labels_that_somebody_keeps_do_not_keep_the_batch_and_large_masks_are_not_copied() -> None:
    image = torch.zeros(3, 8, 8, dtype=torch.uint8)
    targets = [{"labels": torch.ones(3), "masks": torch.zeros(2, 400, 400)} for _ in range(2)]
    images, (first, second) = sent([image, image], targets)
    assert not first["labels"].is_shared() and not images[0].is_shared()
    assert first["masks"].is_shared()
    assert first["masks"].untyped_storage().data_ptr() == second["masks"].untyped_storage().data_ptr()
    of_masks = 2 * (targets[0]["masks"].nbytes + 64)  # and labels, but no image
    assert first["masks"].untyped_storage().nbytes() == of_masks
    first["masks"].fill_(7)
    first["labels"].fill_(7)
    assert second["masks"].sum() == 0 and second["labels"].sum() == 3


@pytest.mark.parametrize("targets", [[], [{}, {"boxes": torch.zeros(0, 4)}]])
def test_a_batch_without_a_single_byte(targets: list[dict[str, Any]]) -> None:
    assert_same(sent([], targets), ([], targets))
