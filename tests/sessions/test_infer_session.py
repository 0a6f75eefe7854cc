"""`run_inference` for real: every family, every figure that must add up, every kind of bad image."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from PIL import Image
from stage_cover import file_of, modules_without_a_stage, stages_ms

from detscope.analyze.summary import RunSummary, summarize
from detscope.config.load import load_settings
from detscope.config.schema import Settings
from detscope.errors import InputError, MachineError, UsageError
from detscope.report.progress import QuietProgress
from detscope.runs.reader import load_run
from detscope.sessions.infer.inference import run_inference
from schema_check import check_summary

OWN_STAGES = {
    "tiny_fasterrcnn": {"backbone", "fpn", "rpn", "roi_heads"},
    "tiny_maskrcnn": {"backbone", "fpn", "rpn", "roi_heads"},
    "tiny_keypointrcnn": {"backbone", "fpn", "rpn", "roi_heads"},
    "tiny_retinanet": {"backbone", "fpn", "head", "anchors"},
    "tiny_fcos": {"backbone", "fpn", "head", "anchors"},
    "tiny_ssd": {"backbone", "head", "anchors"},
    "tiny_ssdlite": {"backbone", "head", "anchors"},
    "tiny_efficientdet": {"backbone", "bifpn", "class_net", "box_net"},
}
OWN_MODEL = f"{Path(__file__).parents[2] / 'examples' / 'own_model.py'}:detector"


@pytest.fixture(scope="session")
def data_root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("data")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Pictures of different sizes, small so that the tests are quick."""
    folder = tmp_path_factory.mktemp("photos")
    random = np.random.default_rng(0)
    for number in range(6):
        pixels = random.integers(0, 255, (60 + 20 * number, 90, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(folder / f"{number}.jpg")
    return folder


def settings_for(model: str, tmp_path: Path, data_root: Path, /, **sections: dict) -> Settings:
    plain = {
        "inference": {"limit": 6, "warmup_steps": 1, "device": "cpu"},
        "model": {"name": model, "weights": "none"},
        "data": {"root": str(data_root), "image_width": 160, "image_height": 128},
        "record": {"telemetry_hz": 0.0},
        "output": {"runs": str(tmp_path / "runs")},
    }
    for section, values in sections.items():
        plain[section] = {**plain.get(section, {}), **values}
    return Settings.model_validate(plain)


def infer(*args, **sections) -> RunSummary:
    summary = summarize(run_inference(settings_for(*args, **sections), progress=QuietProgress()))
    check_summary(summary)
    return summary


@pytest.mark.parametrize("model", OWN_STAGES)
def test_in_every_family_all_stages_from_decode_to_other_add_up_to_the_latency(model, tmp_path, data_root):
    summary = infer(model, tmp_path, data_root)
    assert summary.status == "ok"
    assert summary.images == summary.latency_ms.n == 6
    assert {"decode", "preprocess", "postprocess", "other"} | OWN_STAGES[model] <= stages_ms(summary).keys()
    assert sum(stages_ms(summary).values()) == pytest.approx(summary.latency_ms.p50, rel=0.01)
    assert all(ms >= 0 for ms in stages_ms(summary).values())
    assert stages_ms(summary)["decode"] > 0
    assert modules_without_a_stage(summary) == []
    assert all(row.n == 6 for row in summary.stages)
    assert (summary.latency_ms.p99, summary.latency_ms.p99_why) == (None, "needs 459")
    assert summary.first_image_ms > 0
    assert summary.warmup.n == 1
    assert summary.overhead_ratio.n == 2
    assert summary.detections.per_image is not None
    assert summary.pass_memory.peak_bytes > 128 * 160 * 3
    assert len(summary.pass_memory.largest) == 10
    assert "random" in summary.weights.kind
    assert len(list(file_of(summary, "pictures").iterdir())) >= 6


def test_every_image_is_measured_once_and_named_and_bare_passes_repeat_a_neighbour(
    tmp_path, data_root, photos
):
    images = {"images": [str(photos)], "limit": None, "repeat": 2}
    summary = infer("tiny_ssd", tmp_path, data_root, inference=images)
    assert (summary.images, summary.latency_ms.n, summary.repeat) == (6, 12, 2)
    run = load_run(summary.run)
    modes = run.table("steps").filter(pl.col("phase") == "step").select("step", "mode")
    named = run.table("images").join(modes, on="step")
    recorded = named.filter(pl.col("mode") == "recorded").sort("step")
    assert recorded["name"].to_list() == [str(photos / f"{number}.jpg") for number in range(6)] * 2
    assert recorded["height"].to_list()[:6] == [60, 80, 100, 120, 140, 160]
    for step in named.filter(pl.col("mode") == "bare")["step"].to_list():
        around = {n: name for n, name in named.select("step", "name").iter_rows() if abs(n - step) <= 1}
        assert around[step] in (around[step - 1], around[step + 1])
    [pixels] = [
        cost for cost in summary.cost_against_content if (cost.stage, cost.measure) == ("decode", "pixels")
    ]
    assert pixels.n == 12
    assert pixels.slope is not None
    assert summary.content.pixels_per_image == 110 * 90


def test_batches_hold_all_images_also_when_the_last_is_smaller(tmp_path, data_root):
    summary = infer("tiny_ssd", tmp_path, data_root, inference={"batch_size": 4})
    assert (summary.images, summary.latency_ms.n) == (6, 2)
    assert "per batch" in summary.verdict


def test_the_trace_has_stages_and_modules_that_nest_and_agree_with_the_tables(tmp_path, data_root):
    summary = infer("tiny_fasterrcnn", tmp_path, data_root, inference={"limit": 3}, record={"level": "ops"})
    with gzip.open(file_of(summary, "trace"), "rt") as handle:
        events = json.load(handle)["traceEvents"]
    tracks = {event["args"]["name"]: event["tid"] for event in events if event["name"] == "thread_name"}
    assert {"stages", "modules", "operators", "loading in the loop"} <= tracks.keys()

    def on(track: str) -> list[dict]:
        return [event for event in events if event["ph"] == "X" and event["tid"] == tracks[track]]

    modules = sorted(on("modules"), key=lambda event: (event["ts"], -event["dur"]))
    open_above: list[dict] = []
    for event in modules:
        while open_above and open_above[-1]["ts"] + open_above[-1]["dur"] <= event["ts"] + 1e-3:
            open_above.pop()
        if open_above:
            assert event["ts"] + event["dur"] <= open_above[-1]["ts"] + open_above[-1]["dur"] + 1e-3
        open_above.append(event)
    spans = load_run(summary.run).table("spans").filter(pl.col("direction") == "forward")
    drawn = load_run(summary.run).table("timeline")["step"].unique().to_list()
    for kind, track, path in (
        ("stage", "stages", "backbone"),
        ("stage", "stages", "rpn.head"),
        ("module", "modules", "backbone.body.layer1"),
        ("module", "modules", "rpn"),
    ):
        rows = spans.filter((pl.col("kind") == kind) & (pl.col("path") == path) & pl.col("step").is_in(drawn))
        drawn_us = sum(event["dur"] for event in on(track) if event["name"] == path)
        assert drawn_us == pytest.approx(rows["total_ns"].sum() / 1e3, rel=1e-6)


@pytest.mark.parametrize(("level", "modules"), [("phases", "all"), ("modules", "none"), ("modules", "leaf")])
def test_with_fewer_probes_the_figures_still_add_up(level, modules, tmp_path, data_root):
    record = {"level": level, "modules": modules}
    summary = infer("tiny_ssd", tmp_path, data_root, inference={"limit": 4}, record=record)
    assert sum(stages_ms(summary).values()) == pytest.approx(summary.latency_ms.p50, rel=0.01)
    assert ("backbone" in stages_ms(summary)) == (level == "modules")
    assert ("forward" in stages_ms(summary)) == (level == "phases")
    paths = {row.path for row in summary.modules}
    assert ("head.classification_head.module_list.0" in paths) == (modules == "leaf")


def test_a_users_own_model_has_its_own_stages_and_those_named_on_the_command_line(tmp_path, data_root):
    inference = {"limit": 3, "stages": ["stem = features.0"]}
    summary = infer(OWN_MODEL, tmp_path, data_root, inference=inference, model={"weights": "auto"})
    assert {"decode", "backbone", "head", "stem", "other"} <= stages_ms(summary).keys()
    with pytest.raises(UsageError, match="the model has no 'nowhere'"):
        infer(OWN_MODEL, tmp_path, data_root, inference={"stages": ["x=nowhere"]}, model={"weights": "auto"})
    with pytest.raises(UsageError, match="is not NAME=path"):
        infer(OWN_MODEL, tmp_path, data_root, inference={"stages": ["x"]})


def test_the_stored_configuration_repeats_the_run(tmp_path, data_root, photos):
    inference = {"images": [str(photos / "*.jpg")], "limit": 3, "precision": "bf16"}
    settings = settings_for("tiny_ssd", tmp_path, data_root, inference=inference)
    run = run_inference(settings, progress=QuietProgress())
    text = (run / "config.toml").read_text()
    assert "detscope infer --config" in text
    again = load_settings(run / "config.toml", (), {}).settings
    assert again == settings
    assert summarize(run).images == 3


def bad_and_good(folder: Path) -> dict[str, str | None]:
    """Cases 19, 24 and 27 of the list of faults: name -> part of the reason, None where it is readable."""
    random = np.random.default_rng(1)
    picture = Image.fromarray(random.integers(0, 255, (64, 96, 3), dtype=np.uint8))
    picture.save(folder / "good.jpg")
    whole = (folder / "good.jpg").read_bytes()
    (folder / "truncated.jpg").write_bytes(whole[: len(whole) // 2])
    (folder / "empty.jpg").touch()
    (folder / "page.jpg").write_text("<!doctype html><html></html>")
    (folder / "folder.jpg").mkdir()
    for mode in ("L", "CMYK"):
        picture.convert(mode).save(folder / f"{mode}.jpg")
    for mode in ("RGBA", "P"):
        picture.convert(mode).save(folder / f"{mode}.png")
    Image.fromarray(random.integers(0, 65535, (64, 96), dtype=np.uint16)).save(folder / "sixteen.png")
    turned = Image.Exif()
    turned[0x0112] = 6
    picture.save(folder / "turned.jpg", exif=turned)
    Image.new("1", (20_000, 20_000)).save(folder / "huge.png")
    Image.new("RGB", (1, 3000)).save(folder / "narrow.png")
    (folder / "notes.txt").write_text("not an image, and not named like one")
    return {
        "good.jpg": None,
        "truncated.jpg": "truncated",
        "empty.jpg": "empty (0 bytes)",
        "page.jpg": "HTML page",
        "folder.jpg": "is a folder",
        "L.jpg": None,
        "CMYK.jpg": None,
        "RGBA.png": None,
        "P.png": None,
        "sixteen.png": None,
        "turned.jpg": None,
        "huge.png": "pixels, the limit",
        "narrow.png": "1 x 3000 pixels: the model cannot take it",
        "missing.jpg": "no such file",
    }


def test_each_bad_image_gets_one_line_and_the_others_are_measured(tmp_path, data_root):
    folder = tmp_path / "given"
    folder.mkdir()
    expected = bad_and_good(folder)
    images = {"images": [str(folder), str(folder / "missing.jpg"), str(folder / "*.gif")], "limit": None}
    summary = infer("tiny_fasterrcnn", tmp_path, data_root, inference=images)
    reasons = {Path(item.file).name: item.reason for item in summary.skipped}
    assert reasons.pop("*.gif") == "matches no image files"
    bad = {name: reason for name, reason in expected.items() if reason is not None}
    assert reasons.keys() == bad.keys()
    for name, reason in bad.items():
        assert reason in reasons[name]
        assert "\n" not in reasons[name]
    assert summary.images == len(expected) - len(bad)
    sizes = load_run(summary.run).table("images").unique("name")
    turned = sizes.filter(pl.col("name").str.ends_with("turned.jpg")).to_dicts()[0]
    assert (turned["width"], turned["height"]) == (64, 96), "the orientation is applied"


def test_a_narrow_image_goes_through_a_model_that_can_take_it(tmp_path, data_root):
    Image.new("RGB", (1, 3000)).save(tmp_path / "narrow.png")
    images = {"images": [str(tmp_path / "narrow.png")]}
    assert infer("tiny_ssd", tmp_path, data_root, inference=images).images == 1


def test_when_no_image_can_be_read_each_is_named_and_nothing_is_left(tmp_path, data_root):
    (tmp_path / "a.jpg").touch()
    images = {"images": [str(tmp_path / "a.jpg"), str(tmp_path / "b.jpg")]}
    with pytest.raises(InputError) as caught:
        infer("tiny_ssd", tmp_path, data_root, inference=images)
    lines = caught.value.message.splitlines()
    assert [line.partition(": ")[2] for line in lines[:2]] == ["is empty (0 bytes)", "no such file"]
    assert caught.value.exit_code == 3
    assert not (tmp_path / "runs").exists()


def test_what_cannot_run_is_said_before_anything_is_made(tmp_path):
    root = tmp_path / "data"
    with pytest.raises(MachineError, match="cuda:7"):
        infer("tiny_ssd", tmp_path, root, inference={"device": "cuda:7"})
    with pytest.raises(UsageError, match="tiny_sss"):
        infer("tiny_sssd", tmp_path, root)
    with pytest.raises(UsageError, match="cannot be mixed"):
        infer("tiny_ssd", tmp_path, root, inference={"images": ["synthetic", "x.jpg"]})
    assert not root.exists()
    assert not (tmp_path / "runs").exists()


def test_a_model_that_fails_on_an_image_names_it_and_keeps_the_traceback(tmp_path, data_root, photos):
    (tmp_path / "picky.py").write_text(
        "import torch\n"
        "class Picky(torch.nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n        self.layer = torch.nn.Conv2d(3, 1, 1)\n"
        "    def forward(self, images):\n"
        "        if images[0].shape[1] == 100:\n            raise ValueError('a hundred is too much')\n"
        "        return self.layer(images[0])\n"
    )
    model = {"name": f"{tmp_path / 'picky.py'}:Picky", "weights": "auto"}
    inference = {"images": [str(photos)], "limit": None, "warmup_steps": 0}
    with pytest.raises(
        InputError, match=r"2\.jpg: the model failed at \S+picky\.py:8: ValueError: a hundred"
    ) as caught:
        infer("", tmp_path, data_root, model=model, inference=inference)
    log = Path(caught.value.hint.partition("the traceback is in ")[2])
    assert "Traceback" in log.read_text()
    summary = summarize(log.parent)
    assert summary.status == "failed"
    assert summary.latency_ms.n == 2
    assert summary.detections.per_image is None, "its output is no list of detections"
