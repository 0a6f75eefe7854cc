"""Which images go through in which order, so that every image is measured exactly as often as asked."""

from __future__ import annotations

from collections.abc import Sequence

from detscope.record.steps.schedule import BARE, RECORDED, Schedule


def split_batches(images: int, batch_size: int, repeat: int) -> list[list[int]]:
    """Image numbers, batch by batch; the last batch of a pass may be smaller."""
    numbers = range(images)
    one_pass = [list(numbers[start : start + batch_size]) for start in range(0, images, batch_size)]
    return one_pass * repeat


def order_steps(schedule: Schedule, batches: Sequence[list[int]]) -> list[list[int]]:
    """The batch of every step: recorded steps take each batch once, in order.

    Bare steps repeat the batch of a recorded neighbour, in turn the one before and the one after, so that
    the same work is compared and neither side always has the warmer caches. Warm-up and operator steps
    repeat batches from the beginning.
    """
    order: list[list[int]] = []
    recorded = bare = other = 0
    for index in range(schedule.count_steps(len(batches))):
        mode = schedule.mode_of(index)
        if mode == RECORDED:
            order.append(batches[recorded])
            recorded += 1
        elif mode == BARE:
            bare += 1
            order.append(batches[max(0, recorded - bare % 2)])
        else:
            order.append(batches[other % len(batches)])
            other += 1
    return order
