"""`detscope` and `python -m detscope`: Ctrl-C is one line also while the command line is being imported."""

import signal
import sys


def main() -> None:
    """Entry point of the command `detscope`."""
    try:
        from detscope.cli.main import main as command
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        print("interrupted", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)
    command(ends_process=True)


if __name__ == "__main__":
    main()
