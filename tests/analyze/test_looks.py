"""Looking again and again takes no more risk than looking once."""

from __future__ import annotations

import numpy as np
import pytest

from detscope.analyze.compare.change import Sample, compare_samples
from detscope.analyze.compare.looks import RiskSpender, spend_risk


def test_the_risk_is_spent_over_the_looks_little_at_first() -> None:
    spent = [spend_risk(number / 8) for number in range(1, 9)]
    assert spent == sorted(spent)
    assert spent[2] < 0.002
    assert spent[-1] == pytest.approx(0.05)


def test_one_look_alone_is_taken_at_five_per_cent() -> None:
    assert RiskSpender(7).take_look(7, is_last=True) == pytest.approx(0.05, abs=1e-3)


def test_levels_are_those_of_the_published_tables() -> None:
    """Five equally spaced looks of O'Brien and Fleming's spending: 4.877, 3.357, 2.680, 2.290, 2.031."""
    from statistics import NormalDist

    looks = RiskSpender(5)
    levels = [looks.take_look(number, is_last=number == 5) for number in range(1, 6)]
    borders = [NormalDist().inv_cdf(1 - level / 2) for level in levels]
    assert borders == pytest.approx([4.877, 3.357, 2.680, 2.290, 2.031], abs=0.01)


def tells_apart(random: np.random.Generator, rounds: int, varies: float, slower: float) -> bool:
    """Whether a repeated comparison of two commands names a difference."""
    looks = RiskSpender(rounds)
    sides: tuple[list[Sample], list[Sample]] = ([], [])
    for number in range(1, rounds + 1):
        for side, factor in zip(sides, (1.0, 1.0 + slower), strict=True):
            side.append(Sample(float(factor * np.exp(random.normal(0, varies)))))
        if number >= 3:
            level = looks.take_look(number, number == rounds)
            if compare_samples(*sides, None, risk=level).is_seen:
                return True
    return False


def test_equal_commands_are_told_apart_in_one_of_twenty_and_two_per_cent_are_found() -> None:
    random = np.random.default_rng(2)
    assert 0.01 <= np.mean([tells_apart(random, 10, 0.01, 0.0) for _ in range(200)]) <= 0.08
    assert np.mean([tells_apart(random, 10, 0.01, 0.02) for _ in range(100)]) >= 0.8
