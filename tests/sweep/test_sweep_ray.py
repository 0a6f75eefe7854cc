"""Trials on a real local cluster of Ray: labels, and a node that dies in the middle."""

from __future__ import annotations

import contextlib
import os
import random
import socket
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from fake_trial import FOLDER, allow, begun
from sweep_samples import FAKE
from test_sweep_store import seen
from test_trial_endings import until

from detscope.errors import UsageError
from detscope.report.sweep_progress import SweepLines
from detscope.sessions.sweep import SweepOptions, run_sweep
from detscope.sweep import cluster as ray_backend
from detscope.sweep.plan import load_plan
from detscope.sweep.store import read_rows

# warnings: Ray's own, on import and while its nodes end
pytestmark = [pytest.mark.processes, pytest.mark.filterwarnings("ignore")]

PATIENCE_S = 900  # for whatever a busy machine may hold up; nothing waits that long where all goes well
STORE_BYTES = 80 * 2**20
# A dead node refuses every question at once and is given up after eight of them, one in half a second. One
# that is held up does not refuse: each of its answers may take as long as the test has patience.
CHECKS = {"initial_delay_ms": 0, "period_ms": 500, "failure_threshold": 8, "timeout_ms": 1000 * PATIENCE_S}
# how long Ray's own processes wait for each other
WAITS = ("gcs_server_request_timeout_seconds", "gcs_rpc_server_reconnect_timeout_s")
WAITS += ("gcs_rpc_server_connect_timeout_s", "gcs_server_port_wait_time_s", "py_gcs_connect_timeout_s")
WAITS += ("worker_register_timeout_seconds", "raylet_start_wait_time_s")
WAITS_MS = ("agent_register_timeout_ms",)
# of a second each: what Ray calls the time-out of a connection is how long it sleeps before it tries again
TRIES = ("raylet_client_num_connect_attempts",)
# Ray gives the helpers of a node 15 s to choose ports, whatever it is told; ports that are given it takes.
PORTS = ("metrics_agent_port", "metrics_export_port", "dashboard_agent_listen_port", "runtime_env_agent_port")


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in (*WAITS, *TRIES):
        monkeypatch.setenv(f"RAY_{name}", str(PATIENCE_S))
    for name in WAITS_MS:
        monkeypatch.setenv(f"RAY_{name}", str(1000 * PATIENCE_S))
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    # objects of this cluster are small: it must not matter how much shared memory a machine has
    monkeypatch.setenv("RAY_OBJECT_STORE_ALLOW_SLOW_STORAGE", "1")
    import ray
    from ray._private import services
    from ray.cluster_utils import Cluster

    monkeypatch.setattr(services, "get_node", patient(services.get_node))
    machines = partial(ray_backend.RayMachines, wait_for_node_s=PATIENCE_S)
    monkeypatch.setattr(ray_backend, "RayMachines", machines)
    config = {f"health_check_{name}": value for name, value in CHECKS.items()}
    head = {"num_cpus": 0, "include_dashboard": False, "_system_config": config, **small_node()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = Cluster(initialize_head=True, head_node_args=head)
        try:
            ray.init(address=made.address, log_to_driver=False, logging_level="ERROR")
            yield made
        finally:
            ray.shutdown()
            made.shutdown()
    until(lambda: not started_here(), PATIENCE_S)


def started_here() -> list[int]:
    """Living processes that this test has started, at whatever remove: Ray's own and trials."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            alive = process.status() != psutil.STATUS_ZOMBIE
            if alive and process.environ().get(FOLDER) == os.environ[FOLDER]:
                found.append(process.pid)
    return found


def patient(ask: Callable[..., Any]) -> Callable[..., Any]:
    """Ray gives a node half a minute to appear."""

    def asked(*arguments: Any) -> Any:
        ends = time.monotonic() + PATIENCE_S
        while True:
            try:
                return ask(*arguments)
            except RuntimeError:
                if time.monotonic() > ends:
                    raise
                time.sleep(0.2)

    return asked


def add_node(cluster: Any, label: str) -> Any:
    return cluster.add_node(num_cpus=1, resources={label: 1}, wait=False, **small_node())


def small_node() -> dict[str, int]:
    """What a node is told: little memory, and ports that are free and given to nobody who asks for one."""
    found: list[int] = []
    for port in random.SystemRandom().sample(range(10_000, 30_000), 1000):
        with socket.socket() as tried, contextlib.suppress(OSError):
            tried.bind(("", port))
            found.append(port)
        if len(found) == len(PORTS):
            break
    return {"object_store_memory": STORE_BYTES, **dict(zip(PORTS, found, strict=True))}


def test_twelve_trials_on_two_labels_survive_the_death_of_a_node(cluster: Any, tmp_path: Path) -> None:
    add_node(cluster, "left")
    doomed = add_node(cluster, "right")
    cluster.wait_for_nodes(timeout=PATIENCE_S)
    path = tmp_path / "plan.toml"
    path.write_text(
        '[axes]\nnetwork = "allowed"\ndevice = ["left/cpu", "right/cpu"]\nbatch_size = [1, 2, 3, 4, 5, 6]\n'
        f"[limits]\ntime_s = {PATIENCE_S}\nstart_s = {PATIENCE_S}\n",
        encoding="utf-8",
    )
    plan = load_plan(path)
    ended: list[dict[str, Any]] = []

    def sweep() -> None:
        ended.append(run_sweep(plan, SweepOptions(on="ray", command=FAKE), SweepLines(quiet=True)))

    running = threading.Thread(target=sweep)
    running.start()
    allow(2)  # a third one begins on each node and does not end
    until(lambda: not running.is_alive() or (len(seen(plan.store)) == 4 and begun(3) == 2), PATIENCE_S)
    cluster.remove_node(doomed, allow_graceful=False)
    add_node(cluster, "right")  # elsewhere
    # permission comes when it has begun again: on the dead node it could still end and be answered
    until(lambda: not running.is_alive() or begun(3) == 3, PATIENCE_S)
    allow(6)
    running.join(PATIENCE_S)
    found = ended[0]
    assert (found["done"], found["failed"], found["left"]) == (12, 0, 0)
    rows = read_rows(plan.store)
    assert sorted((row["device"], row["batch_size"]) for row in rows) == [
        (device, batch) for device in ("left/cpu", "right/cpu") for batch in range(1, 7)
    ]
    retried = read_rows(plan.store, role="retried")
    assert retried, "the node was killed while a trial ran on it"
    assert all(row["device"] == "right/cpu" and row["status"].startswith("error (lost") for row in retried)
    assert run_sweep(plan, SweepOptions(on="ray", command=FAKE), SweepLines(quiet=True))["ran"] == 0


def test_a_task_on_a_gpu_waits_for_one_and_sees_its_nodes_devices_by_their_own_numbers(cluster: Any) -> None:
    import ray

    cluster.add_node(num_cpus=1, num_gpus=2, resources={"big": 1}, wait=False, **small_node())
    cluster.wait_for_nodes(timeout=PATIENCE_S)

    def look() -> tuple[str | None, list[int]]:
        return os.environ.get("CUDA_VISIBLE_DEVICES"), ray.get_gpu_ids()

    task = ray.remote(num_cpus=0)(look)
    renumbered, _ = ray.get(task.options(resources={"big": 1}, num_gpus=1).remote(), timeout=PATIENCE_S)
    assert renumbered in ("0", "1")  # cuda:1 would not be there
    asked = ray_backend.choose_task_options("cuda:1")
    visible, given = ray.get(task.options(resources={"big": 1}, **asked).remote(), timeout=PATIENCE_S)
    assert (visible, len(given)) == (os.environ.get("CUDA_VISIBLE_DEVICES"), 1)


def test_on_a_cluster_devices_need_labels(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('[axes]\nnetwork = "a"\ndevice = "cpu"\n', encoding="utf-8")
    with pytest.raises(UsageError, match="every device needs the label"):
        run_sweep(load_plan(path), SweepOptions(on="ray", command=FAKE), SweepLines(quiet=True))


def test_a_plan_for_several_machines_is_not_run_here(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    path.write_text('[axes]\nnetwork = "a"\ndevice = ["one/cpu", "two/cpu"]\n', encoding="utf-8")
    with pytest.raises(UsageError, match="the plan names several machines: one, two"):
        run_sweep(load_plan(path), SweepOptions(command=FAKE), SweepLines(quiet=True))
