"""What README and docs tell people to type exists, is found by `make test-docs`, and runs if it is quick."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import typer
from typer.core import TyperCommand, TyperGroup

from detscope.cli.main import app

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.doc_commands import (
    ROOT,
    SHELLS,
    DocCommand,
    DocFile,
    list_pages,
    read_blocks,
    read_page,
    type_page,
)

PAGES = list_pages()
COMMANDS = [one for page in PAGES for one in read_page(page) if isinstance(one, DocCommand)]
PROGRAMS = r"(?:[A-Z_]+=\S+ )?(?:\.venv/bin/)?(?:detscope|torchrun|pip|make|docker|ray|sudo) "
VERBS = typer.main.get_command(app)

# Every command that ended within 10 s when all were run one after the other on two cores (`make test-docs`):
# page, command, seconds then, what it needs before: a run, which a recorded one stands for. All others take
# longer, or need what a longer one before them makes (a sweep's store, a trace, a model of a device).
QUICK = (
    ("README.md", "detscope doctor", 4, ""),
    ("README.md", "detscope models 'mask*'", 2, ""),
    ("README.md", "detscope show", 3, "a run"),
    ("README.md", "detscope report", 4, "a run"),
    ("README.md", "detscope runs", 2, "a run"),
    ("README.md", "detscope why", 1, "a run"),
    ("README.md", "detscope mcp", 1, "a run"),
    ("docs/agents.md", "detscope why latest --json", 1, "a run"),
    ("docs/agents.md", "detscope mcp --runs runs < /dev/null", 1, "a run"),
    ("docs/data.md", "detscope data list", 2, ""),
    ("docs/findings.md", "detscope why", 1, "a run"),
    ("docs/findings.md", "detscope why --json", 1, "a run"),
    ("docs/findings.md", "detscope why --sarif findings.sarif", 1, "a run"),
    ("docs/findings.md", "detscope why --limit 50", 1, "a run"),
    ("docs/index.md", "detscope report", 3, "a run"),
    (
        "docs/limits.md",
        "DETSCOPE_LIMIT_PLAN_TRIALS=500000 detscope sweep examples/sweep.toml --dry-run",
        2,
        "",
    ),
    ("docs/predict.md", "detscope predict resnet50 --memory-limit 8GiB", 6, ""),
    ("docs/run.md", "detscope report --open", 6, "a run"),
    ("docs/versions.md", "detscope schema summary", 6, ""),
    ("docs/versions.md", "detscope schema run", 2, ""),
    ("docs/versions.md", "detscope schema sweep", 2, ""),
    ("docs/versions.md", "detscope schema findings", 3, ""),
    ("docs/versions.md", "detscope schema try", 1, ""),
)
RECORDED = ROOT / "tests" / "old_runs" / "train"


def find_verb(words: list[str]) -> tuple[TyperCommand | TyperGroup, list[str]]:
    """The verb that a command begins with, and the words behind it."""
    found, rest = VERBS, list(words)
    while isinstance(found, TyperGroup) and rest and rest[0] in found.commands:
        found = found.commands[rest.pop(0)]
    return found, rest


def complain_about(words: list[str]) -> list[str]:
    """Verbs and options of a command that there are none of; what follows a script is the script's."""
    verb, rest = find_verb(words)
    if verb is VERBS and rest and re.fullmatch(r"[a-z]+", rest[0]):
        return [f"no verb {rest[0]}"]
    if verb.name == "run" and any(not word.startswith("-") for word in rest):
        rest = rest[: next(place for place, word in enumerate(rest) if not word.startswith("-"))]
    rest = rest[: rest.index("--")] if "--" in rest else rest  # what follows is another command's
    known = {option for parameter in verb.params for option in (*parameter.opts, *parameter.secondary_opts)}
    if isinstance(verb, TyperGroup) and verb.name == "sweep":  # `detscope sweep PLAN` is its verb `run`
        known |= {option for parameter in verb.commands["run"].params for option in parameter.opts}
    known |= {"--help", "-h"}
    return [f"{verb.name} has no {word}" for word in rest if word.startswith("--") and word not in known]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_verbs_and_options_that_a_page_names_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    said = [one.split("|")[0] for one in re.findall(r"`detscope ((?:[^`\n]|\n(?!\n))+)`", text)]
    said += [
        one.bare.split("detscope ", 1)[1]
        for one in COMMANDS
        if one.page == str(page.relative_to(ROOT)) and re.match(r"(\S+=\S+ )?detscope ", one.bare)
    ]
    problems = [problem for one in said for problem in complain_about(shlex.split(one))]
    assert not problems


