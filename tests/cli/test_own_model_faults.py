"""Faults of a user's model or data set: exit code 3, the user's own line, a hint; never an internal error."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from PIL import Image

from detscope.cli.main import app

MODELS = '''
import sys
import torch
from torch import nn

class Net(nn.Module):
    """A detector of one layer that gives what it is told to give."""
    def __init__(self, losses=None, found=None):
        super().__init__()
        self.layer = nn.Conv2d(3, 4, 3)
        self.losses, self.found = losses, found

    def forward(self, images, targets=None):
        value = sum(self.layer(image[None]).mean() for image in images)
        if self.training:
            return self.losses(value) if self.losses else {"loss": value * value}
        good = {"boxes": torch.tensor([[1.0, 1.0, 9.0, 9.0]])}
        good |= {"labels": torch.tensor([1]), "scores": torch.tensor([0.9])}
        return self.found(good, images) if self.found else [dict(good) for _ in images]

class Raises(Net):
    def forward(self, images, targets=None):
        raise ValueError("no \\x1b[31mway\\x1b[0m\\nto go")

class Deep(Net):
    def forward(self, images, targets=None):
        return self.forward(images, targets)

class Speechless(Exception):
    def __str__(self):
        raise RuntimeError("no words")

class RaisesSpeechless(Net):
    def forward(self, images, targets=None):
        raise Speechless

class RaisesBase(Net):
    def forward(self, images, targets=None):
        raise BaseException("none of ours")

class WrongShape(Net):
    def forward(self, images, targets=None):
        return self.layer(torch.zeros(1, 2, 8, 8))

class Leaves(Net):
    def __init__(self, code):
        super().__init__()
        self.code = code

    def forward(self, images, targets=None):
        sys.exit(self.code)

class Empty(nn.Module):
    def forward(self, images, targets=None):
        return {"loss": torch.zeros((), requires_grad=True)}

def a_tuple(): return Net(lambda v: (v, v))
def a_tensor(): return Net(lambda v: v)
def nothing(): return Net(lambda v: None)
def no_losses(): return Net(lambda v: {})
def a_text(): return Net(lambda v: {"loss": "much"})
def a_number(): return Net(lambda v: {"loss": 1.5})
def not_finite(): return Net(lambda v: {"loss": v * float("nan")})
def no_gradient(): return Net(lambda v: {"loss": v.detach()})
def a_vector(): return Net(lambda v: {"loss": torch.stack([v, v])})
def named_by_number(): return Net(lambda v: {1: v})
def raises(): return Raises()
def speechless(): return RaisesSpeechless()
def base(): return RaisesBase()
def deep(): return Deep()
def wrong_shape(): return WrongShape()
def leaves(): return Leaves(0)
def leaves_with_none(): return Leaves(None)
def leaves_with_5(): return Leaves(5)
def leaves_with_words(): return Leaves("enough of it")
def empty(): return Empty()
def good(): return Net()

def factory_raises(): raise KeyError("weights")
def factory_leaves(): sys.exit(9)
def needs_arguments(path): return Net()
def no_module(): return 7
def a_class(): return Net

def changed(change): return Net(found=lambda one, images: [change(one) for _ in images])
def finds_nothing(): return Net(found=lambda one, images: None)
def finds_a_tensor(): return Net(found=lambda one, images: torch.zeros(3, 6))
def wrong_keys(): return changed(lambda one: {"box": one["boxes"]})
def three_columns(): return changed(lambda one: {**one, "boxes": one["boxes"][:, :3]})
def fewer_scores(): return changed(lambda one: {**one, "scores": one["scores"][:0]})
def lists(): return changed(lambda one: {key: value.tolist() for key, value in one.items()})
def too_few(): return Net(found=lambda one, images: [one] * (len(images) + 1))
'''


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    (folder / "mine.py").write_text(MODELS)
    (folder / "broken.py").write_text("def factory(:\n    pass\n")
    (folder / "stumbles.py").write_text("import os\n\nvalue = {}['missing']\n")
    (folder / "stops.py").write_text("raise SystemExit(4)\n")
    (folder / "ill.py").write_bytes(b"\x00\x00")
    (folder / "images").mkdir()
    for number in range(2):
        Image.new("RGB", (64 + number, 48), (90, 20, 200)).save(folder / "images" / f"{number}.png")
    return folder


def end(capsys: pytest.CaptureFixture[str], *args: object) -> tuple[object, str, str]:
    with pytest.raises(SystemExit) as ended:
        app([str(arg) for arg in args], prog_name="detscope")
    captured = capsys.readouterr()
    return ended.value.code, captured.out, captured.err


def check_words(err: str, file: str | None) -> None:
    lines = err.splitlines()
    errors = [line for line in lines if line.startswith("error: ")]
    assert len(errors) == 1, err
    assert "internal error" not in err
    assert "Traceback" not in err
    assert "\x1b" not in err
    assert any(line.startswith("hint: ") for line in lines), err
    if file is not None:
        assert re.search(rf"{file}:\d+", errors[0]), err


def train(capsys, place, factory, *more):
    args = ("train", f"{place}/{factory}", "--steps", "2", "--batch-size", "2", "-q", "--out", place / "runs")
    return end(capsys, *args, "--data", "synthetic", "--set", "data.images=4", *more)


@pytest.mark.parametrize(
    "name",
    [
        "a_tuple",
        "a_tensor",
        "nothing",
        "no_losses",
        "a_text",
        "a_number",
        "no_gradient",
        "a_vector",
        "named_by_number",
        "raises",
        "speechless",
        "base",
        "deep",
        "wrong_shape",
        "empty",
        "factory_raises",
        "needs_arguments",
        "no_module",
        "a_class",
        "not_finite",
    ],
)
def test_a_training_of_a_model_at_fault_ends_with_3_and_the_models_line(place, capsys, name):
    code, out, err = train(capsys, place, f"mine.py:{name}")
    assert (code, out) == (3, ""), err
    no_line = name in ("needs_arguments", "no_module", "a_class", "not_finite")
    check_words(err, None if no_line else r"mine\.py")


@pytest.mark.parametrize("file", ["broken", "stumbles", "ill"])
def test_a_file_that_cannot_be_imported_ends_with_3(place, capsys, file):
    code, _, err = train(capsys, place, f"{file}.py:factory")
    assert code == 3, err
    check_words(err, None if file == "ill" else rf"{file}\.py")


@pytest.mark.parametrize(
    ("spec", "code"),
    [
        ("mine.py:leaves", 0),
        ("mine.py:leaves_with_none", 0),
        ("mine.py:leaves_with_5", 5),
        ("mine.py:leaves_with_words", 1),
        ("mine.py:factory_leaves", 9),
        ("stops.py:factory", 4),
    ],
)
def test_a_model_that_ends_the_process_gives_its_code_and_is_named(place, capsys, spec, code):
    ended, out, err = train(capsys, place, spec, "--json")
    assert ended == code
    said = rf"{spec.partition(':')[0]}:\d+ ended the process"
    assert re.search(rf"error: .*{said}", err), err
    if code:
        assert out == ""
    else:  # whoever takes the code for a success reads what happened
        told = json.loads(out)
        assert told["status"] == "ended"
        assert re.search(said, told["reason"])


@pytest.mark.parametrize("verb", ["infer", "eval"])
@pytest.mark.parametrize(
    "name", ["raises", "speechless", "base", "deep", "wrong_shape", "factory_raises", "no_module"]
)
def test_other_verbs_name_the_models_line_too(place, capsys, verb, name):
    images = (
        [place / "images"] if verb == "infer" else ["--data", "synthetic", "--set", "evaluation.images=2"]
    )
    code, out, err = end(capsys, verb, f"{place}/mine.py:{name}", *images, "-q", "--out", place / "runs")
    assert (code, out) == (3, ""), err
    check_words(err, None if name == "no_module" else r"mine\.py")


FOUND = ["finds_nothing", "finds_a_tensor", "wrong_keys", "three_columns", "fewer_scores", "lists", "too_few"]


@pytest.mark.parametrize("name", FOUND)
def test_detections_that_are_none_end_an_evaluation_and_are_a_note_of_an_inference(place, capsys, name):
    more = ("--data", "synthetic", "--set", "evaluation.images=2", "-q", "--out", place / "runs")
    code, _, err = end(capsys, "eval", f"{place}/mine.py:{name}", *more)
    assert code == 3
    check_words(err, r"mine\.py")
    args = (f"{place}/mine.py:{name}", place / "images", "--out", place / "runs")
    code, out, err = end(capsys, "infer", *args, "--json")
    assert code == 0, err
    assert any("not a list of detections" in note for note in json.loads(out)["notes"])


def test_the_traceback_is_in_the_runs_log_and_shown_with_debug(place, capsys):
    _, _, err = train(capsys, place, "mine.py:raises")
    log = re.search(r"the traceback is in (\S+log\.txt)", err)
    assert log is not None
    assert "raise ValueError" in Path(log[1]).read_text()
    with pytest.raises(SystemExit):
        app(
            [
                "--debug",
                "train",
                f"{place}/mine.py:raises",
                "--steps",
                "1",
                "-q",
                "--out",
                str(place / "runs"),
            ]
        )
    assert "Traceback" in capsys.readouterr().err
