"""A script that is, or becomes, one of several ranks: its collectives, noted by steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch

from detscope.record.foreign import Patches
from detscope.record.script.options import ScriptOptions

if TYPE_CHECKING:
    from detscope.record.communication import CommunicationWatch
    from detscope.record.script.recorder import ScriptRecorder


class ScriptRanks:
    """Owned by the recording. A process group of several says that there are ranks, whoever started them."""

    def __init__(self, options: ScriptOptions) -> None:
        self._options = options
        self._watch: CommunicationWatch | None = None
        self.group_seen: Callable[[int, int, Any], None] = lambda _rank, _ranks, _store: None
        self.look: Callable[[], None] = lambda: None  # called between steps

    def attach_watch(self, patches: Patches, phase_now: Callable[[], str | None]) -> None:
        """Time collectives, should this be or become one of several ranks."""
        if torch.distributed.is_available():
            from detscope.record.communication import CommunicationWatch

            self._watch = CommunicationWatch(self._options.rank or 0)
            self._watch.attach_to_all(patches)
            self._watch.attach_to_calls(patches, phase_now)

    def notice_group(self) -> ScriptOptions:
        """The options, with the place of this process among the ranks, if it is one by now."""
        distributed = torch.distributed
        if self._options.rank is None and distributed.is_available() and distributed.is_initialized():
            rank, ranks = distributed.get_rank(), distributed.get_world_size()
            if ranks > 1:
                self._options = replace(self._options, rank=rank, ranks=ranks)
                if self._watch is not None:
                    self._watch.rank = rank
                self.group_seen(rank, ranks, distributed.distributed_c10d._get_default_store())
        return self._options

    def watch_run(self, recorder: ScriptRecorder) -> None:
        """The run is open."""
        if self._watch is not None:
            self._watch.set_aside = recorder.track_collectives()

    def keep_step(self, recorder: ScriptRecorder, step: int) -> None:
        """A step has ended: what was noted is its own."""
        if self._options.rank is None and self.notice_group().rank is not None:  # a group that came late
            recorder.writer.info["rank"] = {"rank": self._options.rank, "ranks": self._options.ranks}
        self.look()
        if self._watch is not None:
            recorder.writer.append_rows("communication", self._watch.take_step(step))

    def skip_step(self) -> None:
        """What was noted belongs to no step that counts."""
        if self._watch is not None:
            self._watch.skip_step()
