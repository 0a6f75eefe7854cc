from __future__ import annotations

import gzip
import random
from collections.abc import Sequence
from pathlib import Path
from time import process_time

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detscope.errors import InputError
from detscope.ingest.formats.ncu import (
    base_unit,
    find_decimal_mark,
    parse_number,
    read_listings,
    recognize_head,
)
from detscope.ingest.sink import Sink

HEADER = (
    '"ID","Process ID","Process Name","Host Name","Kernel Name","Kernel Time","Context","Stream",'
    '"Section Name","Metric Name","Metric Unit","Metric Value","Rule Name","Rule Type","Rule Description"'
)
CYCLES = "gpc__cycles_elapsed.max"
FMA = "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_elapsed"
FP16 = "sm__inst_executed_pipe_fp16.avg.pct_of_peak_sustained_elapsed"


def row(ident: int, process: int, kernel: str, metric: str, unit: str, value: str) -> str:
    return (
        f'"{ident}","{process}","python","host","{kernel}","2026-Jan-01","1","7",'
        f'"Command line profiler metrics","{metric}","{unit}","{value}",'
    )


def rule(ident: int, process: int, words: str) -> str:
    return (
        f'"{ident}","{process}","python","host","k","t","1","7","Occupancy","","","","Rule","WRN","{words}"'
    )


def metrics_of(path: Path) -> tuple[pl.DataFrame, Sink]:
    frames: list[pl.DataFrame] = []
    sink = Sink(lambda _table, frame: frames.append(frame))
    read_listings(path, sink)
    return pl.concat(frames), sink


def listing(tmp_path: Path, lines: Sequence[str], encoding: str = "utf-8") -> Path:
    path = tmp_path / "listing.csv"
    path.write_bytes("\n".join(lines).encode(encoding))
    return path


HARD = [
    "==PROF== Connected to process 11 (/usr/bin/python)",
    "step 1 of 3",
    HEADER,
    row(0, 11, "gemm<float, 4>", CYCLES, "cycle", "12,345"),
    row(0, 11, "gemm<float, 4>", FMA, "%", "50.00"),
    row(0, 11, "gemm<float, 4>", FP16, "%", "1.50"),
    rule(0, 11, "waits\nover two lines, with a comma"),
    "==PROF== Profiling relu - 1: 0%....50%....100% - 4 passes",
    "loss 0.5, 0.25",
    row(0, 22, "relu", CYCLES, "cycle", "1,000"),
    row(0, 22, "relu", FMA, "%", "10"),
    row(1, 22, "last", CYCLES, "cycle", "2,000,000"),
    row(1, 22, "last", FMA, "%", "1,00"[:1] + ".25"),
    row(1, 22, "last", FP16, "%", "n/a"),
    "==PROF== Disconnected from process 11",
    "bye",
]


def test_a_hard_listing_gives_every_kernel_also_the_last(tmp_path: Path) -> None:
    metrics, sink = metrics_of(listing(tmp_path, HARD))
    cycles = metrics.filter(metric=CYCLES).select("process", "kernel", "name", "value").rows()
    assert cycles == [(11, 0, "gemm<float, 4>", 12345.0), (22, 1, "relu", 1000.0), (22, 2, "last", 2e6)]
    assert metrics.filter(metric=FMA)["value"].to_list() == [50.0, 10.0, 1.25]
    half = metrics.filter(metric=FP16).sort("kernel")
    assert half["value"].to_list() == [1.5, None, None]
    assert sink.counts["metrics missing for a kernel"] == 2
    assert sink.counts["rows of rules, without a metric"] == 1
    assert sink.counts["lines that are no part of a listing"] == 6
    assert sink.info["kernels"] == 3


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-le", "utf-16-be"])
def test_the_encoding_does_not_matter(tmp_path: Path, encoding: str) -> None:
    plain, _ = metrics_of(listing(tmp_path, HARD))
    path = listing(tmp_path, HARD, encoding)
    assert recognize_head(path.read_bytes()[:65536], path)
    assert metrics_of(path)[0].equals(plain)


def test_packed_and_with_windows_line_ends(tmp_path: Path) -> None:
    plain, _ = metrics_of(listing(tmp_path, HARD))
    path = tmp_path / "x.gz"
    path.write_bytes(gzip.compress("\r\n".join(HARD).encode()))
    assert metrics_of(path)[0].drop("name").equals(plain.drop("name"))


def test_words_without_a_line_end_before_the_header_do_not_hide_it(tmp_path: Path) -> None:
    metrics, _ = metrics_of(listing(tmp_path, ["done" + HEADER, *HARD[3:6]]))
    assert metrics.height == 3


