"""The base of the package alone: what reads, imports, compares and reports needs none of the extras.

The environment is made of links to what is installed here: the dependencies that pyproject.toml names without
any extra, theirs, and nothing else. What the base uses and pyproject.toml does not name is missing.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
import venv
from importlib.metadata import distribution, packages_distributions
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from detscope.extras import EXTRA_OF

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
STEP_US = 1000
ABSENT = [*EXTRA_OF, "cv2", "pynvml"]


def link_distribution(requirement: Requirement, site: Path, linked: set[str]) -> None:
    """A distribution and all that it needs, as links in another environment's folder of packages."""
    name = canonicalize_name(requirement.name)
    if name in linked or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
        return
    linked.add(name)
    found = distribution(name)
    for top in {file.parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
        if not (site / top).exists():
            (site / top).symlink_to(Path(str(found.locate_file(top))))
    for needed in found.requires or ():
        link_distribution(Requirement(needed), site, linked)


class BaseEnvironment:
    """Python with the base of the package, and a folder with runs."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder / "env", symlinks=True)
        site = next((folder / "env").glob("lib/python*/site-packages"))
        linked: set[str] = set()
        for line in PROJECT["dependencies"]:
            link_distribution(Requirement(line), site, linked)
        (site / "detscope.pth").write_text(str(ROOT / "src"))
        self.linked = linked
        self.work = folder / "work"
        for name in ("train", "infer"):
            shutil.copytree(ROOT / "tests/old_runs" / name, self.work / "runs" / name)
        self._python = str(folder / "env/bin/python")

    def run_python(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Python, with nothing of this process's paths."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
        return subprocess.run(
            [self._python, *arguments], cwd=self.work, env=kept, capture_output=True, text=True, check=False
        )

    def run_detscope(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """The command."""
        return self.run_python("-m", "detscope", *arguments)

    def read_output(self, *arguments: str) -> str:
        """What a command that ends well writes."""
        done = self.run_detscope(*arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseEnvironment:
    return BaseEnvironment(tmp_path_factory.mktemp("base"))


def test_the_environment_has_no_package_of_an_extra(base: BaseEnvironment) -> None:
    code = f"import importlib.util as u; print([name for name in {ABSENT} if u.find_spec(name)])"
    assert base.run_python("-c", code).stdout == "[]\n"


def test_the_package_gives_the_figures_of_a_run(base: BaseEnvironment) -> None:
    code = "import detscope; print(detscope.summarize(detscope.load_run('runs/train')).step_ms.p50)"
    done = base.run_python("-c", code)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) > 0


def test_a_run_is_shown_reported_and_compared(base: BaseEnvironment) -> None:
    assert "train" in base.read_output("runs") and "infer" in base.read_output("runs")
    assert "verdict" in base.read_output("show", "train")
    assert json.loads(base.read_output("show", "train", "--json"))["images_per_s"] > 0
    for form in ("html", "md", "json", "csv"):
        assert Path(base.read_output("report", "train", "--format", form).strip()).stat().st_size > 1000
    assert base.read_output("compare", "train", "train")


def test_a_trace_is_imported(base: BaseEnvironment) -> None:
    events = [
        {"ph": "X", "pid": 1, "tid": 1, "ts": at * STEP_US, "dur": STEP_US, "cat": category, "name": name}
        for at in range(4)
        for category, name in (("user_annotation", f"ProfilerStep#{at}"), ("cpu_op", "aten::mm"))
    ]
    (base.work / "trace.json").write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    found = json.loads(base.read_output("import", "trace.json", "--json"))
    assert found["verb"] == "import"
    assert (base.work / found["run"] / "report.html").is_file()


def test_lists_and_schemas_are_told(base: BaseEnvironment) -> None:
    assert "tiny_maskrcnn" in base.read_output("models", "tiny*")
    assert "synthetic" in base.read_output("data", "list")
    assert "RunSummary" in base.read_output("schema", "summary")


def test_a_file_of_detections_is_judged_and_data_is_checked(base: BaseEnvironment) -> None:
    (base.work / "found.json").write_text("[]")
    assert "Boxes AP 0.000" in base.read_output("eval", "--detections", "found.json")
    assert "COCO accuracy" in base.read_output("show", "--section", "accuracy")
    assert "nothing wrong" in base.read_output("data", "check", "synthetic")


def test_doctor_names_what_brings_torch(base: BaseEnvironment) -> None:
    findings = json.loads(base.run_detscope("doctor", "--json").stdout)["findings"]
    told = {finding["topic"]: finding["remedy"] for finding in findings}
    assert told["torch"] == told["torch with torchvision"] == "install it: pip install 'detscope[torch]'"


@pytest.mark.parametrize(
    ("command", "package", "extra"),
    [
        ("train tiny_fasterrcnn", "torch", "torch"),
        ("train tiny_fasterrcnn --ranks 2", "torch", "torch"),
        ("infer tiny_fasterrcnn", "torch", "torch"),
        ("eval tiny_fasterrcnn", "torch", "torch"),
        ("tune tiny_fasterrcnn --budget 1m", "torch", "torch"),
        ("try latest --env OMP_NUM_THREADS=1", "torch", "torch"),
        ("run script.py", "torch", "torch"),
        ("prune resnet18 --levels 0", "torchvision", "torch"),
        ("sweep plan.toml", "torch", "torch"),
        ("predict tiny_fasterrcnn", "torch", "torch,predict"),
        ("fit --microbench --out my.model", "torch", "torch,predict"),
        ("predict tiny_fasterrcnn --picture it.png", "matplotlib", "pictures,predict"),
        ("mcp", "mcp", "mcp"),
    ],
)
def test_a_verb_that_needs_an_extra_names_it(
    base: BaseEnvironment, command: str, package: str, extra: str
) -> None:
    (base.work / "script.py").write_text("import torch\n")
    shutil.copy(ROOT / "examples/sweep.toml", base.work / "plan.toml")
    before = sorted((base.work / "runs").iterdir())
    done = base.run_detscope(*command.split())
    assert done.returncode == 4
    assert done.stderr == (
        f"error: {command.split()[0]} needs {package}, which is not installed\n"
        f"hint: install it: pip install 'detscope[{extra}]'\n"
    )
    assert sorted((base.work / "runs").iterdir()) == before, "nothing was begun"


def test_every_package_of_an_extra_is_known_where_it_is_missing(base: BaseEnvironment) -> None:
    names = packages_distributions()
    extras = PROJECT["optional-dependencies"]
    own = {
        extra: {canonicalize_name(Requirement(line).name) for line in lines}
        for extra, lines in extras.items()
    }
    for package, extra in EXTRA_OF.items():
        assert own[extra] & {canonicalize_name(name) for name in names.get(package, [package])}, package
        assert not {canonicalize_name(name) for name in names.get(package, [])} & base.linked, package
    told = set(re.split(r"[\[\],]", extras["all"][0])) - {"detscope", ""}
    assert told == set(extras) - {"all"}
