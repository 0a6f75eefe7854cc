"""`--data slow` for fresh processes: what installing a package with a data set leaves behind."""

from __future__ import annotations

from pathlib import Path

_MODULE = """import sys
sys.path.append({planted!r})
from detscope.data.contract import DatasetFormat

def open_slow(request):
    from planted import open_slow
    return open_slow(request)

PART = DatasetFormat("slow", "a slow disk", open_slow)
"""


def install_slow_disk(folder: Path) -> Path:
    """Make a folder that, on PYTHONPATH, brings the data set."""
    facts = folder / "slow_disk-1.0.dist-info"
    facts.mkdir(parents=True)
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: slow-disk\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text("[detscope.datasets]\nslow = slow_disk_data\n")
    planted = str(Path(__file__).parent / "sessions")
    (folder / "slow_disk_data.py").write_text(_MODULE.format(planted=planted))
    return folder
