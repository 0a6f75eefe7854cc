"""One thread for torch: small models gain nothing from two, and lose much where the cores are shared."""

import gc
import os
import signal
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, settings
from torch_process import TorchServer

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

# No example is too slow: a machine may hold any of them up for seconds. And the same examples everywhere,
# so that a run on another machine does not try its luck.
settings.register_profile(
    "everywhere", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("everywhere")

# a shell starts what runs in its background deaf to Ctrl-C, and every process below inherits that
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # as nohup starts it
    signal.signal(signal.SIGHUP, signal.SIG_DFL)

LONG_FOLDERS = ("e2e", "sessions", "simulated", "zoo", "planted_defects", "integrations", "sweep", "record")
LONG_FOLDERS += ("report",)


def pytest_configure(config: pytest.Config) -> None:
    """Files in the order below: pytest-xdist would begin with those of many, that is of small, tests."""
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Long files first, so that at the end no process works alone."""
    ranks = {name: rank for rank, name in enumerate(LONG_FOLDERS)}
    items.sort(key=lambda item: ranks.get(item.path.parent.name, len(ranks)))


def pytest_collection_finish() -> None:
    """What is imported by now stays: 700,000 objects that every search for garbage went through."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish() -> None:
    """Python takes all of it apart at its end."""
    gc.unfreeze()


@pytest.fixture(scope="session")
def torch_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServer]:
    server = TorchServer(tmp_path_factory.mktemp("torch_server"))
    yield server
    server.end()
