"""Pairs found by one protocol, half to develop rules on, half scored once: written before anything was run.

1. Packages: those of the index that train or evaluate detectors in PyTorch and have at least two wheels of
   1 May 2026 or later: ultralytics, rfdetr, libreyolo, transformers (models and losses of detectors),
   torchvision (detection, ops), lightning, pytorch-lightning, torchmetrics (detection), supervision, trackers,
   kornia, effdet, yolov5, super-gradients, mmdet, detrex, yolox, deimkit, dfine, rtdetr and what a search of
   the index by such names finds besides.
2. Versions: the last one before 1 May 2026 and every one after it; each is compared with the next by `diff
   -ru` of its files. Where versions come more often than weekly, every few of them are compared. Pairs that
   `known_pairs` has already are not taken again.
3. A difference counts if all of this can be said from the two texts alone:
   - the code runs in a training, evaluation or prediction step of a detector, on a CPU too;
   - what it computes stays the same (but for rounding), or the change says itself that it is for speed;
   - it takes away one of: a read of the device by the host (item, bool, a branch, max() of Python's, tolist,
     assert), a selection whose size the device alone knows, copies to or from the device one by one, an
     index of the host's, launches in a Python loop (loss by image, layer or class, average of weights,
     optimizer), cdist(p=1) of few columns, a cost over all images, clones of in-place operators,
     deterministic filling, padding of boxes, GradScaler with bfloat16, suppression class by class,
     evaluation in the step, float batches or transforms where bytes would do.
   Changes of options, of what is logged, of NumPy code and of export do not count.
4. Each has the rule, file and function that are expected of the older version, written down before either
   version was run. One row is one function and one rule.
5. The rows, sorted by their text, are shuffled with seed 20; the first half (rounded up) is `develop`, the
   rest `held`. Rules and patterns may be changed for what `develop` misses, never with a package's name in
   them. `held` is run once, with the code of the commit before the table below, and its verdicts stand as
   they came. What cannot run here is told with the reason and counts as neither found nor missed.
"""
