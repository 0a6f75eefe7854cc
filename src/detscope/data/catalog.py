"""What can be prepared: archives, where their publishers keep them, and how to know them.

MD5 sums of VOC and COCO are those their users have checked by for years (torchvision carries VOC's);
they tell a damaged file. Sizes in bytes.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass

from detscope.errors import UsageError

_VOC = "https://thor.robots.ox.ac.uk/pascal/VOC"
_COCO = "http://images.cocodataset.org"
PETS_URL = "https://www.robots.ox.ac.uk/~vgg/data/pets/data"


@dataclass(frozen=True)
class Archive:
    """One file of a publisher; `proof` is what lies below the data set's folder once it is unpacked."""

    name: str
    url: str
    checksum: str
    size_bytes: int
    most_members: int  # files and folders, with room to spare: a mirror's archive may hold some more
    proof: str  # unpacked last, so that it is there when everything is
    folder: str  # below the root; the archive's members lie below it
    strip: str = ""  # leading folder of the members that `folder` stands for


@dataclass(frozen=True)
class Collection:
    """What `detscope data prepare NAME` brings, and how to use it afterwards."""

    name: str
    description: str
    archives: tuple[Archive, ...]
    use_as: str  # for --data
    licence: str


_VOC_LICENCE = "images under Flickr's terms"
_VOC2007 = (
    Archive(
        "VOCtrainval_06-Nov-2007.tar",
        f"{_VOC}/voc2007/VOCtrainval_06-Nov-2007.tar",
        "md5:c52e279531787c972589f7e41ab4ae64",
        460_032_000,
        40_000,
        "VOC2007/ImageSets/Main/trainval.txt",
        "VOCdevkit",
        "VOCdevkit",
    ),
    Archive(
        "VOCtest_06-Nov-2007.tar",
        f"{_VOC}/voc2007/VOCtest_06-Nov-2007.tar",
        "md5:b6e924de25625d8de591ea690078ad9f",
        451_020_800,
        40_000,
        "VOC2007/ImageSets/Main/test.txt",
        "VOCdevkit",
        "VOCdevkit",
    ),
)
_VOC2012 = (
    Archive(
        "VOCtrainval_11-May-2012.tar",
        f"{_VOC}/voc2012/VOCtrainval_11-May-2012.tar",
        "md5:6cd6e144f989b92b3379bac3b3de84fd",
        1_999_639_040,
        100_000,
        "VOC2012/ImageSets/Main/trainval.txt",
        "VOCdevkit",
        "VOCdevkit",
    ),
)
_COCO_LABELS = Archive(
    "annotations_trainval2017.zip",
    f"{_COCO}/annotations/annotations_trainval2017.zip",
    "md5:f4bbac642086de4f52a3fdda2de5fa2c",
    252_907_541,
    100,
    "annotations/instances_val2017.json",
    "coco",
)
_COCO_VAL = Archive(
    "val2017.zip",
    f"{_COCO}/zips/val2017.zip",
    "md5:442b8da7639aecaf257c1dceb8ba8c80",
    815_585_330,
    20_000,
    "val2017",
    "coco",
)
_COCO_TRAIN = Archive(
    "train2017.zip",
    f"{_COCO}/zips/train2017.zip",
    "md5:cced6f7f71b7629ddf16f17bbcfab6b2",
    19_336_861_798,
    400_000,
    "train2017",
    "coco",
)
_PETS_ARCHIVES = (
    Archive(
        "annotations.tar.gz",
        f"{PETS_URL}/annotations.tar.gz",
        "sha256:52425fb6de5c424942b7626b428656fcbd798db970a937df61750c0f1d358e91",
        19_173_078,
        60_000,
        "annotations/trainval.txt",
        "oxford-iiit-pet",
    ),
    Archive(
        "images.tar.gz",
        f"{PETS_URL}/images.tar.gz",
        "sha256:67195c5e1c01f1ab5f9b6a5d22b8c27a580d896ece458917e61d459337fa318d",
        791_918_971,
        30_000,
        "images",
        "oxford-iiit-pet",
    ),
)
_COCO_LICENCE = "annotations CC BY 4.0, images under Flickr's terms"

COLLECTIONS = (
    Collection("pets", "Oxford-IIIT Pet: 37 breeds, trimaps", _PETS_ARCHIVES, "pets", "CC BY-SA 4.0"),
    Collection(
        "voc", "PASCAL VOC 2007 trainval and test, 2012 trainval", _VOC2007 + _VOC2012, "voc", _VOC_LICENCE
    ),
    Collection("voc2007", "PASCAL VOC 2007 trainval and test", _VOC2007, "voc", _VOC_LICENCE),
    Collection("voc2012", "PASCAL VOC 2012 trainval", _VOC2012, "voc", _VOC_LICENCE),
    Collection(
        "coco",
        "COCO 2017 train, val, annotations",
        (_COCO_LABELS, _COCO_VAL, _COCO_TRAIN),
        "coco",
        _COCO_LICENCE,
    ),
    Collection("coco-val", "COCO 2017 val, annotations", (_COCO_LABELS, _COCO_VAL), "coco", _COCO_LICENCE),
)


def find_collection(name: str) -> Collection:
    """A collection by name."""
    known = {collection.name: collection for collection in COLLECTIONS}
    if name not in known:
        close = difflib.get_close_matches(name.lower(), known, n=1)
        suggestion = f"did you mean {close[0]!r}? " if close else ""
        raise UsageError(f"cannot prepare {name!r}", f"{suggestion}there are: {', '.join(known)}")
    return known[name]
