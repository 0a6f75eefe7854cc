"""The files people install from: constraints, Makefile, continuous integration, container image."""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

from detscope.config.schema import Settings

ROOT = Path(__file__).parents[2]
CONSTRAINTS = (ROOT / "constraints.txt").read_text(encoding="utf-8")


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned() -> dict[str, str]:
    found = re.findall(r"^([A-Za-z0-9._-]+)==([^\s;\\]+)", CONSTRAINTS, re.MULTILINE)
    return {normal(name): version for name, version in found}


def asked() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    groups = project["dependency-groups"]
    wanted = project["project"]["dependencies"] + groups["dev"] + groups["docs"]
    wanted += project["build-system"]["requires"]
    return {normal(re.split(r"[\s<>=!~;\[]", requirement)[0]) for requirement in wanted}


def test_everything_the_project_asks_for_is_pinned() -> None:
    missing = asked() - set(pinned())
    assert not missing, f"run `make lock`: {sorted(missing)}"
    assert {"uv", "editables"} <= set(pinned())


def test_every_pin_has_hashes_and_nothing_names_an_address_or_a_place() -> None:
    blocks = re.split(r"\n(?=\S)", CONSTRAINTS.strip())
    without = [block.splitlines()[0] for block in blocks if "--hash=sha256:" not in block]
    assert not without
    assert not re.search(r"://|@ |file:|^-|[ =]/", CONSTRAINTS, re.MULTILINE)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A folder with the Makefile and an environment that is already installed, all stand-ins."""
    if shutil.which("make") is None:
        pytest.skip("make is not installed")
    for name in ("Makefile", "constraints.txt", "pyproject.toml"):
        shutil.copy(ROOT / name, tmp_path / name)
    return tmp_path


def make(folder: Path, *arguments: str, path: str) -> subprocess.CompletedProcess[str]:
    command = [str(shutil.which("make")), *arguments]
    return subprocess.run(
        command, cwd=folder, env={"PATH": path}, capture_output=True, text=True, check=False
    )


def program(folder: Path, name: str, code: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(f"#!/bin/sh\n{code}\n")
    (folder / name).chmod(0o755)


def test_without_a_python_that_is_new_enough_make_says_so_in_one_line_with_a_hint(repository: Path) -> None:
    program(repository / "bin", "python3", "exit 1")
    done = make(repository, "install", path=f"{repository / 'bin'}:/nowhere")
    assert done.returncode != 0
    assert "error: no Python 3.11 or newer found\nhint: sudo apt install" in done.stderr


def test_a_missing_venv_module_is_said_in_one_line_with_the_package_to_install(repository: Path) -> None:
    program(repository / "bin", "python3", 'case "$2" in *ensurepip*) exit 1;; esac')
    done = make(repository, "install", path=f"{repository / 'bin'}:/nowhere")
    assert done.returncode != 0
    assert "its venv module is missing\nhint: sudo apt install python3-venv" in done.stderr


def test_make_installs_once_and_again_only_after_a_change(repository: Path) -> None:
    log = repository / "log"
    for name in ("python", "pip", "uv"):
        program(repository / ".venv/bin", name, f'echo {name} "$@" >> {log}')
    path = os.environ["PATH"]
    assert make(repository, "install", path=path).returncode == 0
    first = log.read_text()
    for words in ("--require-hashes", "uv pip install --compile-bytecode", "--constraints constraints.txt"):
        assert words in first
    assert make(repository, "install", path=path).returncode == 0
    assert log.read_text() == first
    later = (repository / "constraints.txt").stat().st_mtime + 86_400  # however long all this takes
    os.utime(repository / "pyproject.toml", (later, later))
    assert make(repository, "install", path=path).returncode == 0
    assert log.read_text().count("uv pip install") == first.count("uv pip install") + 1


def test_another_torch_has_an_environment_of_its_own_without_what_the_newest_one_pins(
    repository: Path,
) -> None:
    for name in ("python", "pip", "uv"):
        program(repository / ".venv-torch-2.6.0/bin", name, f'echo {name} "$@" >> {repository / "log"}')
    assert make(repository, "test-torch", "TORCH=2.6.0", path=os.environ["PATH"]).returncode == 0
    assert not (repository / ".venv").exists()
    done = (repository / "log").read_text()
    assert "--constraints .venv-torch-2.6.0/constraints.txt" in done
    assert "tests/runs" in done and "tests/record" in done
    kept = (repository / ".venv-torch-2.6.0/constraints.txt").read_text()
    names = re.findall(r"^([\w.-]+)==", kept, re.MULTILINE)
    assert "torch==2.6.0" in kept.splitlines()
    assert {"numpy", "nvidia-ml-py", "torch-pruning", "timm"} <= set(names)
    assert not {"torchvision", "triton", "sympy", "nvidia-cublas", "cuda-toolkit"} & set(names)
    assert kept.count("--hash") > len(names) - 1


def test_a_torch_that_is_not_named_is_asked_for(repository: Path) -> None:
    done = make(repository, "test-torch", path=os.environ["PATH"])
    assert done.returncode != 0
    assert "hint: make test-torch TORCH=2.6.0" in done.stderr


def test_continuous_integration_tests_the_oldest_torch_that_may_be_installed() -> None:
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    oldest = re.findall(r'"torch>=([\d.]+)"', project)
    jobs = (ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8")
    assert len(oldest) == 1
    assert f'torch: ["{oldest[0]}.0",' in jobs


def test_continuous_integration_runs_make_test() -> None:
    script = ROOT / ".ci" / "run"
    assert os.access(script, os.X_OK)
    assert "make test" in script.read_text(encoding="utf-8")


def test_what_the_image_copies_exists_and_is_let_through_to_the_builder() -> None:
    dockerfile = (ROOT / "docker/Dockerfile").read_text(encoding="utf-8")
    ignore = (ROOT / "docker/Dockerfile.dockerignore").read_text(encoding="utf-8").split()
    copies = re.findall(r"^COPY (.+)$", dockerfile, re.MULTILINE)
    sources = [source for copy in copies for source in copy.split()[:-1]]
    assert len(sources) >= 4
    for source in sources:
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignore, source
    assert re.search(r'^ENTRYPOINT \["tini", "--", "entrypoint"\]$', dockerfile, re.MULTILINE)


def list_stages() -> dict[str, tuple[str, str]]:
    """Stages of the image by name: what each is made from, and its lines."""
    dockerfile = (ROOT / "docker/Dockerfile").read_text(encoding="utf-8")
    parts = re.split(r"^FROM (\S+) AS (\S+)$", dockerfile, flags=re.MULTILINE)[1:]
    return {name: (made_from, text) for made_from, name, text in zip(*[iter(parts)] * 3, strict=True)}


def test_the_image_can_compile_and_nvidias_tools_are_stages_of_their_own() -> None:
    stages = list_stages()
    assert list(stages)[-1] == "detscope"  # built where no target is named

    def list_ancestors(name: str) -> list[str]:
        return [name, *list_ancestors(stages[name][0])] if name in stages else []

    usual = list_ancestors("detscope")
    assert "compiler" in usual and not {"systems", "compute"} & set(usual)
    assert re.search(r"install .*\bgcc\b.*\bg\+\+", stages["compiler"][1])
    for stage, package in (("systems", "cuda-nsight-systems"), ("compute", "cuda-nsight-compute")):
        assert package in stages[stage][1]
        assert "installed" in list_ancestors(stage)  # so that detscope is there too


def test_the_container_page_names_stages_drivers_and_what_the_tools_need() -> None:
    page = (ROOT / "docs/docker.md").read_text(encoding="utf-8")
    for stage in list_stages():
        assert f"`{stage}`" in page, stage
    for words in ("--cap-add=SYS_ADMIN", "NVreg_RestrictProfilingToAdminUsers=0", "580 or newer", "7.5"):
        assert words in page


@pytest.fixture
def container(tmp_path: Path) -> Path:
    """The folder that /app is in the image, with a `detscope` that prints its arguments."""
    program(tmp_path / "bin", "detscope", 'echo "detscope $*"')
    (tmp_path / ".config").mkdir()
    (tmp_path / "mounts").touch()
    return tmp_path


def start(container: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {
        "PATH": f"{container / 'bin'}:{os.environ['PATH']}",
        "DETSCOPE_APP": str(container),
        "DETSCOPE_MOUNTS": str(container / "mounts"),
    }
    command = ["bash", str(ROOT / "docker/entrypoint"), *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_the_entrypoint_is_executable_and_free_of_syntax_errors() -> None:
    assert os.access(ROOT / "docker/entrypoint", os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / "docker/entrypoint")], check=True)


def test_the_container_profiles_the_mounted_configuration_by_itself(container: Path) -> None:
    config = container / ".config/config.toml"
    config.touch()
    assert start(container).stdout == f"detscope train --config {config}\n"
    assert start(container, "--steps", "20").stdout == f"detscope train --config {config} --steps 20\n"
    assert start(container).stderr == ""


def test_a_container_without_configuration_says_what_to_mount(container: Path) -> None:
    done = start(container)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.count("\n") == 2
    assert "-v ${PWD}/.config:/app/.config" in done.stderr


def test_verbs_and_programs_replace_the_profile(container: Path) -> None:
    assert start(container, "doctor", "--json").stdout == "detscope doctor --json\n"
    assert start(container, "eval", "x").stdout == "detscope eval x\n"
    assert start(container, "echo", "hello").stdout == "hello\n"


def test_results_that_would_go_with_the_container_are_announced(container: Path) -> None:
    (container / ".config/config.toml").touch()
    volume = f"/var/lib/docker/volumes/{'0123456789abcdef' * 4}/_data"
    (container / "mounts").write_text(f"36 25 8:1 {volume} {container}/runs rw - ext4 /dev/sda1 rw\n")
    assert "-v ${PWD}/runs:/app/runs" in start(container).stderr
    (container / "mounts").write_text(f"36 25 8:1 /home/me/runs {container}/runs rw - ext4 /dev/sda1 rw\n")
    assert start(container).stderr == ""


def test_the_configuration_in_the_container_page_is_valid_and_its_keys_exist() -> None:
    page = (ROOT / "docs/docker.md").read_text(encoding="utf-8")
    example = re.search(r"```toml\n(.+?)```", page, re.DOTALL)
    assert example
    settings = Settings.model_validate(tomllib.loads(example.group(1)))
    assert settings.training.device == "cuda:0"
    for section, key in re.findall(r"^\| `(\w+)\.(\w+)` \|", page, re.MULTILINE):
        assert hasattr(getattr(settings, section), key), f"{section}.{key}"
