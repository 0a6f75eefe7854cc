"""Drawn detections: what is where, what stays untouched, and names that mean harm."""

import re
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from detscope.report.drawing import Picture, draw, enlarged, save_pictures
from detscope.report.palette import PALETTE, colour_of

GREY = 128


def grey(height: int, width: int) -> np.ndarray:
    return np.full((height, width, 3), GREY, dtype=np.uint8)


def picture(height: int, width: int, boxes: list, labels: list[str], scores=None, masks=None) -> Picture:
    scores = [0.9] * len(boxes) if scores is None else scores
    return Picture(
        "a.jpg",
        grey(height, width),
        np.array(boxes, dtype=np.float32).reshape(-1, 4),
        labels,
        np.array(scores, dtype=np.float32),
        masks,
    )


def changed(before: np.ndarray, after: np.ndarray) -> np.ndarray:
    return (before != after).any(axis=2)


def test_pixels_inside_a_mask_are_half_the_colour_and_half_the_picture() -> None:
    masks = np.zeros((1, 200, 300), dtype=bool)
    masks[0, 60:140, 80:220] = True
    drawn = draw(picture(200, 300, [[60, 40, 240, 160]], ["dog"], masks=masks))
    wanted = np.round((np.array(colour_of("dog")) + GREY) / 2)
    assert (np.abs(drawn[62:138, 82:218].astype(float) - wanted) <= 1).all()
    assert (drawn[45:58, 130:230] == GREY).all(), "between mask and box nothing changes"


def test_the_edges_of_a_box_have_the_colour_of_its_class_and_its_inside_is_untouched() -> None:
    drawn = draw(picture(200, 300, [[50, 60, 250, 180]], ["cat"]))
    for y, x in ((60, 150), (179, 150), (120, 50), (120, 249)):
        assert tuple(drawn[y, x]) == colour_of("cat"), (y, x)
    assert (drawn[90:170, 60:240] == GREY).all()
    assert (drawn[185:] == GREY).all()


def test_a_label_is_written_above_its_box() -> None:
    drawn = draw(picture(200, 300, [[50, 60, 250, 180]], ["cat"]))
    label = drawn[45:58, 50:100]
    assert (label == colour_of("cat")).all(axis=2).mean() > 0.3, "a filled ground"
    assert label.min(axis=2).max() > 200, "white letters on it"


def test_labels_stay_inside_the_picture_at_every_corner() -> None:
    corners = [[-50, -50, 20, 20], [280, -9, 400, 30], [-5, 190, 30, 260], [290, 190, 999, 999]]
    for box in corners:
        item = picture(200, 300, [box], ["w" * 200])
        drawn = draw(item)
        ground = (drawn == colour_of("w" * 200)).all(axis=2)
        assert drawn.shape == item.pixels.shape
        # the row of a long label is filled across the picture; its end with the score is inside
        assert ground.any(axis=0).sum() > 200


def test_labels_of_neighbours_do_not_hide_each_other() -> None:
    both = draw(picture(240, 320, [[40, 80, 200, 200], [44, 82, 204, 202]], ["dog", "cat"], [0.9, 0.8]))
    assert colour_of("dog") != colour_of("cat")
    for name in ("dog", "cat"):
        ground = (both == colour_of(name)).all(axis=2)
        filled_rows = [
            run for row in ground for run in re.findall("1{8,}", "".join(map(str, row.astype(int))))
        ]
        assert len(filled_rows) >= 5, name


def test_in_a_crowd_labels_are_not_piled_up() -> None:
    boxes = [[100, 100, 140 + i % 3, 140 + i % 2] for i in range(80)]
    drawn = draw(picture(240, 320, boxes, ["dog"] * 80))
    assert changed(grey(240, 320), drawn).sum() < 8 * (70 * 16), "a few labels around the boxes, not 80"


@pytest.mark.parametrize(("height", "width"), [(1, 1), (1, 3000), (3000, 1), (2, 2), (7, 40), (1080, 1920)])
def test_any_size_of_picture_can_be_drawn(height: int, width: int) -> None:
    masks = np.ones((2, height, width), dtype=bool)
    item = picture(height, width, [[0, 0, width, height]] * 2, ["dog", "a long name"], masks=masks)
    drawn = draw(item)
    assert drawn.shape == (height, width, 3) and drawn.dtype == np.uint8
    assert changed(item.pixels, drawn).all()


def test_without_detections_nothing_changes() -> None:
    item = picture(50, 60, [], [], masks=np.zeros((0, 50, 60), dtype=bool))
    assert (draw(item) == GREY).all()
    assert (draw(picture(50, 60, [], [])) == GREY).all()


def test_the_given_pixels_are_left_as_they_are() -> None:
    item = picture(50, 60, [[5, 5, 40, 40]], ["dog"], masks=np.ones((1, 50, 60), dtype=bool))
    draw(item)
    assert (item.pixels == GREY).all()


def test_boxes_that_are_no_numbers_or_lie_outside_are_left_out() -> None:
    boxes = [[float("nan"), 0, 9, 9], [400, 0, 500, 9], [-30, -30, -1, -1]]
    assert (draw(picture(50, 60, boxes, ["dog"] * 3)) == GREY).all()
    endless = draw(picture(50, 60, [[-np.inf, 10, np.inf, 30]], ["dog"]))
    assert tuple(endless[10, 59]) == colour_of("dog")


