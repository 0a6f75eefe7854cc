"""The scripts of `examples/` under `detscope run`: found, counted, taken apart, and not disturbed."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from torch_process import DETECTION

from counted_nodes import count_nodes_of_nobody, share_in_modules
from named_rows import by_name

EXAMPLES = Path(__file__).parents[2] / "examples"
# arguments, training and evaluation steps, batches per step, family
SCRIPTS = {
    "plain_loop": (["7"], 7, 0, 1.0, "fasterrcnn"),
    "reference_style": (["--epochs", "2", "--steps", "4", "--workers", "1"], 8, 6, 1.0, "ssdlite"),
    "efficientdet_accumulation": (["7"], 7, 0, 2.0, "user"),
    "evaluation_only": (["8"], 0, 8, None, "retinanet"),
    "train_hf": (["7"], 7, 2, 4.0, "rt_detr"),
    "predict_hf": (["8"], 0, 8, None, "rt_detr"),
}
# autograd's nodes of what the script itself does to its losses, in three operator steps
OWN_NODES = {
    "plain_loop": {"AddBackward0": 3 * 4},
    "reference_style": {"AddBackward0": 3 * 2},
    "efficientdet_accumulation": {"MulBackward0": 3 * 2, "DivBackward0": 3 * 2},
    "train_hf": {"DivBackward0": 3 * 8},
}
IMPORTS = (*DETECTION, "effdet")
TRANSFORMERS = ("transformers.trainer", "transformers.models.rt_detr.modeling_rt_detr")


def own_words(text: str) -> list[str]:
    """Without speeds, and what torch says of an unknown processor: lines that begin with the time of day."""
    lines = [line for line in text.splitlines() if not line.startswith("[W")]
    return [re.sub(r"_(runtime|per_second)': '[^']*'", "", line) for line in lines]


@pytest.mark.parametrize("name", SCRIPTS)
def test_an_example_is_counted_and_taken_apart_and_prints_what_it_prints(name, tmp_path, torch_server):
    arguments, trained, evaluated, per_step, family = SCRIPTS[name]
    imports = IMPORTS
    if name.endswith("_hf"):
        pytest.importorskip("transformers")
        imports += TRANSFORMERS
    script = str(EXAMPLES / f"{name}.py")
    plain = torch_server(script, *arguments, folder=tmp_path, imports=imports, script=True)
    command = ("run", "-q", "--level", "ops", "--json", "figures.json", script, *arguments)
    heard = torch_server(*command, folder=tmp_path, imports=imports, teardown=True)
    assert plain.returncode == heard.returncode == 0, heard.stderr
    assert own_words(heard.stdout) == own_words(plain.stdout)
    assert own_words(heard.stderr) == own_words(plain.stderr)
    summary = json.loads((tmp_path / "figures.json").read_text())
    assert "<html" in (tmp_path / "runs" / "latest" / "report.html").read_text()
    steps = by_name(summary["script"]["parts"], "steps")
    assert (steps["training"], steps["evaluation"]) == (trained, evaluated)
    assert summary["script"]["batches_per_step"] == per_step
    assert summary["model"]["family"] == family
    assert sum(by_name(summary["phases"], "ms").values()) == pytest.approx(
        summary["step_ms"]["p50"], rel=0.01
    )
    assert by_name(summary["phases"], "ms")["forward"] > 0
    assert by_name(summary["stages"], "total_ms", 0)["backbone"] > 0
    if trained:
        assert summary["backward_attributed_by"] == "operators"
        run = tmp_path / "runs" / "latest"
        assert count_nodes_of_nobody(run) == OWN_NODES[name]
        assert summary["backward_attributed"] == pytest.approx(share_in_modules(run))
        assert summary["content"]["boxes_per_image"] >= 1
        assert 0 < summary["loss"]["last"] < 1e4
        assert summary["loss"]["parts"]
    if name.endswith("_hf"):
        assert summary["batch_size"] == 2
        images = (per_step or 1) * 2
        assert summary["images_per_s"] == pytest.approx(images / summary["step_ms"]["mean"] * 1e3)
