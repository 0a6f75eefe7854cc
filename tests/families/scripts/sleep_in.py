"""Let methods of a library sleep 10 ms in every second step, then run Ultralytics' command or another script.

sleep_in.py ultralytics.utils.tal:TaskAlignedAssigner.forward ... -- detect train model=...
sleep_in.py ultralytics.utils.nms:non_max_suppression -- predict_yolo.py yolov8n.yaml 720
"""

import functools
import importlib
import runpy
import sys
import time
from collections.abc import Callable

FIRST_OF_A_STEP = (
    "ultralytics.models.yolo.detect.train:DetectionTrainer.preprocess_batch",
    "ultralytics.engine.predictor:BasePredictor.preprocess",
)
begun = 0  # steps of training, or predictions


def put_around(target: str, before: Callable[[], None]) -> None:
    library, _, path = target.partition(":")
    owner = importlib.import_module(library)
    *classes, name = path.split(".")
    for part in classes:
        owner = getattr(owner, part)
    plain = vars(owner)[name]

    @functools.wraps(plain)
    def slow(*args, **kwargs):
        before()
        return plain(*args, **kwargs)

    setattr(owner, name, slow)


def count_step() -> None:
    global begun
    begun += 1


def sleep_in_turn() -> None:
    if begun % 2:
        time.sleep(0.010)


border = sys.argv.index("--")
targets, words = sys.argv[1:border], sys.argv[border + 1 :]
for one in targets:
    put_around(one, sleep_in_turn)
for one in FIRST_OF_A_STEP:  # outermost: a sleep in these belongs to the step that they begin
    put_around(one, count_step)

if words[0].endswith(".py"):
    sys.argv[:] = words
    runpy.run_path(words[0], run_name="__main__")
else:
    sys.argv[:] = ["yolo", *words]  # in place: the library keeps the list it was imported with
    from ultralytics.cfg import entrypoint

    entrypoint()
