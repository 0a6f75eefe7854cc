"""The pictures of docs/images are what `make pictures` takes: small, and as large as a screen."""

from __future__ import annotations

import sys
from io import BytesIO
from itertools import product
from pathlib import Path

import pytest
from PIL import Image

from detscope.machine.programs import find_browser

sys.path.insert(0, str(Path(__file__).parents[2]))

from tools.pictures import (
    IMAGES,
    MOST_BYTES,
    NARROW,
    ROOT,
    SHOTS,
    WIDE,
    PageShot,
    make_train,
    open_browser,
    shrink_png,
    take_picture,
    zoom_into_backward,
)


@pytest.mark.parametrize("name", SHOTS)
def test_every_picture_is_there_and_as_large_as_its_screen(name: str) -> None:
    taken = (IMAGES / f"{name}.png").read_bytes()
    assert Image.open(BytesIO(taken)).size == SHOTS[name].size
    assert len(taken) < MOST_BYTES


def test_the_readme_begins_with_the_first_screen_of_a_training() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert "](docs/images/train.png)" in text.split("## ")[0]


def test_a_picture_is_what_the_page_shows_and_nothing_where_it_has_no_such_part(tmp_path: Path) -> None:
    if find_browser() is None:
        pytest.skip("no Chromium on this machine")
    page = tmp_path / "page.html"
    style = "body{background:#fff} @media (prefers-color-scheme: dark){body{background:#000}}"
    page.write_text(f"<!doctype html><style>{style}</style><p>a page")
    with open_browser() as browser:
        for size, dark in product((WIDE, NARROW), (False, True)):
            taken = take_picture(browser, PageShot(make_train, size, dark), page)
            assert taken is not None
            shown = Image.open(BytesIO(shrink_png(taken))).convert("RGB")
            assert shown.size == size
            assert shown.getpixel((size[0] - 1, size[1] - 1)) == ((0, 0, 0) if dark else (255, 255, 255))
        assert take_picture(browser, PageShot(make_train, prepare=zoom_into_backward), page) is None
