"""What the figures of accuracy mean; stored beside them."""

from __future__ import annotations

UNDEFINED = "undefined (no ground truth)"

DEFINITIONS = {
    "AP": "COCO: mean over classes, over overlaps of 0.50 to 0.95 in steps of 0.05, and over 101 recalls,"
    " of the best precision at that recall or beyond; at most 100 detections per image and class; crowd"
    " regions and objects marked difficult are ignored",
    "AP50, AP75": "AP at an overlap (intersection over union) of 0.50 and 0.75",
    "small, medium, large": "objects of an area up to 32 x 32 pixels, from there to 96 x 96, and above",
    "AR_n": "COCO: largest recall with at most n detections per image and class, mean over classes and"
    " overlaps",
    "voc07": "average precision as VOC 2007 defines it: mean of the best precision at recalls of 0, 0.1 to"
    " 1; overlap of at least 0.5, duplicates are wrong, difficult objects count neither way",
    "voc10": "average precision as VOC defines it since 2010: area under the precision made monotone",
    "operating_point": "the score from which on detections are best believed: largest F1 over all classes"
    " together, overlap of at least 0.5",
    "images_per_s": "images of the evaluation over the wall time from asking for the first batch to holding"
    " the last detections: loading, forward, masks to run lengths; scoring is not part of it",
    "model_images_per_s": "the same images over the time in the model alone: transfer, forward, back to"
    " the host",
    "undefined": "null: there is no ground truth to be right about; 0 means that there is, and none was"
    " found",
}
