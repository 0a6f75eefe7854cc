"""The layers of measured networks: traced once, kept beside the measurements, read from there afterwards."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from detscope.errors import DetscopeError
from detscope.machine.facts import package_version
from detscope.predict.layers.lists import ListedNetwork, read_networks, write_networks
from detscope.sessions.fit.rows import MeasuredRow
from detscope.sweep.keys import locate_network, network_fingerprint

LAYERS = "layers.json"
BESIDE_OLDER = "layers.traced.json"  # where the other name is taken by a list that we did not write
_OLDER, _BY_NAME = "older:", "name:"
_DETAILS = ("network", "fingerprint", "image_size", "stage", "detscope")


@dataclass(frozen=True)
class LayerRequest:
    """A network at an image size, in a stage: what is traced once."""

    folder: Path
    network: str
    fingerprint: str
    image_size: int | None
    stage: str

    @classmethod
    def from_row(cls, row: MeasuredRow) -> LayerRequest:
        """The network of a row."""
        return cls(row.folder, row.network, row.fingerprint, row.image_size, row.stage)

    @property
    def details(self) -> dict[str, str]:
        """By what it is found again; another detscope may trace otherwise."""
        size = "own" if self.image_size is None else str(self.image_size)
        values = (self.network, self.fingerprint, size, self.stage, str(package_version("detscope")))
        return dict(zip(_DETAILS, values, strict=True))


class LayerLists:
    """Lists of layers of everything that was measured; what is new is traced when asked for and kept."""

    def __init__(self, told: Callable[[str], None] = lambda _: None) -> None:
        self._told = told
        self._kept: dict[Path, list[ListedNetwork]] = {}
        self._found: dict[LayerRequest, ListedNetwork | str] = {}
        self.notes: list[str] = []

    def find_networks(self, rows: Sequence[MeasuredRow]) -> list[ListedNetwork | str]:
        """The network of each row, or in a few words why there is none."""
        wanted = list(dict.fromkeys(LayerRequest.from_row(row) for row in rows))
        traced: dict[Path, list[ListedNetwork]] = {}
        for number, one in enumerate(wanted, 1):
            if one in self._found:
                continue
            known = self._look_up(one)
            if known is None:
                self._told(f"layers of {one.network} ({number} of {len(wanted)} networks)")
            found = known or _find_or_trace_layers(one)
            if known is None and isinstance(found, ListedNetwork):
                traced.setdefault(one.folder, []).append(found)
            self._found[one] = found
        for folder, fresh in traced.items():
            self._keep_traced(folder, fresh)
        return [self._found[LayerRequest.from_row(row)] for row in rows]

    def _look_up(self, wanted: LayerRequest) -> ListedNetwork | None:
        details = wanted.details
        for listed in self._read_folder(wanted.folder):
            if wanted.fingerprint.startswith(_OLDER):
                if f"{_OLDER}{listed.network}_{listed.level}" == wanted.fingerprint:
                    return listed
            elif {name: listed.graph.details.get(name) for name in _DETAILS} == details:
                return listed
        return None

    def _read_folder(self, folder: Path) -> list[ListedNetwork]:
        if folder not in self._kept:
            files = [folder / name for name in (LAYERS, BESIDE_OLDER)]
            self._kept[folder] = [one for file in files if file.is_file() for one in read_networks(file)]
        return self._kept[folder]

    def _keep_traced(self, folder: Path, fresh: Sequence[ListedNetwork]) -> None:
        mine = [one for one in self._kept[folder] if "fingerprint" in one.graph.details]
        file = folder / (LAYERS if len(mine) == len(self._kept[folder]) else BESIDE_OLDER)
        mine += fresh
        try:
            write_networks(file, mine)
        except DetscopeError as error:
            self.notes.append(f"layers are not kept for the next time: {error.message}")
        else:
            self.notes.append(f"layers of {len(fresh)} networks were traced and are kept in {file}")
        self._kept[folder] = [*(one for one in self._kept[folder] if one not in mine), *mine]


def _find_or_trace_layers(wanted: LayerRequest) -> ListedNetwork | str:
    """Build and trace a network; words where it is not there or is not what was measured."""
    if wanted.fingerprint.startswith(_OLDER):
        return f"no {LAYERS} beside it lists {wanted.network}"
    try:
        if wanted.fingerprint.startswith(_BY_NAME):
            return _trace_layers(wanted, wanted.network)
        folder = _find_home(wanted)
        if folder is None:
            return "its folder or file is not there"
        if network_fingerprint(wanted.network, folder) != wanted.fingerprint:
            return "its files have changed since it was measured"
        return _trace_layers(wanted, locate_network(wanted.network, folder))
    except DetscopeError as error:
        return f"{error.message:.120}"


def _find_home(wanted: LayerRequest) -> Path | None:
    """The folder that its name is relative to: that of the store, or the one we are in."""
    text = wanted.network.rpartition(":")[0] if ":" in wanted.network else wanted.network
    return next((place for place in (wanted.folder, Path.cwd()) if (place / text).exists()), None)


def _trace_layers(wanted: LayerRequest, place: str) -> ListedNetwork:
    from detscope.predict.trace.network import trace_network
    from detscope.sessions.predict.prediction import load_unfilled

    network = load_unfilled(place, wanted.image_size)
    graph = trace_network(network, training=wanted.stage == "training").layer_graph
    return ListedNetwork(
        network.base.name, level_of(network.card), replace(graph, details={**graph.details, **wanted.details})
    )


def level_of(card: dict[str, Any] | None) -> int:
    """The pruning level of a network folder's card; 0 without one."""
    pruning = (card or {}).get("pruning") or {}
    level = pruning.get("level_asked", 0)
    return round(level) if isinstance(level, int | float) else 0
