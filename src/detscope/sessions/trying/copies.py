"""Two copies of what a run's command is made of, of which one is patched; the user's files stay as they are.

Of a git repository a detached worktree, else the folder; Python files are copied and all else is linked, so
that paths to data go on working. An installed package that is patched is copied in the same way.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path, PurePosixPath

from detscope.errors import InputError
from detscope.limits import over_limit, read_limit, read_within_limit, require_within
from detscope.sessions.trying.patches import NO_FILE, FilePatch, apply_patch, read_patch

SIDES = ("base", "with")  # of the same length, so that paths are
_INSTALLED = ("site-packages", "dist-packages")
_SOURCES = ("src", "lib", "python")  # folders of repositories that are not installed with their packages
_LEFT_OUT = ("__pycache__", ".git")


@dataclass(frozen=True)
class Patch:
    """A diff as it was given, and the files that it is about."""

    text: str
    name: str
    files: tuple[FilePatch, ...]

    @classmethod
    def of_file(cls, path: Path) -> Patch:
        """Read a diff; `InputError` where it is none."""
        text = read_within_limit("patch_bytes", path).decode("utf-8", "replace")
        return cls.of_text(text, path.name)

    @classmethod
    def of_text(cls, text: str, name: str) -> Patch:
        """A diff that somebody holds."""
        return cls(text, name, tuple(read_patch(text, name)))


@dataclass(frozen=True)
class Workplace:
    """Where one side runs: copies in the place of what is patched, the rest as it is."""

    copies: Mapping[Path, Path] = field(default_factory=dict)  # of the tree and of installed packages
    ahead: tuple[Path, ...] = ()  # folders that come first on PYTHONPATH

    def place(self, path: Path) -> Path:
        """The copy's counterpart of a path; what lies elsewhere stays where it is."""
        for source, copy in self.copies.items():
            for begin in (source, source.resolve()):
                if path.is_relative_to(begin):
                    return copy / path.relative_to(begin)
        return path

    def python_path(self, given: str) -> str:
        """PYTHONPATH: copies of packages first, then what was there."""
        words = [*self.ahead, *(self.place(Path(word)) for word in given.split(os.pathsep) if word)]
        return os.pathsep.join(map(str, dict.fromkeys(words)))


@dataclass(frozen=True)
class _Target:
    """A file that a patch is about."""

    file: FilePatch
    source: Path  # what is copied: the tree, or the folder of an installed package
    path: PurePosixPath  # of the file in it


@contextmanager
def patched_copies(
    patch: Patch, tree: Path, folders: Sequence[Path]
) -> Iterator[tuple[Workplace, Workplace]]:
    """Places of both sides: equal copies, the second one patched. Its paths begin at tree or `folders`."""
    targets = [_find_target(patch, file, tree, folders) for file in patch.files]
    root = Path(tempfile.mkdtemp(prefix="detscope-try-"))
    worktrees: list[tuple[Path, Path]] = []
    places = []
    try:
        for side in SIDES:
            copies: dict[Path, Path] = {}
            for source in dict.fromkeys(target.source for target in targets):
                copy = copies[source] = root / side / str(len(copies)) / source.name
                copy.parent.mkdir(parents=True)
                if _add_worktree(source, copy):
                    worktrees.append((source, copy))
                _fill_copy(source, copy)
            imported = [copies[one.source].parent for one in targets if one.source != tree]
            bare = Workplace(copies)
            imported += [bare.place(top.parent) for one in targets if (top := _find_own_package(one, tree))]
            places.append(Workplace(copies, tuple(imported)))
        for target in targets:
            _patch_file(places[1].copies[target.source], target.path, target.file, patch.name)
        yield places[0], places[1]
    finally:
        for source, copy in worktrees:
            _git(source, "worktree", "remove", "--force", str(copy))
        shutil.rmtree(root, ignore_errors=True)  # which does not follow links


def find_tree(folder: Path, script: Path | None) -> Path:
    """What a patch of a command is for: its repository, the folder it was typed in, or the script's own."""
    begin = script.parent if script is not None else folder
    root = next((one for one in (begin, *begin.parents) if (one / ".git").exists()), None)
    if root is not None:
        return root
    return folder if script is None or script.is_relative_to(folder) else script.parent


def _find_target(patch: Patch, file: FilePatch, tree: Path, folders: Sequence[Path]) -> _Target:
    """A file's place in the tree or in an installed package; of neither, one line that says so."""
    parts = PurePosixPath(file.name).parts
    for word in _INSTALLED:  # also of an environment inside of the tree, which is not copied
        if word in parts:
            return _find_in_package(parts[len(parts) - parts[::-1].index(word) :], file, patch, tree)
    for begin in dict.fromkeys((tree, *folders)):
        wanted = Path(os.path.normpath(begin / file.name))
        if wanted.is_relative_to(tree) and _is_there(wanted, file):
            return _Target(file, tree, PurePosixPath(wanted.relative_to(tree).as_posix()))
    return _find_in_package(parts[1:] if parts[0] in _SOURCES else parts, file, patch, tree)


def _is_there(path: Path, file: FilePatch) -> bool:
    return path.is_file() or (file.old == NO_FILE and path.parent.is_dir())


