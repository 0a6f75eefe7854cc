"""Let methods of a library sleep 10 ms in every second step, then run Ultralytics' command.

sleep_in.py ultralytics.utils.tal:TaskAlignedAssigner.forward ... -- detect train model=...
"""

import functools
import importlib
import sys
import time
from collections.abc import Callable

BATCHES = "ultralytics.models.yolo.detect.train:DetectionTrainer.preprocess_batch"
begun = 0  # steps of training


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
targets = sys.argv[1:border]
sys.argv[:] = ["yolo", *sys.argv[border + 1 :]]  # in place: the library keeps the list it was imported with
put_around(BATCHES, count_step)
for one in targets:
    put_around(one, sleep_in_turn)

from ultralytics.cfg import entrypoint  # noqa: E402

entrypoint()
