"""Pictures of predictions: what they show, in pixels and as text; names from outside stay harmless."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from PIL import Image

from detscope.analyze.prediction import Prediction, PredictionPoint, read_prediction
from detscope.errors import UsageError
from detscope.report.colours import GREEN, ORANGE, RED
from detscope.report.model import Series
from detscope.report.verbs.prediction_charts import (
    draw_prediction,
    draw_scores,
    prediction_charts,
    score_charts,
)
from detscope.report.verbs.prediction_page import prediction_page

EVIL = "</text><script>alert(1)</script>"
WORDS = {1: "fits", 8: "too close to call", 64: "does not fit"}


def prediction(device: bool = True, name: str = "resnet18", most_rows: int = 9) -> Prediction:
    rows: list[dict[str, Any]] = []
    for batch, word in WORDS.items():
        row: dict[str, Any] = {
            "batch": batch,
            "allocated_bytes": 2e8 + 2e7 * batch,
            "reserved_bytes": 3e8 + 3e7 * batch,
            "cpu_allocated_bytes": 1e8 + 2e7 * batch,
            "categories": {"parameters": 4.6e7, "activations": 2e7 * batch, "workspace": 0},
            "cpu_categories": {"parameters": 4.6e7, "activations": 2e7 * batch},
            "assumed": [],
            "process_bytes": None,
            "latency_ms": None,
            "extrapolated": batch == 64 if device else None,
            "fits": word if device else "cannot tell: no device model",
        }
        if device:
            row |= {"process_bytes": 1e9 + 4e7 * batch, "latency_ms": 20.0 * batch, "images_per_s": 50.0}
            row["needed_bytes"] = row["process_bytes"]
            row["needed_bytes_interval"] = [0.9 * row["process_bytes"], 1.1 * row["process_bytes"]]
            row["latency_ms_interval"] = [18.0 * batch, 22.0 * batch]
        rows.append(row)
    found = {
        "network": name,
        "stage": "training",
        "optimizer": "sgd",
        "image_size": [224, 224],
        "rows": rows[:most_rows],
        "limit_bytes": 1.35e9,
        "largest_batch_that_fits": 5 if device else None,
        "best_batch_for_throughput": 8 if device else None,
        "latency_by_stage": {"layer1": 0.6, "layer2": 0.4} if device else None,
        "memory_by_stage": {"layer1": 6e8, "layer2": 3e8},
        "device_model": {"rows": 944, "networks": ["resnet18"]} if device else None,
    }
    return read_prediction(found)


def texts_of(path: Path) -> list[str]:
    found = ElementTree.fromstring(path.read_text(encoding="utf-8"))
    return ["".join(node.itertext()) for node in found.iter("{http://www.w3.org/2000/svg}text")]


def colours_of(path: Path) -> set[str]:
    pixels = Image.open(io.BytesIO(path.read_bytes())).convert("RGB")
    found = pixels.getcolors(1 << 24)
    assert found is not None
    return {"#{:02X}{:02X}{:02X}".format(*colour) for _, colour in found if isinstance(colour, tuple)}


def test_the_picture_tells_the_limit_the_largest_batch_the_best_batch_and_where_both_go(
    tmp_path: Path,
) -> None:
    texts = texts_of(draw_prediction(prediction(), tmp_path / "a.svg"))
    assert "limit 1.35 GB" in texts
    assert "largest that fits: 5" in texts
    assert "best batch 8: 50.0 images/s" in texts
    assert "60.0 %" in texts and "1.28 GB" in texts  # time of layer1, activations at the largest batch
    assert {"fits", "too close to call", "does not fit"} <= set(texts)


def test_what_fits_is_green_what_does_not_is_red_and_between_them_is_orange(tmp_path: Path) -> None:
    colours = colours_of(draw_prediction(prediction(), tmp_path / "a.png"))
    assert {GREEN, ORANGE, RED} <= colours


def test_the_intervals_lie_around_the_line() -> None:
    latency, memory = prediction_charts(prediction())[:2]
    for chart, factor in ((latency, 20.0), (memory, None)):
        line = chart.content[0]  # type: ignore[index]
        assert isinstance(line, Series) and len(line.error_up) == len(WORDS)
        assert all(up > 0 and down > 0 for up, down in zip(line.error_up, line.error_down, strict=True))
        assert factor is None or list(line.y) == [factor * batch for batch in WORDS]


def test_without_a_device_model_memory_alone_is_drawn_and_the_picture_says_so(tmp_path: Path) -> None:
    texts = texts_of(draw_prediction(prediction(device=False), tmp_path / "a.svg"))
    assert any("latency: no device model" in text for text in texts)
    assert not any(text.startswith("Time of a step") for text in texts)
    assert "cannot tell whether it fits" in texts


def test_the_page_begins_with_what_fits_the_best_batch_and_what_to_do_next() -> None:
    page = prediction_page(prediction())
    for words in (
        "Fits up to batch 5 in 1.35 GB",
        "batch 8 is best: 50.0 images/s",
        "Largest batch that fits",
    ):
        assert words in page, words
    assert "--batch-size 8" in page
    assert page.index("Largest batch that fits") < page.index('<figure class="chart" id="latency"')
    bare = prediction_page(prediction(device=False))
    assert "detscope fit --microbench --out my.model" in bare and 'id="latency"' not in bare


def test_a_single_batch_size_can_be_drawn(tmp_path: Path) -> None:
    found = prediction(most_rows=1)
    assert draw_prediction(found, tmp_path / "a.png").stat().st_size > 5_000


def test_a_name_from_outside_is_text_and_nothing_else(tmp_path: Path) -> None:
    path = draw_prediction(prediction(name=f"net{EVIL}$x^2$\x1b[2J"), tmp_path / "a.svg")
    assert "<script" not in path.read_text(encoding="utf-8")
    assert any(f"{EVIL}$x^2$" in text for text in texts_of(path))


def test_a_picture_of_another_kind_is_refused_before_it_is_drawn(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"neither \.png nor \.svg"):
        draw_prediction(prediction(), tmp_path / "a.pdf")
    assert not list(tmp_path.iterdir())


def points(error: float | None = None) -> list[PredictionPoint]:
    return [
        PredictionPoint(
            target=target,
            protocol="unseen-networks",
            method="auto",
            network=network,
            measured=scale * batch,
            predicted=scale * batch * (1 + (own if error is None else error)),
        )
        for target, scale in (("latency", 3.0), ("memory", 1e8))
        for network, own in (("resnet18", 0.05), ("mnasnet", -0.2))
        for batch in (1, 2, 4, 8)
    ]


def test_the_scores_picture_prints_the_error_of_every_network_and_of_all(tmp_path: Path) -> None:
    texts = texts_of(draw_scores(points(), tmp_path / "scores.svg"))
    assert " ".join(texts).count("mean error 12.5 %, 50.0 % of 8 within 10 %") == 2
    assert "resnet18 5.0 %" in texts and "mnasnet 20.0 %" in texts
    assert any(text.startswith("latency, unseen networks") for text in texts)


def test_a_prediction_without_error_lies_on_the_diagonal() -> None:
    for chart in score_charts(points(error=0.0)):
        diagonal = next(one for one in chart.content if isinstance(one, Series) and one.dash == "dash")
        assert diagonal.x == diagonal.y and diagonal.x[0] < diagonal.x[1]
        dots = [one for one in chart.content if isinstance(one, Series) and one.look == "points"]
        assert sum(len(one.x) for one in dots) == 8
        for one in dots:
            assert list(one.x) == pytest.approx(list(one.y))
            assert diagonal.x[0] <= min(one.x) and max(one.x) <= diagonal.x[1]


def test_no_points_give_a_picture_that_says_so(tmp_path: Path) -> None:
    texts = texts_of(draw_scores([], tmp_path / "scores.svg"))
    assert any("nothing to draw" in text for text in texts)
