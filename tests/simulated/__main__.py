"""`python -m simulated SCRIPT`: run a script on the simulated machine, plain or as `detscope run` does it.

python -m simulated [--devices N] [--out DIR] [--level LEVEL] SCRIPT [ARGS]...
"""

from __future__ import annotations

import argparse
import runpy
import sys

from simulated import simulate


def run_script(script: str, arguments: list[str], out: str | None, level: str) -> None:
    """In this process; with a folder for runs somebody listens."""
    if out is None:
        sys.argv = [script, *arguments]
        runpy.run_path(script, run_name="__main__")
        return
    from detscope.record.script.options import make_options
    from detscope.sessions.run import watch
    from detscope.sessions.run.script import find_target

    target = find_target(script, tuple(arguments), is_module=False)
    watch.run_script(target, make_options(out=out, script=script, level=level))


def main() -> None:
    parser = argparse.ArgumentParser(prog="simulated")
    parser.add_argument("--devices", type=int, default=2)
    parser.add_argument("--out")
    parser.add_argument("--level", default="modules")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    with simulate(given.devices) as simulation:
        try:
            run_script(given.script, given.arguments, given.out, given.level)
        finally:
            lines = simulation.driver.started_by or ["nobody"]
            inner = [line for line in lines if "/simulated/" not in line and "/torch/" not in line]
            print(f"driver started by: {inner[-1]}", file=sys.stderr)


if __name__ == "__main__":
    main()
