"""A sample of `python -m bench mutated`: spoilt files are answered or refused by the real commands."""

from __future__ import annotations

from pathlib import Path

from bench.mutated import SMALLEST_SHARE_REFUSED, try_files

FILES = 15  # of each of three groups


def test_spoilt_files_are_answered_or_refused_and_nothing_else(tmp_path: Path) -> None:
    tally = try_files(FILES, seed=7, base=tmp_path)
    assert tally.faults == []
    refused = sum(tally.refused.values())
    assert refused + sum(tally.answered.values()) == 3 * FILES
    assert refused >= SMALLEST_SHARE_REFUSED * 3 * FILES
