"""Room for the account itself: reading and writing what was recorded needs memory when none is left."""

from __future__ import annotations

import io
import mmap

RESERVE_BYTES = 128 << 20


class Reserve:
    """Address space kept back while steps run. Its pages are never touched: they cost addresses alone."""

    def __init__(self) -> None:
        self._kept: mmap.mmap | None = None
        self._threads_started = False

    def keep(self) -> None:
        """From now on there is room to come back to; nothing where even that does not fit."""
        if not self._threads_started:
            start_table_threads()
            self._threads_started = True
        if self._kept is None:
            try:
                self._kept = mmap.mmap(-1, RESERVE_BYTES)
            except OSError:
                self._kept = None

    def give_up(self) -> None:
        """A step has failed, or the run ends: the room is needed now."""
        if self._kept is not None:
            self._kept.close()
            self._kept = None


def start_table_threads() -> None:
    """Let polars start its threads now: once memory is used up it cannot, and the account would be lost."""
    import polars as pl

    frame = pl.DataFrame({"key": ["a", "b"], "value": [1, 2]})
    frame.lazy().group_by("key").agg(pl.col("value").sum()).collect()
    buffer = io.BytesIO()
    frame.write_parquet(buffer)
    buffer.seek(0)
    pl.read_parquet(buffer)
    stream = io.BytesIO()
    frame.write_ipc_stream(stream, compression="lz4")
