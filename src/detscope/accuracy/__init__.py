"""How right a detector is: COCO and VOC average precision."""
