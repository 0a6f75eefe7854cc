"""Does torch work here together with torchvision? Tried for real, in a process of its own.

Torchvision's compiled operators load only beside the torch build they were made for, and a
mismatch shows only at import, as `operator torchvision::nms does not exist`.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass

_PROBE = """
import json, warnings
warnings.simplefilter("ignore")
import torch, torchvision
boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9], [5.0, 5.0, 6.0, 6.0]])
kept = torchvision.ops.nms(boxes, torch.tensor([0.9, 0.8, 0.7]), 0.5).tolist()
count = torch.cuda.device_count() if torch.cuda.is_available() else 0
names = [torch.cuda.get_device_name(index) for index in range(count)]
print(json.dumps({"kept": kept, "devices": names, "threads": torch.get_num_threads()}))
"""


@dataclass(frozen=True)
class TorchCheck:
    """How trying torch and torchvision together went."""

    works: bool
    problem: str = ""
    cuda_devices: tuple[str, ...] = ()
    threads: int | None = None


def check_torch(timeout_s: float = 300.0) -> TorchCheck:
    """Import both and run one compiled operator; takes as long as the imports take."""
    # -P: a file named torch.py in the current folder must not be what is examined.
    command = [sys.executable, "-P", "-c", _PROBE]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return TorchCheck(False, f"importing torch and torchvision took more than {timeout_s:.0f} s")
    if done.returncode != 0:
        return TorchCheck(False, _last_line(done.stderr) or f"ended with exit code {done.returncode}")
    answer = json.loads(done.stdout.splitlines()[-1])
    if answer["kept"] != [0, 2]:
        return TorchCheck(False, f"torchvision.ops.nms gave a wrong answer: {answer['kept']}")
    return TorchCheck(True, "", tuple(answer["devices"]), answer["threads"])


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else ""
