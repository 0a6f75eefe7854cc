"""The self-test as a whole: every check in turn, a verdict for each, and a block to paste into an issue."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from detscope.faults import describe_error
from detscope.machine.accelerator import find_accelerator
from detscope.machine.describe import describe_accelerator
from detscope.machine.devices import take_device
from detscope.machine.facts import cpu_model, package_version
from detscope.sessions.selftest.checks import EVERYWHERE, ON_DEVICES, Check, CheckRow, Recordings
from detscope.sessions.selftest.planted import Workbench

_SHOWN = ("name", "capability", "multiprocessors", "driver", "runtime", "tf32_matmul", "tf32_cudnn")


@dataclass(frozen=True)
class SelfTest:
    """What the self-test found."""

    device: str
    about: dict[str, Any]  # versions, and the device
    rows: tuple[CheckRow, ...]
    seconds: float

    @property
    def wrong(self) -> int:
        """Rows that did not come out as planted."""
        return sum(row.verdict == "wrong" for row in self.rows)

    def as_dict(self) -> dict[str, Any]:
        """Plain data for `--json`."""
        return {**asdict(self), "wrong": self.wrong, "paste": self.write_block()}

    def write_block(self) -> str:
        """Everything in one block of text, for an issue."""
        about = "\n".join(f"{name}: {value}" for name, value in self.about.items())
        width = max(len(row.name) for row in self.rows)
        rows = "\n".join(
            f"{row.verdict:11} {row.name:{width}} planted {row.planted}; found {row.found}"
            + (f" ({row.why})" if row.why else "")
            for row in self.rows
        )
        return f"```text\ndetscope doctor --selftest --device {self.device}\n{about}\n\n{rows}\n```"


def run_selftest(device: str, tell: Callable[[str], None] = lambda _: None) -> SelfTest:
    """Record known work on a device and compare; `tell` hears which check begins."""
    import torch

    accelerator = find_accelerator(take_device(device))
    began, threads = perf_counter(), torch.get_num_threads()
    if accelerator.is_host:  # threads wait for each other wherever one of them is held up
        torch.set_num_threads(1)
    checks = EVERYWHERE if accelerator.is_host else (*EVERYWHERE, *ON_DEVICES)
    with tempfile.TemporaryDirectory(prefix="detscope-selftest-") as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        tell("finding out how much work takes long enough")
        recordings = Recordings(Workbench.prepare(accelerator, Path(folder)))
        rows = [_run_check(check, recordings, tell) for check in checks]
    torch.set_num_threads(threads)
    about = {name: package_version(name) for name in ("detscope", "torch", "torchvision")}
    described = describe_accelerator(accelerator)
    if described is None:
        about["processor"] = cpu_model()
    else:
        about |= {name: described.get(name) for name in _SHOWN}
    return SelfTest(accelerator.name, about, tuple(rows), perf_counter() - began)


def _run_check(check: Check, recordings: Recordings, tell: Callable[[str], None]) -> CheckRow:
    what = (check.__doc__ or check.__name__).splitlines()[0].rstrip(".")
    tell(what)
    try:
        return check(recordings)
    except Exception as error:  # whatever goes wrong on somebody's device is what is to be known
        return CheckRow(what, "wrong", "-", "-", describe_error(error))