def test_the_wide_layout_has_a_row_of_units(tmp_path: Path) -> None:
    wide = [
        "==PROF== Connected",
        '"ID","Process ID","Kernel Name","Device","' + CYCLES + '","gpu__time_duration.sum","' + FMA + '"',
        '"","","","","cycle","us","%"',
        '"0","5","first","0","1,234","1.5","12.5"',
        "==PROF== between",
        '"1","5","second","1","2,000","2","n/a"',
    ]
    metrics, sink = metrics_of(listing(tmp_path, wide))
    assert sink.info["layouts"] == ["wide"]
    assert metrics.filter(metric="gpu__time_duration.sum").select("unit", "value").rows() == [
        ("ns", 1500.0),
        ("ns", 2000.0),
    ]
    assert metrics.filter(metric=FMA, kernel=1)["value"].to_list() == [None]
    assert metrics["device"].unique().sort().to_list() == [0, 1]


def test_a_german_listing_reads_like_an_english_one(tmp_path: Path) -> None:
    english = [HEADER, row(0, 1, "a", CYCLES, "cycle", "12,345,678"), row(0, 1, "a", FMA, "%", "12.345")]
    german = [HEADER, row(0, 1, "a", CYCLES, "cycle", "12.345.678"), row(0, 1, "a", FMA, "%", "12,345")]
    english.append(row(0, 1, "a", FP16, "%", "1,234.5"))
    german.append(row(0, 1, "a", FP16, "%", "1.234,5"))
    expected = [12345678.0, 12.345, 1234.5]
    assert metrics_of(listing(tmp_path, english))[0]["value"].to_list() == expected
    assert metrics_of(listing(tmp_path, german))[0]["value"].to_list() == expected


def test_a_french_listing_groups_by_spaces_that_do_not_break(tmp_path: Path) -> None:
    french = [
        HEADER,
        row(0, 1, "a", CYCLES, "cycle", "12\u202f345\u00a0678"),
        row(0, 1, "a", FMA, "%", "3,37"),
    ]
    assert metrics_of(listing(tmp_path, french))[0]["value"].to_list() == [12345678.0, 3.37]


@given(st.floats(min_value=0, max_value=1e12), st.sampled_from(["en", "de", "fr", "ch"]))
def test_any_number_of_any_locale_comes_back(number: float, locale: str) -> None:
    text = f"{number:,.2f}"
    group, mark = {"en": (",", "."), "de": (".", ","), "fr": ("\u202f", ","), "ch": ("’", ".")}[locale]
    text = text.replace(",", "\0").replace(".", mark).replace("\0", group)
    assert parse_number(text, mark) == round(number, 2)
    assert find_decimal_mark([text]) == mark


@pytest.mark.parametrize(
    ("unit", "base", "factor"),
    [
        ("usecond", "ns", 1e3), ("ms", "ns", 1e6), ("second", "ns", 1e9), ("Kbyte", "byte", 1e3),
        ("Gbyte/second", "byte/second", 1e9), ("Ghz", "hz", 1e9), ("cycle/nsecond", "cycle/second", 1e9),
        ("%", "%", 1.0), ("", "", 1.0), ("register/thread", "register/thread", 1.0),
        ("byte/block", "byte/block", 1.0),
    ],
)  # fmt: skip
def test_units_lose_their_prefix(unit: str, base: str, factor: float) -> None:
    assert base_unit(unit) == (base, pytest.approx(factor))


def test_a_summed_up_listing_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = listing(
        tmp_path, ['"Kernel Name","Invocations","Metric Name","Minimum","Maximum","Average"', '"k","3"']
    )
    with pytest.raises(InputError, match="--print-summary"):
        metrics_of(path)


def test_missing_permission_is_named(tmp_path: Path) -> None:
    path = listing(tmp_path, ["==PROF== Connected", "==ERROR== ERR_NVGPUCTRPERM - no permission"])
    assert recognize_head(path.read_bytes(), path)
    with pytest.raises(InputError, match="ERR_NVGPUCTRPERM"):
        metrics_of(path)


def mutated(data: bytes, chance: random.Random) -> bytes:
    kind = chance.randrange(5)
    place = chance.randrange(len(data))
    if kind == 0:
        return data[:place]
    if kind == 1:
        flipped = bytearray(data)
        for _ in range(chance.randrange(1, 20)):
            flipped[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return bytes(flipped)
    if kind == 2:  # swapped types: numbers become words, words become numbers
        return data.replace(
            chance.choice([b"12,345", b"cycle", b'"0"', b"%"]), chance.choice([b"x", b"", b"1e999", b'"'])
        )
    if kind == 3:
        return data[:place] + chance.randbytes(30) + data[place:]
    end = min(len(data), place + chance.randrange(200))
    return data[:place] + data[end:] + data[place:end]


def test_500_damaged_listings_are_read_or_refused_and_never_hang(tmp_path: Path) -> None:
    whole = "\n".join(HARD).encode()
    chance = random.Random(5)
    read_well = 0
    for _ in range(500):
        path = tmp_path / "damaged.csv"
        path.write_bytes(mutated(whole, chance) or b" ")
        begin = process_time()
        try:
            metrics_of(path)
            read_well += 1
        except InputError as error:
            assert error.message and error.hint
        assert process_time() - begin < 60
    assert read_well > 250
