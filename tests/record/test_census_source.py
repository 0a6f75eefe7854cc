"""What stands around a line of code, as the census tells it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from types import ModuleType

import pytest

from detscope.record.census.patterns.float_transforms import tell_facts
from detscope.record.census.source import read_line
from detscope.record.census.written_calls import find_calls

CODE = """
def check(sizes, length, strict):
    expected = int(sizes.sum())
    assert expected == length, f"{expected} of {length}"
    largest = float(
        sizes.max()
    )
    if largest > length:
        raise ValueError(largest)
    finite = bool(sizes.isfinite().all())
    if not finite:
        raise ValueError
    widest = int(sizes.argmax())
    if widest is not None and strict:
        assert widest < length
    mean = float(sizes.mean())
    if mean > 1 and strict:
        raise ValueError
    least = int(sizes.min())
    if least < 0:
        sizes = sizes.clamp(min=0)
        raise ValueError
    for size in sizes:
        total = size.item()
    return sizes * mean
"""


def test_a_value_that_checks_alone_look_at_is_part_of_the_check(tmp_path):
    file = tmp_path / "code.py"
    file.write_text(CODE)
    lines = CODE.splitlines()
    around = {text.strip(): read_line(str(file), number).around for number, text in enumerate(lines, 1)}
    assert around["expected = int(sizes.sum())"] == "check"
    assert around["sizes.max()"] == around["largest = float("] == "check"
    assert around["finite = bool(sizes.isfinite().all())"] == "check"
    assert around["widest = int(sizes.argmax())"] == "check"
    assert around["mean = float(sizes.mean())"] == "", "it is returned as well"
    assert around["least = int(sizes.min())"] == "", "something else depends on it"
    assert around["total = size.item()"] == "loop"


def test_a_loaded_file_is_read_for_its_calls_once_and_again_when_it_was_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "makes_one.py"
    module = ModuleType("makes_one")
    module.__file__ = str(file)
    monkeypatch.setitem(sys.modules, "makes_one", module)
    plain, read = ast.parse, []
    monkeypatch.setattr(ast, "parse", lambda source, *rest: read.append(source) or plain(source, *rest))

    def find_made() -> list[tuple[str, int]]:
        return [(call["with"], call["line"]) for call in find_calls(["MakeOnce"], own_only=True)]

    file.write_text("MakeOnce(1)\n")
    assert find_made() == find_made() == [("1", 1)]
    assert read.count("MakeOnce(1)\n") == 2  # for its calls, and for the statement around one
    file.write_text("\nMakeOnce(22)\n")
    assert find_made() == [("22", 2)]


def test_a_module_of_the_script_s_is_found_however_many_were_loaded_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6001):
        monkeypatch.setitem(sys.modules, f"many.m{number}", ModuleType("m"))
    module = ModuleType("comes_late")
    module.__file__ = str(tmp_path / "comes_late.py")
    (tmp_path / "comes_late.py").write_text("MakeLate(3)\n")
    monkeypatch.setitem(sys.modules, "comes_late", module)
    assert [call["with"] for call in find_calls(["MakeLate"], own_only=True)] == ["3"]


FLOATS_MOVED = [
    "image = image.float() / 255; return flip(image)",
    "image = torch.from_numpy(image) / 255; image = pad(image, 3); return image",
    "return F.resize(F.to_tensor(image), 8)",
    "image = np.asarray(image, dtype=np.float32); return cv2.resize(image, (8, 8))",
    "image = image.astype('float32'); bright = image * 2; return cv2.warpAffine(bright, m, (8, 8))",
]
BYTES_MOVED = [
    "image = flip(image); return image.float() / 255",
    "image = F.resize(image, 8); return F.to_tensor(image)",
    "image = image.float(); image = image.to(torch.uint8); return flip(image)",
    "boxes = boxes.float(); return flip(image)",
    "mean = float(image.mean()); return pad(image, mean)",
    "image = image.float(); return self.crop(boxes, image)",
]


@pytest.mark.parametrize("body", FLOATS_MOVED + BYTES_MOVED)
def test_a_function_that_resizes_what_it_made_floats_is_told_by_its_line(
    body: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = body.split("; ")
    text = "class Photos:\n    def read(self, image, boxes):\n        " + "\n        ".join(lines) + "\n"
    (tmp_path / "photos.py").write_text(text)
    module = ModuleType("photos")
    module.__file__ = str(tmp_path / "photos.py")
    monkeypatch.setitem(sys.modules, "photos", module)
    told = [one for one in tell_facts()["functions"] if one["file"] == "photos.py"]
    expected = [("Photos.read", 3, lines[0])] if body in FLOATS_MOVED else []
    assert [(one["function"], one["line"], one["code"]) for one in told] == expected
