"""Names behind `detscope run`: files, commands as a shell finds them, modules; and what is none of these."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import zipapp
from pathlib import Path

import pytest

from named_rows import by_name

WRAPPER = """#!{python}
# -*- coding: utf-8 -*-
import re
import sys
from some_tool.cli import main
if __name__ == "__main__":
    sys.argv[0] = re.sub(r"(-script\\.pyw|\\.exe)?$", "", sys.argv[0])
    sys.exit(main())
"""
LONG_PATH = """#!/bin/sh
'''exec' "{python}" "$0" "$@"
' '''
import sys
from some_tool.cli import main
sys.exit(main())
"""
TELLS = """
import sys
def main():
    import __main__
    print(sys.argv, sys.path[0], __main__.__name__, __main__.__file__, __main__.__spec__ is None)
    print(len(sys.argv), file=sys.stderr)
    return int(sys.argv[-1])
"""
PREDICTS = """
import sys
def main():
    import torch
    model = torch.nn.Linear(8, 1).eval()
    with torch.no_grad():
        for _ in range(6):
            model(torch.ones(2, 8))
    return 3
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    package = tmp_path / "packages" / "some_tool"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "cli.py").write_text(TELLS)
    (package / "predicting.py").write_text(PREDICTS)
    (package / "__main__.py").write_text("import sys\nfrom some_tool.cli import main\nsys.exit(main())\n")
    (tmp_path / "bin").mkdir()
    (tmp_path / "here").mkdir()
    return tmp_path


def install(place: Path, name: str, content: str = WRAPPER) -> Path:
    command = place / "bin" / name
    command.write_text(content.format(python=sys.executable))
    command.chmod(0o755)
    return command


def start(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PATH": f"{place / 'bin'}{os.pathsep}{os.environ['PATH']}"}
    found = [str(place / "packages"), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment["PYTHONPATH"] = os.pathsep.join(found)
    return subprocess.run(
        words, cwd=place / "here", env=environment, capture_output=True, text=True, timeout=900, check=False
    )


def run(place: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return start(place, sys.executable, "-m", "detscope", "run", "-q", *words)


@pytest.mark.parametrize("content", [WRAPPER, LONG_PATH])
def test_an_installed_command_runs_as_a_shell_runs_it(place: Path, content: str) -> None:
    install(place, "some-tool", content)
    plain = start(place, "some-tool", "train", "--epochs", "7")
    heard = run(place, "some-tool", "train", "--epochs", "7")
    assert plain.returncode == 7, plain.stderr
    assert (heard.stdout, heard.stderr, heard.returncode) == (plain.stdout, plain.stderr, plain.returncode)


def test_an_installed_command_is_recorded_and_its_run_names_what_was_typed(place: Path) -> None:
    install(place, "some-tool", WRAPPER.replace("some_tool.cli", "some_tool.predicting"))
    done = run(place, "--json", "figures.json", "some-tool", "predict")
    assert done.returncode == 3, done.stderr
    figures = json.loads((place / "here" / "figures.json").read_text())
    assert figures["script"]["name"] == "some-tool"
    assert by_name(figures["script"]["parts"], "steps")["evaluation"] == 6
    assert figures["rerun"] == "detscope run some-tool predict"


@pytest.mark.parametrize("name", ["app.pyz", "app", "./app", ".//app.py"])
def test_an_archive_a_folder_and_a_path_are_what_they_are_to_python(place: Path, name: str) -> None:
    tells = "import sys\nprint(sys.argv, __name__, __package__, __file__, __spec__ is None, sys.path[0])\n"
    (place / "here" / "app").mkdir()
    (place / "here" / "app" / "__main__.py").write_text(tells)
    (place / "here" / "app.py").write_text(tells)
    zipapp.create_archive(place / "here" / "app", place / "here" / "app.pyz")
    plain, heard = start(place, sys.executable, name, "5"), run(place, name, "5")
    assert (heard.stdout, heard.returncode) == (plain.stdout, 0), heard.stderr


def test_a_file_goes_before_a_command_and_a_command_before_a_module(place: Path) -> None:
    as_module = run(place, "some_tool", "5")
    plain = start(place, sys.executable, "-m", "some_tool", "5")
    assert (as_module.stdout, as_module.returncode) == (plain.stdout, 5)
    install(place, "some_tool", "#!/usr/bin/env python3\nprint('the command')\n")
    assert run(place, "some_tool", "5").stdout == "the command\n"
    (place / "here" / "some_tool").mkdir()
    assert run(place, "some_tool", "5").stdout == "the command\n", "a folder is no file"
    (place / "here" / "some_tool").rmdir()
    (place / "here" / "some_tool").write_text("print('the file')\n")
    assert run(place, "some_tool", "5").stdout == "the file\n"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("#!/bin/bash\necho hello\n", "is a program of bash, not of Python"),
        ("\x7fELF\x00\x00", "is no Python program"),
        (
            "#!/somewhere/else/bin/python3\nprint(1)\n",
            "belongs to another Python (/somewhere/else/bin/python3)",
        ),
    ],
)
def test_a_command_that_this_python_cannot_run_is_refused_in_one_line(
    place: Path, content: str, said: str
) -> None:
    install(place, "other-tool", content)
    done = run(place, "other-tool", "train")
    assert (done.returncode, done.stdout) == (3, "")
    error, hint = done.stderr.splitlines()
    assert error.startswith("error: ") and said in error
    assert hint.startswith("hint: ")


def test_a_shell_script_that_is_given_by_its_path_is_refused_too(place: Path) -> None:
    (place / "here" / "train.sh").write_text("#!/bin/sh\npython train.py\n")
    done = run(place, "train.sh")
    assert done.returncode == 3
    assert "train.sh is a program of sh, not of Python" in done.stderr


def test_python_itself_is_to_be_left_out(place: Path) -> None:
    done = run(place, "python3", "train.py")
    assert done.returncode == 3
    assert "leave python3 out" in done.stderr


def test_what_is_nowhere_is_said_with_the_places_that_were_looked_at(place: Path) -> None:
    done = run(place, "no-such-tool", "train")
    assert done.returncode == 3
    error, hint = done.stderr.splitlines()
    assert error == "error: no script no-such-tool"
    for looked in (str(place / "here" / "no-such-tool"), str(Path(sys.executable).parent), "PATH", "module"):
        assert looked in hint
    by_path = run(place, "tools/no_such.py")
    assert str(place / "here" / "tools" / "no_such.py") in by_path.stderr
    assert "PATH" not in by_path.stderr
