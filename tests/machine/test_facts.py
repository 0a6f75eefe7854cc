"""The facts stored in every run: complete, without torch, and without anything private."""

import getpass
import json
import os
import platform
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from detscope.machine.facts import gather_facts, torch_cuda_version
from detscope.machine.limits import cpu_quota_cores, disk_free_bytes, memory_limit_bytes


def test_facts_hold_versions_processor_memory_and_devices_as_plain_data() -> None:
    facts = gather_facts()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["packages"]["torch"] is not None
    assert facts["packages"]["detscope"] is not None
    assert facts["cpu"]["logical_cores"] >= facts["cpu"]["usable_cores"] >= 1
    assert facts["memory"]["total_bytes"] > facts["memory"]["available_bytes"] > 0
    assert facts["gpus"]["devices"] or facts["gpus"]["reason"]


def test_facts_hold_no_environment_variables_no_names_of_people_or_hosts_and_no_paths(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_TEST", "hunter2-hunter2")
    text = json.dumps(gather_facts())
    assert "hunter2" not in text
    assert str(Path.home()) not in text
    assert sys.prefix not in text
    values = json.dumps(list(gather_facts().values()))
    for name in {socket.gethostname(), getpass.getuser()} - {"root", "linux", platform.system()}:
        if len(name) > 3:  # shorter ones are words of other things
            assert not re.search(rf"\b{re.escape(name)}\b", values), name


def test_facts_are_gathered_without_importing_torch() -> None:
    code = (
        "import sys; from detscope.machine import facts; facts.gather_facts(); print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def test_thread_counts_are_told_once_torch_is_loaded() -> None:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        assert gather_facts()["threads"]["torch"] == 3
    finally:
        torch.set_num_threads(before)
    assert gather_facts()["torch_cuda"] == torch.version.cuda


def test_a_cpu_only_torch_has_no_cuda_version(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    version = tmp_path / "torch" / "version.py"
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "torch", raising=False)
    version.write_text("cuda: Optional[str] = None\nhip = 'x'\n")
    assert torch_cuda_version() is None
    version.write_text("debug = False\ncuda = '12.8'\n")
    assert torch_cuda_version() == "12.8"


@pytest.mark.parametrize(
    ("name", "text", "cores"), [("cpu.max", "150000 100000\n", 1.5), ("cpu.max", "max 100000\n", None)]
)
def test_a_cpu_quota_of_the_container_is_read(
    tmp_path: Path, name: str, text: str, cores: float | None
) -> None:
    (tmp_path / name).write_text(text)
    assert cpu_quota_cores(tmp_path) == cores


def test_limits_of_the_older_control_groups_are_read_too(tmp_path: Path) -> None:
    (tmp_path / "cpu").mkdir()
    (tmp_path / "memory").mkdir()
    (tmp_path / "cpu" / "cpu.cfs_quota_us").write_text("-1\n")
    (tmp_path / "cpu" / "cpu.cfs_period_us").write_text("100000\n")
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text("1048576\n")
    assert cpu_quota_cores(tmp_path) is None
    assert memory_limit_bytes(tmp_path) == 1048576
    (tmp_path / "memory" / "memory.limit_in_bytes").write_text(f"{2**63 - 4096}\n")
    assert memory_limit_bytes(tmp_path) is None


def test_free_disk_space_of_a_folder_that_does_not_exist_yet_is_that_of_its_parent(tmp_path: Path) -> None:
    assert disk_free_bytes(tmp_path / "not" / "yet") > 0
    assert os.listdir(tmp_path) == []  # noqa: PTH208
