from __future__ import annotations

import json
from pathlib import Path

import pytest

from detscope.errors import InputError
from detscope.predict.layers.lists import read_layers, read_older_rows
from detscope.predict.samples import keep_measured, read_samples, sum_samples

SHAPE = [1, 4, 8, 8]
CONV = {"ic": 4, "oc": 4, "k": 3, "stride": 1, "pad": 1, "groups": 1, "ip": 8, "op": 8, "params": 148}


def row(kind: str, source: int, output: int, **more: int) -> list[object]:
    return [kind, source, SHAPE, output, SHAPE, more]


def test_the_second_operand_of_an_addition_is_what_its_block_began_with() -> None:
    rows = [
        row("conv", 0, 1, **CONV),
        row("conv", 1, 2, **CONV),
        row("relu_", 2, 2),
        row("conv", 2, 3, **CONV),
    ]
    graph = read_older_rows("x_0", [*rows, row("add", 3, 4)])
    assert graph.operations[-1].inputs == (3, 1)


def test_a_branch_that_nobody_used_is_the_second_operand() -> None:
    rows = [row("conv", 0, 1, **CONV), row("conv", 1, 2, **CONV), row("conv", 1, 3, **CONV), row("add", 2, 4)]
    assert read_older_rows("x_0", rows).operations[-1].inputs == (2, 3)


def test_all_parts_of_a_concatenation_are_found() -> None:
    rows = [row("conv", 0, 1, **CONV), row("conv", 1, 2, **CONV), row("conv", 1, 3, **CONV)]
    cat = ["cat", 2, SHAPE, 4, [1, 8, 8, 8], {"n": 2}]
    assert read_older_rows("x_0", [*rows, cat]).operations[-1].inputs == (2, 3)


def test_weights_and_biases_are_parameters_of_their_own() -> None:
    assert read_older_rows("x_0", [row("conv", 0, 1, **CONV)]).parameter_sizes == (144, 4)


@pytest.mark.parametrize("text", ["", "[1]", '{"resnet": []}', '{"resnet_0": [["conv", 1]]}'])
def test_a_file_that_is_no_list_of_layers_is_refused_in_one_line(tmp_path: Path, text: str) -> None:
    file = tmp_path / "layers.json"
    file.write_text(text)
    with pytest.raises(InputError, match="is not a list of layers") as caught:
        read_layers(file)
    assert "\n" not in caught.value.message


def test_older_files_of_both_kinds_are_read_and_rows_without_layers_left_out(tmp_path: Path) -> None:
    layers = tmp_path / "layers.json"
    layers.write_text(json.dumps({"net_0": [row("conv", 0, 1, **CONV)]}))
    commas, bars = tmp_path / "a.csv", tmp_path / "b.csv"
    commas.write_text("net_name,level,bs,mem_alloc,mem_used,latency\nnet,0,4,10,,2.5\nnet,5,4,10,20,2.5\n")
    bars.write_text("passed|mem_used|test_var|bs|net_name\nFalse|-1|0|64|net\n")
    graphs = read_layers(layers)
    (one,), (failed,) = read_samples(commas, graphs), read_samples(bars, graphs)
    assert (one.case.batch, one.allocated_bytes, one.process_bytes) == (4, 10 * 2**20, None)
    assert (one.latency_ms, failed.passed) == (2.5, False)
    assert keep_measured([one, failed], "process_bytes") == []  # what failed holds no figure
    assert sum_samples([one]) != sum_samples([failed])


@pytest.mark.parametrize("line", ["net,zero,4,1", "net,0,0,1", "net,0,4,much"])
def test_a_bad_row_is_named_by_its_line(tmp_path: Path, line: str) -> None:
    file = tmp_path / "a.csv"
    file.write_text(f"net_name,level,bs,latency\n{line}\n")
    graph = read_older_rows("net_0", [row("conv", 0, 1, **CONV)])
    with pytest.raises(InputError, match="line 2"):
        read_samples(file, {("net", 0): graph})
