"""An agent asks for the findings of a planted script, and whether the mended one is rid of them."""

from __future__ import annotations

from mcp_client import ask

from planted_defects.planted_runs import HERE, record_script


def test_a_planted_line_is_found_and_gone_when_it_is_mended(tmp_path):
    runs = tmp_path / "runs"
    names = []
    for script in ("item_per_key.py", "item_per_key_mended.py"):
        record_script(HERE / script, runs)
        names.append((runs / "latest").resolve().name)
    before, after = names
    line = (HERE / "item_per_key.py").read_text().count("\n")  # the last one
    told, compared = ask(
        runs,
        tmp_path,
        ("findings", {"run": before, "rule": "item_per_key"}),
        ("compare", {"base": before, "other": after}),
    )
    (finding,) = told["findings"]
    assert (finding["where"][0]["file"], finding["where"][0]["line"]) == ("item_per_key.py", line)
    assert finding["on_device"]["waits"] == 2  # of three reads one is left where they are read together
    assert finding["evidence"]["table"] == "census"
    assert finding["id"] in [gone["id"] for gone in compared["findings"]["gone"]]
    assert finding["id"] not in [new["id"] for new in compared["findings"]["new"]]
