"""The first screen of a run: one screen whatever there is to say, and what disturbed the times is named."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some
from rich.cells import cell_len
from rich.console import Console

from detscope.analyze.drawing import ReportData
from detscope.analyze.summary import RunSummary
from detscope.analyze.trust import judge_trust
from detscope.report.figures import as_sentence
from detscope.report.first_screen import FirstScreen, make_first_screen
from detscope.report.model import Column, Section, Table
from detscope.report.render.screen import print_first_screen
from detscope.report.render.terminal import print_sections, print_whole
from detscope.report.render.wrapping import shorten_middle, wrap_command, wrap_text
from detscope.report.sections import make_sections
from detscope.runs.reader import load_run
from detscope.runs.writer import RunWriter
from made_figures import made_figure

SHARES = {"data": 0.05, "transfer": 0.0, "forward": 0.4, "backward": 0.5, "optimizer": 0.04, "other": 0.01}
BUSY = [
    {"source": "system", "metric": "cpu_percent", "unit": "%", "mean": 97.0, "n": 9},
    {"source": "process", "metric": "cpu_percent", "unit": "%", "mean": 90.0, "n": 9},
    {"source": "worker:7", "metric": "cpu_percent", "unit": "%", "mean": 10.0, "n": 9},
    {"source": "process", "metric": "rss_bytes", "unit": "bytes", "mean": 9e8, "max": 1e9, "n": 9},
]
SAMPLE: dict[str, Any] = {
    "verb": "train",
    "run": "runs/a-run",
    "status": "ok",
    "verdict": "backward takes 50 % of the step",
    "device": "cpu",
    "batch_size": 2,
    "precision": "fp32",
    "level": "ops",
    "images_per_s": 6.4,
    "step_ms": {"p50": 312.4, "ci95": (305.1, 320.9), "n": 20, "p95_why": "needs 90"},
    "stability": {"verdict": "unstable", "reason": "steps spread by 24 % around the median", "spread": 0.24},
    "phases": [{"name": name, "ms": share * 312.4, "share": share} for name, share in SHARES.items()],
    "stages": [
        {"name": name, "total_ms": ms, "share": ms / 312.4, "forward_ms": ms}
        for name, ms in (("rpn", 30.0), ("backbone", 150.0), ("fpn", 40.0), ("roi_heads", 60.0))
    ],
    "modules": [
        {"path": f"backbone.body.layer{index}", "total_ms": 90.0 - index, "self_forward_ms": 50.0,
         "self_backward_ms": 0.0, "share": 0.2}
        for index in range(5)
    ],
    "advice": [
        {"rule": "workers", "about": "time", "title": "4 workers", "gain_share": 0.1,
         "command": "detscope train --config runs/a-run/config.toml --num-workers 4"},
        {"rule": "fused", "about": "time", "title": "fused optimizer", "gain_share": 0.01},
    ],
    "telemetry": BUSY,
    "processor": {"cores": 2},
}  # fmt: skip
INFO = {"model": {"name": "tiny_fasterrcnn", "family": "fasterrcnn", "parameters": 1_200_000}}
LONG = "a sentence that goes on and on about what happened while it was recorded, "
VERBS: dict[str, dict[str, Any]] = {
    "train": {},
    "run": {"verb": "run", "advice": []},
    "infer": {"verb": "infer", "batch_size": 1, "images": 200},
    "eval": {
        "verb": "eval", "step_ms": {}, "phases": [], "stages": [], "modules": [],
        "accuracy": {
            "AP": 0.31, "AP50": 0.5, "coco_box": {},
            "evaluation": {
                "coco_box": {"figures": {}, "classes": [{"name": f"c{i}", "AP": i / 9} for i in range(8)]},
                "voc07": {"classes": []}, "voc10": {"classes": []},
            },
        },
    },
    "import": {"verb": "import", "imported": {"sources": [{"file": "trace.json.gz", "format": "kineto"}]}},
    "everything to say": {
        "status": "partial", "reason": LONG * 4, "verdict": LONG * 5, "notes": [LONG * 3] * 6,
        "cannot_tell": [LONG * 2] * 4,
        "stability": {"verdict": "unstable", "reason": LONG * 4},
        "modules": [{"path": "module_of_a_name." * 9 + str(index), "total_ms": 9.0, "self_forward_ms": 9.0,
                     "self_backward_ms": 0.0, "share": 0.1} for index in range(9)],
        "advice": [{"rule": "x", "about": "time", "title": LONG * 3, "gain_share": 0.1,
                    "command": "detscope train " + "--set section.key=value " * 20}],
    },
}  # fmt: skip


@pytest.fixture
def screen(tmp_path: Path):
    """The first screen of a summary."""

    def make(changes: dict[str, Any] | None = None, modes: dict[str, int] | None = None) -> FirstScreen:
        writer = RunWriter(tmp_path / "runs", "train", "model", INFO)
        kinds = [mode for mode, count in (modes or {}).items() for _ in range(count)]
        rows = [(step, 0, mode, "step", step, 10**6, None) for step, mode in enumerate(kinds)]
        writer.append_rows("steps", rows)
        writer.close_run("ok")
        data = ReportData(load_run(writer.folder), made_figure(RunSummary, {**SAMPLE, **(changes or {})}))
        return make_first_screen(data, make_sections(data)[0])

    return make


def printed(screen: FirstScreen, width: int = 80, **how: Any) -> str:
    console = Console(width=width, record=True, file=io.StringIO(), **how)
    print_first_screen(screen, console)
    return console.export_text()


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("width", [60, 80, 120])
def test_every_verb_fits_one_screen(screen, verb: str, width: int) -> None:
    lines = printed(screen(VERBS[verb]), width).splitlines()
    assert len(lines) <= 24, "\n".join(lines)
    assert max(map(len, lines)) <= width, "\n".join(lines)
    assert "--section NAME" in "\n".join(lines)


def test_a_training_tells_figures_bar_costliest_parts_advice_and_trust(screen) -> None:
    text = printed(screen(), 100)
    for part in (
        "train tiny_fasterrcnn (fasterrcnn, 1.2 M parameters)",
        "Backward takes 50 % of the step",
        "p50 312.4 ms [305.1, 320.9]",
        "p95 needs 90 steps",
        "6.40 images/s",
        "peak 1.00 GB process",
        "backward 156.2 ms 50 %",
        "4 workers (saves up to 10 % of the step; 1 of 2)",
        "--num-workers 4",
        "unstable: other processes used 47 % of the cores; steps spread by 24 %",
    ):
        assert part in text, (part, text)
    stages = [line for line in text.splitlines() if line.startswith("stages")]
    assert stages[0].split()[1:] == ["backbone", "150.0", "ms", "48.0", "%"], "the costliest first"
    assert "rpn" not in text, "three stages"


def test_batches_that_a_step_accumulates_are_told_beside_their_size(screen) -> None:
    shown = screen({"batch_size": 2, "accumulated": {"per_step": 4.0, "images": 2.0}})
    assert ", 4 x batch 2," in shown.setting


def test_the_speed_of_one_rank_stands_beside_that_of_all(screen) -> None:
    ranks = {"count": 2, "rows": [{"rank": 0, "images_per_s": 3.3}, {"rank": 1, "images_per_s": 3.1}]}
    speed = next(one for one in screen({"ranks": ranks}).figures if one.label == "speed")
    assert (speed.value, speed.detail) == ("6.40 images/s", "(3.30 of rank 0)")


def test_steps_are_counted_once_and_by_kind(screen) -> None:
    shown = screen({"warmup": {"n": 3}}, {"warmup": 3, "recorded": 20, "bare": 6})
    assert shown.steps == "20 recorded of 29: 3 warm-up, 6 bare"


def test_the_bar_can_be_read_without_colours_and_without_unicode(screen) -> None:
    text = printed(screen())
    bar = next(line for line in text.splitlines() if line.count("█") > 5)
    assert bar.count("█") == round(0.5 * (80 - 8)), "half of the step is backward"

    class Plain(io.StringIO):
        encoding = "ascii"

    console = Console(width=80, file=Plain(), legacy_windows=False)
    print_first_screen(screen(), console)
    assert "B" * 30 in console.file.getvalue()  # type: ignore[attr-defined]


def test_an_evaluation_tells_accuracy_and_the_worst_classes(screen) -> None:
    text = printed(screen(VERBS["eval"]))
    assert "AP 0.310" in text and "AP50 0.500" in text
    assert [line.split()[-1] for line in text.splitlines() if " AP 0." in line][1:] == [
        "0.000",
        "0.111",
        "0.222",
    ]
    assert "trust" not in text, "there are no steps to trust"


def trust_of(**changes: Any) -> Any:
    return judge_trust(made_figure(RunSummary, {**SAMPLE, **changes}))


def test_other_processes_are_named_where_they_used_the_cores() -> None:
    assert trust_of().cause == "other processes used 47 % of the cores"


def test_without_meters_the_cause_is_not_known_and_that_is_said() -> None:
    assert trust_of(telemetry=[]).cause == "cause not known: nobody sampled what else the machine did"
    quiet = [{**BUSY[0], "mean": 51.0}, *BUSY[1:]]
    assert trust_of(telemetry=quiet).cause == "cause not known (other processes used 1 % of the cores)"
    alone = [{**BUSY[0], "mean": 50.0}, *BUSY[1:]]
    assert trust_of(telemetry=alone).cause == "cause not known (other processes hardly ran)"


def test_a_throttled_device_is_a_cause_and_an_idle_one_is_none() -> None:
    quiet = [{**BUSY[0], "mean": 51.0}, *BUSY[1:]]
    slow = {"source": "gpu:0", "metric": "throttled: power cap", "unit": "%", "mean": 60.0, "n": 9}
    idle = {**slow, "metric": "throttled: idle"}
    assert (
        trust_of(telemetry=[*quiet, slow]).cause == "gpu:0 was slowed down (power cap) in 60 % of the samples"
    )
    assert trust_of(telemetry=[*quiet, idle]).cause.startswith("cause not known")


def test_stable_times_need_no_cause() -> None:
    assert trust_of(stability={"verdict": "stable", "reason": "steps spread by 2 %"}).cause is None


@given(some.text("ab./_:-,= 漢字é\t", max_size=200), some.integers(2, 60))
def test_no_line_is_wider_than_asked_and_no_letter_is_lost(text: str, width: int) -> None:
    lines = wrap_text(text, width)
    assert all(cell_len(line) <= width for line in lines)
    assert "".join("".join(lines).split()) == "".join(text.split())


@given(some.lists(some.text("abc", min_size=1, max_size=9), max_size=30), some.integers(10, 60))
def test_words_that_fit_a_line_are_never_broken(words: list[str], width: int) -> None:
    assert [word for line in wrap_text(" ".join(words), width) for word in line.split()] == words


def test_a_sentence_begins_with_a_capital_unless_it_begins_with_a_name_of_the_code() -> None:
    assert as_sentence("backward takes 52 %") == "Backward takes 52 %"
    assert as_sentence("input-bound: waiting") == "Input-bound: waiting"
    for text in ("roi_heads takes 59 %", "aten::add takes", "backbone.fpn is slower", "nms() waits"):
        assert as_sentence(text) == text


def test_a_long_module_breaks_behind_its_dots() -> None:
    assert wrap_text("backbone.body.layer4.0.downsample", 16) == ["backbone.body.", "layer4.0.", "downsample"]


def test_a_command_over_several_lines_is_one_for_a_shell() -> None:
    command = "detscope train --config runs/x/config.toml --set training.channels_last=true"
    lines = wrap_command(command, 40)
    assert len(lines) > 1 and max(map(len, lines)) <= 40
    assert all(line.endswith(" \\") for line in lines[:-1])
    assert " ".join("\n".join(lines).replace("\\\n", " ").split()) == command


def test_a_shortened_name_keeps_its_beginning_and_its_end() -> None:
    short = shorten_middle("backbone.body.layer4.0.conv2", 20)
    assert len(short) == 20 and short.startswith("backbo") and short.endswith(".0.conv2")


def test_verbs_without_a_run_keep_to_one_screen_and_say_where_the_rest_is() -> None:
    columns = [Column("network", "code"), Column("ms", "ms")]
    body = [[f"network-{index}", float(index)] for index in range(100)]
    tables = [Table(f"t{index}", "Every trial", columns, body, brief_rows=100) for index in range(2)]
    console = Console(width=80, record=True, file=io.StringIO())
    print_sections([Section("sweep", "Sweep", "", "", tables)], console, most_lines=24, more="the page")
    lines = console.export_text().splitlines()
    assert len(lines) <= 24
    assert sum("of 100)" in line for line in lines) == 2, "both tables say how many rows they have"
    assert lines[-1].split() == ["more", "the", "page"]


def test_columns_that_do_not_fit_follow_beneath_with_the_first_again() -> None:
    columns = [Column("module", "code"), *(Column(f"figure{index}", "ms") for index in range(12))]
    table = Table("wide", "Wide", columns, [["backbone.body", *(1000.0 + index for index in range(12))]])
    console = Console(width=60, record=True, file=io.StringIO())
    print_whole([Section("wide", "Wide", "", "", [table])], console)
    text = console.export_text()
    assert max(map(len, text.splitlines())) <= 60
    assert text.count("backbone.body") == 3, "of 5, 5 and 2 figures"
    assert all(f"{1000 + index:,}" in text for index in range(12))
