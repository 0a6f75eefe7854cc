"""What the tests of commands share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from torch_process import TorchServer


@pytest.fixture(scope="session")
def torch_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TorchServer]:
    server = TorchServer(tmp_path_factory.mktemp("torch_server"))
    yield server
    server.end()
