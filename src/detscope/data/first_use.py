"""Trust on first use: files without a published checksum must stay the files they were at first."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from detscope.data.download.fetch import RemoteFile, checksum_of
from detscope.errors import InputError
from detscope.web import shown

RECORD = "first-use.json"


def remembered(remote: RemoteFile, folder: Path) -> RemoteFile:
    """The file with the checksum and size it had when it was fetched from this address before."""
    known = _read(folder / RECORD).get(shown(remote.url))
    if known is None:
        return remote
    return replace(remote, checksum=known["checksum"], size_bytes=known["size_bytes"])


def remember(remote: RemoteFile, path: Path, folder: Path) -> None:
    """Write down what came from an address, unless that is known already."""
    record = folder / RECORD
    content = _read(record)
    if shown(remote.url) in content:
        return
    content[shown(remote.url)] = {
        "checksum": f"sha256:{checksum_of(path, 'sha256')}",
        "size_bytes": path.stat().st_size,
    }
    partial = record.with_name(f".{record.name}.partial")
    partial.write_text(json.dumps(content, indent=2, sort_keys=True))
    partial.replace(record)


def _read(record: Path) -> dict[str, Any]:
    if not record.is_file():
        return {}
    try:
        content = json.loads(record.read_bytes())
        if not all({"checksum", "size_bytes"} <= set(entry) for entry in content.values()):
            raise ValueError("an entry lacks its checksum")
    except (ValueError, AttributeError, TypeError) as error:
        raise InputError(
            f"{record}: not a record of first uses: {error}", "remove it to trust the next downloads anew"
        ) from error
    assert isinstance(content, dict)
    return content
