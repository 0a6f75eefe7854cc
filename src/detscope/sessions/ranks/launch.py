"""`detscope train --ranks N`: starts the ranks by torchrun's own launcher and tells how they ended."""

from __future__ import annotations

import ipaddress
import json
import logging
import os
import re
import secrets
import shutil
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from detscope.config.load import dump_settings
from detscope.config.schema import Settings, TrainingSettings
from detscope.errors import DetscopeError, InterruptedRun, MachineError, UsageError
from detscope.extras import require_package
from detscope.report.progress import Progress
from detscope.runs.atomic import storage_error, write_text
from detscope.runs.reader import load_run
from detscope.runs.writer import update_info
from detscope.sessions.ranks.exchange import boot_identity, choose_device, rank_place
from detscope.sessions.ranks.merge import merge_ranks, take_tables

SHUTDOWN_S = 15  # between asking the other ranks to end and ending them
_TIMED_OUT = re.compile("timed out|timeout", re.IGNORECASE)  # another rank did not come to a collective
_ANY_PORT = 29400  # no packet is sent
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@dataclass(frozen=True)
class FailureCause:
    """Why a job failed: the rank that failed first, and how."""

    rank: int | None
    words: str  # "SIGKILL", "exit code 3", "ValueError: ..."
    told: Mapping[str, Any] | None = None  # what the rank itself said
    by_signal: bool = False

    @property
    def sentence(self) -> str:
        """The root cause in one line."""
        return self.words if self.rank is None else f"rank {self.rank} {self.words}"


def run_ranks(
    settings: Settings,
    *,
    progress: Progress,
    notes: Sequence[str] = (),
    quiet: bool = False,
    options: Sequence[str] = (),
) -> Path | None:
    """Train in several processes; the merged run, or None on a node where rank 0 does not run."""
    check_plan(settings, options)
    training = settings.training
    choose_device(training.device, 0, training.ranks)
    if training.tensorboard:
        require_package("tensorboard")
    runs = Path(settings.output.runs)
    with _meeting_folder(runs) as folder:
        write_text(folder / "config.toml", dump_settings(settings))
        write_text(folder / "about.json", json.dumps({"notes": list(notes), "quiet": quiet}))
        where = f" on each of {training.nodes} nodes, meeting at {training.rendezvous}"
        progress.note(f"starting {training.ranks} ranks{where if training.nodes > 1 else ''}")
        failure = _launch_ranks(training, folder)
        if failure is not None:
            raise _explain_failure(failure, folder, settings)
        ended = _read_words(folder, "ended")
        return runs / Path(ended[0]["run"]).name if 0 in ended else None


def check_plan(settings: Settings, options: Sequence[str]) -> None:
    """What several ranks cannot have is said before anything is started."""
    training = settings.training
    if rank_place() is not None:  # under torchrun each of its ranks would be a training of its own
        raise UsageError(
            "torchrun started this command, and each of its ranks would train alone",
            "leave torchrun out: detscope train MODEL --ranks 2; for a script: torchrun -m detscope run",
        )
    if options:
        raise UsageError(
            f"{' and '.join(options)} measure one process, not {training.ranks * training.nodes} ranks",
            "leave --ranks out",
        )
    if training.nodes > 1 and training.rendezvous is None:
        raise UsageError(
            f"{training.nodes} nodes need a place to meet",
            "give every node the same --rendezvous HOST:PORT, HOST being one of them",
        )


