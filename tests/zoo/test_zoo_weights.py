from __future__ import annotations

import hashlib
import os
import pickle
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from detscope import zoo
from detscope.errors import InputError, MachineError, UsageError
from detscope.zoo import BuildOptions
from detscope.zoo import weights as weight_download
from detscope.zoo.weights import PublishedWeights, find_weights, load_into

NAME = "tiny_fasterrcnn"


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *args: object) -> None:
        pass


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[Path, str]]:
    """A folder and the address of a real server that offers it, and may take its time."""
    for limit in ("CONNECT_TIMEOUT_S", "_READ_TIMEOUT_S"):
        monkeypatch.setattr(weight_download, limit, 600.0)
    folder = tmp_path / "served"
    folder.mkdir()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def state() -> dict[str, torch.Tensor]:
    return zoo.build_model(NAME, BuildOptions(seed=3)).module.state_dict()


def publish(folder: Path, state: dict[str, torch.Tensor]) -> PublishedWeights:
    """Put weights on the server under a name that carries their hash, as publishers do."""
    torch.save(state, folder / "new.pth")
    digest = hashlib.sha256((folder / "new.pth").read_bytes()).hexdigest()
    name = f"tiny_coco-{digest[:8]}.pth"
    (folder / "new.pth").rename(folder / name)
    return PublishedWeights(f"http://publisher.invalid/models/{name}")


def options(cache: Path, weights: str = "auto") -> BuildOptions:
    return BuildOptions(weights=weights, cache_dir=str(cache))


def test_published_weights_are_fetched_once_and_then_come_from_the_cache(served, state, tmp_path) -> None:
    folder, address = served
    published = publish(folder, state)
    cache = tmp_path / "cache"
    found = find_weights(options(cache), NAME, published, address)
    assert (found.kind, found.source) == ("coco", published.file_name)
    (folder / published.file_name).unlink()
    again = find_weights(options(cache, "coco"), NAME, published, address)
    assert torch.equal(again.state["rpn.head.cls_logits.weight"], state["rpn.head.cls_logits.weight"])
    assert [file.name for file in cache.iterdir()] == [published.file_name]


