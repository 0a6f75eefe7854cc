"""`detscope.load_run`: a run says what it has, gives it by name, and shows its first screen in a notebook."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import polars as pl
import pytest

import detscope
from detscope.analyze.summary import RunSummary
from detscope.errors import InputError, MachineError
from detscope.report.notebook.frames import FIGURES, NAMES, RECORDED_BY
from detscope.runs.schema import TABLES

RECORDED = Path(__file__).parents[1] / "old_runs"
VERBS = sorted(path.name for path in RECORDED.iterdir())


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """A folder of runs as verbs leave it."""
    name = "20261117T101112Z-train-tiny_retinanet-505f"
    shutil.copytree(RECORDED / "train", tmp_path / "runs" / name)
    (tmp_path / "runs" / "latest").symlink_to(name)
    return tmp_path / "runs"


def test_a_run_is_found_by_folder_name_beginning_and_as_the_latest(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = (runs / "latest").resolve()
    monkeypatch.chdir(runs.parent)
    for said in ("latest", whole, str(whole), whole.name, "20261117T10", "505f"):
        assert detscope.load_run(said).folder == whole
    assert detscope.load_run().folder == whole
    monkeypatch.chdir("/")
    assert detscope.load_run(whole.name, runs=runs).folder == whole


def test_where_there_is_no_run_the_traceback_has_the_hint(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run in") as raised:
        detscope.load_run(runs=tmp_path)
    assert raised.value.__notes__ == [f"hint: {raised.value.hint}"] and raised.value.hint


@pytest.mark.parametrize("verb", VERBS)
def test_a_run_prints_what_it_has_and_every_name_it_offers_is_a_frame(verb: str) -> None:
    run = detscope.load_run(RECORDED / verb)
    told = repr(run)
    assert told.startswith(f"{run.info['verb']} {run.info['model']['name']}, {run.status}: {verb}\n")
    assert max(map(len, told.splitlines())) <= 100
    for name in run.names:
        frame = getattr(run, name)
        assert isinstance(frame, pl.DataFrame) and name in dir(run)
        if name in TABLES:
            assert f"{name}={run.table(name).height:,}" in told
        if name in FIGURES:
            assert f".{name} " in told
        else:
            assert frame.equals(run.table(name)) and frame.height == run.rows[name]
    assert isinstance(run.summary, RunSummary) and run.summary is run.summary


@pytest.mark.parametrize("verb", VERBS)
def test_what_a_run_does_not_have_is_not_offered_and_says_who_records_it(verb: str) -> None:
    run = detscope.load_run(RECORDED / verb)
    for name in set(NAMES) - set(run.names):
        reason = FIGURES[name].missing if name in FIGURES else RECORDED_BY[name]
        with pytest.raises(AttributeError) as raised:
            getattr(run, name)
        assert str(raised.value) == f"{verb} has no {name}, which {reason}"
        assert not hasattr(run, name) and name not in dir(run)


def test_a_name_that_is_nearly_right_is_offered() -> None:
    run = detscope.load_run(RECORDED / "train")
    with pytest.raises(AttributeError, match=r"no 'modles'; did you mean modules\?"):
        run.modles  # noqa: B018
    with pytest.raises(AttributeError, match="no 'anything'; this one has steps, phases"):
        run.anything  # noqa: B018


def test_frames_of_figures_are_the_summary_s_own_rows() -> None:
    run = detscope.load_run(RECORDED / "train")
    for name in ("phases", "stages", "modules", "operators", "outliers", "epochs", "advice"):
        figures, frame = getattr(run.summary, name), getattr(run, name)
        assert frame.height == len(figures)
        for row, figure in zip(frame.iter_rows(named=True), figures, strict=True):
            told = json.loads(msgspec.json.encode(figure))
            for field in set(told) & set(row) - {"settings", "parts"}:
                assert row[field] == told[field], (name, field)
    assert run.phases["ci95_low"].to_list() == [phase.ci95 and phase.ci95.low for phase in run.summary.phases]
    assert detscope.load_run(RECORDED / "import").kernels["ms"].sum() > 0


def test_columns_are_the_same_whatever_a_run_could_tell() -> None:
    one, other = detscope.load_run(RECORDED / "train"), detscope.load_run(RECORDED / "infer")
    for name in ("steps", "phases", "stages", "modules", "outliers"):
        assert getattr(one, name).schema == getattr(other, name).schema, name
    assert pl.Null not in one.stages.schema.values()


def test_the_phases_of_every_step_add_up_to_it() -> None:
    steps = detscope.load_run(RECORDED / "train").steps
    recorded = steps.filter(pl.col("mode") == "recorded")
    parts = recorded.select(pl.sum_horizontal(pl.selectors.ends_with("_ms").exclude("step_ms")))
    assert parts.to_series().to_list() == pytest.approx(recorded["step_ms"].to_list())
    assert steps["step"].is_unique().all() and steps["images"].null_count() == 0


def test_a_damaged_table_is_said_and_the_rest_can_be_read(runs: Path) -> None:
    (runs / "latest" / "losses.parquet").write_bytes(b"PAR1 and then nothing")
    run = detscope.load_run("latest", runs=runs)
    assert "losses=damaged" in repr(run) and run.steps.height
    with pytest.raises(InputError, match=r"losses\.parquet is damaged"):
        run.losses  # noqa: B018


def test_pandas_gets_the_same_rows_or_is_asked_for_in_one_line() -> None:
    run = detscope.load_run(RECORDED / "train")
    if find_spec("pandas") is None:
        with pytest.raises(MachineError, match=r"^pandas is not installed") as raised:
            run.to_pandas("stages")
        assert raised.value.__notes__ == ["hint: install it: pip install pandas"]
    else:
        assert run.to_pandas("stages")["name"].tolist() == run.stages["name"].to_list()
    with pytest.raises(AttributeError, match=r"did you mean stages\?"):
        run.to_pandas("stage")


class Tags(HTMLParser):
    """What a piece of HTML is made of."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_data(self, data: str) -> None:
        self.text += data


