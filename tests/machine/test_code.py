"""Which code a run was made of, read without starting git."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from detscope.machine import code
from detscope.machine.code import describe_code


def git(folder: Path, *words: str) -> str:
    who = ["-c", "user.name=a", "-c", "user.email=a@b"]
    done = subprocess.run(["git", *who, *words], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    folder = tmp_path / "code"
    (folder / "inside").mkdir(parents=True)
    git(folder, "init", "-q", "-b", "main")
    (folder / "train.py").write_text("print(1)\n")
    (folder / "inside" / "a_longer_name.py").write_text("print(2)\n")
    git(folder, "add", "-A")
    git(folder, "commit", "-qm", "first")
    return folder


def test_the_commit_is_gits_also_packed_detached_in_a_folder_below_and_in_a_worktree(
    repository: Path,
) -> None:
    head = git(repository, "rev-parse", "HEAD")
    first = describe_code(repository)
    assert first["commit"] == head
    assert describe_code(repository / "inside") == first
    git(repository, "worktree", "add", "-q", "-b", "other", "../beside")
    assert describe_code(repository.parent / "beside")["commit"] == head
    git(repository, "pack-refs", "--all")
    assert describe_code(repository) == first
    git(repository, "checkout", "-q", "--detach")
    assert describe_code(repository)["commit"] == head


def test_the_mark_of_files_follows_their_contents_and_nothing_else(repository: Path) -> None:
    file = repository / "train.py"
    first = describe_code(repository)["files"]
    assert first
    file.write_text("print(3)\n")
    assert describe_code(repository)["files"] != first
    file.write_text("print(1)\n")  # touched, and as before
    assert describe_code(repository)["files"] == first
    (repository / "untracked.txt").write_text("x")
    assert describe_code(repository)["files"] == first
    file.unlink()
    assert describe_code(repository)["files"] != first


def test_without_a_repository_nothing_is_known_and_with_a_damaged_index_the_commit_is(
    tmp_path: Path, repository: Path
) -> None:
    assert describe_code(tmp_path) == {"commit": None, "files": None}
    (repository / ".git" / "index").write_bytes(b"DIRC\0\0\0\2\0\0\0\7")
    assert describe_code(repository) == {"commit": git(repository, "rev-parse", "HEAD"), "files": None}
    (repository / ".git" / "HEAD").unlink()
    assert describe_code(repository) == {"commit": None, "files": None}


def test_a_pipe_in_the_place_of_a_file_is_not_waited_for(repository: Path) -> None:
    first = describe_code(repository)["files"]
    (repository / "train.py").unlink()
    os.mkfifo(repository / "train.py")
    assert describe_code(repository)["files"] not in (None, first)


def test_a_link_is_told_by_where_it_leads(repository: Path) -> None:
    link = repository / "link.py"
    link.symlink_to("train.py")
    git(repository, "add", "-A")
    first = describe_code(repository)["files"]
    os.utime(link, (1, 1), follow_symlinks=False)
    assert describe_code(repository)["files"] == first
    link.unlink()
    link.symlink_to("/dev/zero")
    assert describe_code(repository)["files"] not in (None, first)


@pytest.mark.parametrize(("limit", "most"), [("_MOST_FILES", 1), ("_MOST_READ_BYTES", 10)])
def test_a_tree_that_would_keep_a_script_waiting_has_its_commit_alone(
    limit: str, most: int, repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(code, limit, most)
    for file in repository.rglob("*.py"):
        os.utime(file, (1, 1))  # as in a copied tree: git would have to read every file
    assert describe_code(repository) == {"commit": git(repository, "rev-parse", "HEAD"), "files": None}


def test_an_index_of_another_format_leaves_the_commit(repository: Path) -> None:
    git(repository, "update-index", "--index-version", "4")
    assert describe_code(repository) == {"commit": git(repository, "rev-parse", "HEAD"), "files": None}
