"""`load_network`: a name or a folder in, a network ready to run out."""

from __future__ import annotations

from pathlib import Path

from detscope.zoo.networks.network import Network


def load_network(name_or_folder: str | Path, *, seed: int = 0, image_size: int | None = None) -> Network:
    """A network by the name of its model (random weights of `seed`) or by its folder (its own weights).

    Names: detectors of `detscope models`, classifiers of torchvision, models of timm (`timm/NAME` where
    both have the name), `file.py:factory`. A folder is one that `detscope prune` made.
    """
    from detscope.zoo.pruning.folder import is_network_folder, read_folder

    given = str(name_or_folder)
    path = Path(given)
    if isinstance(name_or_folder, Path) or is_network_folder(path) or (path.is_dir() and "/" in given):
        from detscope.zoo.pruning.pruner import rebuild

        return rebuild(read_folder(path), image_size)
    from detscope.zoo.networks.loading import build_network
    from detscope.zoo.networks.names import find_base

    return build_network(find_base(given), seed=seed, image_size=image_size)