@pytest.mark.parametrize("damage", ["truncated", "empty", "html"])
def test_a_damaged_download_is_named_with_both_checksums_and_fetched_again(
    served, state, tmp_path, damage
) -> None:
    folder, address = served
    published = publish(folder, state)
    file = folder / published.file_name
    good = file.read_bytes()
    bad = {"truncated": good[: len(good) // 2], "empty": b"", "html": b"<!DOCTYPE html><p>log in"}[damage]
    file.write_bytes(bad)
    cache = tmp_path / "cache"
    with pytest.raises(InputError) as caught:
        find_weights(options(cache), NAME, published, address)
    assert published.file_name in caught.value.message
    assert f"expected sha256 {published.hash_prefix}" in caught.value.message
    assert f"actual {hashlib.sha256(bad).hexdigest()}" in caught.value.message
    assert caught.value.exit_code == 3
    assert list(cache.iterdir()) == []
    file.write_bytes(good)
    assert find_weights(options(cache), NAME, published, address).kind == "coco"


def test_a_cached_file_that_was_damaged_is_removed_and_fetched_by_the_next_run(
    served, state, tmp_path
) -> None:
    folder, address = served
    published = publish(folder, state)
    cache = tmp_path / "cache"
    find_weights(options(cache), NAME, published, address)
    cached = cache / published.file_name
    cached.write_bytes(cached.read_bytes()[:1000])
    with pytest.raises(InputError, match=r"1000 bytes.*expected sha256") as caught:
        find_weights(options(cache), NAME, published, address)
    assert str(cached) in caught.value.message
    assert not cached.exists()
    assert find_weights(options(cache), NAME, published, address).kind == "coco"


def test_without_the_publisher_auto_is_random_with_the_reason_and_coco_is_an_error(served, tmp_path) -> None:
    published = PublishedWeights("http://publisher.invalid/models/absent-01234567.pth")
    found = find_weights(options(tmp_path), NAME, published, served[1])
    assert found.kind == "random" and found.state is None
    assert "404" in found.note and "NMS load" in found.note
    with pytest.raises(MachineError, match="404") as caught:
        find_weights(options(tmp_path, "coco"), NAME, published, served[1])
    assert caught.value.exit_code == 4


def test_an_unreachable_publisher_is_no_reason_to_stop(tmp_path) -> None:
    published = PublishedWeights("http://127.0.0.1:9/models/absent-01234567.pth")
    assert "cannot be reached" in find_weights(options(tmp_path), NAME, published).note
    unknown = PublishedWeights("http://no-such-host.invalid/models/absent-01234567.pth")
    assert "cannot be reached" in find_weights(options(tmp_path), NAME, unknown).note
    local = PublishedWeights("file:///etc/hostname-01234567.pth")
    assert "not a web address" in find_weights(options(tmp_path), NAME, local).note


@pytest.mark.parametrize("nested", [None, "model", "state_dict", "model_state_dict"])
def test_a_file_gives_its_weights_wherever_the_state_dict_sits(state, tmp_path, nested) -> None:
    file = tmp_path / "own.pth"
    torch.save(state if nested is None else {nested: state, "epoch": 3}, file)
    built = zoo.build_model(NAME, BuildOptions(weights=str(file), seed=9))
    assert (built.weights.kind, built.weights.replaced) == ("file", ())
    assert all(torch.equal(value, state[key]) for key, value in built.module.state_dict().items())


def test_safetensors_and_data_parallel_prefixes_are_read(state, tmp_path) -> None:
    file = tmp_path / "own.safetensors"
    save_file({f"module.{key}": value for key, value in state.items()}, file)
    built = zoo.build_model(NAME, BuildOptions(weights=str(file)))
    assert torch.equal(built.module.rpn.head.cls_logits.weight, state["rpn.head.cls_logits.weight"])


@pytest.mark.parametrize(
    ("family", "replaced"),
    [
        ("fasterrcnn", {"roi_heads.box_predictor.cls_score", "roi_heads.box_predictor.bbox_pred"}),
        ("retinanet", {"head.classification_head.cls_logits"}),
        ("ssd", {f"head.classification_head.module_list.{level}" for level in range(4)}),
        ("efficientdet", {"model.class_net.predict.conv_pw"}),
    ],
)
def test_heads_of_another_class_count_are_new_and_named(tmp_path, family, replaced) -> None:
    name = f"tiny_{family}"
    trained = zoo.build_model(name, BuildOptions(num_classes=5, seed=3)).module.state_dict()
    torch.save(trained, tmp_path / "five.pth")
    built = zoo.build_model(name, BuildOptions(num_classes=3, weights=str(tmp_path / "five.pth"), seed=9))
    assert set(built.weights.replaced) == replaced
    assert all(head in built.weights.note for head in replaced)
    own = built.module.state_dict()
    kept = [key for key in own if key.rpartition(".")[0] not in replaced]
    assert all(torch.equal(own[key], trained[key]) for key in kept)


def test_weights_of_another_architecture_are_refused(state, tmp_path) -> None:
    file = tmp_path / "faster.pth"
    torch.save(state, file)
    with pytest.raises(InputError, match=r"do not fit tiny_ssd: .*missing.*unknown"):
        zoo.build_model("tiny_ssd", BuildOptions(weights=str(file)))
    module = zoo.build_model(NAME).module
    found = find_weights(BuildOptions(weights=str(file)), NAME, None)
    found.state["backbone.body.conv1.weight"] = torch.zeros(1, 3, 3, 3)
    with pytest.raises(InputError, match=r"conv1.weight is 1x3x3x3, the model has 32x3x3x3"):
        load_into(module, found, NAME, ("roi_heads.",))


class RunsCommand:
    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (f"touch {self.marker}",)


@pytest.mark.parametrize("form", ["zip", "legacy", "bare pickle"])
def test_a_pickle_that_runs_a_command_is_refused_and_does_not_run(tmp_path, form) -> None:
    file, marker = tmp_path / "evil.pth", tmp_path / "ran"
    if form == "bare pickle":
        file.write_bytes(pickle.dumps({"model": RunsCommand(marker)}, protocol=2))
    else:
        torch.save({"model": RunsCommand(marker)}, file, _use_new_zipfile_serialization=form == "zip")
    with pytest.raises(InputError, match=r"refused: it would run code .*system") as caught:
        zoo.build_model(NAME, BuildOptions(weights=str(file)))
    assert caught.value.exit_code == 3
    assert str(file) in caught.value.message
    assert not marker.exists()


def test_files_that_are_no_weights_are_named_with_their_checksum(state, tmp_path) -> None:
    torch.save(state, tmp_path / "good.pth")
    good = (tmp_path / "good.pth").read_bytes()
    for name, content in {
        "cut.pth": good[: len(good) // 2],
        "page.pth": b"\n<html><body>not found</body></html>",
        "text.pth": b"hello there",
        "short.safetensors": b"1234567890",
    }.items():
        file = tmp_path / name
        file.write_bytes(content)
        with pytest.raises(InputError) as caught:
            zoo.build_model(NAME, BuildOptions(weights=str(file)))
        assert str(file) in caught.value.message
        assert hashlib.sha256(content).hexdigest() in caught.value.message
        assert "\n" not in caught.value.message
    empty = tmp_path / "empty.pth"
    empty.touch()
    with pytest.raises(InputError, match="is empty"):
        zoo.build_model(NAME, BuildOptions(weights=str(empty)))
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(InputError, match="holds list, not a state dict"):
        zoo.build_model(NAME, BuildOptions(weights=str(tmp_path / "list.pth")))


def test_a_choice_that_is_neither_keyword_nor_file_is_a_usage_error(tmp_path) -> None:
    with pytest.raises(UsageError, match="no such file") as caught:
        zoo.build_model(NAME, BuildOptions(weights="cooc"))
    assert "did you mean coco?" in caught.value.hint
    with pytest.raises(UsageError, match="is a folder"):
        zoo.build_model(NAME, BuildOptions(weights=str(tmp_path)))