def test_an_option_of_another_verb_is_noticed() -> None:
    assert complain_about(["infer", "tiny_ssd", "--epochs", "3"]) == ["infer has no --epochs"]
    assert complain_about(["shwo", "latest"]) == ["no verb shwo"]
    assert not complain_about(["run", "train.py", "--epochs", "3"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_no_command_stands_where_nobody_runs_it(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    hidden = [
        line
        for block in read_blocks(page)
        if block.language not in SHELLS
        for line in block.body.splitlines()
        if re.match(PROGRAMS, line)
    ]
    outside = re.sub(r"^ *```.*?^ *```$", "", text, flags=re.MULTILINE | re.DOTALL)
    hidden += re.findall(rf"^ {{4,}}{PROGRAMS}.*$", outside, re.MULTILINE)
    assert not hidden


def test_placeholders_are_not_typed() -> None:
    assert not [
        one.bare for one in COMMANDS if not one.mark and re.search(r"(^|[ /=])[A-Z]{3,}( |$)", one.bare)
    ]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_scripts_and_runs_that_commands_name_are_there_or_made_before(page: Path) -> None:
    before, missing = "", []
    for one in read_page(page):
        if isinstance(one, DocFile):
            before += f"{one.name}\n"
        elif not one.mark:
            named = re.findall(r"detscope run .*?([\w/]+\.py)\b", one.bare)
            named += [f"--out {folder}" for folder in re.findall(r"(\w+)/latest", one.bare)]
            missing += [name for name in named if name not in before and not (ROOT / name).is_file()]
            before += f"{one.bare}\n"
    assert not [name for name in missing if name != "--out runs"]


def test_what_is_left_out_says_why_and_the_rest_is_run(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    lines = ["echo one > made      # makes a file", "cat made plan.toml", "false    # needs a GPU"]
    lines += ["exit 7    # exit 7 if slower", "false \\", "    --long  # fails"]
    fence = "```"
    page.write_text(
        f"{fence}toml\n# plan.toml\nkey = 1\n{fence}\n\n{fence}sh\n"
        + "\n".join(lines)
        + f"\n{fence}\n\n   {fence}sh\n   # downloads 3 GB\n   false\n   {fence}\n"
    )
    found = read_page(page)
    assert isinstance(found[0], DocFile) and found[0].name == "plan.toml"
    commands = [one for one in found if isinstance(one, DocCommand)]
    assert [one.mark for one in commands] == ["", "", "needs a GPU", "", "", "downloads 3 GB"]
    assert list(type_page(page, tmp_path / "fresh")) == ["page.md:11  false --long"]
    assert (tmp_path / "fresh" / "made").read_text() == "one\n"
    assert (tmp_path / "fresh" / "examples" / "sweep.toml").is_file()
    assert capfd.readouterr().out.count("left out") == 2


@pytest.mark.parametrize("page", sorted({page for page, *_ in QUICK}))
def test_quick_commands_work_as_typed(page: str, tmp_path: Path) -> None:
    commands = [command for name, command, *_ in QUICK if name == page]
    typed = [one.bare for one in COMMANDS if one.page == page and not one.mark]
    assert [one for one in typed if one in commands] == commands, "the table names them in the page's order"
    if any(needs == "a run" for name, _, _, needs in QUICK if name == page):
        run = tmp_path / "runs" / "20261117T101112Z-train-tiny_retinanet-505f"
        shutil.copytree(RECORDED, run)
        (run.parent / "latest").symlink_to(run.name)
    assert not list(type_page(ROOT / page, tmp_path, only=commands))
