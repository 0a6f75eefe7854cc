"""Let functions and methods of a library sleep 10 ms at each call, then run Ultralytics' command.

sleep_in.py ultralytics.utils.tal:TaskAlignedAssigner.forward ... -- detect train model=...
"""

import functools
import importlib
import sys
import time


def plant_sleep(target: str) -> None:
    library, _, path = target.partition(":")
    owner = importlib.import_module(library)
    *classes, name = path.split(".")
    for part in classes:
        owner = getattr(owner, part)
    plain = vars(owner)[name]

    @functools.wraps(plain)
    def slow(*args, **kwargs):
        time.sleep(0.010)
        return plain(*args, **kwargs)

    setattr(owner, name, slow)


border = sys.argv.index("--")
for one in sys.argv[1:border]:
    plant_sleep(one)
sys.argv = ["yolo", *sys.argv[border + 1 :]]

from ultralytics.cfg import entrypoint  # noqa: E402

entrypoint()