@settings(max_examples=60, deadline=None)
@given(
    st.integers(1, 90),
    st.integers(1, 90),
    st.lists(
        st.tuples(
            st.lists(st.floats(-1e6, 1e6, width=32), min_size=4, max_size=4),
            st.text(max_size=12),
            st.floats(0, 1, width=32),
        ),
        max_size=6,
    ),
)
def test_whatever_a_detector_says_can_be_drawn(height: int, width: int, found: list) -> None:
    item = picture(
        height, width, [box for box, _, _ in found], [name for _, name, _ in found], [s for *_, s in found]
    )
    assert draw(item).shape == (height, width, 3)


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="labels do not fit"):
        picture(50, 60, [[5, 5, 40, 40]], [])
    with pytest.raises(ValueError, match="masks must be bool"):
        picture(50, 60, [[5, 5, 40, 40]], ["dog"], masks=np.ones((1, 60, 50), dtype=bool))
    with pytest.raises(ValueError, match="uint8"):
        Picture("x", np.zeros((5, 5, 3)), np.zeros((0, 4)), [], np.zeros(0))


def test_small_pictures_are_enlarged_a_whole_number_of_times_with_all_that_is_in_them() -> None:
    masks = np.zeros((1, 100, 120), dtype=bool)
    masks[0, 10:20, 30:60] = True
    large = enlarged(picture(100, 120, [[30, 10, 60, 20]], ["dog"], masks=masks))
    assert large.pixels.shape == (400, 480, 3)
    assert large.boxes.tolist() == [[120, 40, 240, 80]]
    assert large.masks is not None and large.masks.sum() == 16 * masks.sum()
    unchanged = picture(500, 400, [], [])
    assert enlarged(unchanged) is unchanged


def test_hostile_names_become_harmless_and_unique_files_inside_the_folder(tmp_path: Path) -> None:
    names = [
        "<img src=x onerror=alert(1)>",
        "../x",
        "../../x.png",
        "/etc/passwd",
        "..",
        "",
        "a/b\\X.jpg",
        "-rf",
    ]
    names += ["x", "CON\0\n", "ä" * 300, "\ud800", "фото.jpg"]
    base = picture(40, 40, [[5, 5, 30, 30]], ["<b>dog</b>\n\x1b[31m"])
    pictures = [Picture(n, base.pixels, base.boxes, base.labels, base.scores) for n in names]
    paths = save_pictures(tmp_path / "pictures", pictures)
    assert len({path.name.casefold() for path in paths}) == len(names)
    for path in paths:
        assert path.parent == tmp_path / "pictures" and path.is_file()
        assert re.fullmatch(r"[\w][\w.-]*\.jpg", path.name) and len(path.name.encode()) < 200
        with Image.open(path) as opened:
            assert opened.format == "JPEG"
    assert paths[-1].name == "фото.jpg"
    assert [path.name for path in tmp_path.iterdir()] == ["pictures"]


def test_pictures_that_are_there_are_not_overwritten(tmp_path: Path) -> None:
    first = save_pictures(tmp_path, [picture(40, 40, [], [])])
    second = save_pictures(tmp_path, [picture(40, 40, [], [])])
    assert [path.name for path in first + second] == ["a.jpg", "a-2.jpg"]


def test_a_picture_too_long_for_jpeg_is_a_png(tmp_path: Path) -> None:
    (path,) = save_pictures(tmp_path, [picture(1, 70_000, [[5, 0, 30, 1]], ["dog"])])
    with Image.open(path) as opened:
        assert (opened.format, opened.size) == ("PNG", (70_000, 1))


def test_colours_are_the_same_in_every_process() -> None:
    code = "from detscope.report.palette import colour_of; import sys; print(colour_of('zebra'))"
    answers = {
        subprocess.run(
            [sys.executable, "-c", code],
            env={"PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert answers == {f"{colour_of('zebra')}\n"}


def test_the_shapes_of_the_synthetic_set_have_five_colours() -> None:
    assert len({colour_of(name) for name in ("circle", "square", "triangle", "star", "cross")}) == 5


# what red-, green- and blue-blind people see, on linear RGB (Machado, Oliveira, Fernandes, 2009)
BLINDNESS = {
    "none": np.eye(3),
    "protan": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deutan": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
    "tritan": np.array(
        [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]]
    ),
}


def seen(colour: tuple[int, int, int], blindness: np.ndarray) -> np.ndarray:
    """A colour as seen, in CIE L*a*b*, where equal distances look about equal."""
    value = np.array(colour) / 255
    linear = np.where(value <= 0.04045, value / 12.92, ((value + 0.055) / 1.055) ** 2.4)
    linear = (blindness @ linear).clip(0, 1)
    to_xyz = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
    ratio = to_xyz @ linear / np.array([0.9505, 1.0, 1.089])
    root = np.where(ratio > 0.008856, np.cbrt(ratio), 7.787 * ratio + 16 / 116)
    return np.array([116 * root[1] - 16, 500 * (root[0] - root[1]), 200 * (root[1] - root[2])])


@pytest.mark.parametrize("kind", BLINDNESS)
def test_colour_blind_people_can_tell_the_colours_apart(kind: str) -> None:
    views = [seen(colour, BLINDNESS[kind]) for colour in PALETTE]
    closest = min(float(np.linalg.norm(one - other)) for one, other in combinations(views, 2))
    assert closest > 10  # 2.3 is the least difference that can be noticed


def test_drawing_needs_no_torch() -> None:
    code = "import sys, detscope.report.drawing; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