def _find_in_package(parts: Sequence[str], file: FilePatch, patch: Patch, tree: Path) -> _Target:
    spec = None
    if len(parts) > 1 and ".." not in parts and parts[0].isidentifier():
        spec = PathFinder.find_spec(parts[0])  # imports nothing
    for place in (spec.submodule_search_locations or ()) if spec else ():
        if _is_there(Path(place).joinpath(*parts[1:]), file):
            return _Target(file, Path(place), PurePosixPath(*parts[1:]))
    raise InputError(
        f"{patch.name}: there is no {file.name} in {tree} or in an installed package",
        "paths begin at the repository, the script's folder, or a package: a/models/head.py",
    )


def _find_own_package(target: _Target, tree: Path) -> Path | None:
    """The package of the tree that the file is part of, if it is imported from there: by `pip install -e`."""
    top = None
    folder = (target.source / target.path).parent
    while target.source == tree and (folder / "__init__.py").is_file():
        top, folder = folder, folder.parent
    if top is None or not top.name.isidentifier():
        return None
    spec = find_spec(top.name)  # of a package without dots: imports nothing
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    return top if any(place.resolve() == top.resolve() for place in places) else None


def _git(tree: Path, *words: str) -> subprocess.CompletedProcess[bytes] | None:
    """What git says; None where there is no git or it fails. Hooks of the user are not called."""
    try:
        done = subprocess.run(
            ["git", "-C", str(tree), "-c", "core.hooksPath=/dev/null", *words],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            env={name: text for name, text in os.environ.items() if not name.startswith("GIT_")},  # a hook's
            check=False,
        )
    except OSError:
        return None
    return done if done.returncode == 0 else None


def _add_worktree(tree: Path, copy: Path) -> bool:
    """A worktree of the last commit with the changes of tracked files since; False where git cannot."""
    listed = _git(tree, "ls-tree", "-r", "-l", "-z", "HEAD") if (tree / ".git").exists() else None
    if listed is None:
        return False
    sizes = [row.split(b"\t")[0].split()[-1] for row in listed.stdout.split(b"\0") if row]
    require_within("copied_tree_bytes", sum(int(size) for size in sizes if size.isdigit()), str(tree))
    if _git(tree, "worktree", "add", "--detach", str(copy), "HEAD") is None:
        return False
    changed = _git(tree, "diff", "--name-only", "--no-renames", "-z", "HEAD")
    for name in changed.stdout.split(b"\0") if changed else ():
        if not name:
            continue
        source, target = tree / os.fsdecode(name), copy / os.fsdecode(name)
        if target.is_dir() and not target.is_symlink():
            continue  # a submodule: filled as what git does not hold
        target.unlink(missing_ok=True)
        if os.path.lexists(source):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source, target, follow_symlinks=False)
    return True


def _fill_copy(source: Path, copy: Path) -> None:
    """What the copy lacks: Python files are copied, folders that hold none and other files are linked."""
    coded = _find_code(source)
    left = read_limit("copied_tree_bytes")
    waiting = [(source, copy)]
    while waiting:
        folder, target = waiting.pop()
        target.mkdir(parents=True, exist_ok=True)
        for entry in os.scandir(folder):
            place = target / entry.name
            if entry.name in _LEFT_OUT or Path(entry.path) == copy:
                continue
            if entry.is_dir(follow_symlinks=False) and (entry.path in coded or place.is_dir()):
                waiting.append((Path(entry.path), place))
            elif os.path.lexists(place):
                continue
            elif entry.name.endswith(".py") and entry.is_file():
                left -= entry.stat().st_size
                if left < 0:
                    raise over_limit("copied_tree_bytes", str(source))
                shutil.copy2(entry.path, place)
            else:
                place.symlink_to(Path(entry.path).absolute())


def _find_code(source: Path) -> set[str]:
    """Folders with Python files somewhere below; environments are no code of the user."""
    found: set[str] = set()
    seen, most = 0, read_limit("copied_tree_files")
    for folder, folders, files in os.walk(source):
        seen += len(folders) + len(files)
        if seen > most:
            raise over_limit("copied_tree_files", str(source))
        if "pyvenv.cfg" in files:
            folders.clear()
            continue
        folders[:] = [name for name in folders if name not in _LEFT_OUT]
        if any(name.endswith(".py") for name in files):
            for one in (Path(folder), *Path(folder).parents):
                if str(one) in found:
                    break
                found.add(str(one))
                if one == source:
                    break
    return found


def _patch_file(copy: Path, path: PurePosixPath, file: FilePatch, name: str) -> None:
    """Patch a file of a copy; what is linked on the way to it becomes the copy's own first."""
    folder = copy
    for part in path.parts[:-1]:
        folder = folder / part
        if folder.is_symlink():
            linked = folder.resolve()
            folder.unlink()
            folder.mkdir()
            for entry in linked.iterdir():
                (folder / entry.name).symlink_to(entry)
        folder.mkdir(exist_ok=True)
    target = copy / path
    old = "" if file.old == NO_FILE else _read_text(target, file, name)
    with suppress(FileNotFoundError):
        target.unlink()
    changed = apply_patch(old, file, name)
    if file.new != NO_FILE:
        target.write_bytes(changed.encode("utf-8"))


def _read_text(path: Path, file: FilePatch, name: str) -> str:
    try:
        return path.read_bytes().decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(
            f"{name}: {file.name} is no text that can be patched", type(error).__name__
        ) from error
