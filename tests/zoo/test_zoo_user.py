from __future__ import annotations

import textwrap
from pathlib import Path

import pytest
import torch

from detscope import zoo
from detscope.errors import DetscopeError, UsageError
from detscope.zoo import BuildOptions

PLAIN = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self, num_classes=4):
            super().__init__()
            self.trunk = nn.Linear(4, 8)
            self.top = nn.Linear(8, num_classes)

        def decode(self, x):
            return x

    def factory(num_classes=4):
        return Net(num_classes)

    def without_arguments():
        return Net()

    def with_stages():
        return Net(), {"body": "trunk", "boxes": "decode()"}

    def with_attribute():
        net = Net()
        net.stages = {"body": "trunk"}
        return net

    def with_wrong_stages():
        return Net(), {"body": "trunc"}

    def gives_text():
        return "a model"

    def gives_nothing():
        pass

    def fails():
        raise RuntimeError("no such layer")

    number = 3
"""


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "own_model.py"
    file.write_text(textwrap.dedent(PLAIN))
    return file


def failure(spec: str, options: BuildOptions | None = None, code: int = 2) -> DetscopeError:
    with pytest.raises(DetscopeError) as caught:
        zoo.build_model(spec, options)
    assert caught.value.exit_code == code
    assert "\n" not in caught.value.message
    assert caught.value.hint
    return caught.value


def test_a_factory_in_a_file_gives_a_model_with_its_children_as_stages(own: Path) -> None:
    built = zoo.build_model(f"{own}:factory", BuildOptions(num_classes=7))
    assert built.module.top.out_features == 7
    stages = [("trunk", "trunk"), ("top", "top"), ("decode", "decode()")]  # a method that says what it does
    assert [(stage.name, stage.target) for stage in built.stages] == stages
    assert (built.card.family, built.card.source, built.card.parameters) == ("user", "user", 103)
    assert built.weights.kind == "factory"


def test_num_classes_is_passed_only_to_a_factory_that_takes_it(own: Path) -> None:
    built = zoo.build_model(f"{own}:without_arguments", BuildOptions(num_classes=7))
    assert built.module.top.out_features == 4


def test_a_class_serves_as_factory(own: Path) -> None:
    assert zoo.build_model(f"{own}:Net", BuildOptions(num_classes=9)).module.top.out_features == 9


def test_a_factory_in_a_package_is_found_from_the_current_folder(tmp_path: Path, monkeypatch) -> None:
    package = tmp_path / "own_package_for_zoo"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "nets.py").write_text(textwrap.dedent(PLAIN))
    monkeypatch.chdir(tmp_path)
    stages = zoo.build_model("own_package_for_zoo.nets:factory").stages
    assert [stage.name for stage in stages] == ["trunk", "top", "decode"]


def test_a_file_may_import_its_neighbours(tmp_path: Path) -> None:
    (tmp_path / "neighbour_of_own_model.py").write_text("from torch import nn\nnet = nn.Linear(2, 2)\n")
    file = tmp_path / "main.py"
    file.write_text("def make():\n    from neighbour_of_own_model import net\n    return net\n")
    assert isinstance(zoo.build_model(f"{file}:make").module, torch.nn.Linear)


def test_stages_can_be_named_beside_or_on_the_module(own: Path) -> None:
    pair = zoo.build_model(f"{own}:with_stages").stages
    assert [(stage.name, stage.target) for stage in pair] == [("body", "trunk"), ("boxes", "decode()")]
    assert [stage.name for stage in zoo.build_model(f"{own}:with_attribute").stages] == ["body"]


def test_a_stage_that_does_not_exist_is_named(own: Path) -> None:
    problem = failure(f"{own}:with_wrong_stages")
    assert "'trunc'" in problem.message and "trunk, top" in problem.hint


def test_a_torchvision_detector_of_the_users_keeps_its_familys_stages(tmp_path: Path) -> None:
    file = tmp_path / "retina.py"
    code = "from detscope import zoo\ndef make():\n    return zoo.build_model('tiny_retinanet').module\n"
    file.write_text(code)
    built = zoo.build_model(f"{file}:make")
    assert built.card.family == "user"
    assert {"fpn", "head.classification", "postprocess"} <= {stage.name for stage in built.stages}
    assert "transform" in {observer.target for observer in built.observers}


def test_a_built_model_is_taken_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "whole.py"
    file.write_text("from detscope import zoo\ndef make():\n    return zoo.build_model('tiny_ssd')\n")
    assert zoo.build_model(f"{file}:make").card.name == "tiny_ssd"


def test_a_wrong_path_is_said_before_any_code_runs(tmp_path: Path) -> None:
    for call in (zoo.build_model, zoo.get_card):
        with pytest.raises(UsageError, match="there is no file"):
            call(f"{tmp_path}/absent.py:factory")


def test_each_wrong_factory_gets_one_clear_line(own: Path) -> None:
    assert "has no 'factoy'" in failure(f"{own}:factoy").message
    assert "factory" in failure(f"{own}:factoy").hint
    assert "number is an int" in failure(f"{own}:number").message
    assert "returned a str" in failure(f"{own}:gives_text", code=3).message
    assert "returned nothing" in failure(f"{own}:gives_nothing", code=3).message
    assert "not complete" in failure(f"{own}:").message


def test_a_factory_that_raises_is_named_with_the_line(own: Path) -> None:
    line = own.read_text().splitlines().index('    raise RuntimeError("no such layer")') + 1
    message = failure(f"{own}:fails", code=3).message
    assert "RuntimeError: no such layer" in message
    assert f"own_model.py:{line}" in message


def test_code_that_cannot_be_imported_is_named_with_the_place(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("import torch\nx = 1 +\n")
    assert "broken.py:2" in failure(f"{broken}:make", code=3).message
    broken.write_text("import torch\nimport no_such_package_at_all\n")
    message = failure(f"{broken}:make", code=3).message
    assert "no_such_package_at_all" in message and "broken.py:2" in message
    assert "there is no module" in failure("no_such_package_at_all.nets:make").message


def test_weights_of_a_users_model_come_from_a_file(own: Path, tmp_path: Path) -> None:
    source = zoo.build_model(f"{own}:factory", BuildOptions(seed=5))
    torch.save({"state_dict": source.module.state_dict()}, tmp_path / "own.pth")
    built = zoo.build_model(f"{own}:factory", BuildOptions(weights=str(tmp_path / "own.pth"), seed=6))
    assert built.weights.kind == "file"
    assert torch.equal(built.module.trunk.weight, source.module.trunk.weight)
    assert "no published" in failure(f"{own}:factory", BuildOptions(weights="coco")).message
    assert "image_size" in failure(f"{own}:factory", BuildOptions(image_size=64)).message


def test_importing_leaves_the_search_path_as_it_was(own: Path) -> None:
    import sys

    before = list(sys.path)
    zoo.build_model(f"{own}:factory")
    assert sys.path == before
