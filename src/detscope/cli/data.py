"""`detscope data`: list, prepare and check data sets; needs no torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from detscope.cli.examples import examples_of
from detscope.cli.groups import WholeLinesGroup
from detscope.cli.output import JsonFlag, print_json, show_sections, table_console
from detscope.errors import InputError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from detscope.report.progress import Progress

Root = Annotated[str, typer.Option("--root", metavar="DIR", help="Where data sets live.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")]

data = typer.Typer(
    cls=WholeLinesGroup,
    help="List, prepare and check data sets.",
    rich_markup_mode=None,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@data.command("list", epilog=examples_of("data list"))
def list_(root: Root = "data", json: JsonFlag = False) -> None:
    """List the data sets: what they are, how much is to fetch, whether they are there."""
    from detscope.data.download.prepare import count_download_bytes, find_prepared
    from detscope.data.registry import list_collections

    rows: list[dict[str, Any]] = [
        {"name": "synthetic", "description": "generated shapes with boxes, masks and keypoints",
         "use": "--data synthetic", "download_bytes": 0, "licence": "none needed", "folder": None},
    ]  # fmt: skip
    for collection in list_collections():
        there = find_prepared(collection, Path(root))
        rows.append(
            {
                "name": collection.name,
                "description": collection.description,
                "use": f"--data {collection.use_as}",
                "download_bytes": count_download_bytes(collection),
                "licence": collection.licence,
                "folder": None if there is None else str(there),
            }
        )
    if json:
        print_json(rows)
    else:
        _print_list(rows)


@data.command(epilog=examples_of("data prepare"))
def prepare(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name of `detscope data list`.")],
    root: Root = "data",
    url: Annotated[
        str | None, typer.Option("--url", metavar="URL", help="A mirror: the folder that holds the archives.")
    ] = None,
    trust_url: Annotated[
        bool,
        typer.Option(
            "--trust-url",
            help="The mirror's files may differ from the publisher's: trusted on first use, and recorded.",
        ),
    ] = False,
    json: JsonFlag = False,
    quiet: Quiet = False,
) -> None:
    """Fetch a data set: resumed where it broke, checked, unpacked into the layout people know."""
    if trust_url and url is None:
        raise UsageError("--trust-url needs --url", "name the mirror that is to be trusted")
    from detscope.data.download.prepare import prepare_collection
    from detscope.data.registry import find_collection
    from detscope.report.progress import make_progress

    collection = find_collection(name)
    progress = make_progress(quiet=quiet)
    try:
        done = prepare_collection(
            collection, Path(root), mirror=url, trust_mirror=trust_url, progress=_in_megabytes(progress)
        )
    finally:
        progress.finish()
    if json:
        print_json(
            {"name": done.name, "folder": str(done.folder), "fetched": done.fetched, "found": done.found}
        )
        return
    console = table_console()
    verb = "fetched" if done.fetched else "already there"
    console.print(f"{done.name}: {verb}: {done.folder}", markup=False, soft_wrap=True)
    elsewhere = "" if root == "data" else f" --root {root}"
    console.print(f"next: detscope data check {collection.use_as}{elsewhere}", markup=False)


@data.command(epilog=examples_of("data check"))
def check(
    name: Annotated[str, typer.Argument(metavar="NAME|DIR", help="A data set, or a folder of your own.")],
    root: Root = "data",
    out: Annotated[str, typer.Option("--out", metavar="DIR", help="Folder for the findings.")] = "checks",
    json: JsonFlag = False,
    quiet: Quiet = False,
) -> None:
    """Open every image, judge every annotation, and tell what will dominate cost; changes nothing."""
    from detscope.report.progress import make_progress
    from detscope.sessions.check import run_check

    progress = make_progress(quiet=quiet)
    try:
        found, folder = run_check(name, root, Path(out), _in_megabytes(progress))
    finally:
        progress.finish()
    if json:
        print_json({**found, "written": str(folder)})
    else:
        import msgspec

        from detscope.report.checks import DataCheck, check_sections

        check = msgspec.convert(found, DataCheck, strict=False)
        show_sections(check_sections(check, str(folder)), more=f"{folder / 'check.json'} has every row")
    if found["errors"]:
        raise InputError(
            f"{name}: {_errors(found['errors'])} in its images and annotations",
            f'all are in {folder / "check.json"}; data.on_bad_data = "skip" trains without what is bad',
        )


def _errors(number: int) -> str:
    return f"{number} error" if number == 1 else f"{number} errors"


def _print_list(rows: list[dict[str, Any]]) -> None:
    from rich.table import Table

    from detscope.report.figures import cell, with_unit

    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("name", "what", "to use it", "to fetch", "there"):
        table.add_column(title, overflow="fold", justify="right" if title == "to fetch" else "left")
    for row in rows:
        fetch = with_unit(row["download_bytes"], "bytes") if row["download_bytes"] else "nothing"
        there = row["folder"] or ("made when used" if row["name"] == "synthetic" else "no")
        table.add_row(cell(row["name"]), cell(row["description"]), cell(row["use"]), fetch, cell(there))
    console = table_console()
    console.print(table)
    console.print("\nyour own: --data DIR, with COCO JSON, VOC annotations or YOLO labels", markup=False)
    console.print("next: detscope data prepare pets", markup=False)


def _in_megabytes(progress: Progress) -> Callable[[str, int, int | None], None]:
    """One bar for each piece of work; downloads count in megabytes."""
    shown: dict[str, int] = {}

    def tell(label: str, done: int, total: int | None) -> None:
        unit = 10**6 if label.startswith("downloading") else 1
        if label not in shown or done // unit < shown[label]:  # both splits have the same pieces of work
            shown[label] = 0
            words = f"{label} (MB)" if unit > 1 else label
            progress.start(None if total is None else -(-total // unit), words)
        now = -(-done // unit) if done == total else done // unit
        progress.advance(now - shown[label])
        shown[label] = now

    return tell