@contextmanager
def _meeting_folder(runs: Path) -> Iterator[Path]:
    """Where ranks of this host leave word while they run; gone afterwards."""
    folder = runs.absolute() / f".ranks-{secrets.token_hex(4)}"
    try:
        folder.mkdir(parents=True)
    except OSError as error:
        raise storage_error(runs, error) from error
    try:
        yield folder
    except BaseException:
        _end_processes(folder)
        raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _launch_ranks(training: TrainingSettings, folder: Path) -> Exception | None:
    """Run torchrun's agent here; what it raised, if anything failed. A restart would be no measurement."""
    from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    together = training.rendezvous if training.nodes > 1 else None
    way = find_route(together) if together else None
    # who opens the meeting place, where torchrun cannot be left to guess it from the host's name
    opening = {} if way is None or way.hosts is None else {"is_host": way.hosts}
    config = LaunchConfig(
        min_nodes=training.nodes,
        max_nodes=training.nodes,
        nproc_per_node=training.ranks,
        run_id="detscope" if together else secrets.token_hex(8),
        rdzv_backend="c10d",
        rdzv_endpoint=together or "localhost:0",
        rdzv_configs={"timeout": training.rank_timeout_s, **opening},
        max_restarts=0,
        local_addr=way.address if way else "localhost",
        logs_specs=DefaultLogsSpecs(log_dir=str(folder / "torchrun")),
    )
    with _quiet_agent(), gloo_interface(way):
        try:
            elastic_launch(config, sys.executable)("-m", __package__ + ".member", str(folder))
        except (ChildFailedError, SignalException) as error:
            return error
        except KeyboardInterrupt:
            return SignalException("interrupted", signal.SIGINT)
    return None


@contextmanager
def _quiet_agent() -> Iterator[None]:
    """What the agent logs is told in our words; the handlers of signals that it leaves behind go."""
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    logger = logging.getLogger("torch.distributed.elastic")
    level, had = logger.level, os.environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT")
    os.environ.setdefault("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", str(SHUTDOWN_S))
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
        if had is None:
            os.environ.pop("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", None)
        for number, handler in before.items():
            signal.signal(number, handler)


def _explain_failure(failure: Exception, folder: Path, settings: Settings) -> DetscopeError:
    """The error to raise; what was recorded until then is merged and named in it."""
    from torch.distributed.elastic.multiprocessing import SignalException

    _end_processes(folder)
    stopped_by = failure.sigval if isinstance(failure, SignalException) else None
    told = _read_words(folder, "error")
    silent = sorted(set(_read_words(folder, "started")) - set(told) - set(_read_words(folder, "ended")))
    cause = FailureCause(None, "interrupted") if stopped_by else root_cause(failure, told, silent)
    kept = _salvage_run(folder, cause, settings.training.ranks * settings.training.nodes)
    if kept is not None:  # as the user would write it
        kept = Path(settings.output.runs) / kept.name
    where = f"; what was recorded is in {kept}" if kept else ""
    show = f"detscope show {kept}" if kept else ""
    if stopped_by is not None:
        error: DetscopeError = InterruptedRun(f"interrupted{where}", show)
        error.exit_code = 128 + int(stopped_by)
        return error
    if cause.told is not None and cause.told["known"]:
        error = DetscopeError(cause.told["message"], cause.told["hint"])
        error.exit_code = cause.told["exit_code"]
        return error
    if cause.by_signal:
        hint = "was it ended by hand, or for its memory (dmesg tells)?"
        return MachineError(f"the run failed: {cause.sentence}{where}", f"{hint} {show}".strip())
    log = kept / "log.txt" if kept is not None and (kept / "log.txt").is_file() else None
    return DetscopeError(
        f"the run failed: {cause.sentence}{where}", f"the traceback is in {log}" if log else show
    )


def root_cause(
    failure: Any, told: Mapping[int, Mapping[str, Any]], silent: Sequence[int] = ()
) -> FailureCause:
    """Who failed first. A rank that a signal ended did not fail because of another one's end.

    SIGTERM is how torchrun ends the others, so it is believed last. Where all who spoke had waited too long,
    it is one of the `silent` that they waited for.
    """
    rank, first = min(
        failure.failures.items(),
        key=lambda one: (one[1].exitcode == -signal.SIGTERM, one[1].exitcode >= 0, one[1].timestamp),
    )
    if first.exitcode < 0 and not (first.exitcode == -signal.SIGTERM and told):
        return FailureCause(rank, signal.Signals(-first.exitcode).name, by_signal=True)
    # of ranks that raised, the one that did not merely lose its connection or wait in vain
    waited = {number for number, one in told.items() if _TIMED_OUT.search(one["message"])}
    own = {number for number, one in told.items() if not lost_connection(one["message"])} - waited
    if waited and silent and not own:
        return FailureCause(min(silent), "hung: the others waited for it longer than training.rank_timeout_s")
    number = min(own or waited, default=rank)
    found = told.get(number)
    if found is None:
        return FailureCause(rank, f"exit code {first.exitcode}")
    return FailureCause(number, f"{found['kind']}: {found['message']}", found)


