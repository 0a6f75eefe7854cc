from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import data_trees as trees
import pytest
from data_file_server import FileServer, serving

from detscope.data.download import prepare as preparing
from detscope.data.download.prepare import RECORD, Collection, find_prepared, prepare_collection
from detscope.data.registry import find_collection, list_collections
from detscope.errors import InputError, MachineError, UsageError


@pytest.fixture
def server() -> Iterator[FileServer]:
    with serving() as running:
        for archives in (trees.coco_archives(), trees.voc_archives()):
            running.files |= {f"/{name}": content for name, content in archives.items()}
        yield running


def pinned(name: str, server: FileServer) -> Collection:
    """A collection whose checksums are those of the small archives."""
    collection = find_collection(name)
    archives = tuple(
        replace(
            archive,
            checksum=f"md5:{hashlib.md5(server.files[f'/{archive.name}']).hexdigest()}",
            size_bytes=len(server.files[f"/{archive.name}"]),
        )
        for archive in collection.archives
    )
    return replace(collection, archives=archives)


def test_archives_of_one_year_end_in_one_folder_and_nothing_else_is_left(
    tmp_path: Path, server: FileServer
) -> None:
    done = prepare_collection(pinned("voc2007", server), tmp_path, mirror=server.url)
    year = tmp_path / "VOCdevkit" / "VOC2007"
    assert sorted(path.name for path in (year / "JPEGImages").iterdir()) == [
        "000001.jpg",
        "000002.jpg",
        "000005.jpg",
        "000007.jpg",
        "000009.jpg",
    ]
    assert done.folder == tmp_path / "VOCdevkit" and len(done.fetched) == 2
    left = [path for path in tmp_path.rglob("*") if path.is_file() and not path.is_relative_to(year)]
    assert all(path.name.endswith(".lock") for path in left), left


def test_a_second_time_nothing_is_asked_of_the_server(tmp_path: Path, server: FileServer) -> None:
    collection = pinned("coco", server)
    prepare_collection(collection, tmp_path, mirror=server.url)
    asked = len(server.requests)
    again = prepare_collection(collection, tmp_path, mirror=server.url)
    assert len(server.requests) == asked and again.fetched == () and len(again.found) == 3
    assert find_prepared(collection, tmp_path) == tmp_path / "coco"


def test_what_is_there_in_another_layout_is_used_and_only_the_rest_fetched(
    tmp_path: Path, server: FileServer
) -> None:
    collection = pinned("coco", server)
    prepare_collection(collection, tmp_path / "first", mirror=server.url)
    own = tmp_path / "own"
    (own / "images").mkdir(parents=True)
    shutil.move(tmp_path / "first/coco/train2017", own / "images/train2017")
    shutil.move(tmp_path / "first/coco/annotations", own / "annotations")
    done = prepare_collection(collection, own, mirror=server.url)
    assert done.folder == own and done.fetched == ("val2017.zip",)
    assert (own / "val2017").is_dir()


def test_an_archive_that_is_not_the_publishers_is_refused_with_both_sums_and_fetched_anew(
    tmp_path: Path, server: FileServer
) -> None:
    collection = pinned("voc2012", server)
    good = server.files["/VOCtrainval_11-May-2012.tar"]
    server.files["/VOCtrainval_11-May-2012.tar"] = good[:-1] + b"x"
    with pytest.raises(InputError, match=r"md5 expected [0-9a-f]{32}, actual [0-9a-f]{32}"):
        prepare_collection(collection, tmp_path, mirror=server.url)
    assert find_prepared(collection, tmp_path) is None
    server.files["/VOCtrainval_11-May-2012.tar"] = good
    assert prepare_collection(collection, tmp_path, mirror=server.url).fetched


def test_the_publishers_sums_hold_for_mirrors_unless_the_mirror_is_trusted(
    tmp_path: Path, server: FileServer
) -> None:
    real = find_collection("voc2012")
    with pytest.raises(InputError, match="expected 6cd6e144f989b92b3379bac3b3de84fd"):
        prepare_collection(real, tmp_path, mirror=server.url)
    assert prepare_collection(real, tmp_path, mirror=server.url, trust_mirror=True).fetched


