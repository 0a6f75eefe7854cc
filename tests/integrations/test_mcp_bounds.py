"""Answers of `detscope mcp` stay below 8 kB whatever is in them, and say what they leave out."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as some
from jsonschema import Draft202012Validator

from detscope.agents.answers import DefinitionPage
from detscope.agents.bounds import dump_answer, fill_page
from detscope.analyze.figure import Definition
from detscope.analyze.schema import schema_of

MOST_BYTES = 8000
VALIDATOR = Draft202012Validator(schema_of(DefinitionPage, "a page", 1))


def page_of(rows: list[Definition], offset: int = 0, limit: int | None = None) -> dict:
    told = fill_page(
        lambda page: DefinitionPage(sections=("step",), definitions=tuple(page)), rows, offset, limit
    )
    assert len(dump_answer(told).encode()) < MOST_BYTES
    VALIDATOR.validate(told)
    return told


def rows_of(lengths: list[int], letter: str = "ü") -> list[Definition]:
    return [Definition(name=str(number), text=letter * length) for number, length in enumerate(lengths)]


def test_rows_are_whole_and_the_rest_is_counted():
    told = page_of(rows_of([1500] * 5))
    assert [len(row["text"]) for row in told["definitions"]] == [1500, 1500]
    assert (told["total"], told["left_out"], told["next"]) == (5, 3, "ask again with offset=2")
    assert "cut" not in told


def test_what_has_room_is_whole_and_says_nothing_of_a_rest():
    told = page_of(rows_of([10, 20]))
    assert set(told) == {"total", "offset", "left_out", "sections", "definitions"}


def test_a_row_that_has_no_room_is_cut_and_says_so():
    told = page_of(rows_of([20_000, 5]))
    (row,) = told["definitions"]
    assert row["text"].startswith("ü" * 1000) and row["text"].endswith("…")
    assert told["cut"] == [f"definitions[0].text: {20_000 - len(row['text']) + 1} of 20000 letters left out"]
    assert told["left_out"] == 1


def test_a_limit_is_kept_and_what_lies_behind_the_end_is_nothing():
    rows = rows_of([1] * 30)
    assert len(page_of(rows, offset=3, limit=4)["definitions"]) == 4
    behind = page_of(rows, offset=40)
    assert (behind["total"], behind["left_out"], behind["definitions"]) == (30, 0, [])


@given(
    some.lists(some.integers(0, 9000), max_size=40), some.sampled_from(["a", "ü", "\U0001f4e6", '"', "\x00"])
)
def test_pages_of_any_rows_come_to_an_end_and_lose_none(lengths, letter):
    rows, seen = rows_of(lengths, letter), 0
    while True:
        told = page_of(rows, seen)
        assert [row["name"] for row in told["definitions"]] == [
            row.name for row in rows[seen : seen + len(told["definitions"])]
        ]
        seen += len(told["definitions"])
        if "next" not in told:
            break
    assert seen == len(rows)
