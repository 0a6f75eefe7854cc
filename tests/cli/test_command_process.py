"""The command as a person starts it: real processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from detscope import __version__

COMMAND = [sys.executable, "-c", "from detscope.cli.main import main; main()"]


def run(*args: str, cwd: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {key: value for key, value in os.environ.items() if key != "DETSCOPE_DEBUG"}
    return subprocess.run(
        [*COMMAND, *args],
        cwd=cwd,
        env=kept | environment,
        capture_output=True,
        text=True,
        timeout=900,
        check=False,
    )


def test_help_lists_the_verbs_and_loads_nothing_heavy(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from detscope.cli.main import main\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert end.code == 0\n"
        "heavy = {'torch', 'torchvision', 'polars', 'numpy'} & set(sys.modules)\n"
        # Typer itself loads pydantic to describe the parameters of some verbs.
        "heavy |= {'pydantic', 'rich.console'} & set(sys.modules) if len(sys.argv) == 2 else set()\n"
        "sys.exit(f'loaded {heavy}' if heavy else 0)\n"
    )
    for verb in ([], ["train"], ["infer"], ["show"], ["models"], ["doctor"]):
        done = subprocess.run(
            [sys.executable, "-c", code, *verb, "--help"],
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=900,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert "Usage: detscope" in done.stdout
        if not verb:
            assert all(name in done.stdout for name in ("train", "show", "models", "doctor"))


def test_version_is_printed_alone(tmp_path: Path) -> None:
    done = run("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"detscope {__version__}\n", "")


def test_a_misspelt_flag_gets_a_suggestion_and_exit_2(tmp_path: Path) -> None:
    done = run("train", "--bach-size", "2", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: no such option: --bach-size\nhint: did you mean --batch-size?\n"


def test_a_misspelt_verb_gets_a_suggestion_and_exit_2(tmp_path: Path) -> None:
    done = run("trian", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == "error: no such command 'trian'\nhint: did you mean train?\n"


def test_three_wrong_keys_give_three_messages_and_exit_2(tmp_path: Path) -> None:
    (tmp_path / ".config").mkdir()
    (tmp_path / ".config" / "config.toml").write_text(
        '[training]\nbach_size = 2\nnum_workers = "four"\n[model]\nseed = 1\n', encoding="utf-8"
    )
    done = run("train", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    lines = done.stderr.splitlines()
    assert [line.split(":")[0] for line in lines] == ["error", "error", "error", "hint"]
    assert all(line.startswith("error: .config/config.toml: ") for line in lines[:3])
    assert {"training.bach_size", "training.num_workers", "model.seed"} == {
        line.split(": ")[2] for line in lines[:3]
    }


def test_a_missing_config_file_is_one_line_and_a_hint(tmp_path: Path) -> None:
    done = run("train", "--config", "nowhere.toml", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.startswith("error: nowhere.toml: no such configuration file\nhint: ")


@pytest.mark.parametrize(("args", "environment"), [(["--debug"], {}), ([], {"DETSCOPE_DEBUG": "1"})])
def test_a_traceback_comes_only_when_asked_for(
    tmp_path: Path, args: list[str], environment: dict[str, str]
) -> None:
    plain = run("train", "--config", "nowhere.toml", cwd=tmp_path)
    assert "Traceback" not in plain.stderr
    asked = run(*args, "train", "--config", "nowhere.toml", cwd=tmp_path, **environment)
    assert "Traceback" in asked.stderr
    assert asked.stderr.endswith(plain.stderr)
    assert asked.returncode == plain.returncode


def test_no_colour_codes_come_when_output_is_not_a_terminal(tmp_path: Path) -> None:
    assert "\x1b" not in run("--help", cwd=tmp_path, NO_COLOR="1").stdout
