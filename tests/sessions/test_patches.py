"""Unified diffs: what git and diff write is applied as they would, what does not fit is named."""

from __future__ import annotations

import difflib
import random
import shutil
import subprocess
from pathlib import Path

import pytest

from detscope.errors import InputError
from detscope.sessions.trying.patches import NO_FILE, apply_patch, read_patch

TEXT = "".join(f"line {number}\n" for number in range(1, 41))


def make_diff(old: str, new: str, name: str = "a.py", context: int = 3) -> str:
    lines = difflib.unified_diff(
        old.splitlines(keepends=True), new.splitlines(keepends=True), f"a/{name}", f"b/{name}", n=context
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines
    )


def patched(old: str, diff: str) -> str:
    (file,) = read_patch(diff, "change.diff")
    return apply_patch(old, file, "change.diff")


@pytest.mark.parametrize("context", [0, 1, 3])
@pytest.mark.parametrize("seed", range(20))
def test_any_change_of_lines_gives_the_new_text(seed: int, context: int) -> None:
    draw = random.Random(seed)
    old = [f"line {draw.randrange(12)}\n" for _ in range(draw.randrange(1, 40))]
    new = [line for line in old if draw.random() > 0.2]
    for _ in range(draw.randrange(5)):
        new.insert(draw.randrange(len(new) + 1), f"new {draw.randrange(9)}\n")
    before, after = "".join(old), "".join(new).removesuffix("\n" if seed % 3 == 0 else "")
    diff = make_diff(before, after, context=context)
    assert not diff or patched(before, diff) == after


def test_a_hunk_that_has_moved_is_found_and_the_nearest_place_is_taken() -> None:
    diff = make_diff(TEXT, TEXT.replace("line 20\n", "line twenty\n"))
    moved = "a new head\n" * 7 + TEXT
    assert patched(moved, diff) == moved.replace("line 20\n", "line twenty\n")


def test_line_ends_of_the_file_stay() -> None:
    diff = make_diff(TEXT, TEXT.replace("line 3\n", "three\n"))
    windows = TEXT.replace("\n", "\r\n")
    assert patched(windows, diff) == windows.replace("line 3\r\n", "three\r\n")


def test_a_hunk_that_does_not_apply_is_named_with_its_file_and_a_reason() -> None:
    diff = make_diff(TEXT, TEXT.replace("line 3\n", "three\n").replace("line 30\n", "thirty\n"))
    with pytest.raises(InputError, match=r"hunk 2 \(@@ -27,7 \+27,7 @@\) of a.py does not apply") as error:
        patched(TEXT.replace("line 30\n", "another\n"), diff)
    assert "no line 'line 30'" in error.value.hint
    with pytest.raises(InputError) as error:
        patched(TEXT.replace("line 3\n", "three\n"), diff)
    assert "already" in error.value.hint


def test_new_files_and_those_that_go_are_known() -> None:
    diff = "--- /dev/null\n+++ b/new.py\n@@ -0,0 +1,2 @@\n+one\n+two\n"
    diff += "--- a/old.py\n+++ /dev/null\n@@ -1 +0,0 @@\n-x\n"
    new, old = read_patch(diff, "change.diff")
    assert (new.name, new.old, old.name, old.new) == ("new.py", NO_FILE, "old.py", NO_FILE)
    assert apply_patch("", new, "change.diff") == "one\ntwo\n"
    assert apply_patch("x\n", old, "change.diff") == ""


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "no unified diff"),
        ("just words\n", "no unified diff"),
        ("diff --git a/x b/y\nrename from x\nrename to y\n", "rename from"),
        ("--- a/x\n+++ b/x\n@@ -1,3 +1,3 @@\n one\n", "cut short"),
        ("--- a/x\n+++ b/x\n@@ nonsense @@\n", "no head of a hunk"),
    ],
)
def test_what_is_no_diff_is_refused_in_a_line(text: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read_patch(text, "change.diff")


@pytest.mark.skipif(shutil.which("git") is None, reason="no git here")
def test_what_git_writes_is_applied_as_git_does(tmp_path: Path) -> None:
    old, new = (TEXT + "def f():\n\treturn 'ä'", TEXT.replace("line 9\n", "") + "def f():\n\treturn 'ö'\n")
    for name, text in (("old", old), ("new", new)):
        (tmp_path / name).write_text(text, encoding="utf-8")
    told = subprocess.run(
        ["git", "diff", "--no-index", "old", "new"], cwd=tmp_path, capture_output=True, check=False
    )
    assert patched(old, told.stdout.decode()) == new


@pytest.mark.parametrize(
    ("diff", "told"),
    [
        ("--- a/a.py\n+++ b/a.py\n@@ -1 +1 @@\n line 1\n", "changes nothing"),
        (f"--- a/a.py\n+++ b/a.py\n@@ -{'9' * 5000} +1 @@\n-line 1\n+x\n", "no head of a hunk"),
        (
            "diff --git a/l b/l\nnew file mode 120000\n--- /dev/null\n+++ b/l\n@@ -0,0 +1 @@\n+/etc/passwd\n",
            "'new file mode 120000' is not understood",
        ),
    ],
)
def test_a_diff_that_would_be_misread_is_refused(diff: str, told: str) -> None:
    with pytest.raises(InputError, match=told):
        read_patch(diff, "change.diff")


def test_a_line_end_that_comes_is_a_change() -> None:
    assert patched("a", make_diff("a", "a\n")) == "a\n"
