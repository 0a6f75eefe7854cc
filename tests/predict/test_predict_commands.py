from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from detscope.cli.main import app


def layers(channels: int) -> list[list[Any]]:
    def conv(source: int, output: int, inside: int) -> list[Any]:
        more = {"ic": inside, "oc": channels, "k": 3, "stride": 1, "pad": 1, "groups": 1}
        more |= {"ip": 16, "op": 16, "params": inside * channels * 9}
        return ["conv", source, [1, inside, 16, 16], output, [1, channels, 16, 16], more]

    return [
        conv(0, 1, 3),
        ["relu_", 1, [1, channels, 16, 16], 1, [1, channels, 16, 16], {}],
        conv(1, 2, channels),
    ]


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    listed, lines = {}, ["net_name,level,bs,passed,mem_reserved,mem_used,latency"]
    for network, width in (("one", 64), ("two", 96)):
        for level in (0, 10, 30, 50, 70, 90):
            channels = max(2, width * (100 - level) // 100)
            listed[f"{network}_{level}"] = layers(channels)
            for batch in (8, 16, 64):
                size = channels * batch / 10
                ran = size < 500
                lines.append(
                    f"{network},{level},{batch},{ran},{size},{900 + size},{2 + channels * batch / 50}"
                )
    (tmp_path / "layers.json").write_text(json.dumps(listed))
    (tmp_path / "measured.csv").write_text("\n".join(lines))
    return tmp_path / "measured.csv"


def run(*args: str) -> Any:
    result = CliRunner().invoke(app, args)
    assert result.exit_code == 0, result.stderr
    return result


def test_from_measured_steps_to_a_model_to_a_prediction(measured: Path) -> None:
    fitted = json.loads(
        run("fit", "measured.csv", "--method", "physical", "--out", "d.model", "--json").stdout
    )
    assert (fitted["rows"], fitted["networks"]) == (36, ["one", "two"])
    assert fitted["limit_bytes"] > 0  # some runs did not fit
    asked = ("predict", "layers.json:one_10", "--device-model", "d.model", "--batch-sizes", "4,32")
    found = json.loads(run(*asked, "--json").stdout)
    assert [row["batch"] for row in found["rows"]] == [4, 32]
    assert found["fingerprint"] == fitted["fingerprint"]
    low, high = found["rows"][0]["process_bytes_interval"]
    assert low < found["rows"][0]["process_bytes"] < high
    assert found["best_batch_for_throughput"] == 32


def test_a_person_is_told_errors_left_out_and_the_next_command(measured: Path) -> None:
    asked = ("fit", "measured.csv", "--target", "latency", "--method", "physical", "--out", "d.model")
    said = " ".join(run(*asked).stdout.split())
    assert "unseen networks: physical" in said
    assert "next detscope predict NETWORK --device-model d.model" in said


def test_score_prints_figures_noise_and_decisions(measured: Path) -> None:
    said = run("score", "measured.csv", "--method", "physical", "--protocol", "unseen-networks").stdout
    assert "nothing was measured twice" in said
    assert "fits or not" in said
    scores = json.loads(
        run(
            "score",
            "measured.csv",
            "--target",
            "latency",
            "--method",
            "physical,trees",
            "--protocol",
            "unseen-levels",
            "--json",
        ).stdout
    )["scores"]
    assert [(row["protocol"], row["method"]) for row in scores] == [
        ("unseen-levels", "physical"),
        ("unseen-levels", "trees"),
    ]


@pytest.mark.parametrize(
    ("args", "code", "message"),
    [
        ("fit measured.csv --out d.model --method magic", 2, "error: --method: no 'magic'"),
        ("fit measured.csv --out d.model --target speed", 2, "error: --target: no 'speed'"),
        ("fit absent.csv --out d.model", 3, "absent.csv is not there"),
        ("predict layers.json:on_10 --batch-sizes 1", 3, "did you mean one_10?"),
        ("predict layers.json:one_10 --batch-sizes 0", 2, "error: a batch of 0 images"),
        ("predict layers.json:one_10 --batch-sizes few", 2, "is no list of whole numbers"),
        ("predict layers.json:one_10 --memory-limit big", 2, "'big' is no size"),
        ("predict layers.json:one_10 --device-model layers.json", 3, "layers.json is not a device model"),
    ],
)
def test_what_a_user_gets_wrong_is_one_line_and_a_hint(
    measured: Path, args: str, code: int, message: str
) -> None:
    result = CliRunner().invoke(app, args.split())
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr
    assert "Traceback" not in result.stderr


def test_without_a_device_model_memory_is_simulated_alone(measured: Path) -> None:
    said = " ".join(run("predict", "layers.json:one_0", "--memory-limit", "1KiB").stdout.split())
    assert "cannot tell latency: no device model" in said
    assert "does not fit" in said


def test_without_a_fitted_device_context_and_cublas_are_parts_of_their_own_with_their_assumption(
    measured: Path,
) -> None:
    row = json.loads(run("predict", "layers.json:one_0", "--batch-sizes", "4", "--json").stdout)["rows"][0]
    parts = {part["name"]: part["bytes"] for part in row["beside"]}
    assert parts == {"driver context": 500_000_000, "cuBLAS workspace": 8_519_680}
    assert row["device_bytes"] == row["reserved_bytes"] + sum(parts.values())
    assert [text for text in row["assumed"] if "driver context of 500 MB" in text]
    assert [text for text in row["assumed"] if "cuBLAS workspace of 8.5 MB" in text]
    run("fit", "measured.csv", "--method", "physical", "--out", "d.model")
    asked = ("predict", "layers.json:one_0", "--batch-sizes", "4", "--device-model", "d.model", "--json")
    fitted = json.loads(run(*asked).stdout)["rows"][0]
    assert fitted["beside"] == [] and fitted["process_bytes"] > 0  # measured, nothing is assumed
