"""The skill that comes with the package: agents can find it, and it names verbs that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

import detscope.agents
from detscope.cli.examples import VERBS

SKILL = Path(*detscope.agents.__path__) / "skills" / "detscope" / "SKILL.md"
GUIDE = Path(__file__).parents[2] / "docs" / "agents.md"


def test_its_head_says_what_it_is_and_when_to_use_it():
    _, head, body = SKILL.read_text(encoding="utf-8").split("---\n", 2)
    told = yaml.safe_load(head)
    assert set(told) == {"name", "description"}
    assert told["name"] == SKILL.parent.name
    assert "Use when" in told["description"]
    assert len(told["description"]) <= 1024
    assert len(body) < 5000


@pytest.mark.parametrize("page", [SKILL, GUIDE], ids=lambda page: page.name)
def test_the_verbs_it_names_exist(page):
    commands = re.findall(r"(?:`|\$ |^ *)detscope ([a-z]+)\b", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert {"run", "why", "try"} <= set(commands) <= set(VERBS)
