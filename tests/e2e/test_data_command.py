"""`detscope data` as a person types it: prepare from a server whose connection breaks, check, train."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "data"))

import data_trees as trees
from data_file_server import serving
from torch_process import DETECTION, Ended, TorchServer


@pytest.fixture
def run(tmp_path: Path, torch_server: TorchServer) -> Callable[..., Ended]:
    return partial(torch_server, folder=tmp_path, imports=DETECTION)


LAYOUTS: dict[str, tuple[Callable[[], dict[str, bytes]], str, list[str], tuple[int, int]]] = {
    "voc": (
        trees.voc_archives,
        "VOCdevkit",
        [
            "VOC2007/Annotations/000005.xml",
            "VOC2007/JPEGImages/000001.jpg",
            "VOC2012/ImageSets/Main/train.txt",
        ],
        (5, 2),
    ),
    "coco": (
        trees.coco_archives,
        "coco",
        ["annotations/instances_train2017.json", "train2017", "val2017/000000000501.jpg"],
        (6, 4),
    ),
    "pets": (
        trees.pets_archives,
        "oxford-iiit-pet",
        ["annotations/trimaps/beagle_1.png", "images/Abyssinian_0.jpg"],
        (4, 2),
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_prepare_resumes_a_broken_download_then_check_train_and_eval_go_through(
    name: str, tmp_path: Path, run: Callable[..., Ended]
) -> None:
    archives, folder, expected, images = LAYOUTS[name]
    with serving() as server:
        server.files = {f"/mirror/{file}": content for file, content in archives().items()}
        server.break_after_bytes = [200]
        done = run("data", "prepare", name, "--url", f"{server.url}/mirror", "--trust-url", "--json")
        assert done.returncode == 0, done.stderr
        assert any("Range" in request for request in server.requests), "the download was not resumed"
        asked = len(server.requests)
        again = run("data", "prepare", name, "--url", f"{server.url}/mirror", "--trust-url")
        assert again.returncode == 0 and "already there" in again.stdout
        assert len(server.requests) == asked, "what is there was fetched again"
    assert set(json.loads(done.stdout)["fetched"]) == set(archives())
    for path in expected:
        assert (tmp_path / "data" / folder / path).exists(), path
    assert not list((tmp_path / "data").glob(".*.unpacked"))
    before = trees.state_of(tmp_path / "data" / folder)
    checked = run("data", "check", name, "--json", "-q")
    assert checked.returncode == 0, checked.stderr
    found = json.loads(checked.stdout)
    assert (found["errors"], tuple(found["splits"].values())) == (0, images)
    assert (tmp_path / found["written"] / "histograms.png").is_file()
    step = ("--steps", "1", "--num-workers", "0", "--json", "-q")
    trained = run("train", "tiny_fasterrcnn", "--data", name, *step)
    assert trained.returncode == 0, trained.stderr
    assert json.loads(trained.stdout)["step_ms"]["n"] == 1
    judged = run("eval", "tiny_fasterrcnn", "--data", name, "--weights", "none", "-q")
    assert judged.returncode == 0, judged.stderr
    assert trees.state_of(tmp_path / "data" / folder) == before


def test_a_check_of_bad_data_is_exit_3_and_lists_every_file_with_its_reason(
    tmp_path: Path, run: Callable[..., Ended]
) -> None:
    folder = trees.coco_folder(tmp_path / "own", trees.coco_content(6))
    images = sorted((folder / "images").iterdir())
    images[0].write_bytes(images[0].read_bytes()[:400])
    images[1].write_bytes(b"")
    images[2].write_bytes(b"<html>not found</html>")
    images[3].unlink()
    images[4].unlink()
    images[4].mkdir()
    before = trees.state_of(folder)
    done = run("data", "check", "own", "--json", "-q")
    assert done.returncode == 3, done.stderr
    assert [line.split(":")[0] for line in done.stderr.strip().splitlines()] == ["error", "hint"]
    reasons = {finding["image"]: finding["reason"] for finding in json.loads(done.stdout)["findings"]}
    for image, words in zip(
        images, ("truncated", "0 bytes", "html", "no such file", "is a folder"), strict=False
    ):
        assert words in reasons[image.name].lower(), reasons[image.name]
    assert trees.state_of(folder) == before
    shown = run("data", "check", "own", "-q")
    assert shown.returncode == 3 and "Findings" in shown.stdout and "dominate cost" in shown.stdout
    stopped = run("train", "tiny_fasterrcnn", "--data", "own", "--steps", "1")
    assert stopped.returncode == 3 and "Traceback" not in stopped.stderr
