"""Help: verbs in groups, nothing cut, examples that parse, options that mean the same, completion in bash."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command
from typer.testing import CliRunner

from detscope.cli.examples import GROUPS, INNER_VERBS, VERBS
from detscope.cli.failures import count_slips
from detscope.cli.main import app

ROOT: Any = get_command(app)
COMMAND = [sys.executable, "-c", "from detscope.cli.main import main; main()"]
# one word, two meanings; here so that a third is deliberate
DIFFERENT = {"--resume"}


def all_verbs() -> dict[str, Any]:
    found = dict(ROOT.commands)
    for name, command in ROOT.commands.items():
        found |= {f"{name} {part}": verb for part, verb in getattr(command, "commands", {}).items()}
    return found


def help_of(*verb: str) -> str:
    return CliRunner().invoke(app, [*verb, "--help"], env={"COLUMNS": "80"}, terminal_width=80).stdout


def test_verbs_stand_in_groups_each_with_a_whole_line() -> None:
    text = help_of()
    places = [text.index(f"\n{group.capitalize()}:") for group in GROUPS]
    assert places == sorted(places)
    for name, verb in VERBS.items():
        line = next(line for line in text.splitlines() if line.split()[:1] == [name])
        assert line.endswith(verb.summary), line
    assert set(VERBS) == set(ROOT.commands)


@pytest.mark.parametrize("verb", ["", *all_verbs()])
def test_no_help_is_cut_or_wider_than_80_columns(verb: str) -> None:
    text = help_of(*verb.split())
    assert max(map(len, text.splitlines())) <= 80, text
    cut = [line for line in text.splitlines() if line.endswith("...") and not line.startswith("Usage")]
    assert not cut, text


@pytest.mark.parametrize("verb", all_verbs())
def test_every_verb_has_two_examples_and_their_options_exist(verb: str) -> None:
    examples = VERBS[verb].examples if verb in VERBS else INNER_VERBS[verb]
    text = help_of(*verb.split())
    for example in examples:
        assert example in text
        args = shlex.split(example)[1:]
        args = args[: args.index(">")] if ">" in args else args
        command: Any = ROOT
        while args and args[0] in getattr(command, "commands", {}):
            command, args = command.commands[args[0]], args[1:]
        if command is ROOT.commands["sweep"]:
            command = command.commands["run"]
        command.make_context("detscope", args, resilient_parsing=True)


def test_an_option_that_several_verbs_have_is_a_flag_on_all_or_on_none() -> None:
    kinds: dict[str, set[bool]] = defaultdict(set)
    for verb in all_verbs().values():
        for param in verb.params:
            for name in param.opts if param.param_type_name == "option" else ():
                kinds[name].add(bool(param.is_flag))
    assert {name for name, seen in kinds.items() if len(seen) > 1} == DIFFERENT


@pytest.mark.parametrize(
    ("args", "hint"),
    [
        (["tarin"], "did you mean train?"),
        (["trian", "x"], "did you mean train?"),
        (["train", "--batchsize", "3"], "did you mean --batch-size"),
        (["show", "--josn"], "did you mean --json?"),
        (["runs", "--modle", "x"], "did you mean --model?"),
        (["infer", "--bs", "3"], "see detscope infer --help"),
        (["train", "--zzz"], "see detscope train --help"),
        (["graph"], "see detscope --help"),
    ],
)
def test_only_what_is_near_is_suggested(args: list[str], hint: str) -> None:
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 2
    assert f"hint: {hint}" in result.stderr


def test_slips_are_counted_as_people_make_them() -> None:
    assert [count_slips("tarin", "train"), count_slips("train", "train"), count_slips("trin", "train")] == [
        1,
        0,
        1,
    ]
    assert count_slips("bs", "batch-size") == 8


def test_completion_in_bash_completes_verbs_options_and_installs_with_one_command(tmp_path: Path) -> None:
    place = tmp_path / "bin"
    place.mkdir()
    command = place / "detscope"
    code = "from detscope.cli.main import main; main()"
    command.write_text(f"#!{sys.executable}\n{code}\n")
    command.chmod(0o755)
    environment = {**os.environ, "HOME": str(tmp_path), "PATH": f"{place}:{os.environ['PATH']}"}
    script = """
        detscope --install-completion
        . ./.bash_completions/detscope.sh
        COMP_WORDS=(detscope tr); COMP_CWORD=1; _detscope_completion detscope
        echo "verbs ${COMPREPLY[*]}"
        COMP_WORDS=(detscope show --sec); COMP_CWORD=2; _detscope_completion detscope
        echo "options ${COMPREPLY[*]}"
    """
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert "verbs train" in done.stdout, (done.stdout, done.stderr)
    assert "options --section" in done.stdout, (done.stdout, done.stderr)
    assert "detscope.sh" in (tmp_path / ".bashrc").read_text()
