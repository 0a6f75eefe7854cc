"""Comparing runs: what is real is named, what is noise is not."""

import io
from itertools import pairwise

import numpy as np
import polars as pl
import pytest
from rich.console import Console

from compared_runs import MODULES, make_run
from detscope.analyze.compare.change import Change, JudgedTables, compare_steps
from detscope.analyze.compare.differences import SettingChange
from detscope.analyze.compare.gate import GATE_NAMES, judge_gate, parse_gate
from detscope.analyze.compare.runs import compare_runs
from detscope.errors import UsageError
from detscope.runs.standard_json import as_standard_json


def noisy(mean, steps, seed, drift=0.05):
    """Step times as machines give them: noise, outliers, and a mood that changes slowly."""
    generator = np.random.default_rng(seed)
    mood = 1 + drift * np.sin(np.arange(steps) / 9 + generator.uniform(0, 6))
    noise = np.exp(generator.normal(0, 0.03, steps))
    spikes = np.where(generator.random(steps) < 0.03, 2.0, 1.0)
    return dict(enumerate(mean * mood * noise * spikes))


def test_a_slow_start_of_nothing_is_no_difference():
    change = compare_steps(dict.fromkeys(range(20), 5.0), dict.fromkeys(range(20), 5.0))
    assert change.verdict == "no difference seen"
    assert change.ci95 == (0.0, 0.0)


def test_two_equal_runs_differ_in_at_most_one_of_twenty_pairs():
    """The promise of a 95 % interval, on series with drift and outliers: 20 pairs, five times."""
    for group in range(5):
        alarms = sum(
            compare_steps(
                noisy(100, 60, 1000 * group + 2 * pair), noisy(100, 60, 1000 * group + 2 * pair + 1)
            ).is_seen
            for pair in range(20)
        )
        assert alarms <= 2, group
    everything = [
        compare_steps(noisy(100, 60, 2 * pair), noisy(100, 60, 2 * pair + 1)).is_seen for pair in range(300)
    ]
    assert np.mean(everything) <= 0.05


def test_a_real_change_of_eight_per_cent_is_seen_nearly_always():
    found = [
        compare_steps(noisy(100, 60, 2 * pair), noisy(108, 60, 2 * pair + 1)).verdict for pair in range(100)
    ]
    assert found.count("slower") >= 90


def test_pairing_steps_with_the_same_images_tells_what_unpaired_ones_cannot():
    cost = np.random.default_rng(0).uniform(50, 150, 60)  # what the images cost differs a lot
    before = dict(enumerate(cost))
    after = dict(enumerate(cost * 1.02 + np.random.default_rng(1).normal(0, 0.3, 60)))
    assert compare_steps(before, after, same_content=True).verdict == "slower"
    assert compare_steps(before, after).verdict == "no difference seen"


def test_five_steps_are_too_few_to_tell():
    change = compare_steps(dict.fromkeys(range(5), 1.0), dict.fromkeys(range(5), 2.0))
    assert change.verdict == "cannot tell"
    assert change.why is not None and change.why.startswith("5 steps")


def test_of_many_chances_only_those_that_hold_for_all_rows_count():
    rows = [
        Change(before=1.0, after=2.0, relative=1.0, relative_ci95=(0.5, 1.5), chance=chance, verdict="slower")
        for chance in (0.5, 0.04, 1e-6, None, 0.012)
    ]
    family = JudgedTables.of_tables(rows)
    assert (family.tables, family.rows) == (1, 4)
    found = family.correct_rows(rows)
    assert [row.is_seen for row in found] == [False, False, True, True, True]  # without a chance: not judged
    assert found[1].verdict_text == "no difference seen, corrected for 4 rows"
    assert [row.is_seen for row in JudgedTables.of_tables(rows, rows).correct_rows(rows)][-1] is False


def test_the_module_that_became_slower_is_named_first(tmp_path):
    base, later = make_run(tmp_path, 1), make_run(tmp_path, 2, {"roi_heads.box_head": 5.0})
    result = compare_runs(base, [later], [parse_gate("step_p50 > +5%"), parse_gate("stage.rpn > +20%")])
    one = result.comparisons[0]
    assert one.modules[0].path == "roi_heads.box_head"
    assert one.modules[0].difference == pytest.approx(5.0, abs=0.5)
    assert one.verdict.startswith("slower: the step changed by")
    assert "roi_heads.box_head" in one.verdict
    assert [gate.outcome for gate in one.gates] == ["failed", "passed"]
    assert result.failed == ["step_p50 > +5%"]


def test_equal_runs_pass_the_gate(tmp_path):
    runs = [make_run(tmp_path, seed) for seed in range(21)]
    results = [
        compare_runs(first, [second], [parse_gate("step_p50 > +5%")]) for first, second in pairwise(runs)
    ]
    assert sum(bool(result.failed) for result in results) == 0
    told = [result.comparisons[0].step.verdict for result in results]
    assert sum(word in ("slower", "faster") for word in told) <= 1


def test_a_renamed_module_is_found_by_its_structure(tmp_path):
    base = make_run(tmp_path, 1)
    later = make_run(tmp_path, 2, rename={"rpn": "proposals.net"})
    rows = {row.path: row for row in compare_runs(base, [later]).comparisons[0].modules}
    assert rows["proposals.net"].was == "rpn"
    assert rows["backbone"].was is None


