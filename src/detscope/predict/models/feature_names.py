"""What the 56 training features of the older method are about, for people: `extrapolated` names them."""

from __future__ import annotations

from collections.abc import Iterable

_GROUPS = (  # how many, what
    (5, "size of weights, inputs and outputs"),
    (7, "im2col columns"),
    (3, "multiplications"),
    (9, "FFT memory"),
    (4, "FFT operations"),
    (14, "Winograd memory"),
    (14, "Winograd operations"),
)


def feature_groups(numbers: Iterable[int]) -> list[str]:
    """The groups that features belong to, with how many of each: `multiplications (2 of 3)`."""
    wanted = set(numbers)
    found, first = [], 0
    for count, what in _GROUPS:
        inside = len(wanted & set(range(first, first + count)))
        if inside:
            found.append(f"{what} ({inside} of {count})")
        first += count
    return found
