"""Which steps are kept for drawing: few, and in the end the slowest and the median one."""

from __future__ import annotations

from random import Random

from detscope.record.steps.drawn import SAMPLED_STEPS, DrawnSteps, KeptEvents

EVENTS = list(range(30))


def kept_steps(drawn: DrawnSteps) -> list[KeptEvents]:
    return list(drawn._all_kept())


def offer(drawn: DrawnSteps, walls: list[int], mode: str = "recorded") -> None:
    for index, wall_ns in enumerate(walls):
        drawn.offer_step(index, mode, 1000 * index, 1000 * index + wall_ns, EVENTS)


def test_of_a_short_run_the_slowest_and_the_median_step_are_chosen_exactly() -> None:
    drawn = DrawnSteps(wanted=True)
    offer(drawn, [500, 300, 900, 310, 320])
    assert [kept.index for kept in drawn.choose_steps()] == [2, 4]


def test_of_a_long_run_few_steps_are_kept_the_slowest_of_all_is_one_and_one_is_near_the_median() -> None:
    drawn = DrawnSteps(wanted=True)
    walls = [Random(1).randrange(100, 900)] + [Random(index).randrange(100, 900) for index in range(5000)]
    walls[4321] = 950
    offer(drawn, walls)
    assert len(kept_steps(drawn)) <= SAMPLED_STEPS + 1
    chosen = {kept.index: kept.wall_ns for kept in drawn.choose_steps()}
    assert chosen.pop(4321) == 950
    ((_, wall_ns),) = chosen.items()
    below = sum(wall < wall_ns for wall in walls) / len(walls)
    assert 0.4 < below < 0.6


def test_steps_with_phases_alone_are_not_kept_where_others_have_modules() -> None:
    drawn = DrawnSteps(wanted=True)
    offer(drawn, [500, 600])
    drawn.offer_step(2, "recorded", 0, 9999, EVENTS[:6])
    assert {kept.index for kept in kept_steps(drawn)} == {0, 1}


def test_the_last_step_with_memory_is_chosen_too_and_bare_ones_never() -> None:
    drawn = DrawnSteps(wanted=True)
    offer(drawn, [100, 100, 100], "memory")
    offer(drawn, [100], "bare")
    assert [kept.index for kept in drawn.choose_steps()] == [2]


def test_nothing_is_kept_where_nothing_is_to_be_drawn() -> None:
    drawn = DrawnSteps(wanted=False)
    offer(drawn, [100, 200])
    assert drawn.choose_steps() == []
