"""`run_evaluation` for real: models, runs, files of detections, and what they cannot do."""

from __future__ import annotations

import contextlib
import io
import json
import random
import subprocess
import sys
import warnings
from pathlib import Path

import msgspec
import numpy as np
import pytest
import torch
from torch import nn

import detscope
from detscope.analyze.summary import summarize
from detscope.config.schema import DataSettings, Settings
from detscope.data.contract import OpenRequest
from detscope.data.formats.coco import open_coco_file
from detscope.errors import InputError, UsageError
from detscope.loops.evaluate import evaluate_model
from detscope.report.progress import QuietProgress
from detscope.runs.reader import load_run
from detscope.sessions.evaluate.evaluation import run_evaluation
from detscope.sessions.evaluate.model import coco_label_ids
from schema_check import check_summary

IMAGES = 5


@pytest.fixture(scope="session")
def data_root(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("data")


def settings_for(name: str, tmp_path: Path, data_root: Path, **sections: dict) -> Settings:
    plain = {
        "training": {"num_workers": 0, "device": "cpu", "batch_size": 2},
        "model": {"name": name, "weights": "none"},
        "data": {"root": str(data_root), "image_width": 160, "image_height": 128},
        "evaluation": {"images": IMAGES},
        "output": {"runs": str(tmp_path / "runs")},
    }
    for section, values in sections.items():
        plain[section] = {**plain.get(section, {}), **values}
    return Settings.model_validate(plain)


def evaluate(settings: Settings) -> tuple[Path, dict]:
    run = run_evaluation(settings, progress=QuietProgress())
    return run, json.loads((run / "evaluation.json").read_text())


def pycocotools_figures(annotations: Path, results: list[dict], kind: str) -> np.ndarray:
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from pycocotools.coco import COCO
        from pycocotools.cocoeval import COCOeval

        truth = COCO(str(annotations))
        if kind == "segm":
            results = [{key: value for key, value in row.items() if key != "bbox"} for row in results]
        evaluation = COCOeval(truth, truth.loadRes(results), kind)
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return evaluation.stats


class Oracle(nn.Module):
    """Finds what it was told, image by image; the first of its modules is frozen in evaluation mode."""

    def __init__(self, answers: list[dict[str, torch.Tensor]]) -> None:
        super().__init__()
        self.frozen = nn.BatchNorm2d(3)
        self.frozen.eval()
        self.other = nn.Dropout(0.5)
        self.answers = answers
        self.seen = 0

    def forward(self, images, targets=None):
        assert not self.training
        torch.rand(3)
        random.random()
        found = self.answers[self.seen : self.seen + len(images)]
        self.seen += len(images)
        return found


def loader_of(count: int) -> list:
    return [([torch.rand(3, 20, 30)], [{"image_id": number}]) for number in range(1, count + 1)]


def test_detections_come_as_arrays_and_the_model_comes_back_as_it_was():
    mask = torch.zeros(2, 1, 20, 30)
    mask[0, 0, 2:5, 10:20] = 0.6
    answers = [
        {
            "boxes": torch.tensor([[1.0, 2.0, 9.0, 8.0], [float("nan"), 0.0, 1.0, 1.0]]),
            "labels": torch.tensor([2, 1]),
            "scores": torch.tensor([0.5, 0.9]),
            "masks": mask,
        },
        {"boxes": torch.zeros(0, 4), "labels": torch.zeros(0).long(), "scores": torch.zeros(0)},
    ]
    model = Oracle(answers).train()
    model.frozen.eval()
    loader = loader_of(2)
    torch.manual_seed(3)
    random.seed(3)
    before = torch.get_rng_state(), random.getstate()
    found = evaluate_model(model, loader, "cpu")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert (model.training, model.frozen.training, model.other.training) == (True, False, True)
    first, second = found.images
    assert (first.image_id, first.width, first.height, first.not_finite) == (1, 30, 20, 1)
    assert (first.boxes.tolist(), first.labels.tolist()) == ([[1.0, 2.0, 9.0, 8.0]], [2])
    from pycocotools import mask as coco_mask

    assert first.masks is not None
    assert coco_mask.toBbox(first.masks[0]).tolist() == [10, 2, 10, 3]
    assert second.boxes.shape == (0, 4)
    assert found.wall_ns > 0


def test_a_model_that_gives_no_detections_is_named_as_such():
    with pytest.raises(InputError, match="gives no list of detections"):
        evaluate_model(Oracle([torch.zeros(1)]), loader_of(1), "cpu")  # type: ignore[list-item]


@pytest.mark.parametrize("model", ["tiny_maskrcnn", "tiny_efficientdet", "tiny_keypointrcnn"])
def test_figures_of_a_run_equal_those_of_pycocotools_on_its_saved_detections(model, tmp_path, data_root):
    run, said = evaluate(settings_for(model, tmp_path, data_root))
    results = json.loads((run / "detections.json").read_text())
    [annotations] = data_root.glob("synthetic/*/annotations/instances.json")
    kinds = {"coco_box": "bbox", "coco_mask": "segm"}
    assert ("coco_mask" in said) == (model == "tiny_maskrcnn")
    for kind in kinds.keys() & said.keys():
        ours = [-1.0 if value is None else value for value in said[kind]["figures"].values()]
        np.testing.assert_allclose(ours, pycocotools_figures(annotations, results, kinds[kind]), atol=1e-6)
    assert said["throughput"]["images"] == IMAGES
    assert said["throughput"]["images_per_s"] > 0
    assert len(said["worst"]) == len(list((run / "worst").iterdir())) > 0
    summary = summarize(run)
    check_summary(summary)
    assert summary.status == "ok"
    assert summary.accuracy.ap == said["coco_box"]["figures"]["AP"]
    assert load_run(run).table("accuracy").height > 12


def test_a_file_of_detections_needs_no_torch_and_gives_the_same_figures(tmp_path, data_root):
    settings = settings_for("tiny_maskrcnn", tmp_path, data_root)
    run, _ = evaluate(settings)
    code = (
        "import json, sys\n"
        "from detscope.cli.main import app\n"
        "try: app(sys.argv[1:], prog_name='detscope')\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    arguments = ["eval", "--detections", str(run / "detections.json"), "--config", str(run / "config.toml")]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments, "--json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    again = json.loads(done.stdout)["accuracy"]["evaluation"]
    wanted = json.loads(msgspec.json.encode(summarize(run).accuracy.evaluation))
    for kind in ("coco_box", "coco_mask", "voc07", "voc10", "worst", "objects", "detections"):
        assert again[kind] == wanted[kind]
    assert again["throughput"] is None


def test_a_run_given_as_weights_brings_its_model_data_and_sizes(tmp_path, data_root, monkeypatch):
    """Evaluated again, its best weights have the accuracy that the training told of them."""
    from typer.testing import CliRunner

    from detscope.cli.main import app
    from detscope.sessions.train.training import run_training

    monkeypatch.chdir(tmp_path)
    training = {"num_epochs": 1, "batch_size": 2, "recipe": False, "learning_rate": 0.001}
    data, evaluation = {"images": 4}, {"every": 1, "images": 3}
    record = {"telemetry_hz": 0.0, "level": "phases"}
    given = {"training": training, "data": data, "evaluation": evaluation, "record": record}
    trained = run_training(
        settings_for("tiny_fasterrcnn", tmp_path, data_root, **given), progress=QuietProgress()
    )
    told = msgspec.to_builtins(summarize(trained).accuracy.coco_box)
    result = CliRunner().invoke(app, ["eval", "--weights", trained.name, "--json"])
    assert result.exit_code == 0, result.stderr
    said = json.loads(result.stdout)
    assert (said["model"]["name"], said["data"]["images"]) == ("tiny_fasterrcnn", 3)
    for name, value in said["accuracy"]["coco_box"].items():
        assert value == pytest.approx(told[name], abs=1e-6)


def test_weights_of_another_number_of_classes_are_refused(tmp_path, data_root):
    from safetensors.torch import save_file

    from detscope.zoo import BuildOptions, build_model

    built = build_model("tiny_fcos", BuildOptions(num_classes=4, weights="none"))
    save_file(built.module.state_dict(), tmp_path / "w.safetensors")
    weights = {"weights": str(tmp_path / "w.safetensors")}
    with pytest.raises(InputError, match="another number of classes than the 5 of synthetic"):
        evaluate(settings_for("tiny_fcos", tmp_path, data_root, model=weights))


def test_weights_that_are_neither_run_nor_file_are_refused(tmp_path, data_root):
    with pytest.raises(UsageError, match="no such run or file"):
        evaluate(settings_for("tiny_fcos", tmp_path, data_root, model={"weights": "nowhere"}))


def test_cocos_labels_find_the_classes_of_voc_under_their_other_names():
    labels = ["person", "bicycle", "car", "motorcycle", "airplane", "N/A", "dining table", "tv", "couch"]
    voc = ["aeroplane", "diningtable", "motorbike", "person", "sofa", "tvmonitor"]
    assert coco_label_ids(labels, voc, [1, 2, 3, 4, 5, 6]) == (4, -1, -1, 3, 1, -1, 2, 6, 5)


def own_data(folder: Path, annotations: list[dict], *, images: int = 2) -> Path:
    from PIL import Image

    (folder / "images").mkdir(parents=True)
    (folder / "annotations").mkdir()
    for number in range(1, images + 1):
        Image.new("RGB", (64, 48), (40 * number, 90, 90)).save(folder / "images" / f"{number}.jpg")
    numbers = range(1, images + 1)
    content = {
        "images": [{"id": n, "file_name": f"{n}.jpg", "width": 64, "height": 48} for n in numbers],
        "annotations": annotations,
        "categories": [{"id": 5, "name": "<b>cat</b>"}, {"id": 9, "name": "dog"}],
    }
    (folder / "annotations" / "instances.json").write_text(json.dumps(content))
    return folder


@pytest.fixture
def open_own(monkeypatch):
    """Let the session open one annotation file as it is, without a split of its own."""

    def use(folder: Path, skip_bad: bool = False) -> None:
        def opened(*_args, need_masks=False, **_more):
            settings = DataSettings(on_bad_data="skip" if skip_bad else "stop")
            annotations = folder / "annotations" / "instances.json"
            return open_coco_file("own", folder / "images", annotations, OpenRequest(settings, need_masks))

        monkeypatch.setattr("detscope.sessions.recording.open_dataset", opened)

    return use


def evaluate_rows(rows: list[dict], tmp_path: Path) -> tuple[Path, dict]:
    (tmp_path / "d.json").write_text(json.dumps(rows))
    evaluation, output = {"detections": str(tmp_path / "d.json")}, {"runs": str(tmp_path / "runs")}
    given = {"evaluation": evaluation, "output": output}
    return evaluate(Settings.model_validate(given))


BOX = [5.0, 5.0, 30.0, 30.0]


def thing(number: int, image: int, box: list[float], **more) -> dict:
    return {"id": number, "image_id": image, "category_id": 5, "bbox": box, **more}


def test_no_ground_truth_only_crowds_and_no_detections_are_measured_without_a_crash(tmp_path, open_own):
    """Case 26: undefined where it is undefined, 0.0 where it is 0."""
    detection = {"image_id": 1, "category_id": 5, "bbox": BOX, "score": 0.9}
    open_own(own_data(tmp_path / "empty", []))
    run, said = evaluate_rows([detection], tmp_path)
    assert set(said["coco_box"]["figures"].values()) == {None}
    assert "undefined (no ground truth)" in summarize(run).verdict
    open_own(own_data(tmp_path / "crowd", [thing(1, 1, BOX, iscrowd=1)]))
    assert evaluate_rows([detection], tmp_path)[1]["coco_box"]["figures"]["AP"] is None
    open_own(own_data(tmp_path / "some", [thing(1, 1, BOX)]))
    _, said = evaluate_rows([], tmp_path)
    assert (said["coco_box"]["figures"]["AP"], said["voc10"]["mean"]) == (0.0, 0.0)
    assert said["worst"][0]["missed"] == 1


def test_what_was_left_out_stands_beside_every_figure(tmp_path, open_own, monkeypatch):
    bad = [thing(1, 1, BOX), thing(2, 1, [1, 1, 0, 5]), thing(3, 2, [50, 40, 40, 40])]
    open_own(own_data(tmp_path / "own", bad), skip_bad=True)
    rows = [
        {"image_id": 1, "category_id": 5, "bbox": BOX, "score": 0.9},
        {"image_id": 77, "category_id": 5, "bbox": BOX, "score": 0.9},
    ]
    notes = []
    monkeypatch.setattr(QuietProgress, "note", lambda _, text: notes.append(text))
    run, said = evaluate_rows(rows, tmp_path)
    assert "left out: detections of images that are not in the data set: 1" in notes
    assert said["left_out"] == {
        "images": 0,
        "annotations": 1,
        "clipped": 1,
        "detections": {"of images that are not in the data set": 1},
    }
    from rich.console import Console

    from detscope.analyze.drawing import report_data
    from detscope.report.render.terminal import print_whole
    from detscope.report.sections import make_sections

    console = Console(file=io.StringIO(), width=140)
    print_whole(make_sections(report_data(load_run(run)))[0], console)
    shown = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    left_out = "left out: 1 annotation; 1 box cut to its image; 1 detection of images that are not in"
    for title in ("COCO accuracy", "Class by class, boxes"):
        assert f"{title} ({left_out}" in shown
    assert "<b>cat</b>" in shown
    assert "undefined" in shown


def test_a_run_that_fails_says_so_and_keeps_the_traceback(tmp_path, data_root, monkeypatch):
    def broken(*_args, **_more):
        exec(compile("raise RuntimeError('no such luck')", detscope.__file__, "exec"))  # a line of ours

    monkeypatch.setattr("detscope.sessions.evaluate.evaluation.measure_accuracy", broken)
    with pytest.raises(RuntimeError) as error:
        evaluate(settings_for("tiny_fcos", tmp_path, data_root))
    run = error.value.detscope_log.parent  # type: ignore[attr-defined]
    assert (load_run(run).status, load_run(run).info["reason"]) == ("failed", "no such luck")
    assert (run / "detections.json").is_file()
    assert summarize(run).accuracy is None


def test_the_page_of_an_evaluation_has_classes_a_curve_and_the_worst_images(tmp_path, open_own):
    objects = [
        thing(1, 1, BOX),
        thing(2, 2, BOX),
        {**thing(3, 2, [30.0, 20.0, 20.0, 20.0]), "category_id": 9},
    ]
    open_own(own_data(tmp_path / "own", objects))
    rows = [{"image_id": 1, "category_id": 5, "bbox": BOX, "score": 0.9}]
    rows.append({"image_id": 2, "category_id": 9, "bbox": [1.0, 1.0, 9.0, 9.0], "score": 0.8})
    run, said = evaluate_rows(rows, tmp_path)
    from detscope.analyze.drawing import report_data
    from detscope.report.model import Cards, Chart, Pictures, Table
    from detscope.report.sections import make_sections

    sections, absent = make_sections(report_data(load_run(run)))
    assert [one.id for one in sections if not one.brief_only][:2] == ["verdict", "accuracy"]
    assert absent == []
    blocks = next(one for one in sections if one.id == "accuracy").blocks
    charts = {block.id: block for block in blocks if isinstance(block, Chart)}
    curve = charts["precision-recall"]
    assert [line.name for line in curve.content][:1] == ["overlap 0.50"]
    assert np.mean(list(curve.content[0].y)) == pytest.approx(said["coco_box"]["figures"]["AP50"], abs=1e-4)
    assert [name for name, _ in curve.choices] == ["all classes", "every class, overlap 0.50"]
    assert charts["classes-chart"].content[0].y == ["<b>cat</b>", "dog"]
    tables = {block.id: block for block in blocks if isinstance(block, Table)}
    assert [row[0] for row in tables["accuracy-by-class"].rows] == ["<b>cat</b>", "dog"]
    (pictures,) = (block.pictures for block in blocks if isinstance(block, Pictures))
    assert pictures[0][0] == "2.jpg: 2 missed, 0 wrong, 0 right"
    assert pictures[0][1].startswith("data:image/jpeg")
    cards = [card.label for block in sections[0].blocks if isinstance(block, Cards) for card in block.cards]
    assert cards == ["AP of boxes", "Best cut"]
