from detscope.record.steps.schedule import Schedule


def test_warm_up_comes_first_then_a_quarter_of_the_steps_is_bare_and_the_first_is_recorded():
    for seed in range(50):
        schedule = Schedule(warmup_steps=2, bare_every=4, seed=seed)
        modes = [schedule.mode_of(index) for index in range(2 + 400)]
        assert modes[:3] == ["warmup", "warmup", "recorded"]
        assert modes.count("bare") == 100
        assert "bare,bare,bare" not in ",".join(modes), "there is always a recorded one near"
        assert modes == [schedule.mode_of(index) for index in range(402)], "the same again"


def test_bare_steps_fall_on_every_phase_of_whatever_recurs():
    for seed in range(20):
        schedule = Schedule(warmup_steps=0, bare_every=4, seed=seed)
        bare = [index for index in range(2000) if schedule.mode_of(index) == "bare"]
        for period in (2, 3, 4, 5, 8, 16):
            shares = [sum(index % period == phase for index in bare) / len(bare) for phase in range(period)]
            assert min(shares) > 0.5 / period, f"seed {seed}, period {period}: {shares}"
            assert max(shares) < 1.6 / period


def test_another_seed_draws_other_steps():
    drawn = {
        tuple(Schedule(0, seed=seed).mode_of(index) for index in range(40)) for seed in (0, 1, 2, 2**32 - 1)
    }
    assert len(drawn) == 4


def test_as_many_steps_as_asked_for_are_recorded_whatever_else_runs_between():
    schedule = Schedule(warmup_steps=3, bare_every=4, operator_steps=3)
    total = schedule.count_steps(20)
    modes = [schedule.mode_of(index) for index in range(total)]
    assert modes.count("recorded") == 20
    assert modes.count("ops") == 3
    assert modes[-1] == "recorded"


def test_bare_steps_can_be_switched_off():
    for never in (0, 1):  # if every step were bare, nothing would be recorded
        assert "bare" not in [Schedule(0, bare_every=never).mode_of(index) for index in range(50)]


def test_long_runs_keep_a_sample_of_module_times():
    schedule = Schedule(warmup_steps=0, modules_dense=100, modules_thinned_to=10)
    assert sum(schedule.with_modules(index) for index in range(1100)) == 200


def test_a_window_of_operators_can_end_before_its_time_and_nothing_else_changes():
    schedule = Schedule(warmup_steps=3, memory_steps=2, operators_after=1, operator_steps=4, bare_every=0)
    shortened = schedule.without_operators_from(8)
    modes = [shortened.mode_of(index) for index in range(12)]
    assert [index for index, mode in enumerate(modes) if mode == "ops"] == [6, 7]
    assert all(modes[index] == schedule.mode_of(index) for index in (*range(8), 10, 11))
    assert schedule.without_operators_from(50) == schedule


def test_on_a_device_the_step_after_a_window_of_operators_counts_as_warm_up():
    schedule = Schedule(warmup_steps=2, bare_every=0, operator_steps=2, settles=True)
    modes = [schedule.mode_of(index) for index in range(8)]
    assert modes == ["warmup", "warmup", "recorded", "ops", "ops", "warmup", "recorded", "recorded"]
