"""Which detection found which object, by COCO's rules, at all thresholds and area ranges at once.

COCO's rules: in every image and class the best detection chooses first. It takes the free object with the
largest overlap; of equal overlaps the later object; objects to be ignored only when no other is left. A
crowd may be chosen by many. pycocotools walks through images, ranges, thresholds, detections and objects
in Python. Here only pairs that overlap enough are kept, and one round lets the next detection of every
image and class choose, for all ranges and thresholds together.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from detscope.accuracy.overlaps import Overlap
from detscope.accuracy.records import Detections, Flags, Floats, GroundTruth, Integers

_PAIRS_AT_ONCE = 2_000_000
_NEARLY_ONE = 1 - 1e-10


@dataclass(frozen=True)
class SortedDetections:
    """Detections class by class, image by image, best first; at most so many per image and class."""

    row: Integers  # [D] row in the given detections
    category: Integers
    image: Integers
    scores: Floats
    rank: Integers  # place in its image and class, from 0
    key: Integers  # of image and class


@dataclass(frozen=True)
class Matches:
    """What was found. Only detections that overlap something enough are listed: `candidates` of `dets`."""

    dets: SortedDetections
    candidates: Integers  # [C] places in `dets`
    found: npt.NDArray[np.int32]  # [ranges, thresholds, C] the object's row; -1: none
    ignored_objects: Flags  # [ranges, G] objects that count neither as found nor as missed


def sort_detections(found: Detections, images: int, most: int) -> SortedDetections:
    """Sort as pycocotools does; equal scores stay in the order they were given."""
    order = np.lexsort((-found.scores, found.image, found.category))
    key = found.category[order] * images + found.image[order]
    rank = _place_in_group(key)
    kept = rank < most
    order = order[kept]
    return SortedDetections(
        order, found.category[order], found.image[order], found.scores[order], rank[kept], key[kept]
    )


def match_detections(
    truth: GroundTruth,
    dets: SortedDetections,
    overlap: Overlap,
    thresholds: Floats,
    ignored_objects: Flags,
) -> Matches:
    """Let detections choose objects; `ignored_objects` has one row per area range."""
    limits = np.minimum(thresholds, _NEARLY_ONE)
    detection, thing, overlaps = _find_pairs(truth, dets, overlap, float(limits.min()))
    # Ascending overlap, then the object's place in the file: the last pair that can be taken is the best.
    order = np.lexsort((thing, overlaps, detection))
    detection, thing, overlaps = detection[order], thing[order], overlaps[order]
    candidates, candidate = np.unique(detection, return_inverse=True)
    shape = (len(ignored_objects), len(limits))
    found = np.full((*shape, len(candidates)), -1, dtype=np.int32)
    taken = np.zeros((*shape, len(truth)), dtype=np.bool_)
    round_of = _place_in_group(dets.key[candidates])[candidate]
    by_round = np.argsort(round_of, kind="stable")
    borders = np.searchsorted(round_of[by_round], np.arange(round_of.max(initial=-1) + 2))
    for begin, end in pairwise(borders.tolist()):
        pairs = by_round[begin:end]
        things, who = thing[pairs], candidate[pairs]
        free = ~taken[:, :, things] | truth.crowd[things]
        free &= overlaps[pairs] >= limits[:, None]
        _choose_objects(found, taken, free, things, who, ignored_objects)
    return Matches(dets, candidates, found, ignored_objects)


def _choose_objects(
    found: npt.NDArray[np.int32],
    taken: Flags,
    free: Flags,
    things: Integers,
    who: Integers,
    ignored_objects: Flags,
) -> None:
    """One round: every candidate in `who` takes the last free object of its pairs, wanted ones first."""
    count = len(things)
    wanted = ~ignored_objects[:, things]
    value = np.arange(count) + count * wanted[:, None, :]
    begins = np.flatnonzero(np.diff(who, prepend=-1))
    best = np.maximum.reduceat(np.where(free, value, -1), begins, axis=2)
    area_range, threshold, chooser = np.nonzero(best >= 0)
    chosen = things[best[area_range, threshold, chooser] % count]
    found[area_range, threshold, who[begins][chooser]] = chosen
    taken[area_range, threshold, chosen] = True


def _find_pairs(
    truth: GroundTruth, dets: SortedDetections, overlap: Overlap, least: float
) -> tuple[Integers, Integers, Floats]:
    """Detections and objects of the same image and class that overlap at least so much."""
    images = max(1, len(truth.image_ids))
    key = truth.category * images + truth.image
    order = np.argsort(key, kind="stable")
    first = np.searchsorted(key[order], dets.key, side="left")
    count = np.searchsorted(key[order], dets.key, side="right") - first
    kept = [(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64), np.zeros(0))]
    for chosen in _split_portions(count):
        detection = np.repeat(chosen, count[chosen])
        ends = np.cumsum(count[chosen])
        within = np.arange(len(detection)) - np.repeat(ends - count[chosen], count[chosen])
        things = order[first[detection] + within]
        overlaps = overlap(dets.row[detection], things)
        enough = overlaps >= least
        kept.append((detection[enough], things[enough], overlaps[enough]))
    detections, objects, shares = zip(*kept, strict=True)
    return np.concatenate(detections), np.concatenate(objects), np.concatenate(shares)


def _split_portions(count: Integers) -> list[Integers]:
    """Detections that have objects to compare with, in portions whose pairs fit into memory."""
    some = np.flatnonzero(count)
    if not len(some):
        return []
    portion = np.cumsum(count[some]) // _PAIRS_AT_ONCE
    return np.split(some, np.flatnonzero(np.diff(portion)) + 1)


def _place_in_group(keys: Integers) -> Integers:
    """Place of each element among its neighbours with the same key."""
    begins = np.flatnonzero(np.diff(keys, prepend=-1))
    return np.arange(len(keys)) - np.repeat(begins, np.diff(begins, append=len(keys)))
