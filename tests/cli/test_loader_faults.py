"""Loader workers that are killed, and data sets that raise inside of them."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from detscope.cli.main import app
from detscope.errors import InputError, MachineError
from detscope.faults import classify_fault

DATA = """
import ctypes, os, signal, sys
from detscope.data.registry import register_dataset
from detscope.data.formats.synthetic import open_synthetic
from torch.utils.data import get_worker_info

class Spoiled:
    def __init__(self, inner, how):
        self.inner, self.how = inner, how

    def __len__(self):
        return len(self.inner)

    def __getitem__(self, index):
        if get_worker_info() is not None:
            self.how()
        return self.inner[index]

    def __getattr__(self, name):
        if name.startswith("__") or name in ("inner", "how", "read"):
            raise AttributeError(name)
        return getattr(self.inner, name)

def is_killed():
    os.kill(os.getpid(), signal.SIGKILL)

def crashes():
    os.kill(os.getpid(), signal.SIGSEGV)

def leaves():
    os._exit(7)

def raises():
    raise KeyError("image 5\\x1b[0m")

def stops():
    sys.exit(2)

def opener(how):
    return lambda request: Spoiled(open_synthetic(request), how)

for one in (is_killed, crashes, leaves, raises, stops):
    register_dataset(one.__name__, "spoiled", opener(one))

def factory(num_classes=5):
    from detscope.zoo.registry import build_model
    from detscope.zoo.contract import BuildOptions
    return build_model("tiny_ssd", BuildOptions(num_classes=num_classes, weights="none")).module
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> Path:
    file = tmp_path_factory.mktemp("spoiled") / "spoiled.py"
    file.write_text(DATA)
    return file


@pytest.mark.parametrize(
    ("data", "code", "words"),
    [
        ("is_killed", 4, r"error: loader worker \d+ was killed by SIGKILL"),
        ("crashes", 4, r"error: loader worker \d+ was killed by SIGSEGV"),
        ("leaves", 4, r"error: loader worker \d+ ended unexpectedly"),
        ("raises", 3, r"error: .*spoiled\.py:\d+: KeyError: 'image 5\\x1b\[0m'"),
    ],
)
@pytest.mark.parametrize("verb", ["train", "eval"])
def test_what_became_of_a_worker_is_told(model, tmp_path, capsys, verb, data, code, words):
    if verb == "eval" and data != "is_killed":
        pytest.skip("the same as in a training")
    more = ["--steps", "2"] if verb == "train" else ["--set", "evaluation.images=4"]
    args = [verb, f"{model}:factory", "--data", data, "--set", "training.num_workers=1", "-q", *more]
    args += ["--set", "training.batch_size=2", "--set", "data.images=4", "--out", str(tmp_path)]
    if verb == "eval":  # the model's file is read before a name that nobody knows is refused in `train` alone
        from detscope.zoo import user

        user.import_own(f"{model}:factory")
    with pytest.raises(SystemExit) as ended:
        app(args, prog_name="detscope")
    err = capsys.readouterr().err
    assert ended.value.code == code, err
    assert re.search(words, err), err
    assert "internal error" not in err
    assert "Traceback" not in err
    assert "hint: " in err


def raised(text: str, kind: type[Exception] = RuntimeError) -> Exception:
    return kind(text)


def test_words_of_torch_about_workers_and_shared_memory_are_understood():
    for text in (
        "DataLoader worker (pid 12) is killed by signal: Bus error. Its shared memory may be too small.",
        "DataLoader worker (pid(s) 12, 13) exited unexpectedly",
        "DataLoader worker (pid(s) 12) exited unexpectedly with exit code 1. Details are lost.",
        "unable to allocate shared memory(shm) for file </torch_1_2>: No space left on device (28)",
        "unable to resize file </torch_1_2> to the right size: No space left on device (28)",
    ):
        fault = classify_fault(raised(text))
        assert isinstance(fault, MachineError), text
        assert "num_workers=0" in fault.hint


def test_an_error_of_ours_in_a_worker_keeps_its_words_alone():
    text = (
        "Caught InputError in DataLoader worker process 0.\\nOriginal Traceback (most recent call last):\\n"
        '  File "/x/site-packages/torch/fetch.py", line 5, in fetch\\n    pass\\n'
        "detscope.errors.InputError: a.jpg: cut short\\n"
    ).replace("\\n", "\n")
    fault = classify_fault(InputError(text, "remove it"))
    assert isinstance(fault, InputError)
    assert (fault.message, fault.hint) == ("a.jpg: cut short", "remove it")