def test_a_module_that_is_gone_is_named_once(tmp_path, monkeypatch):
    before = make_run(tmp_path, 1)
    monkeypatch.delitem(MODULES, "roi_heads.box_predictor")
    rows = compare_runs(before, [make_run(tmp_path, 2)]).comparisons[0].modules
    (gone,) = [row for row in rows if row.verdict == "gone"]
    assert gone.row_label == "roi_heads.box_predictor"


def test_stages_and_modules_are_not_compared_with_a_run_that_recorded_none(tmp_path):
    before, after = make_run(tmp_path, 1), make_run(tmp_path, 2, info={"level": "phases"})
    one = compare_runs(before, [after]).comparisons[0]
    assert one.modules == [] and one.stages == [] and one.phases
    assert any("stages and modules are not compared" in note for note in one.notes)


def test_what_differs_in_settings_comes_with_the_comparison(tmp_path):
    base = make_run(tmp_path, 1, info={"settings": {"training": {"batch_size": 2, "seed": 0}}})
    later = make_run(tmp_path, 2, info={"settings": {"training": {"batch_size": 4, "seed": 0}}})
    assert compare_runs(base, [later]).comparisons[0].settings == [
        SettingChange(key="training.batch_size", before=2, after=4)
    ]


@pytest.mark.parametrize(
    "text", ["step_p50", "step_p50 > 5 %%", "> 5ms", "step_p50 > +5parsec", "step_p50 > 5%"]
)
def test_a_gate_that_makes_no_sense_is_refused(text):
    with pytest.raises(UsageError):
        parse_gate(text)


def test_an_unsigned_threshold_is_about_the_value_and_a_signed_one_about_the_change():
    change = Change(before=3.5, after=4.0, difference=0.5, relative=0.14, verdict="slower")
    figures = {"stage.rpn": change}
    assert judge_gate(parse_gate("stage.rpn > 3ms"), figures).outcome == "failed"
    assert judge_gate(parse_gate("stage.rpn > +1ms"), figures).outcome == "passed"
    assert judge_gate(parse_gate("stage.rpn > +400us"), figures).outcome == "failed"


def test_a_gate_never_fails_on_what_may_be_noise():
    change = Change(before=10.0, after=11.0, relative=0.1, verdict="no difference seen")
    assert judge_gate(parse_gate("step_p50 > +5%"), {"step_p50": change}).outcome == "cannot tell"


def test_a_gate_on_a_figure_nobody_measured_fails_and_names_those_there_are():
    found = judge_gate(parse_gate("memory.peek > +2%"), {"memory.peak": Change(before=1.0, after=1.0)})
    assert found.outcome == "failed"
    assert found.why == "these runs do not have it; they have memory.peak"


def test_a_gate_on_a_figure_that_one_run_lacks_fails():
    change = Change(before=None, after=4.0, why="known in one of the runs only")
    found = judge_gate(parse_gate("stage.rpn > +5%"), {"stage.rpn": change})
    assert (found.outcome, found.why) == ("failed", "missing: known in one of the runs only")


def test_a_gate_that_names_no_kind_of_figure_is_wrong_use_and_names_all_kinds():
    with pytest.raises(UsageError, match="'speed'") as error:
        parse_gate("speed > +2%")
    assert all(name in error.value.hint for name in GATE_NAMES)
    for name in ("step_p50", "step_p95", "images_per_s", "kernel.void cudnn::conv", "module.a.b[0]"):
        assert parse_gate(f"{name} > +2%").name == name


def test_comparison_as_markdown_keeps_strange_names_inert(tmp_path):
    from detscope.report.render.markdown import sections_markdown
    from detscope.report.verbs.comparison import comparison_sections

    name = "<img src=x onerror=alert(1)>"
    base = make_run(tmp_path, 1, rename={"rpn": name})
    later = make_run(tmp_path, 2, {"rpn": 5.0}, rename={"rpn": name})
    sections = comparison_sections(compare_runs(base, [later]))
    text = sections_markdown(sections, brief=True)
    assert f"`{name}`" in text
    assert name not in text.replace(f"`{name}`", "")
    assert isinstance(base.table("steps"), pl.DataFrame)


def test_what_is_printed_and_written_as_json_is_what_was_compared(tmp_path):
    from detscope.report.render.terminal import print_sections
    from detscope.report.verbs.comparison import comparison_sections

    base, later = make_run(tmp_path, 1), make_run(tmp_path, 2, {"roi_heads.box_head": 5.0})
    result = compare_runs(base, [later], [parse_gate("step_p50 > +5%")])
    console = Console(width=120, file=io.StringIO())
    print_sections(comparison_sections(result), console)
    text = " ".join(console.file.getvalue().split())
    one = result.comparisons[0]
    assert "gate step_p50 > +5%: failed" in text and "settings and environment: equal" in text
    assert f"{one.step.after:.3f}" in text and f"{100 * one.step.relative:+.1f} %" in text
    rows = as_standard_json(result)["comparisons"][0]["stages"]
    assert {"name", "before", "after", "relative", "verdict"} <= set(rows[0])
