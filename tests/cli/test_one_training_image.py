"""Batch norm and a single training image: refused or told as the model's, never an internal error."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from detscope.cli.main import app

NORMALISED = """
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm1d(4)

    def forward(self, images, targets=None):
        values = torch.stack([self.layer(image).mean((1, 2)) for image in images])
        return {"loss": self.norm(values).square().mean()}
"""


def end(capsys: pytest.CaptureFixture[str], out: Path, model: str, images: int) -> tuple[object, str]:
    words = ["train", model, "--data", "synthetic", "--set", f"data.images={images}", "--batch-size", "2"]
    words += ["--steps", "2", "--num-workers", "0", "-q", "--out", str(out)]
    with pytest.raises(SystemExit) as ended:
        app(words, prog_name="detscope")
    return ended.value.code, capsys.readouterr().err


def test_a_data_set_of_one_image_is_refused_where_batch_norm_needs_two(tmp_path, capsys):
    code, err = end(capsys, tmp_path / "runs", "tiny_ssdlite", 1)
    assert code == 2, err
    assert err.startswith("error: tiny_ssdlite cannot train with batch size 1: ")
    assert "at least as many images" in err
    assert not (tmp_path / "runs").exists()


def test_an_odd_image_at_the_end_of_a_pass_is_no_batch_of_one(tmp_path, capsys):
    code, err = end(capsys, tmp_path / "runs", "tiny_ssdlite", 3)
    assert code == 0, err


def test_a_batch_norm_of_the_user_s_names_the_user_s_line(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(NORMALISED)
    code, err = end(capsys, tmp_path / "runs", f"{tmp_path}/mine.py:Net", 1)
    assert code == 3, err
    assert re.search(r"error: \S+mine\.py:12: ValueError: Expected more than 1 value per channel", err), err
