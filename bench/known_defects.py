"""Defects with a published fix: the rule names the place in the older version and is silent in the newer.

Every version trains a few steps under `detscope run --census` in an environment of its own. `--only=rfdetr`
takes pairs by a part of their name, `--part=held` those of one part, `--base-python=PATH` an environment
that is there already. Runs are kept beside the environments; `--recorded=yes` judges those once more.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from tests.families.generated_data import write_coco_set, write_yolo_set

from bench.known_pairs import KnownDefect, VersionPair, list_pairs
from bench.pair_scripts import ALL_CASES
from bench.version_environments import FOLDER, describe_environment, make_base, make_version

STEPS = 12  # the census counts the fifth to the seventh
Findings = list[dict[str, Any]]


@dataclass(frozen=True)
class Verdict:
    """What the two versions showed of one defect."""

    defect: KnownDefect
    older_lines: tuple[int, ...]
    newer_lines: tuple[int, ...]

    @property
    def word(self) -> str:
        """`found` is both: named in the older, silent in the newer."""
        if not self.older_lines:
            return "missed"
        return "not silent" if self.newer_lines else "found"


def find_lines(findings: Findings, defect: KnownDefect) -> tuple[int, ...]:
    """Lines at which the defect's rule speaks of its file and function."""
    return tuple(
        sorted(
            {
                place["line"]
                for finding in findings
                if finding["rule"] == defect.rule
                for place in finding["where"]
                if _is_at(place, defect)
            }
        )
    )


def _is_at(place: dict[str, Any], defect: KnownDefect) -> bool:
    function, _, _ = place["function"].partition(".<locals>")  # a comprehension, a function of it
    return place["file"] == defect.file and function == defect.function


def judge_pair(pair: VersionPair, older: Findings, newer: Findings) -> list[Verdict]:
    """One verdict for every defect of the pair."""
    return [Verdict(one, find_lines(older, one), find_lines(newer, one)) for one in pair.defects]


def _write_data(kind: str, folder: Path) -> None:
    if kind == "coco":
        write_coco_set(folder, train=24, boxes=4)
    else:
        write_yolo_set(folder, kind.partition(" ")[2] or "detect", train=24, boxes=4)


@cache  # several pairs go through the same training
def _record(python: Path, version_folder: Path, case_name: str, options: str, recorded: bool) -> Findings:
    """What is found in a run of this version; in the one that was recorded before, if that will do."""
    kept = version_folder.parents[1] / "runs" / f"{version_folder.parent.name} {case_name} {options}".strip()
    if not (recorded and kept.exists()):
        shutil.rmtree(kept, ignore_errors=True)
        _run_case(python, version_folder, case_name, options, kept)
    words = [str(python), "-m", "detscope", "show", str(kept), "--json"]
    shown = _call(words, version_folder, kept.parent)
    found: Findings = json.loads(shown)["findings"]
    return found


def _run_case(python: Path, version_folder: Path, case_name: str, options: str, kept: Path) -> None:
    case = next(one for one in ALL_CASES if one.name == case_name)
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        _write_data(case.data, folder / "data")
        script = folder / "train.py"
        more = f"workers=0, {options}" if options else "workers=0"
        script.write_text(case.train.replace("workers=0", more))
        words = [str(script), str(folder / "times.json"), str(STEPS), str(folder / "data"), case.name]
        _call([str(python), "-m", "detscope", "run", "-q", "--census", *words], version_folder, folder)
        kept.parent.mkdir(exist_ok=True)
        shutil.move((folder / "runs" / "latest").resolve(), kept)


def _call(words: list[str], version_folder: Path, folder: Path) -> str:
    environment = describe_environment(version_folder)
    done = subprocess.run(words, cwd=folder, env=environment, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(done.stderr[-2000:])
    return done.stdout


def _describe_others(findings: Findings, known: tuple[KnownDefect, ...]) -> list[str]:
    lines = []
    for finding in findings:
        named = [one for one in known if one.rule == finding["rule"]]
        places = [one for one in finding["where"] if not any(_is_at(one, defect) for defect in named)]
        if places or not finding["where"]:
            where = "; ".join(f"{one['file']}:{one['line']} {one['function']}" for one in places[:3])
            lines.append(f"{finding['rule']}  {where}")
    return lines


def main() -> None:
    """The table: found and missed, and what else was said of the newer version."""
    options = dict(word[2:].split("=", 1) for word in sys.argv[1:] if word.startswith("--"))
    folder = Path(options.get("folder", FOLDER)).resolve()
    python = Path(options["base-python"]) if "base-python" in options else make_base(folder)
    print("\ndefects with a published fix: named in the older version, silent in the newer")
    tally: defaultdict[str, Counter[str]] = defaultdict(Counter)
    for pair in list_pairs():
        name = f"{pair.package} {pair.older} -> {pair.newer} ({pair.case})"
        if options.get("only", "") not in name or options.get("part", pair.part) != pair.part:
            continue
        print(f"  {name}, {pair.part}", flush=True)
        try:
            older, newer = (
                _record(
                    python,
                    make_version(folder, pair.package, version, pair.beside),
                    pair.case,
                    pair.options,
                    "recorded" in options,
                )
                for version in (pair.older, pair.newer)
            )
        except (RuntimeError, subprocess.CalledProcessError) as error:
            print(f"    FAILED: {error}")
            tally[pair.part]["failed"] += len(pair.defects)
            continue
        for verdict in judge_pair(pair, older, newer):
            defect = verdict.defect
            lines = ", ".join(map(str, verdict.older_lines)) or "none"
            after = ", ".join(map(str, verdict.newer_lines)) or "silent"
            print(f"    {verdict.word:<10} {defect.rule}: {defect.what}")
            print(f"      {defect.file} {defect.function}: older {lines}, newer {after}")
            tally[pair.part][verdict.word] += 1
        print(f"    else in {pair.newer}:")
        for line in _describe_others(newer, pair.defects):
            print(f"      {line}")
    for part, counts in tally.items():
        print(f"{part}: {', '.join(f'{word} {count}' for word, count in sorted(counts.items()))}")
