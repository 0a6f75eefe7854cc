"""Trials on a real local cluster of Ray: labels, and a node that dies in the middle."""

from __future__ import annotations

import os
import threading
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sweep_samples import FAKE

from detscope.errors import UsageError
from detscope.report.terminal_sweep import SweepLines
from detscope.sessions.sweep import Options, run_sweep
from detscope.sweep.plan import load_plan
from detscope.sweep.store import Store, read_rows

# warnings: Ray's own, on import and while its nodes end
pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    if not os.environ.get("DETSCOPE_TEST_RAY"):
        pytest.skip("starts a real cluster, which a busy machine takes for dead: DETSCOPE_TEST_RAY=1")
    ray = pytest.importorskip("ray", reason="needs detscope[ray]")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    small = {"object_store_memory": 80 * 2**20, "include_dashboard": False}
    # a dead node is noticed after a second and not after half a minute
    checks = {"initial_delay_ms": 0, "period_ms": 500, "failure_threshold": 2, "timeout_ms": 2000}
    small["_system_config"] = {f"health_check_{name}": value for name, value in checks.items()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, **small})
        ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
        yield made
        ray.shutdown()
        made.shutdown()


def add_node(cluster: Any, label: str) -> Any:
    return cluster.add_node(num_cpus=1, resources={label: 1}, object_store_memory=80 * 2**20)


def count(path: Path) -> int:
    if not path.exists() or not path.stat().st_size:
        return 0
    with Store(path) as store:
        return len(store.rows())


def test_twelve_trials_on_two_labels_survive_the_death_of_a_node(cluster: Any, tmp_path: Path) -> None:
    add_node(cluster, "left")
    doomed = add_node(cluster, "right")
    cluster.wait_for_nodes()
    path = tmp_path / "plan.toml"
    path.write_text(
        '[axes]\nnetwork = "slow@0.8"\ndevice = ["left/cpu", "right/cpu"]\nbatch_size = [1, 2, 3, 4, 5, 6]\n',
        encoding="utf-8",
    )
    plan = load_plan(path)

    ended: list[dict[str, Any]] = []

    def sweep() -> None:
        ended.append(run_sweep(plan, Options(on="ray", command=FAKE), SweepLines(quiet=True)))

    running = threading.Thread(target=sweep)
    running.start()
    ends = time.monotonic() + 180
    while count(plan.store) < 4 and time.monotonic() < ends:
        time.sleep(0.1)
    cluster.remove_node(doomed, allow_graceful=False)
    add_node(cluster, "right")  # elsewhere
    running.join()
    found = ended[0]
    assert (found["done"], found["failed"], found["left"]) == (12, 0, 0)
    rows = read_rows(plan.store)
    assert sorted((row["device"], row["batch_size"]) for row in rows) == [
        (device, batch) for device in ("left/cpu", "right/cpu") for batch in range(1, 7)
    ]
    retried = read_rows(plan.store, role="retried")
    assert retried, "the node was killed while a trial ran on it"
    assert all(row["device"] == "right/cpu" and row["status"].startswith("error (lost") for row in retried)
    assert run_sweep(plan, Options(on="ray", command=FAKE), SweepLines(quiet=True))["ran"] == 0


def test_on_a_cluster_devices_need_labels(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('[axes]\nnetwork = "a"\ndevice = "cpu"\n', encoding="utf-8")
    with pytest.raises(UsageError, match="every device needs the label"):
        run_sweep(load_plan(path), Options(on="ray", command=FAKE), SweepLines(quiet=True))


def test_a_plan_for_several_machines_is_not_run_here(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('[axes]\nnetwork = "a"\ndevice = ["one/cpu", "two/cpu"]\n', encoding="utf-8")
    with pytest.raises(UsageError, match="the plan names several machines: one, two"):
        run_sweep(load_plan(path), Options(command=FAKE), SweepLines(quiet=True))
