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
MODEL = "tiny_maskrcnn"
V100 = "v100_resnet50_train_workers0.json.gz"


@dataclass(frozen=True)
class PageShot:
    """A picture: which page, how large, on which background, and what is brought into view first."""

    make_page: Callable[[Path], Path]  # in a folder; gives where it lies
    size: tuple[int, int] = WIDE
    dark: bool = False
    prepare: Callable[[Any], bool] = lambda _: True  # False: the page has no such thing


def zoom_into_backward(page: Any) -> bool:
    """The timeline of the median step, zoomed by its search and keys until one backward fills it."""
    if not page.locator("#timeline canvas").count():
        return False
    page.evaluate("document.querySelector('#timeline').scrollIntoView()")
    canvas, search = (
        page.locator("#timeline canvas").first,
        page.locator("#timeline input[type=search]").first,
    )
    canvas.wait_for(state="visible")
    search.fill("backward")
    search.press("Enter")
    canvas.focus()
    for key in "ww":
        page.keyboard.press(key)
    return True


def type_command(folder: Path, *words: str | Path) -> None:
    """Run a command of ours as people do; what it prints is only told where it fails."""
    print("  detscope", *words, flush=True)
    program = [sys.executable, "-m", "detscope", *map(str, words)]
    path = os.pathsep.join([str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path}
    ended = subprocess.run(program, cwd=folder, env=environment, capture_output=True, text=True)
    if ended.returncode:
        raise SystemExit(f"{ended.stdout[-2000:]}\n{ended.stderr[-2000:]}\nexit code {ended.returncode}")


def make_run(folder: Path, into: str, *words: str | Path) -> Path:
    """The page of a run that a verb records, or has recorded there before."""
    if not (folder / into / "latest" / "report.html").is_file():
        type_command(folder, *words, "--out", into)
    return folder / into / "latest" / "report.html"


def find_v100_trace(folder: Path) -> Path:
    """The whole file where one has it, else the one that tests restore from its facts."""
    whole = Path(os.environ.get("DETSCOPE_RECORDED") or ROOT.parent / "shared" / "data")
    if (file := whole / "traces" / "kineto" / V100).is_file():
        return file
    sys.path.insert(0, str(ROOT / "tests" / "recorded"))
    from recorded_facts import restore_all

    restore_all(folder)
    return next(folder.rglob(V100))


def make_train(folder: Path) -> Path:
    """A training with operators and memory, as `make demo` does it."""
    return make_run(folder, "train", "train", MODEL, "--steps", "20", "--level", "ops", "--memory")


def make_infer(folder: Path) -> Path:
    """An inference of so many images that its p95 is known."""
    return make_run(folder, "infer", "infer", MODEL, "--limit", "100")


def make_eval(folder: Path) -> Path:
    """The accuracy of a model that has learnt something."""
    make_run(folder, "trained", "train", MODEL, "--epochs", "6", "--eval-every", "6")
    return make_run(folder, "eval", "eval", "--weights", "trained/latest")


def make_import(folder: Path) -> Path:
    """A trace that others recorded on a V100."""
    return make_run(folder, "import", "import", find_v100_trace(folder / "restored"))


def make_compare(folder: Path) -> Path:
    """Two trainings that differ in one setting."""
    make_run(folder, "before", "train", MODEL, "--steps", "20")
    make_run(folder, "after", "train", MODEL, "--steps", "20", "--precision", "bf16")
    type_command(folder, "compare", "before/latest", "after/latest", "--html", "compare.html")
    return folder / "compare.html"


def make_sweep(folder: Path) -> Path:
    """The plan of examples/, with less time for each trial."""
    if not (folder / "sweep.db").is_file():
        plan = (ROOT / "examples" / "sweep.toml").read_text(encoding="utf-8")
        (folder / "sweep.toml").write_text(plan.replace("max_seconds = 10", "max_seconds = 2"))
        type_command(folder, "sweep", "sweep.toml")
    type_command(folder, "report", "sweep.db", "--out", "sweep.html")
    return folder / "sweep.html"


SHOTS: dict[str, PageShot] = {
    "train": PageShot(make_train),
    "infer": PageShot(make_infer),
    "eval": PageShot(make_eval),
    "import_v100": PageShot(make_import),
    "compare": PageShot(make_compare),
    "sweep": PageShot(make_sweep),
    "timeline": PageShot(make_train, prepare=zoom_into_backward),
    "dark": PageShot(make_train, dark=True),
    "narrow": PageShot(make_train, NARROW),
}


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


def main(names: list[str], kept: str = os.environ.get("DETSCOPE_PICTURES", "")) -> int:
    """Take the pictures that are named, or all of them; pages in a folder that is kept are not made again."""
    if unknown := set(names) - set(SHOTS):
        print(f"error: no picture is called {', '.join(sorted(unknown))}; there are {', '.join(SHOTS)}")
        return 2
    with tempfile.TemporaryDirectory(prefix="detscope-pictures-") as made, open_browser() as browser:
        for name in names or SHOTS:
            taken = take_picture(browser, SHOTS[name], SHOTS[name].make_page(Path(kept or made)))
            if taken is None:
                print(f"{name}: the page has no such part")
                continue
            target = IMAGES / f"{name}.png"
            target.write_bytes(shrink_png(taken))
            print(f"{target.relative_to(ROOT)}  {target.stat().st_size / 1000:.0f} kB", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