def test_a_trusted_mirror_is_held_to_what_it_gave_at_first(tmp_path: Path, server: FileServer) -> None:
    real = find_collection("voc2012")
    prepare_collection(real, tmp_path, mirror=server.url, trust_mirror=True)
    record = json.loads((tmp_path / "downloads" / RECORD).read_text())
    assert list(record) == [f"{server.url}/VOCtrainval_11-May-2012.tar"]
    assert record[f"{server.url}/VOCtrainval_11-May-2012.tar"]["checksum"].startswith("sha256:")
    shutil.rmtree(tmp_path / "VOCdevkit")
    server.files["/VOCtrainval_11-May-2012.tar"] = trees.tarred(
        trees.voc_files("2012", "trainval", ["other"])
    )
    with pytest.raises(InputError, match="sha256 expected"):
        prepare_collection(real, tmp_path, mirror=server.url, trust_mirror=True)


def test_killed_between_unpacking_and_placing_it_goes_on_without_a_download(
    tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = pinned("voc2007", server)
    moved = []
    real_move = preparing._move_file

    def dies_before_the_last(path: Path, target: Path) -> None:
        moved.append(path)
        if len(moved) == 8:
            raise KeyboardInterrupt
        real_move(path, target)

    monkeypatch.setattr(preparing, "_move_file", dies_before_the_last)
    with pytest.raises(KeyboardInterrupt):
        prepare_collection(collection, tmp_path, mirror=server.url)
    lists = tmp_path / "VOCdevkit/VOC2007/ImageSets/Main"
    assert not (lists / "trainval.txt").exists(), "half of it passes as whole"
    monkeypatch.setattr(preparing, "_move_file", real_move)
    asked = len(server.requests)
    prepare_collection(collection, tmp_path, mirror=server.url)
    assert len(server.requests) == asked + 1, "only the second archive was to be fetched"
    assert find_prepared(collection, tmp_path) is not None


def test_an_archive_of_something_else_is_said(tmp_path: Path, server: FileServer) -> None:
    server.files["/VOCtrainval_11-May-2012.tar"] = trees.tarred({"readme.txt": b"no"})
    with pytest.raises(InputError, match=r"unpacks without VOCdevkit/VOC2012/ImageSets/Main/trainval\.txt"):
        prepare_collection(pinned("voc2012", server), tmp_path, mirror=server.url)


def test_files_of_ones_own_are_never_overwritten(tmp_path: Path, server: FileServer) -> None:
    mine = tmp_path / "VOCdevkit/VOC2012/JPEGImages/2008_000002.jpg"
    mine.parent.mkdir(parents=True)
    mine.write_bytes(b"mine")
    with pytest.raises(InputError, match="is there and differs"):
        prepare_collection(pinned("voc2012", server), tmp_path, mirror=server.url)
    assert mine.read_bytes() == b"mine"


def test_a_full_disk_is_said_before_anything_is_fetched(
    tmp_path: Path, server: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    collection = pinned("coco", server)
    large = replace(collection, archives=tuple(replace(a, size_bytes=10**15) for a in collection.archives))
    with pytest.raises(MachineError, match="preparing coco needs"):
        prepare_collection(large, tmp_path, mirror=server.url)
    assert server.requests == []


def test_every_archive_has_a_sum_a_size_and_a_place() -> None:
    for collection in list_collections():
        for archive in collection.archives:
            algorithm, _, digest = archive.checksum.partition(":")
            assert len(digest) == {"md5": 32, "sha256": 64}[algorithm]
            assert archive.size_bytes > 10**6 and archive.url.endswith(archive.name)


def test_an_unknown_name_suggests_one() -> None:
    with pytest.raises(UsageError) as caught:
        find_collection("cocoo")
    assert "did you mean 'coco'" in caught.value.hint
