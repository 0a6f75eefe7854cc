"""COCO results files: read, written, refused."""

from __future__ import annotations

import json

import numpy as np
import pytest
from generated_sets import generated

from detscope.accuracy.coco import measure_coco
from detscope.accuracy.coco_format import encode_results, import_results, import_truth, load_results
from detscope.errors import InputError

CONTENT = {
    "images": [{"id": 7, "width": 64, "height": 48}],
    "annotations": [{"id": 1, "image_id": 7, "category_id": 3, "bbox": [1, 2, 30, 20]}],
    "categories": [{"id": 3, "name": "cat"}],
}
ROW = {"image_id": 7, "category_id": 3, "bbox": [1, 2, 30, 20], "score": 0.5}


@pytest.mark.parametrize("seed", [1, 3])
def test_written_and_read_again_detections_give_the_same_figures_to_the_last_bit(seed, tmp_path):
    content, results = generated(seed, masks=True, keypoints=True)
    truth = import_truth(content, masks=True, keypoints=True)
    found = import_results(results, truth).detections
    (tmp_path / "d.json").write_bytes(encode_results(found, truth))
    again = import_results(load_results(tmp_path / "d.json"), truth).detections
    for kind in ("boxes", "masks", "keypoints"):
        one, other = (measure_coco(truth, given, kind) for given in (found, again))
        np.testing.assert_array_equal(one.precision, other.precision)


def test_what_does_not_fit_the_data_set_is_left_out_and_counted():
    rows = [ROW, {**ROW, "image_id": 8}, {**ROW, "category_id": 9}, {**ROW, "score": float("nan")}]
    read = import_results(rows, import_truth(CONTENT))
    assert len(read.detections) == 1
    assert read.left_out == {
        "of images that are not in the data set": 1,
        "of classes that are not in the data set": 1,
        "with a score or box that is not a number": 1,
    }


def test_boxes_of_masks_alone_are_those_around_them():
    content, results = generated(1, masks=True)
    without = [{key: value for key, value in row.items() if key != "bbox"} for row in results]
    truth = import_truth(content, masks=True)
    assert import_results(without, truth).detections.boxes.shape == (len(results), 4)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{}", "not a list of detections"),
        ("[{", "not JSON"),
        ("[" * 200_000, "not JSON"),
        ('["x"]', "row 0 is no object"),
        (json.dumps([ROW, {"image_id": 7}]), "row 1 has no 'category_id'"),
        (json.dumps([{key: value for key, value in ROW.items() if key != "bbox"}]), "row 0 has no 'bbox'"),
        (json.dumps([ROW, {**ROW, "bbox": [1, 2, 3]}]), "row 1 (image 7): bbox is not four numbers"),
        (json.dumps([{**ROW, "score": "high"}]), "row 0 (image 7): score is not a number"),
        (json.dumps([{**ROW, "segmentation": {"size": [1]}}]), "row 0 (image 7): segmentation"),
    ],
)
def test_a_file_that_is_no_results_file_is_refused_with_the_row_and_the_reason(text, says, tmp_path):
    path = tmp_path / "d.json"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        import_results(load_results(path), import_truth(CONTENT), str(path))
    assert says in error.value.message
    assert str(path) in error.value.message
    assert "\n" not in error.value.message


def test_a_missing_file_is_an_input_error(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        load_results(tmp_path / "none.json")


@pytest.mark.parametrize("seed", range(5))
def test_masks_are_unpacked_as_pycocotools_packs_them(seed):
    from pycocotools import mask as coco_mask

    from detscope.accuracy.coco_format import pack_mask

    random = np.random.default_rng(seed)
    height, width = 300, 400
    mask = np.asfortranarray(random.random((height, width)) < (0.5, 0.001, 0.0, 1.0, 0.02)[seed])
    packed = coco_mask.encode(mask.view(np.uint8))
    assert pack_mask(packed)["counts"] == packed["counts"]
    with pytest.raises(ValueError, match="do not fill 400 x 301"):
        pack_mask({"size": [height + 1, width], "counts": packed["counts"]})


@pytest.mark.parametrize("counts", ["", "~~", "PPPP", "é", "0" * 3, [1, 2], [-1, 3073], 7, None])
def test_run_lengths_that_would_lead_pycocotools_astray_are_refused(counts):
    from detscope.accuracy.coco_format import pack_mask

    with pytest.raises(ValueError):
        pack_mask({"size": [48, 64], "counts": counts})
