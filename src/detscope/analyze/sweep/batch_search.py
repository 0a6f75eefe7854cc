"""Searching batch sizes: the largest for which something holds, with as few questions as can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping

MOST = 1 << 16  # nobody asks for more images in one step


def largest_batch(
    holds: Callable[[int], bool], known: Mapping[int, bool] | None = None, most: int = MOST
) -> int | None:
    """The largest batch size up to `most` for which `holds`, if it holds up to some size and not beyond.

    `known` are answers that are there already. None: not even one image.
    """
    answers = dict(known or {})

    def ask_batch(batch: int) -> bool:
        if batch not in answers:
            answers[batch] = holds(batch)
        return answers[batch]

    low = max((batch for batch, held in answers.items() if held and batch <= most), default=0)
    beyond = [batch for batch, held in answers.items() if not held and batch > low]
    high = min(beyond, default=0)
    while not high:  # larger ones until one fails
        if low >= most:
            return most
        larger = min(most, max(1, low * 2))
        if ask_batch(larger):
            low = larger
        else:
            high = larger
    while high - low > 1:
        middle = (low + high) // 2
        if ask_batch(middle):
            low = middle
        else:
            high = middle
    return low or None
