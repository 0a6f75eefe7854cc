"""How samples are split into what a model sees and what it is asked: five protocols."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

from detscope.errors import InputError
from detscope.predict.models.calibrate import spread_samples
from detscope.predict.samples import Sample

SEEN_LEVELS = (0, 30, 50, 70, 90)
UNSEEN_DEVICE = "unseen-device"
_GIVEN = 5  # samples of a new device
_SEED = 0


@dataclass(frozen=True)
class Split:
    """A model is fitted on `seen`, transferred by `given` if there are some, and asked about `asked`."""

    name: str
    seen: list[Sample]
    asked: list[Sample]
    given: list[Sample] = field(default_factory=list)


def random_rows(samples: Sequence[Sample]) -> Iterator[Split]:
    """A fifth of the rows, drawn at random: what most reported errors are."""
    places = list(range(len(samples)))
    random.Random(_SEED).shuffle(places)
    asked = set(places[: max(1, len(places) // 5)])
    yield Split(
        "a fifth of the rows",
        [one for place, one in enumerate(samples) if place not in asked],
        [samples[place] for place in sorted(asked)],
    )


def unseen_levels(samples: Sequence[Sample]) -> Iterator[Split]:
    """Levels 0, 30, 50, 70 and 90 are seen, all others asked; of other levels the ends and every other."""
    levels = sorted({one.level for one in samples})
    seen = set(SEEN_LEVELS) if set(SEEN_LEVELS) <= set(levels) else {*levels[::2], *levels[-1:]}
    yield Split(
        "levels between",
        [one for one in samples if one.level in seen],
        [one for one in samples if one.level not in seen],
    )


def unseen_networks(samples: Sequence[Sample]) -> Iterator[Split]:
    """Every network once asked and not seen."""
    yield from _each(samples, lambda one: one.network)


def unseen_families(samples: Sequence[Sample]) -> Iterator[Split]:
    """Every family once asked and not seen; a network without one is its own."""
    yield from _each(samples, lambda one: one.case.graph.family or one.network)


def unseen_device(samples: Sequence[Sample]) -> Iterator[Split]:
    """Every device once new: the model of the one with the most rows, transferred by a few samples."""
    names = Counter(one.device for one in samples)
    if len(names) < 2:
        raise InputError(
            f"{UNSEEN_DEVICE} needs rows of two devices or more", "give stores of both, or a device column"
        )
    for name in sorted(names):
        source = max((other for other in names if other != name), key=lambda other: (names[other], other))
        own = [one for one in samples if one.device == name]
        given = spread_samples(own, _GIVEN)
        yield Split(
            name,
            [one for one in samples if one.device == source],
            [one for one in own if not any(one is other for other in given)],
            given,
        )


def _each(samples: Sequence[Sample], name_of: Callable[[Sample], str]) -> Iterator[Split]:
    for name in sorted({name_of(one) for one in samples}):
        yield Split(
            name,
            [one for one in samples if name_of(one) != name],
            [one for one in samples if name_of(one) == name],
        )


PROTOCOLS: dict[str, Callable[[Sequence[Sample]], Iterator[Split]]] = {
    "random-rows": random_rows,
    "unseen-levels": unseen_levels,
    "unseen-networks": unseen_networks,
    "unseen-families": unseen_families,
    UNSEEN_DEVICE: unseen_device,
}


def splits(samples: Sequence[Sample], protocol: str) -> list[Split]:
    """The splits of a protocol; InputError where the samples cannot be split so."""
    found = list(PROTOCOLS[protocol](samples))
    if any(not split.seen or not split.asked for split in found):
        raise InputError(
            f"too few networks or levels for {protocol}", "add samples, or choose another --protocol"
        )
    return found
