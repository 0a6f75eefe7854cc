"""A training in several ranks: the wrapper of the model, whose turn it is, whether all agree at the end."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from detscope.analyze.summary import summarize
from detscope.config.schema import Settings, TrainingSettings
from detscope.errors import InputError
from detscope.loops.train import Batch, to_device
from detscope.machine.accelerator import find_accelerator
from detscope.record.communication import CommunicationWatch
from detscope.record.foreign import Patches
from detscope.record.recorder import Recorder
from detscope.runs.reader import Run, load_run
from detscope.sessions.ranks.exchange import ClockReading, RankExchange, RankPlace, choose_device
from detscope.sessions.ranks.merge import describe_rank, finish_rank

Made = TypeVar("Made")
_AS_LONG_AS_IT_TAKES_S = 7 * 24 * 3600.0  # torchrun ends those who wait for a rank that died
_SAME_LOSS = 1e-6
# settings that may differ: they say how many ranks there are, how long it is measured, or where files go
_FREE = {
    "training": {
        "ranks",
        "nodes",
        "rendezvous",
        "rank_timeout_s",
        "find_unused_parameters",
        "steps",
        "num_epochs",
        "warmup_steps",
        "tensorboard",
        "checkpoints",
        "resume",
    },
    "record": {"ops_steps", "bare_every", "memory_steps", "telemetry_hz", "traced_steps"},
}
_COMPARED = ("training", "model", "data", "record")
MOST_RUNS = 200


@dataclass
class Team:
    """This rank and its ties to the others, from the first to the last step."""

    place: RankPlace
    exchange: RankExchange
    device: str
    watch: CommunicationWatch
    tell_run: Callable[[Path], None] = lambda _run: None  # called when the rank's run folder exists
    readings: list[ClockReading] = field(default_factory=list)
    _patches: Patches = field(default_factory=Patches)
    _turns: int = 0
    _passes: int = 0
    _last_loss: float | None = None

    @property
    def leads_ranks(self) -> bool:
        """Rank 0 keeps checkpoints, evaluates and shows."""
        return self.place.leads_ranks

    def take_turn(self, make: Callable[[], Made]) -> Made:
        """The first rank of a host downloads, unpacks, generates; the others find it done."""
        self._turns += 1
        key = f"turn/{self._turns}/{os.environ.get('GROUP_RANK', '0')}"
        if self.place.local_rank == 0:
            made = make()
            self.exchange.announce_label(key)
            return made
        self.exchange.wait_for(key, _AS_LONG_AS_IT_TAKES_S)
        return make()

    def wrap_model(self, model: torch.nn.Module, training: TrainingSettings) -> torch.nn.Module:
        """The model as the loop calls it; from here on ranks draw different random numbers."""
        device = find_accelerator(self.device)
        wrapped = DistributedDataParallel(
            model,
            device_ids=None if device.is_host else [device.index],
            find_unused_parameters=training.find_unused_parameters,
        )
        self.watch.attach_to_wrapper(wrapped)
        torch.manual_seed(training.seed + self.place.rank)
        return wrapped

    def begin_steps(self, recorder: Recorder) -> None:
        """Right before the first step: compare clocks, and leave a word in the run in case it is killed."""
        self.tell_run(recorder.run)
        reading = self.exchange.read_clock("begin")
        if reading is not None:
            self.readings.append(reading)
        self.watch.attach_to_calls(self._patches, recorder.find_phase)
        self.watch.set_aside = recorder.track_collectives()
        clocks = [asdict(one) for one in self.readings]
        recorder.writer.info["rank_facts"] = {**describe_rank(self.place), "clocks": clocks}
        recorder.writer.save_info()

    def keep_collectives(self, recorder: Recorder, step: int) -> None:
        """Between two steps: keep what was noted of the collectives."""
        self._last_loss = recorder.last_loss
        recorder.writer.append_rows("communication", self.watch.take_step(step))

    def wait_for_evaluation(self) -> None:
        """Nobody begins the next pass while rank 0 evaluates."""
        self._passes += 1
        self.exchange.wait_for_leader(f"pass/{self._passes}", _AS_LONG_AS_IT_TAKES_S)

    def end_steps(self, recorder: Recorder, model: torch.nn.Module, batch: Batch, seed: int) -> None:
        """Right after the last step: do all ranks have the same weights, and do these give the same loss?"""
        recorder.rest()
        self._patches.undo()
        find_accelerator(self.device).wait()
        recorder.writer.append_rows("communication", self.watch.take_rest())
        found = compare_ranks(model, batch, self.device, seed)
        recorder.writer.info["agreement"] = found
        if not found["weights_equal"] or not found["loss_equal"]:
            recorder.note("ranks do not agree at the end: their weights or losses differ (see `agreement`)")

    def finish_run(self, recorder: Recorder) -> None:
        """The run is closed: rank 0 merges, the others deliver."""
        facts = {"last_loss": self._last_loss}
        finish_rank(recorder.run, readings=self.readings, facts=facts, exchange=self.exchange)
        if not self.leads_ranks:
            return
        # what one rank alone does; from now on who adds to the run keeps what came in
        info = load_run(recorder.run).info
        recorder.writer.info |= info
        recorder.writer.info["one_rank"] = one_rank_run(
            recorder.run.parent, info.get("settings") or {}, self.device
        )
        recorder.writer.save_info()

    def leave_group(self) -> None:
        """End the process group."""
        dist.destroy_process_group()


def join_team(settings: Settings, place: RankPlace) -> Team:
    """Become part of the job: gloo between processors, NCCL or its like between devices."""
    training = settings.training
    device = choose_device(training.device, place.local_rank, place.local_ranks)
    if training.threads is None and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, torch.get_num_threads() // place.local_ranks))
    accelerator = find_accelerator(device)
    accelerator.use()
    dist.init_process_group(accelerator.collectives, timeout=timedelta(seconds=training.rank_timeout_s))
    return Team(place, RankExchange.connect_store(place), device, CommunicationWatch(place.rank))


def compare_ranks(model: torch.nn.Module, batch: Batch, device: str, seed: int) -> dict[str, Any]:
    """A checksum of the parameters and the loss of one batch, gathered from all ranks."""
    checksum = int.from_bytes(_hash_parameters(model)[:6])  # as many bits as a float64 keeps
    own = torch.tensor([float(checksum), _compute_loss(model, batch, device, seed)], dtype=torch.float64)
    own = own.to(device)
    all_ranks = [torch.zeros_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(all_ranks, own)
    losses = [float(one[1]) for one in all_ranks]
    spread = max(losses) - min(losses)
    return {
        "weights_equal": len({float(one[0]) for one in all_ranks}) == 1,
        "loss_equal": spread <= _SAME_LOSS * max(abs(losses[0]), 1e-12),
        "losses": losses,
        "checksum": _hash_parameters(model).hex()[:16],
        "how": "SHA-256 of all parameters, and the loss of the same first images with the last weights",
    }


def _hash_parameters(model: torch.nn.Module) -> bytes:
    found = hashlib.sha256()
    for name, parameter in sorted(model.named_parameters()):
        values = parameter.detach().cpu().contiguous().flatten().view(torch.uint8)
        found.update(name.encode() + values.numpy().tobytes())
    return found.digest()


def _compute_loss(model: torch.nn.Module, batch: Batch, device: str, seed: int) -> float:
    """The model is left as it was: buffers are put back, random numbers too."""
    kept = [buffer.clone() for buffer in model.buffers()]
    images, targets = to_device(batch, device)
    accelerator = find_accelerator(device)
    state = accelerator.read_random_state()
    with torch.no_grad(), torch.random.fork_rng([]):
        torch.manual_seed(seed)
        losses: dict[str, torch.Tensor] = model(images, targets)
        total = float(sum(losses.values(), torch.zeros((), device=device)))
        for buffer, before in zip(model.buffers(), kept, strict=True):
            buffer.copy_(before)
    if state is not None:
        accelerator.restore_random_state(state)
    return total


def one_rank_run(runs: Path, settings: Mapping[str, Any], device: str) -> dict[str, Any] | None:
    """The newest run of one rank with these settings beside, and its images/s: the measure of scaling."""
    for path in sorted(runs.glob("*-train-*/run.json"), reverse=True)[:MOST_RUNS]:
        try:
            found = load_run(path.parent)
        except InputError:  # a run that was written by others, or damaged: not the one that is looked for
            continue
        if _is_alike(found, settings, device.split(":")[0]):
            speed = summarize(found).images_per_s
            if speed:
                return {"run": found.folder.name, "images_per_s": speed}
    return None


def _is_alike(run: Run, settings: Mapping[str, Any], device: str) -> bool:
    own = run.info.get("settings")
    if run.status != "ok" or run.info.get("ranks") or not isinstance(own, Mapping):
        return False
    if str(run.info.get("device")).split(":")[0] != device:
        return False
    return all(_select_settings(own, section) == _select_settings(settings, section) for section in _COMPARED)


def _select_settings(settings: Mapping[str, Any], section: str) -> dict[str, Any]:
    chosen, free = settings.get(section) or {}, _FREE.get(section, ())
    return {key: value for key, value in chosen.items() if key not in free}
