"""Takes the pictures of docs/images with headless Chromium: `python -m tools.pictures [NAME ...]`.

Every picture is of a page that a command has just written, so that README and docs show what users get.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image

from detscope.machine.programs import find_browser

ROOT = Path(__file__).parents[1]
IMAGES = ROOT / "docs" / "images"
WIDE, NARROW = (1200, 800), (420, 900)
PATIENCE_MS = 300_000
MOST_BYTES = 200_000
V100 = "v100_resnet50_train_workers0.json.gz"
# one step is made as long as the picture is wide by these keys: towards the pointer
_ZOOM_STEPS = 8


@dataclass(frozen=True)
class PageShot:
    """A picture: which page, how large, on which background, and what is brought into view first."""

    page: str  # of `make_pages`
    size: tuple[int, int] = WIDE
    dark: bool = False
    prepare: Callable[[Any], bool] = lambda _: True  # False: the page has no such thing


def zoom_into_backward(page: Any) -> bool:
    """The timeline, zoomed by its keys until one backward fills it."""
    timeline = page.locator("#timeline")
    if not timeline.count():
        return False
    timeline.scroll_into_view_if_needed()
    page.evaluate("document.querySelector('#timeline').scrollIntoView()")
    canvas = timeline.locator("canvas").first
    search = timeline.locator("input[type=search]")
    if search.count():
        search.first.fill("backward")
        search.first.press("Enter")
    canvas.focus()
    box = canvas.bounding_box()
    page.mouse.move(box["x"] + 0.6 * box["width"], box["y"] + 0.3 * box["height"])
    for _ in range(_ZOOM_STEPS):
        page.keyboard.press("w")
    return True


SHOTS: dict[str, PageShot] = {
    "train": PageShot("train"),
    "infer": PageShot("infer"),
    "eval": PageShot("eval"),
    "import_v100": PageShot("import"),
    "compare": PageShot("compare"),
    "sweep": PageShot("sweep"),
    "timeline": PageShot("train", prepare=zoom_into_backward),
    "dark": PageShot("train", dark=True),
    "narrow": PageShot("train", NARROW),
}


def type_command(folder: Path, *words: str | Path) -> None:
    """Run a command of ours as people do; what it prints is only told where it fails."""
    print("  detscope", *words, flush=True)
    program = [sys.executable, "-m", "detscope", *map(str, words)]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    ended = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}\nexit code {ended.returncode}")


def find_v100_trace(folder: Path) -> Path:
    """The whole file where one has it, else the one that tests restore from its facts."""
    whole = Path(os.environ.get("DETSCOPE_RECORDED") or ROOT.parent / "shared" / "data")
    if (file := whole / "traces" / "kineto" / V100).is_file():
        return file
    sys.path.insert(0, str(ROOT / "tests" / "recorded"))
    from recorded_facts import restore_all

    restore_all(folder)
    return next(folder.rglob(V100))


def make_pages(folder: Path, wanted: set[str]) -> dict[str, Path]:
    """Run the commands whose pages are wanted; gives where each page lies."""
    pages = {}
    model = "tiny_maskrcnn"
    if wanted & {"train", "compare"}:
        type_command(folder, "train", model, "--steps", "20", "--level", "ops", "--memory", "--out", "train")
        pages["train"] = folder / "train" / "latest" / "report.html"
    if "infer" in wanted:
        type_command(folder, "infer", model, "--limit", "100", "--out", "infer")
        pages["infer"] = folder / "infer" / "latest" / "report.html"
    if "eval" in wanted:
        type_command(folder, "train", model, "--epochs", "6", "--eval-every", "3", "--out", "trained")
        type_command(folder, "eval", "--weights", "trained/latest", "--out", "eval")
        pages["eval"] = folder / "eval" / "latest" / "report.html"
    if "import" in wanted:
        type_command(folder, "import", find_v100_trace(folder / "restored"), "--out", "import")
        pages["import"] = folder / "import" / "latest" / "report.html"
    if "compare" in wanted:
        type_command(folder, "train", model, "--steps", "20", "--batch-size", "4", "--out", "after")
        pages["compare"] = folder / "compare.html"
        type_command(folder, "compare", "train/latest", "after/latest", "--html", pages["compare"])
    if "sweep" in wanted:
        plan = (ROOT / "examples" / "sweep.toml").read_text(encoding="utf-8")
        (folder / "sweep.toml").write_text(plan.replace("max_seconds = 10", "max_seconds = 2"))
        type_command(folder, "sweep", "sweep.toml")
        pages["sweep"] = folder / "sweep.html"
        type_command(folder, "report", "sweep.db", "--out", pages["sweep"])
    return pages


@contextmanager
def open_browser() -> Iterator[Any]:
    """The browser that tests use."""
    from playwright.sync_api import sync_playwright

    program = find_browser()
    if program is None:
        raise SystemExit("no Chromium on this machine\nhint: sudo apt-get install chromium")
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(
            executable_path=str(program), args=["--no-sandbox"], timeout=PATIENCE_MS
        )
        yield opened
        opened.close()


def take_picture(browser: Any, shot: PageShot, file: Path) -> bytes | None:
    """What is on the screen once the page has drawn what is in view; None where the page cannot show it."""
    width, height = shot.size
    context = browser.new_context(
        viewport={"width": width, "height": height}, color_scheme="dark" if shot.dark else "light"
    )
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    page.goto(file.resolve().as_uri())
    there = shot.prepare(page)
    page.wait_for_timeout(1500)  # charts draw when they come into view
    taken = page.screenshot() if there else None
    context.close()
    return taken


def shrink_png(taken: bytes) -> bytes:
    """With a palette where that is needed: pages have few colours."""
    image = Image.open(BytesIO(taken)).convert("RGB")
    for colours in (None, 256, 128, 64):
        made = BytesIO()
        shown = image if colours is None else image.quantize(colours, dither=Image.Dither.NONE)
        shown.save(made, "PNG", optimize=True)
        if made.tell() <= MOST_BYTES // 2:
            break
    return made.getvalue()


def main(names: list[str]) -> int:
    """Make the pages, then take the pictures that are named, or all of them."""
    if unknown := set(names) - set(SHOTS):
        print(f"error: no picture is called {', '.join(sorted(unknown))}; there are {', '.join(SHOTS)}")
        return 2
    shots = {name: shot for name, shot in SHOTS.items() if not names or name in names}
    IMAGES.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="detscope-pictures-") as made, open_browser() as browser:
        pages = make_pages(Path(made), {shot.page for shot in shots.values()})
        for name, shot in shots.items():
            taken = take_picture(browser, shot, pages[shot.page])
            if taken is None:
                print(f"{name}: the page has no such part")
                continue
            target = IMAGES / f"{name}.png"
            target.write_bytes(shrink_png(taken))
            print(f"{target.relative_to(ROOT)}  {target.stat().st_size / 1000:.0f} kB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
