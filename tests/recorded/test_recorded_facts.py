"""The facts of recorded files: all that tests need, nothing private, and what the whole files say."""

from __future__ import annotations

import json
import re
from pathlib import Path

import polars as pl
import pytest
from facts_kineto import reduce_trace
from polars.testing import assert_frame_equal
from recorded_facts import FACTS, HEADS, KINETO, TABLES, facts_of

NAMES = (*KINETO, *TABLES)


def test_facts_take_less_than_six_megabytes_and_each_is_told_in_the_table() -> None:
    kept = {path.name for path in FACTS.iterdir()} - {"README.md", HEADS.name}
    assert kept == {facts_of(name).name for name in NAMES}
    assert sum(path.stat().st_size for path in FACTS.iterdir()) < 6_000_000
    table = (FACTS / "README.md").read_text(encoding="utf-8")
    assert {name for name in NAMES if f"`{Path(name).name}`" not in table} == set()


@pytest.mark.parametrize("name", NAMES)
def test_facts_name_no_home_folder_and_no_machine(name: str) -> None:
    frame = pl.read_parquet(facts_of(name))
    private = re.compile(r"/(home|Users)/(?!somebody)|TOKEN=(?!/usr/local/cuda)|@[a-z]+\.(com|org)")
    for column in frame.select(pl.selectors.string() | pl.selectors.categorical()):
        texts = column.cast(pl.String).unique().drop_nulls()
        assert [text for text in texts if private.search(text)] == [], column.name


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_facts_are_those_of_the_whole_file(whole_files: Path, name: str) -> None:
    if name in TABLES:
        made = TABLES[name][0](whole_files / name)
    else:
        made, head = reduce_trace(whole_files / name)
        assert json.loads(json.dumps(head)) == json.loads(HEADS.read_text(encoding="utf-8"))[name]
    assert_frame_equal(made, pl.read_parquet(facts_of(name)), categorical_as_str=True)
