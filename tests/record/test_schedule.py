from detscope.record.schedule import Schedule


def test_warm_up_comes_first_then_recorded_and_bare_steps_interleave():
    schedule = Schedule(warmup_steps=2, bare_every=4)
    modes = "".join(schedule.mode(index)[0] for index in range(10))
    assert modes == "wwrrbrrrbr"


def test_as_many_steps_as_asked_for_are_recorded_whatever_else_runs_between():
    schedule = Schedule(warmup_steps=3, bare_every=4, operator_steps=3)
    total = schedule.total_steps(20)
    modes = [schedule.mode(index) for index in range(total)]
    assert modes.count("recorded") == 20
    assert modes.count("ops") == 3
    assert modes[-1] == "recorded"


def test_bare_steps_can_be_switched_off():
    for never in (0, 1):  # if every step were bare, nothing would be recorded
        assert "bare" not in [Schedule(0, bare_every=never).mode(index) for index in range(50)]


def test_long_runs_keep_a_sample_of_module_times():
    schedule = Schedule(warmup_steps=0, modules_dense=100, modules_thinned_to=10)
    assert sum(schedule.with_modules(index) for index in range(1100)) == 200


def test_a_window_of_operators_can_end_before_its_time_and_nothing_else_changes():
    schedule = Schedule(warmup_steps=3, memory_steps=2, operators_after=1, operator_steps=4, bare_every=0)
    shortened = schedule.without_operators_from(8)
    modes = [shortened.mode(index) for index in range(12)]
    assert [index for index, mode in enumerate(modes) if mode == "ops"] == [6, 7]
    assert all(modes[index] == schedule.mode(index) for index in (*range(8), 10, 11))
    assert schedule.without_operators_from(50) == schedule
