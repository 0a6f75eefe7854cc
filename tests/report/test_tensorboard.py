"""A run in TensorBoard: read back from the event file, over HTTP from the real server, and in a browser."""

import io
import json
import re
import socket
import subprocess
import sys
import time
import urllib.parse
import urllib.request
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import LOOK_EVERY_MS, LOOKS, PATIENCE_MS, until
from PIL import Image

from detscope.analyze.drawing import report_data
from detscope.machine.programs import find_browser
from detscope.report.drawing import Picture
from detscope.report.palette import colour_of
from detscope.report.render.tensorboard import write_tensorboard
from detscope.runs.reader import load_run
from detscope.zoo.contract import Stage

HOSTILE = "<img src=x onerror=alert(1)>"
STEPS = 6


def pictures() -> list[Picture]:
    masks = np.zeros((1, 240, 320), dtype=bool)
    masks[0, 70:170, 110:210] = True
    shades = np.linspace(90, 200, 320, dtype=np.uint8)
    pixels = np.repeat(np.tile(shades, (240, 1))[:, :, None], 3, axis=2)
    box = np.array([[100.0, 60.0, 220.0, 180.0]])
    return [
        Picture("photos/dog.jpg", pixels, box, ["dog"], np.array([0.93]), masks),
        Picture(HOSTILE, pixels, box, [HOSTILE], np.array([0.5])),
    ]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real run of a real, small model, with a name that means harm among its regions."""
    import torch
    from torch import nn

    import detscope

    class Small(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.features, self.head = nn.Linear(8, 8), nn.Linear(8, 1)

        def forward(self, images: list[torch.Tensor]) -> torch.Tensor:
            with detscope.region(HOSTILE):
                stacked = torch.stack(images)[:, 0]
            return self.head(self.features(stacked).relu()).mean()

    model = Small()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    recorder = detscope.Recorder(
        model,
        optimizer,
        tmp_path_factory.mktemp("runs"),
        name="small",
        stages=(Stage("body", "features"), Stage("body.top", "head")),
        warmup_steps=2,
        bare_every=0,
        telemetry_hz=0,
    )
    with recorder:
        for images, _ in recorder.steps([([torch.rand(3, 8, 8)] * 2, [{}, {}])] * (STEPS + 2)):
            loss = model(images)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    write_tensorboard(report_data(load_run(recorder.run)), pictures())
    return recorder.run


@pytest.fixture(scope="module")
def events(trained: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    accumulator = EventAccumulator(
        str(trained / "tb"), size_guidance={"scalars": 0, "images": 0, "tensors": 0}
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return accumulator.Reload()


def text_of(events: Any, tag: str) -> str:
    return events.Tensors(f"{tag}")[0].tensor_proto.string_val[0].decode()


def test_every_step_has_a_point_that_the_tables_confirm(trained: Path, events: Any) -> None:
    steps = load_run(trained).table("steps").filter(phase="step", mode="recorded").sort("step")
    points = events.Scalars("steps_ms/step")
    assert [point.step for point in points] == steps["step"].to_list()
    assert len(points) == STEPS
    assert [p.value for p in points] == pytest.approx([ns / 1e6 for ns in steps["wall_ns"].to_list()])
    times = [point.wall_time for point in points]
    apart_s = (steps["start_ns"][-1] - steps["start_ns"][0]) / 1e9
    assert times == sorted(times) and times[-1] - times[0] == pytest.approx(apart_s, abs=1e-3)
    assert len(events.Scalars("warmup_ms/step")) == 2


def test_phases_of_a_step_add_up_to_it(events: Any) -> None:
    phases = ("data", "transfer", "forward", "backward", "optimizer", "other")
    for index, whole in enumerate(events.Scalars("steps_ms/step")):
        parts = [events.Scalars(f"phases_ms/{phase}")[index].value for phase in phases]
        assert sum(parts) == pytest.approx(whole.value, rel=0.005)


def test_a_stage_holds_its_parts(trained: Path, events: Any) -> None:
    spans = load_run(trained).table("spans").filter(kind="stage")
    own_ms = {
        name: [
            spans.filter(path=name, step=point.step)["self_ns"].sum() / 1e6
            for point in events.Scalars("steps_ms/step")
        ]
        for name in ("body", "body.top")
    }
    assert all(ms > 0 for name in own_ms for ms in own_ms[name])
    both = [one + other for one, other in zip(own_ms["body"], own_ms["body.top"], strict=True)]
    assert [point.value for point in events.Scalars("stages_ms/body")] == pytest.approx(both)
    assert [point.value for point in events.Scalars("stages_ms/body.top")] == pytest.approx(
        own_ms["body.top"]
    )


def test_pictures_and_charts_are_drawn(events: Any, tmp_path: Path) -> None:
    tags = events.Tags()["images"]
    charts = [tag for tag in tags if tag.startswith("charts/")]
    assert charts == ["charts/phases", "charts/steps-over-time", "charts/icicle"]
    assert tags[: len(charts) + 1] == [*charts, "pictures/dog"]
    assert len(tags) == len(charts) + 2 and "<" not in tags[-1]
    for tag in charts:
        (drawn,) = events.Images(tag)
        with Image.open(io.BytesIO(drawn.encoded_image_string)) as image:
            assert image.size == (drawn.width, drawn.height)
    (tmp_path / "dog.jpg").write_bytes(events.Images("pictures/dog")[0].encoded_image_string)
    with Image.open(tmp_path / "dog.jpg") as image:
        pixels = np.asarray(image)
    assert pixels.shape == (240, 320, 3)
    assert np.abs(pixels[120, 100].astype(int) - colour_of("dog")).max() < 40, "the box's left edge"


def test_the_module_table_is_text_with_every_module(trained: Path, events: Any) -> None:
    import detscope

    text = text_of(events, "modules")
    modules = detscope.summarize(trained).modules
    lines = [line for line in text.splitlines() if line.startswith("| `")]
    assert len(lines) == len(modules) >= 5
    assert "Linear" in text and "backward" in text
    assert "small" in text_of(events, "method")


def test_writing_again_replaces_the_view(trained: Path) -> None:

    before = [path.name for path in (trained / "tb").iterdir()]
    assert len(before) == 1
    assert socket.gethostname() not in before[0]
    write_tensorboard(report_data(load_run(trained)), pictures())
    assert [path.name for path in (trained / "tb").iterdir()] == before


def test_a_summary_with_nothing_measured_still_gives_a_view(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes((trained / "run.json").read_bytes())
    folder = write_tensorboard(report_data(load_run(tmp_path)), [])
    assert len(list(folder.iterdir())) == 1


def test_writing_needs_no_torch(trained: Path, tmp_path: Path) -> None:
    (tmp_path / "run.json").write_bytes((trained / "run.json").read_bytes())
    code = (
        "import sys\n"
        "from detscope.analyze.drawing import report_data\n"
        "from detscope.report.render.tensorboard import write_tensorboard\n"
        "from detscope.runs.reader import load_run\n"
        "write_tensorboard(report_data(load_run(sys.argv[1])), [])\n"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 0


@dataclass(frozen=True)
class Server:
    address: str

    def get(self, path: str, **query: Any) -> bytes:
        url = f"{self.address}/data/plugin/{path}"
        if query:
            url += "?" + urllib.parse.urlencode(query)
        with urllib.request.urlopen(url, timeout=PATIENCE_MS / 1000) as answer:
            return answer.read()

    def json(self, path: str, **query: Any) -> Any:
        return json.loads(self.get(path, **query))


@pytest.fixture(scope="module")
def server(trained: Path, events: Any, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """`tensorboard --logdir RUN/tb` on a free port of this machine alone, with the whole run read."""
    log = tmp_path_factory.mktemp("server") / "log"
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(trained / "tb")]
    command += ["--host", "127.0.0.1", "--port", "0"]
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        yield _once_loaded(events, process, log)
    finally:
        process.terminate()
        process.wait(timeout=PATIENCE_MS / 1000)


def _once_loaded(events: Any, process: subprocess.Popen[bytes], log: Path) -> Server:
    """Wait until the server has read the whole file, which it does in the background."""
    last: object = "no address yet"
    for _ in range(LOOKS):
        assert process.poll() is None, log.read_text()
        said = re.search(r"http://127\.0\.0\.1:\d+", log.read_text())
        try:
            if said is not None:
                last = _missing(Server(said[0]), events)
                if not last:
                    return Server(said[0])
        except OSError as error:
            last = error
        time.sleep(LOOK_EVERY_MS / 1000)
    pytest.fail(f"TensorBoard did not load the run: {last}\n{log.read_text()}")


def _missing(server: Server, events: Any) -> list[str]:
    """What the file has and the server does not give yet."""
    missing = []
    for kind, plugin in (("scalars", "scalars/tags"), ("images", "images/tags"), ("tensors", "text/tags")):
        given = server.json(plugin).get(".", ())
        wanted = [tag for tag in events.Tags()[kind] if not tag.startswith("_")]  # hparams' own begin so
        missing += [f"{plugin} {tag}" for tag in wanted if tag not in given]
    if missing:
        return missing
    return [
        tag
        for tag in events.Tags()["scalars"]
        if len(server.json("scalars/scalars", run=".", tag=tag)) < len(events.Scalars(tag))
    ]


def test_the_server_gives_scalars(server: Server) -> None:
    tags = server.json("scalars/tags")["."]
    assert {"steps_ms/step", "phases_ms/forward", "phases_ms/backward", "figures/images_per_s"} <= set(tags)
    points = server.json("scalars/scalars", run=".", tag="phases_ms/forward")
    assert len(points) == STEPS
    assert all(value > 0 for _, _, value in points)


def test_the_server_gives_pictures(server: Server) -> None:
    assert "pictures/dog" in server.json("images/tags")["."]
    (entry,) = server.json("images/images", run=".", tag="pictures/dog", sample=0)
    served = server.get(f"images/individualImage?{entry['query']}")
    with Image.open(io.BytesIO(served)) as image:
        assert (image.format, image.size) == ("JPEG", (320, 240))


def test_the_server_gives_tables_as_text_in_which_hostile_names_are_inert(server: Server) -> None:
    assert set(server.json("text/tags")["."]) >= {"modules", "verdict"}
    html = server.json("text/text", run=".", tag="modules")[0]["text"]
    assert "<table>" in html and "Linear" in html
    assert "&lt;img src=x" in html and "<img" not in html


def test_the_server_gives_parameters_with_latency_and_throughput(server: Server) -> None:
    experiment = server.json("hparams/experiment", request="{}")
    assert {info["name"] for info in experiment["hparamInfos"]} == {
        "model",
        "device",
        "batch_size",
        "precision",
    }
    metrics = {info["name"]["tag"] for info in experiment["metricInfos"]}
    assert metrics == {"figures/latency_p50_ms", "figures/images_per_s"}


def test_a_browser_shows_the_pictures(server: Server) -> None:
    browser_path = find_browser()
    if browser_path is None:
        pytest.skip("no Chromium: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api", reason="the package playwright is not installed")
    flags = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=str(browser_path), args=flags, timeout=PATIENCE_MS)
        page = browser.new_page(viewport={"width": 1400, "height": 1000})
        page.set_default_timeout(PATIENCE_MS)
        page.goto(f"{server.address}/?darkMode=false#images")
        page.wait_for_selector("img[src*=individualImage]")
        until(page, lambda: _pixels_of_the_box(page.screenshot()) > 300, "the dog's box on the screen")
        browser.close()


def _pixels_of_the_box(screenshot: bytes) -> int:
    with Image.open(io.BytesIO(screenshot)) as image:
        pixels = np.asarray(image.convert("RGB")).reshape(-1, 3).astype(int)
    return int((np.abs(pixels - np.array(colour_of("dog"))).max(axis=1) < 30).sum())