def read_screen(run: Any) -> Tags:
    found = Tags()
    found.feed(run._repr_html_())
    return found


@pytest.mark.parametrize("verb", VERBS)
def test_a_notebook_shows_the_first_screen_small_and_without_scripts(verb: str) -> None:
    run = detscope.load_run(RECORDED / verb)
    screen = read_screen(run)
    assert set(screen.tags) <= {"div", "span", "b", "code", "br"}
    assert screen.attributes <= {"style", "title"}
    verdict = run.summary.verdict
    assert verdict[1:] in screen.text and len(run._repr_html_()) < 10_000
    if run.summary.phases and run.summary.step_ms.p50:
        assert all(phase.name in screen.text for phase in run.summary.phases if phase.share > 0)


def test_the_first_advice_stands_there_with_its_command() -> None:
    run = detscope.load_run(RECORDED / "train")
    advice = next(one for one in run.summary.advice if one.about == "time")
    text = read_screen(run).text
    assert advice.title in text and (advice.command or advice.how) in text


def test_names_that_are_markup_stay_text_in_a_notebook(runs: Path) -> None:
    file = runs / "latest" / "run.json"
    info = msgspec.json.decode(file.read_bytes())
    info["model"]["name"] = "<script>alert(1)</script>\x1b[31m"
    file.write_bytes(msgspec.json.encode(info))
    run = detscope.load_run("latest", runs=runs)
    assert "script" not in read_screen(run).tags and "<script>alert(1)" in read_screen(run).text
    assert "\x1b" not in repr(run) + run._repr_html_()


def test_a_run_is_loaded_without_torch_and_its_summary_waits_until_it_is_asked_for() -> None:
    code = (
        "import sys, detscope; run = detscope.load_run(sys.argv[1]); repr(run); dir(run); run.memory;"
        "assert 'summary' not in vars(run); run._repr_html_(); assert 'summary' in vars(run);"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code, str(RECORDED / "train")], check=True)
