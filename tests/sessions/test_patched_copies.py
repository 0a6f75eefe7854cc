"""A patch goes into a copy: relative paths to data work there, and nothing of the user's is touched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from detscope.errors import InputError
from detscope.sessions.trying.copies import Patch, Workplace, find_tree, patched_copies

SCRIPT = "import helper\nprint(helper.NAME, open('data/numbers.txt').read())\n"
PATCH = "--- a/helper.py\n+++ b/helper.py\n@@ -1 +1 @@\n-NAME = 'old'\n+NAME = 'new'\n"
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="no git here")


def make_project(folder: Path) -> Path:
    (folder / "data").mkdir(parents=True)
    (folder / "data" / "numbers.txt").write_text("1 2 3")
    (folder / "train.py").write_text(SCRIPT)
    (folder / "helper.py").write_text("NAME = 'old'\n")
    return folder


def git(folder: Path, *words: str) -> str:
    named = ["-c", "user.name=someone", "-c", "user.email=someone@example.org"]
    done = subprocess.run(["git", *named, *words], cwd=folder, capture_output=True, check=True)
    return done.stdout.decode()


def run_script(place: Workplace, folder: Path, script: str = "train.py") -> str:
    environment = os.environ | {"PYTHONPATH": place.python_path(""), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(
        [sys.executable, script], cwd=place.place(folder), env=environment, capture_output=True, check=True
    )
    return done.stdout.decode().strip()


def list_files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and ".git" not in path.parts
    }


def test_a_folder_without_git_is_copied_and_its_data_linked(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    before = list_files(project)
    with patched_copies(Patch.of_text(PATCH, "p"), find_tree(project, project / "train.py"), ()) as places:
        assert [run_script(place, project) for place in places] == ["old 1 2 3", "new 1 2 3"]
        copy = places[1].copies[project]
        assert (copy / "data").is_symlink() and not (copy / "helper.py").is_symlink()
    assert not copy.exists() and list_files(project) == before


@needs_git
def test_a_repository_is_a_worktree_with_what_is_not_committed_yet(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    git(project, "init", "-q")
    git(project, "add", "train.py", "helper.py")  # the data is not git's
    git(project, "commit", "-q", "-m", "first")
    (project / "train.py").write_text(SCRIPT.replace("print(", "import untracked\nprint('changed', "))
    (project / "untracked.py").write_text("")
    before, state = list_files(project), git(project, "status", "--short")
    with patched_copies(Patch.of_text(PATCH, "p"), find_tree(project, project / "train.py"), ()) as places:
        assert [run_script(place, project) for place in places] == ["changed old 1 2 3", "changed new 1 2 3"]
        assert git(places[0].copies[project], "rev-parse", "HEAD") == git(project, "rev-parse", "HEAD")
    assert list_files(project) == before and git(project, "status", "--short") == state
    assert len(git(project, "worktree", "list").splitlines()) == 1


@needs_git
def test_without_the_program_git_a_repository_is_copied_as_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = make_project(tmp_path / "project")
    git(project, "init", "-q")
    monkeypatch.setenv("PATH", str(tmp_path))
    with patched_copies(Patch.of_text(PATCH, "p"), find_tree(project, project / "train.py"), ()) as places:
        assert run_script(places[1], project) == "new 1 2 3"


def test_a_patch_of_an_installed_package_is_found_first_on_both_sides(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "planted_package"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "inner" / "__init__.py").write_text("from pathlib import Path\nSIZE = 1\n")
    (package / "table.bin").write_bytes(b"\0\1")
    monkeypatch.syspath_prepend(str(package.parent))
    project = tmp_path / "project"
    project.mkdir()
    (project / "train.py").write_text("from planted_package.inner import SIZE\nprint(SIZE)\n")
    name = "planted_package/inner/__init__.py"
    diff = f"--- a/{name}\n+++ b/{name}\n@@ -2 +2 @@\n-SIZE = 1\n+SIZE = 2\n"
    for text in (diff, diff.replace("planted_package", "venv/lib/site-packages/planted_package")):
        with patched_copies(Patch.of_text(text, "p"), project, ()) as places:
            assert [run_script(place, project) for place in places] == ["1", "2"]
            (copy,) = places[1].copies.values()  # the script itself stays where it is
            assert (copy / "table.bin").is_symlink()
    assert (package / "inner" / "__init__.py").read_text().endswith("SIZE = 1\n")


def test_a_package_of_the_tree_that_is_installed_from_there_is_imported_from_the_copy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    (project / "src" / "planted_editable").mkdir(parents=True)
    (project / "src" / "planted_editable" / "__init__.py").write_text("SIZE = 1\n")
    (project / "train.py").write_text("from planted_editable import SIZE\nprint(SIZE)\n")
    monkeypatch.syspath_prepend(str(project / "src"))  # what `pip install -e` does by a file of paths
    name = "src/planted_editable/__init__.py"
    diff = f"--- a/{name}\n+++ b/{name}\n@@ -1 +1 @@\n-SIZE = 1\n+SIZE = 2\n"
    with patched_copies(Patch.of_text(diff, "p"), project, ()) as places:
        assert [run_script(place, project) for place in places] == ["1", "2"]


def test_a_file_that_was_linked_becomes_the_copy_s_own_before_it_is_patched(tmp_path: Path) -> None:
    project = make_project(tmp_path / "project")
    diff = "--- a/data/numbers.txt\n+++ b/data/numbers.txt\n@@ -1 +1 @@\n-1 2 3\n"
    diff += "\\ No newline at end of file\n+4\n"
    with patched_copies(Patch.of_text(diff, "p"), project, ()) as places:
        assert [run_script(place, project) for place in places] == ["old 1 2 3", "old 4"]
    assert (project / "data" / "numbers.txt").read_text() == "1 2 3"


@pytest.mark.parametrize("name", ["missing.py", "../outside.py", "/etc/hostname", "torch/../../x.py"])
def test_a_file_that_is_nowhere_is_named_and_nothing_outside_is_reached(tmp_path: Path, name: str) -> None:
    project = make_project(tmp_path / "project")
    (tmp_path / "outside.py").write_text("NAME = 'old'\n")
    diff = PATCH.replace("a/helper.py", name).replace("b/helper.py", name)
    with (
        pytest.raises(InputError, match="there is no"),
        patched_copies(Patch.of_text(diff, "p"), project, ()),
    ):
        pass


def test_a_tree_beyond_its_limit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = make_project(tmp_path / "project")
    monkeypatch.setenv("DETSCOPE_LIMIT_COPIED_TREE_FILES", "2")
    with pytest.raises(InputError, match="the limit"), patched_copies(Patch.of_text(PATCH, "p"), project, ()):
        pass