def lost_connection(message: str) -> bool:
    """Whether a rank failed because another one was gone."""
    words = message.lower()
    return any(part in words for part in ("connection closed by peer", "connection reset", "broken pipe"))


def _salvage_run(folder: Path, cause: FailureCause, ranks: int) -> Path | None:
    """Merge what the ranks of this host left on disk; the run says why it is not whole."""
    places = {rank: Path(told["run"]) for rank, told in _read_words(folder, "run").items()}
    if 0 not in places or not (places[0] / "run.json").is_file():
        return None
    members = [
        take_tables(load_run(run), rank, {"boot": boot_identity()})
        for rank, run in sorted(places.items())
        if (run / "run.json").is_file()
    ]
    merge_ranks(places[0], members, ranks)
    raised = cause.rank is not None and not cause.by_signal
    update_info(places[0], {"status": "failed" if raised else "partial", "reason": cause.sentence})
    if cause.told is not None and not cause.told["known"]:
        write_text(places[0] / "log.txt", str(cause.told["traceback"]))
    return places[0]


def _read_words(folder: Path, what: str) -> dict[int, dict[str, Any]]:
    return {
        int(path.stem.rpartition("-")[2]): json.loads(path.read_text(encoding="utf-8"))
        for path in folder.glob(f"{what}-*.json")
    }


def _end_processes(folder: Path) -> None:
    """End what is left of the ranks' process groups, such as loader workers of one that was killed."""
    for told in _read_words(folder, "started").values():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(told["pid"], signal.SIGKILL)


@dataclass(frozen=True)
class RouteEnd:
    """This host's end of the way to another."""

    address: str
    interface: str | None  # None: the system does not tell
    hosts: bool | None = None  # whether this launcher opens the meeting place; None: torchrun finds out


def find_route(rendezvous: str) -> RouteEnd:
    """The way from here to HOST[:PORT]; nothing is sent.

    torchrun and gloo ask for the host's own name instead, which in containers and fresh machines often
    resolves to nothing, or to the loopback that no other host reaches.
    """
    host, separator, port = rendezvous.rpartition(":")
    if not separator:
        host, port = rendezvous, ""
    try:
        found = socket.getaddrinfo(
            host.strip("[]"), int(port) if port.isdigit() else _ANY_PORT, type=socket.SOCK_DGRAM
        )
        family, kind, protocol, _, there = found[0]
        with closing(socket.socket(family, kind, protocol)) as probe:
            probe.connect(there)
            address = str(probe.getsockname()[0])
    except OSError as error:
        raise MachineError(
            f"no way from this host to {host}: {error.strerror or error}",
            "--rendezvous wants a name or address of node 0 that every node reaches",
        ) from error
    return RouteEnd(address, _find_interface(address), _opens_meeting(address, str(there[0]), int(there[1])))


def _opens_meeting(here: str, there: str, port: int) -> bool | None:
    """On its host the first launcher opens the meeting place; on a loopback torchrun knows that itself."""
    if here != there:
        return False
    if ipaddress.ip_address(here).is_loopback:
        return None
    with closing(socket.socket(socket.AF_INET6 if ":" in here else socket.AF_INET)) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((here, port))
        except OSError:
            return False
    return True


def _find_interface(address: str) -> str | None:
    import psutil

    for name, ends in psutil.net_if_addrs().items():
        if any(end.address.partition("%")[0] == address for end in ends):
            return name
    return None


@contextmanager
def gloo_interface(way: RouteEnd | None) -> Iterator[None]:
    """Ranks that are started now talk by this interface, unless the user has chosen one."""
    if way is None or way.interface is None or "GLOO_SOCKET_IFNAME" in os.environ:
        yield
        return
    os.environ["GLOO_SOCKET_IFNAME"] = way.interface
    try:
        yield
    finally:
        del os.environ["GLOO_SOCKET_IFNAME"]
