"""Parts are found in folders, in installed packages and at run time; a broken package is told, not raised."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from detscope import parts

_DECLARING = """
from tests_parts_types import Thing
PART = Thing({name!r}, {order})
"""


@dataclass(frozen=True)
class Thing:
    """A kind of part of this test."""

    name: str
    order: int | None = None


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package of parts and a place for installed ones, both importable."""
    types = type(sys)("tests_parts_types")
    types.Thing = Thing  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tests_parts_types", types)
    name = f"some_parts_{tmp_path.name}"
    package = tmp_path / name
    package.mkdir()
    (package / "__init__.py").write_text("")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setitem(parts.FOLDERS, "families", name)
    monkeypatch.setattr(parts, "_added", {})
    for cached in (parts._load_own, parts._load_outside):
        cached.cache_clear()
    yield package
    for cached in (parts._load_own, parts._load_outside):
        cached.cache_clear()


def _install(folder: Path, package: str, target: str, code: str) -> None:
    root = folder.parent
    (root / f"{package}.py").write_text(code)
    meta = root / f"{package}-1.0.dist-info"
    meta.mkdir()
    (meta / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (meta / "entry_points.txt").write_text(f"[detscope.families]\n{package} = {target}\n")


def test_files_of_the_folder_are_parts_in_their_order(folder: Path) -> None:
    (folder / "a.py").write_text(_DECLARING.format(name="late", order=20))
    (folder / "b.py").write_text(_DECLARING.format(name="early", order=10))
    (folder / "c.py").write_text(_DECLARING.format(name="last", order=None))
    (folder / "_helper.py").write_text("raise RuntimeError('a helper is no part')")
    (folder / "group").mkdir()
    (folder / "group" / "__init__.py").write_text("")
    (folder / "group" / "d.py").write_text(
        "from tests_parts_types import Thing\nPARTS = (Thing('five', 5), Thing('fifteen', 15))"
    )
    assert [part.name for part in parts.parts_of("families", Thing)] == [
        "five",
        "early",
        "fifteen",
        "late",
        "last",
    ]


def test_a_name_twice_in_the_folder_is_a_bug(folder: Path) -> None:
    for file in ("a", "b"):
        (folder / f"{file}.py").write_text(_DECLARING.format(name="same", order=1))
    with pytest.raises(ValueError, match="registered twice"):
        parts.parts_of("families", Thing)


def test_installed_packages_add_parts(folder: Path) -> None:
    (folder / "a.py").write_text(_DECLARING.format(name="ours", order=1))
    module, named = f"out_module_{folder.name}", f"out_object_{folder.name}"
    _install(folder, module, module, _DECLARING.format(name="m", order=2))
    _install(folder, named, f"{named}:PART", _DECLARING.format(name="o", order=3))
    assert [part.name for part in parts.parts_of("families", Thing)] == ["ours", "m", "o"]
    assert parts.find_part("families", Thing, "o") == Thing("o", 3)
    assert parts.find_part("families", Thing, "no such") is None


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import no_such_library", "No module named 'no_such_library'"),
        ("import sys; sys.exit(3)", "SystemExit"),
        ("PART = 'a text'", "got str"),
        ("NOTHING = 1", "PART"),
        (_DECLARING.format(name="ours", order=2), "the name 'ours' is taken"),
    ],
)
def test_a_broken_package_is_told_in_one_line_and_left_out(
    folder: Path, capsys: pytest.CaptureFixture[str], code: str, reason: str
) -> None:
    (folder / "a.py").write_text(_DECLARING.format(name="ours", order=1))
    package = f"broken_{folder.name}"
    _install(folder, package, package, code)
    assert [part.name for part in parts.parts_of("families", Thing)] == ["ours"]
    parts.parts_of("families", Thing)
    told = capsys.readouterr().err.splitlines()
    assert len(told) == 1
    assert told[0].startswith(f"detscope: the package {package} is left out") or package in told[0]
    assert reason in told[0]


def test_parts_added_at_run_time(folder: Path) -> None:
    (folder / "a.py").write_text(_DECLARING.format(name="ours", order=1))
    parts.add_part("families", Thing("mine", 5))
    parts.add_part("families", Thing("mine", 6))
    assert parts.parts_of("families", Thing) == (Thing("ours", 1), Thing("mine", 6))
    with pytest.raises(ValueError, match="registered twice"):
        parts.add_part("families", Thing("ours"))
