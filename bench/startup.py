"""How fast the command answers, against importing torch."""

from __future__ import annotations

import subprocess
import sys

from bench.sidebyside import interleave, ratio, verdict

ROUNDS = 6


def main() -> None:
    """`detscope --help` over `python -c "import torch"`."""

    def command(*arguments: str) -> None:
        subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)

    seconds = interleave(
        {
            "detscope --help": lambda: command("-m", "detscope", "--help"),
            "import torch": lambda: command("-c", "import torch"),
        },
        ROUNDS,
    )
    found = ratio(seconds, "detscope --help", "import torch")
    print(f"\ndetscope --help / import torch: {found}  {verdict(found, 0.4)}")
