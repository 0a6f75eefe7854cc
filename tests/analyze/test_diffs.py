"""A change is written as a diff where the statement is exactly what the rule expects, and nowhere else."""

from __future__ import annotations

from pathlib import Path
from textwrap import indent
from typing import Any

import pytest

from counted_runs import place, write_counted
from detscope.analyze.findings.diffs import Code, Statement, make_diff, read_statement
from detscope.analyze.findings.finding import Finding
from detscope.analyze.summary import summarize
from detscope.record.census import statements
from detscope.sessions.trying.patches import apply_patch, read_patch

HEAD = "import torch\n\n\ndef check_boxes(boxes, losses, mask):\n    size = len(boxes)\n"
TAIL = "    return size\n"


@pytest.fixture(autouse=True)
def in_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def find_at(text: str, folder: Path, head: str = HEAD, **about: Any) -> tuple[str, Finding]:
    """The file, and what is found at a statement of it that waits."""
    source = head + indent(text, "    ") + TAIL
    (folder / "loss.py").write_text(source)
    line = source.index(text.splitlines()[0].strip())
    line = source[:line].count("\n") + 1
    kept = {f"loss.py:{line}": statements.read_statement(str(folder / "loss.py"), line)}
    census = {"steps": [3, 4, 5], "facts": {}, "files": {}, "statements": kept}
    row = place(line=line, code=text.splitlines()[0].strip(), **about)
    (found,) = [one for one in summarize(write_counted(folder, [row], census=census)).findings if one.where]
    return source, found


CHECK, READ = {"around": "check"}, {"around": ""}
FEED = {"around": "comprehension", "kind": "feed", "count": 4}
WRITTEN = {
    "an assertion": (CHECK, "assert (boxes >= 0).all()\n", "torch._assert_async((boxes >= 0).all())\n"),
    "one with words": (
        CHECK,
        'assert torch.all(boxes >= 0), "a box"  # of the loader\n',
        'torch._assert_async(torch.all(boxes >= 0), "a box")  # of the loader\n',
    ),
    "an if that raises": (
        CHECK,
        'if (boxes > 1).any():\n    raise ValueError("größer")\n',
        'torch._assert_async((boxes > 1).any().logical_not(), "größer")\n',
    ),
    "one that would print a tensor": (
        CHECK,
        'if not (boxes[:, 2:] >= boxes[:, :2]).all():\n    raise ValueError(f"got {boxes}")\n',
        "torch._assert_async((boxes[:, 2:] >= boxes[:, :2]).all())\n",
    ),
    "numbers for a log": (
        {**READ, "count": 4},
        "size = {name: one.item() for name, one in losses.items()}\n",
        "size = dict(zip(losses, torch.stack([one.detach().reshape(()) for one in losses.values()]).tolist(),"
        " strict=True))\n",
    ),
    "targets one by one": (
        FEED,
        "boxes = {name: one.to(mask.device) for name, one in losses.items()}\n",
        "boxes = {name: one.to(mask.device, non_blocking=True) for name, one in losses.items()}\n",
    ),
    "a maximum of Python's": (READ, "size = max(mask.sum(), 1)\n", "size = mask.sum().clamp(min=1)\n"),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_statement_that_is_as_expected_is_rewritten_and_nothing_else(name: str, tmp_path: Path) -> None:
    about, old, new = WRITTEN[name]
    source, found = find_at(old, tmp_path, **about)
    assert found.diff is not None
    (file,) = read_patch(found.diff, "its own")
    assert file.name == "loss.py"
    assert apply_patch(source, file, "its own") == source.replace(indent(old, "    "), indent(new, "    "))
    assert found.verify.endswith(f"--finding {found.id}")


OTHERWISE = {
    "a comparison of numbers": (CHECK, "assert boxes.min() >= 0\n"),
    "all of Python's": (CHECK, "assert all(one.any() for one in boxes)\n"),
    "all of numpy's": (CHECK, "assert np.all(boxes)\n"),
    "two conditions": (CHECK, "assert (boxes >= 0).all() and size\n"),
    "a check with another end": (CHECK, "if boxes.any():\n    raise ValueError\nelse:\n    size = 1\n"),
    "a check that does more": (CHECK, "if boxes.any():\n    size = 1\n    raise ValueError(size)\n"),
    "two statements": (CHECK, "assert boxes.all(); size = 1\n"),
    "some of the numbers": (
        {**READ, "count": 4},
        "size = {name: one.item() for name, one in losses.items() if name}\n",
    ),
    "numbers of another thing": (
        {**READ, "count": 4},
        "size = {name: losses[name].item() for name, one in losses.items()}\n",
    ),
    "targets that become others": (FEED, "boxes = [one.to(mask.device, torch.half) for one in boxes]\n"),
    "constants": (FEED, "size = torch.zeros(4).to(mask.device)\n"),
    "a maximum of numbers": (READ, "size = max(mask.sum().item(), 1)\n"),
    "a maximum of tensors": (READ, "size = max(mask.sum(), boxes.sum())\n"),
}


@pytest.mark.parametrize("name", OTHERWISE)
def test_what_is_not_exactly_that_has_a_change_in_words_alone(name: str, tmp_path: Path) -> None:
    about, text = OTHERWISE[name]
    _, found = find_at(text, tmp_path, **about)
    assert found.diff is None and found.change
    assert found.verify.endswith("--patch CHANGE.diff")


def test_a_file_without_torch_is_not_made_to_call_it(tmp_path: Path) -> None:
    _, found = find_at("assert boxes.all()\n", tmp_path, HEAD.replace("import torch", "import math"), **CHECK)
    assert found.diff is None


def double(code: Code) -> list[str]:
    return code.add_line("pass")


def test_statements_beside_each_other_are_one_diff_that_applies(tmp_path: Path) -> None:
    source = "".join(f"line_{number} = {number}\n" for number in range(20))
    (tmp_path / "code.py").write_text(source)
    lines = (2, 3, 6, 20)
    told = [statements.read_statement(str(tmp_path / "code.py"), line) for line in lines]
    diff = make_diff(map(read_statement, told), double)
    assert diff is not None
    (file,) = read_patch(diff, "d")
    expected = [line + "pass\n" * (number in lines) for number, line in enumerate(source.splitlines(True), 1)]
    assert apply_patch(source, file, "d") == "".join(expected)
    assert len(file.hunks) == 2  # lines that are near are one, with lines around: git asks for that


def test_a_statement_inside_of_another_is_left_to_a_person(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("if all:\n    one = 1\n    two = 2\n")
    told = [read_statement(statements.read_statement(str(tmp_path / "code.py"), line)) for line in (1, 2)]
    assert None not in told and make_diff(told[:1], double) is not None
    assert make_diff(told, double) is None


def test_of_what_a_run_says_nothing_is_believed_that_does_not_fit() -> None:
    good = {"path": "a.py", "begin": 1, "lines": ["x = 1"], "first": 1, "last": 1, "has_torch": True}
    assert read_statement(good) == Statement("a.py", 1, ("x = 1",), 1, 1, True)
    for wrong in (None, {}, {**good, "first": 2}, {**good, "last": 9}, {**good, "lines": "x"}, [good]):
        assert read_statement(wrong) is None
    assert make_diff([], double) is None and make_diff([None], double) is None
