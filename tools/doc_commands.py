"""Runs the commands of README and docs as typed: `python -m tools.doc_commands [PAGE ...]`.

Commands are what stands in `sh` and `bash` blocks; a page's run in order in a fresh folder beside examples/,
and two pages at a time.
A block of another language whose first line is a comment with a file's name is that file, as a reader would
save it. Left out is only what says so itself in its comment: `needs a GPU`, `downloads ...`. A comment that
says `exit 7` allows that exit code.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Container, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHELLS = ("sh", "bash")
MARKS = re.compile(r"needs a GPU|downloads\b[^;:]*")
_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>\w*)\n(?P<body>.*?)^ *```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"(?:^|\s)# (.*)$")
_FILE = re.compile(r"^# ([\w./-]+\.\w+)\n")
LONGEST_S = 3600
AT_ONCE = 2  # pages


@dataclass(frozen=True)
class DocBlock:
    """A fenced block of a page."""

    language: str
    body: str
    line: int  # of its first line


@dataclass(frozen=True)
class DocCommand:
    """A command of a page, as typed."""

    page: str
    line: int
    text: str  # with its comment
    mark: str  # why it is left out; nothing: it is run

    @property
    def bare(self) -> str:
        """Without its comment, on one line."""
        joined = re.sub(r"\\\n\s*", "", self.text)
        return _COMMENT.sub("", joined).strip()

    @property
    def exit_codes(self) -> set[int]:
        """How it may end: well, or as its comment says."""
        said = _COMMENT.search(self.text)
        return {0} | {int(code) for code in re.findall(r"\bexit (\d+)", said.group(1) if said else "")}


@dataclass(frozen=True)
class DocFile:
    """A file that a page shows under its name."""

    name: str
    text: str


def list_pages() -> list[Path]:
    """Every page that tells people what to type."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "CONTRIBUTING.md"]
    return [*pages, ROOT / "examples" / "plugin" / "README.md"]


def read_blocks(page: Path) -> Iterator[DocBlock]:
    """Fenced blocks in their order, without the indentation of the list they stand in."""
    text = page.read_text(encoding="utf-8")
    for found in _FENCE.finditer(text):
        indent = len(found["indent"])
        body = "".join(line[indent:] if line.strip() else "\n" for line in found["body"].splitlines(True))
        yield DocBlock(found["language"], body, text.count("\n", 0, found.start("body")) + 1)


def read_page(page: Path) -> list[DocCommand | DocFile]:
    """What a reader of the page types and saves, in order."""
    name = str(page.relative_to(ROOT)) if page.is_relative_to(ROOT) else page.name
    found: list[DocCommand | DocFile] = []
    for block in read_blocks(page):
        if block.language in SHELLS:
            found += _read_commands(name, block)
        elif named := _FILE.match(block.body):
            found.append(DocFile(named[1], block.body))
    return found


def _read_commands(page: str, block: DocBlock) -> Iterator[DocCommand]:
    """A mark in a line of its own holds for the rest of the block."""
    lines, whole_block, number = block.body.splitlines(), "", block.line
    while lines:
        typed, at = [lines.pop(0)], number
        while typed[-1].endswith("\\") and lines:
            typed.append(lines.pop(0))
        number += len(typed)
        text = "\n".join(typed)
        comment = _COMMENT.search(text)
        mark = MARKS.search(comment.group(1)) if comment else None
        if text.startswith("#"):
            whole_block = mark.group() if mark else whole_block
        elif text.strip():
            yield DocCommand(page, at, text, mark.group().strip() if mark else whole_block)


def make_folder(folder: Path) -> None:
    """What somebody has who has just cloned the project, as far as commands name it."""
    shutil.copytree(ROOT / "examples", folder / "examples", ignore=shutil.ignore_patterns("__pycache__"))


def run_command(command: DocCommand, folder: Path) -> tuple[bool, float, str]:
    """Type it; gives whether it ended as said, after how many seconds, and what it printed."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
    environment = {**os.environ, "PATH": path, "BROWSER": "true"}  # `--open` shows nobody anything here
    began = time.monotonic()
    ended = subprocess.run(
        ["bash", "-c", command.text],
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        timeout=LONGEST_S,
    )
    return ended.returncode in command.exit_codes, time.monotonic() - began, ended.stdout


def type_page(page: Path, folder: Path, only: Container[str] | None = None) -> Iterator[str]:
    """Run a page's commands in order, or those of them that are named; gives those that failed."""
    make_folder(folder)
    for one in read_page(page):
        if isinstance(one, DocFile):
            (folder / one.name).parent.mkdir(parents=True, exist_ok=True)
            (folder / one.name).write_text(one.text, encoding="utf-8")
            continue
        where = f"{one.page}:{one.line}"
        if only is not None and one.bare not in only:
            continue
        if one.mark:
            print(f"left out      {where}  {one.bare}  ({one.mark})", flush=True)
            continue
        well, seconds, printed = run_command(one, folder)
        print(f"{'ok' if well else 'FAILED':<6} {seconds:5.0f} s {where}  {one.bare}", flush=True)
        if not well:
            print("    " + "\n    ".join(printed.splitlines()[-12:]), flush=True)
            yield f"{where}  {one.bare}"


def _type_in_fresh_folder(page: Path) -> list[str]:
    with tempfile.TemporaryDirectory(prefix="detscope-docs-") as folder:
        return list(type_page(page, Path(folder)))


def main(arguments: list[str]) -> int:
    """Run the pages that are named, or all of them."""
    pages = [Path(one).resolve() for one in arguments] or list_pages()
    with ThreadPoolExecutor(AT_ONCE) as typists:
        failed = [one for page in typists.map(_type_in_fresh_folder, pages) for one in page]
    said = ["these did not work as typed:", *failed] if failed else ["every command works as typed"]
    print("", *said, sep="\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
