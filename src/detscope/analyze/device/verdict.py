"""What limits the device, in one sentence, with its evidence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from detscope.analyze.device.blame import IdleBlame
from detscope.analyze.device.idle import IdleTime
from detscope.analyze.device.kernels import Launches
from detscope.analyze.device.transfers import Copies, DeviceCommunication
from detscope.analyze.device.utilisation import Utilisation
from detscope.analyze.figure import Figure
from detscope.analyze.stats import percent

Bound = Literal["device-bound", "host-bound", "input-bound", "communication-bound", "mixed"]
# the loss that limits a device, in the words of a step; what nobody knows has none
_WORDS: dict[str, Bound] = {
    "data": "input-bound",
    "synchronisation": "host-bound",
    "host": "host-bound",
    "communication": "communication-bound",
    "copies": "device-bound",
    "queued": "device-bound",  # the host was in time: the device waited for itself or for others
    "short gaps": "device-bound",
    "compute": "device-bound",
    "mixed": "mixed",
}
WORTH_NAMING = 0.15  # of the window: a smaller loss does not make a run "bound" by it
BUSY = 0.8
POOR_USE = 0.5
_SENTENCES = {
    "data": "waiting for data: the device stands still {much} of the time while the loader makes batches",
    "synchronisation": "synchronisation: calls that wait for the device cost {much} of the time{named}",
    "host": "launch-bound: the host is late with work {much} of the time{launches}{named}",
    "copies": "copy-bound: copies that no kernel hides take {much} of the time",
    "communication": "communication-bound: exchange that no computation hides takes {much} of the time",
    "queued": "waiting with work queued: for other streams, devices or ranks, {much} of the time",
    "short gaps": "gaps between short kernels take {much} of the time: fuse them or make batches larger",
    "unknown": "cannot tell: the device stands still {much} of the time, and the file has no launch records",
}


class DeviceLoss(Figure, frozen=True, kw_only=True):
    """Time in which the device did not compute."""

    name: str  # host, synchronisation, data, copies, communication, ...
    share: float  # of the window


class DeviceVerdict(Figure, frozen=True, kw_only=True):
    """What limits the device."""

    bound: str  # the name of the loss, or compute, or mixed
    word: Bound | None  # the same in the words of a step; None: it cannot be told
    sentence: str  # for people
    evidence: tuple[str, ...]  # figures that it rests on
    losses: tuple[DeviceLoss, ...]  # the largest first; with compute and overlaps they make the window up


def judge_device(
    use: Utilisation,
    idle: IdleTime,
    blame: tuple[IdleBlame, ...],
    copies: Copies,
    communication: DeviceCommunication,
    launches: str,
    efficiency: float | None,
) -> DeviceVerdict:
    """The largest loss, if it is worth naming; else how well the device is used."""
    losses = _rank_losses(idle, copies.exposed_ns, communication.exposed_ns)
    largest, busy = losses[0], use.compute or 0.0
    much = percent(largest.share)
    shown = [("compute kernels", busy), *((loss.name, loss.share) for loss in losses if loss.share > 0.001)]
    evidence = tuple(f"{name}: {percent(share, 1)} of the window" for name, share in shown)
    if largest.share >= WORTH_NAMING and busy < BUSY:
        bound = largest.name
        named = _name_worst(bound, blame)
        sentence = _SENTENCES[bound].format(much=much, named=named, launches=launches)
    elif busy < BUSY:
        bound = "mixed"
        sentence = (
            f"no single limit: kernels run {percent(busy)} of the time; the largest loss is {largest.name}"
            f" with {much}"
        )
    else:
        bound = "compute"
        sentence = f"compute-bound: kernels keep the device busy {percent(busy)} of the time"
        if efficiency is not None and efficiency < POOR_USE * busy:
            filled = percent(efficiency)
            sentence += f", but they fill only {filled} of its processors (estimated): kernels are small"
    return DeviceVerdict(
        bound=bound, word=_WORDS.get(bound), sentence=sentence, evidence=evidence, losses=losses
    )


def choose_bound(losses: Mapping[Bound, float], busy: float) -> Bound:
    """The largest loss, if it is worth naming and the device does not work nearly all of the time."""
    largest = max(losses, key=lambda name: losses[name])
    if busy >= BUSY:
        return "device-bound"
    return largest if losses[largest] >= WORTH_NAMING else "mixed"


def say_bound(verdict: DeviceVerdict) -> str:
    """The sentence with the word of a step in front of it."""
    if verdict.word is None:
        return verdict.sentence
    name, bound, rest = verdict.sentence.partition("-bound: ")
    return f"{verdict.word}: {rest if bound and ' ' not in name else verdict.sentence}"


def _rank_losses(idle: IdleTime, copies_ns: int, communication_ns: int) -> tuple[DeviceLoss, ...]:
    if not idle.window_ns:
        return (DeviceLoss(name="host", share=0.0),)
    # of equal ones the first is named
    order = ("data", "synchronisation", "host", "queued", "short_gaps", "unknown")
    lost_ns = {cause.name: cause.idle_ns for cause in idle.causes}
    lost_ns = {name: lost_ns[name] for name in order}
    lost_ns |= {"copies": copies_ns, "communication": communication_ns}
    ranked = sorted(lost_ns.items(), key=lambda item: -item[1])
    return tuple(DeviceLoss(name=name.replace("_", " "), share=ns / idle.window_ns) for name, ns in ranked)


def _name_worst(cause: str, blame: tuple[IdleBlame, ...]) -> str:
    """The call that costs most, where it is worth naming."""
    worst = next((row for row in blame if row.cause == cause), None)
    if worst is None or (worst.share or 0.0) < WORTH_NAMING / 3:
        return ""
    return f"; the largest part: {worst.call}" + (f" in {worst.module}" if worst.module else "")


def describe_launches(launches: Launches, has_steps: bool) -> str:
    """Many short kernels are what makes a host late."""
    if launches.median_us is None:
        return ""
    per = "per step" if has_steps else "in all"
    return f"; {launches.count:,.0f} kernels {per}, half of them shorter than {launches.median_us:.1f} us"
