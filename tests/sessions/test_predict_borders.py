"""Lists of layers: which batch fits exactly, memory of inference, and what the terminal says; no torch."""

from __future__ import annotations

import io
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from detscope.analyze.prediction import read_prediction
from detscope.predict.device.file import save_model
from detscope.predict.device.model import fit_device
from detscope.predict.layers.graph import Convolution, LayerGraph, Operation
from detscope.predict.layers.kinds import CONVOLUTION
from detscope.predict.layers.lists import write_layers
from detscope.predict.memory.model import simulate_bytes
from detscope.predict.samples import StepCase, StepSample
from detscope.report.render.terminal import print_sections
from detscope.report.verbs.prediction import prediction_sections
from detscope.sessions.predict.prediction import PredictRequest, run_predict


def chain(width: int, name: str) -> LayerGraph:
    """Four convolutions of so many channels on 64 x 64 pixels."""
    shape, images = (1, width, 64, 64), (1, 3, 64, 64)
    operations = []
    for place in range(4):
        channels = width if place else 3
        operations.append(
            Operation(
                CONVOLUTION,
                (place,),
                (shape if place else images,),
                place + 1,
                shape,
                (channels * width * 9,),
                Convolution(channels, width, (3, 3), padding=(1, 1)),
                stage="body" if place else "stem",
            )
        )
    return LayerGraph(name, tuple(operations))


def samples() -> list[StepSample]:
    """Steps of a made-up device: the process holds half a gigabyte besides what is reserved."""
    found = []
    for network, width in (("thin", 8), ("wide", 24), ("wider", 40)):
        for level in (0, 30, 60):
            graph = chain(width - width * level // 100, f"{network}_{level}")
            for batch in (2, 8, 32):
                case = StepCase(graph, batch)
                allocated, reserved = (float(part[0]) for part in simulate_bytes([case]))
                process = 5e8 + reserved
                found.append(
                    StepSample(
                        case, network, level, allocated, reserved, process, 2.0 + 1e-8 * allocated * batch
                    )
                )
    return found


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("device")
    save_model(fit_device(samples(), method="physical"), folder / "device.model")
    write_layers(folder / "layers.json", {("mine", 0): chain(20, "mine_0")})
    return {"network": f"{folder / 'layers.json'}:mine_0", "device_model": folder / "device.model"}


def predicted(asked: dict[str, Any], batches: str, limit: str = "1GiB") -> dict[str, Any]:
    return run_predict(PredictRequest(**asked, batch_sizes=batches, memory_limit=limit))


def test_the_largest_batch_that_fits_is_found_between_and_beyond_those_asked_for(
    asked: dict[str, Any],
) -> None:
    for batches in ("1,1024", "1", "2048"):
        found = predicted(asked, batches)
        largest, first_out = found["largest_batch_that_fits"], found["smallest_batch_that_does_not_fit"]
        words = [row["fits"] for row in predicted(asked, f"{largest},{largest + 1}")["rows"]]
        assert words[0] == "fits" and words[1] != "fits"
        words = [row["fits"] for row in predicted(asked, f"{first_out - 1},{first_out}")["rows"]]
        assert words[0] != "does not fit" and words[1] == "does not fit"


def test_without_a_limit_nothing_is_said_to_fit(asked: dict[str, Any]) -> None:
    found = run_predict(PredictRequest(**asked, batch_sizes="1,2"))
    assert found["largest_batch_that_fits"] is None
    assert found["smallest_batch_that_does_not_fit"] is None


def test_a_limit_below_what_a_process_needs_fits_nothing(asked: dict[str, Any]) -> None:
    found = predicted(asked, "1,2", "100MiB")
    assert found["largest_batch_that_fits"] is None
    assert found["smallest_batch_that_does_not_fit"] == 1


def test_inference_of_a_list_of_layers_is_simulated_without_gradients(asked: dict[str, Any]) -> None:
    network = asked["network"]
    found = run_predict(PredictRequest(network, batch_sizes="4", stage="inference"))
    training = run_predict(PredictRequest(network, batch_sizes="4"))
    assert found["optimizer"] is None and found["rows"][0]["categories"]["gradients"] == 0
    assert found["rows"][0]["allocated_bytes"] < training["rows"][0]["allocated_bytes"]


def test_the_terminal_tells_intervals_in_one_unit_the_borders_and_the_stages(asked: dict[str, Any]) -> None:
    console = Console(width=120, file=io.StringIO())
    found = predicted(asked, "1,64,1024")
    print_sections(prediction_sections(read_prediction(found)), console)
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert "mine_0: training step, 64 x 64 pixels, sgd, predicted" in text
    assert f"up to batch {found['largest_batch_that_fits']} in 1.07 GB" in text
    assert f"from batch {found['smallest_batch_that_does_not_fit']} on it does not" in text
    assert "] MB" in text and "body " in text and "27 measured steps of thin, wide, wider" in text


def test_what_does_not_fit_shows_what_it_needs_and_not_what_the_device_has(asked: dict[str, Any]) -> None:
    (row,) = predicted(asked, "1024")["rows"]
    assert row["fits"] == "does not fit"
    assert row["needed_bytes"] > row["reserved_bytes"] > 1 << 30
    low, high = row["needed_bytes_interval"]
    assert low < row["needed_bytes"] < high and low > 1 << 30


def test_the_view_of_a_prediction_never_imports_torch() -> None:
    code = (
        "import sys, detscope.sessions.predict.prediction, detscope.report.verbs.prediction_charts, "
        "detscope.report.sections.predicted; assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=900)
