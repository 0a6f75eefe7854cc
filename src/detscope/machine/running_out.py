"""Whether an error means that the host's memory ran out: its words, and what the process had left."""

from __future__ import annotations

from detscope.machine.limits import status_bytes

_SAID = (
    "can't allocate memory",
    "Cannot allocate memory",
    "not enough memory",
    "std::bad_alloc",
    "MemoryError",
)
# oneDNN, which computes convolutions on a CPU, and the start of a thread say that they failed and not why
_UNSAID = ("could not create a primitive", "could not execute a primitive", "can't start new thread")
_NOTHING_LEFT_BYTES = 256 << 20


def host_memory_ran_out(text: str) -> str | None:
    """The words of an error that came of it, with the evidence where they do not say so; None: it did not."""
    if any(sign in text for sign in _SAID):
        return text
    if not any(sign in text for sign in _UNSAID):
        return None
    room = least_addresses_left_bytes()
    if room is None or room > _NOTHING_LEFT_BYTES:
        return None
    return f"{text} (the process had come within {room / 1e6:.0f} MB of its limit of addresses)"


def least_addresses_left_bytes() -> int | None:
    """Bytes between this process's limit of addresses and the most it ever had; None without a limit."""
    try:
        import resource  # not on every system
    except ImportError:
        return None
    limit, _ = resource.getrlimit(resource.RLIMIT_AS)
    most, now = status_bytes("VmPeak"), status_bytes("VmSize")
    if limit == resource.RLIM_INFINITY or most is None or now is None:
        return None
    return limit - (most if most <= limit else now)  # beyond it: the limit came after that moment
