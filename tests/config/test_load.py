from __future__ import annotations

from pathlib import Path

import pytest

from detscope.config.load import LoadedSettings, load_settings
from detscope.errors import SettingsError, UsageError

FIVE_LINES = """[training]
num_epochs = 1
batch_size = 2
prefetch_factor = 2
num_workers = 4
device = "cuda:0"
"""


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(text: str, name: str = "settings.toml") -> Path:
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def load(text: str, *overrides: str, **flags: object) -> LoadedSettings:
    return load_settings(
        write(text), overrides, {key.replace("__", "."): value for key, value in flags.items()}
    )


def problems(text: str, *overrides: str, **flags: object) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        load(text, *overrides, **flags)
    assert caught.value.exit_code == 2
    assert all("\n" not in problem for problem in caught.value.problems)
    return caught.value.problems


def test_without_anything_the_defaults_hold() -> None:
    loaded = load_settings(None, [], {})
    assert loaded.settings.model.name == "fasterrcnn_resnet50_fpn"
    assert loaded.origins == {}
    assert loaded.notes == ()


def test_the_five_line_training_file_works_as_it_is() -> None:
    loaded = load(FIVE_LINES)
    training = loaded.settings.training
    assert (training.num_epochs, training.batch_size, training.prefetch_factor) == (1, 2, 2)
    assert (training.num_workers, training.device) == (4, "cuda:0")
    assert loaded.settings.data.name == "synthetic"


def test_a_config_in_the_current_folder_is_taken_and_said() -> None:
    write("[training]\nbatch_size = 7\n", ".config/config.toml")
    loaded = load_settings(None, [], {})
    assert loaded.settings.training.batch_size == 7
    assert any(".config/config.toml" in note for note in loaded.notes)


def test_a_given_file_is_taken_instead_of_the_one_in_the_current_folder() -> None:
    write("[training]\nbatch_size = 7\nnum_workers = 5\n", ".config/config.toml")
    loaded = load("[training]\nbatch_size = 3\n")
    assert loaded.settings.training.batch_size == 3
    assert loaded.settings.training.num_workers == 2
    assert loaded.notes == ()


def test_flags_win_over_set_and_set_wins_over_the_file() -> None:
    loaded = load(
        "[training]\nbatch_size = 3\nnum_workers = 3\nseed = 3\n",
        "training.batch_size=4",
        "training.num_workers=4",
        training__batch_size=5,
        training__steps=None,
    )
    training = loaded.settings.training
    assert (training.batch_size, training.num_workers, training.seed, training.steps) == (5, 4, 3, None)
    assert loaded.origins == {
        "training.batch_size": "--batch-size",
        "training.num_workers": "--set",
        "training.seed": "settings.toml",
    }


def test_of_two_equal_overrides_the_later_wins() -> None:
    assert load("", "training.seed=1", "training.seed=2").settings.training.seed == 2


@pytest.mark.parametrize(
    ("override", "section", "key", "value"),
    [
        ("training.device=cpu", "training", "device", "cpu"),
        ('training.device="cpu"', "training", "device", "cpu"),
        ("training.channels_last=true", "training", "channels_last", True),
        ("training.learning_rate=1", "training", "learning_rate", 1.0),
        ("training.learning_rate = 1e-3", "training", "learning_rate", 0.001),
        ("record.modules=2", "record", "modules", "2"),
        ("output.runs=2026-11-15", "output", "runs", "2026-11-15"),
        ("model.name=my models/net.py:build", "model", "name", "my models/net.py:build"),
        ("model.weights=none", "model", "weights", "none"),
        ("model.name=a=b", "model", "name", "a=b"),
        ("training.steps=none", "training", "steps", None),
    ],
)
def test_set_takes_toml_values_and_plain_texts(override: str, section: str, key: str, value: object) -> None:
    loaded = load("[training]\nsteps = 5\n", override)
    assert getattr(getattr(loaded.settings, section), key) == value


def test_a_line_break_in_a_set_value_adds_no_further_key() -> None:
    loaded = load("", "model.name='x'\nweights = 'none'")
    assert loaded.settings.model.name == "'x'\nweights = 'none'"
    assert loaded.settings.model.weights == "auto"


def test_whole_numbers_are_taken_for_floats() -> None:
    assert load("[record]\ntelemetry_hz = 4\n").settings.record.telemetry_hz == 4.0


def test_a_depth_of_modules_needs_no_quotes() -> None:
    assert load("[record]\nmodules = 3\n").settings.record.modules == "3"


def test_a_prefetch_factor_without_workers_is_noted_and_not_refused() -> None:
    loaded = load("[training]\nnum_workers = 0\nprefetch_factor = 2\n")
    assert len(loaded.notes) == 1
    assert "prefetch_factor = 2 has no effect" in loaded.notes[0]


def test_three_wrong_keys_give_three_problems() -> None:
    found = problems('[training]\nbach_size = 2\nnum_epochs = "ten"\n[modle]\nname = "x"\n')
    assert found == [
        "settings.toml: training.bach_size: no such key; did you mean training.batch_size?",
        "settings.toml: [modle]: no such section; did you mean [model]?",
        'settings.toml: training.num_epochs: expected a whole number, got "ten"',
    ]


def test_problems_of_file_set_and_flags_come_together() -> None:
    found = problems(
        "[training]\nbatch_size = 0\n", "trainig.seed=1", "training.seed", training__precision="fp23"
    )
    assert found == [
        '--set "training.seed": expected section.key=value, as in training.batch_size=4',
        "settings.toml: training.batch_size: expected at least 1, got 0",
        "--set: [trainig]: no such section; did you mean [training]?",
        '--precision: training.precision: expected one of "fp32", "bf16", "fp16", got "fp23"; '
        'did you mean "fp32"?',
    ]


def test_a_wrong_value_in_the_file_is_reported_even_where_a_flag_overrides_it() -> None:
    assert problems('[training]\nbatch_size = "2"\n', training__batch_size=2) == [
        'settings.toml: training.batch_size: expected a whole number, got "2"'
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[model]\nbatch_size = 2\n", "no such key in [model]; it belongs in [training]"),
        ("batch_size = 2\n", "batch_size: stands outside its section; it belongs in [training]"),
        ("name = 'x'\n", "it belongs in [model] or [data]"),
        ("[training]\nepochs = 2\n", "did you mean training.num_epochs?"),
        ("[training]\nworkers = 2\n", "did you mean training.num_workers?"),
        ("[training]\nBatch-Size = 2\n", "did you mean training.batch_size?"),
        ("[record]\nbatchsize = 2\n", "did you mean training.batch_size?"),
        ("[train]\nbatch_size = 2\n", "did you mean [training]?"),
        (
            "[zzz]\nbatch_size = 2\n",
            "there are [training], [model], [data], [inference], [evaluation], [record], [output]",
        ),
        ("[training]\nzzz = 2\n", "training.zzz: no such key"),
        ("training = 5\n", "expected a section [training], got 5"),
        ("[[training]]\nseed = 5\n", "expected a section [training], got a list"),
        ("[training]\nseed = true\n", "expected a whole number, got true"),
        ("[training]\nseed = 1.5\n", "expected a whole number, got 1.5"),
        ("[training]\nseed = -1\n", "expected at least 0, got -1"),
        (
            "[training]\nsteps = 99999999999999999999\n",
            "expected at most 4294967295, got 99999999999999999999",
        ),
        ("[training]\nbatch_size = 4294967296\n", "expected at most 4294967295"),
        ("[training]\nthreads = 100000\n", "expected at most 4096"),
        ("[training]\nmomentum = 1\n", "expected less than 1"),
        ("[training]\nlearning_rate = inf\n", "expected a finite number, got inf"),
        ("[training]\nlearning_rate = 0\n", "expected more than 0"),
        ("[training]\nlearning_rate = '0.1'\n", 'expected a number, got "0.1"'),
        ("[training]\nchannels_last = 1\n", "expected true or false, got 1"),
        (
            "[training]\ndevice = 'gpu'\n",
            'expected "auto", "cpu", "cuda", "cuda:0", "xpu" or "mps", got "gpu"',
        ),
        ("[training]\ndevice = 0\n", "expected a text in quotes, got 0"),
        ("[training.device]\nname = 'cpu'\n", "expected a text in quotes, got a table"),
        ("[record]\nmodules = 'leafs'\n", 'expected "all", "leaf", "none" or a depth such as "2"'),
        ("[record]\nlevel = 'op'\n", 'did you mean "ops"?'),
        ("[model]\nname = ''\n", "expected a text that is not empty"),
        ('[training]\n"a\\u001b[31mb" = 1\n', 'training."a\\u001b[31mb": no such key'),
    ],
)
def test_every_problem_says_what_was_expected_and_what_came(text: str, expected: str) -> None:
    found = problems(text)
    assert len(found) == 1
    assert found[0].startswith("settings.toml: ")
    assert expected in found[0]


def test_keys_of_a_misspelt_section_are_checked_against_the_section_that_was_meant() -> None:
    assert len(problems("[trainin]\nbatch_size = 2\nsede = 1\n")) == 2


@pytest.mark.parametrize(
    ("content", "where"),
    [
        (b"[training]\nbatch_size 2\n", "settings.toml, line 2: "),
        (b"[training]\ndevice = cpu\n", "settings.toml, line 2: "),
        (b"[training\n", "settings.toml, line 1: "),
        (b"[training]\nseed = 1\nseed = 2\n", "settings.toml, line 3: "),
        (b"[training]\nseed =", "settings.toml"),
        (b"[training]\nseed = 1\nname = '\xff'\n", "settings.toml, line 3: not UTF-8"),
        (b"seed = " + b"9" * 5000, "settings.toml"),
        (b"seed = " + b"[" * 20_000, "settings.toml: nested too deeply"),
        (b".".join([b"a"] * 100_000) + b" = 1", "settings.toml: nested too deeply"),
        (b"[" + b" . ".join([b'"a b"'] * 50_000) + b"]", "settings.toml: nested too deeply"),
        (b"#" * 1_000_001, "settings.toml: not a configuration file: 1,000,001 bytes"),
    ],
)
def test_a_broken_file_gives_one_line_with_its_place_and_a_hint(content: bytes, where: str) -> None:
    Path("settings.toml").write_bytes(content)
    with pytest.raises(UsageError) as caught:
        load_settings(Path("settings.toml"), [], {})
    assert caught.value.message.startswith(where)
    assert "\n" not in caught.value.message


def test_a_syntax_error_hints_at_the_line_and_at_quotes() -> None:
    with pytest.raises(UsageError) as caught:
        load("[training]\ndevice = cpu\n")
    assert "device = cpu" in caught.value.hint
    assert "quotes" in caught.value.hint


def test_a_missing_file_is_named_and_a_near_one_suggested() -> None:
    write("", "settings.toml")
    with pytest.raises(UsageError, match=r"setings\.toml: no such configuration file") as caught:
        load_settings(Path("setings.toml"), [], {})
    assert "settings.toml" in caught.value.hint


def test_a_folder_in_the_place_of_a_file_is_refused_with_the_file_inside() -> None:
    write("", "run/config.toml")
    with pytest.raises(UsageError, match="is a folder") as caught:
        load_settings(Path("run"), [], {})
    assert caught.value.hint == "did you mean run/config.toml?"


def test_a_file_with_a_byte_order_mark_and_dos_line_ends_is_read() -> None:
    Path("settings.toml").write_bytes(b"\xef\xbb\xbf[training]\r\nseed = 3\r\n")
    assert load_settings(Path("settings.toml"), [], {}).settings.training.seed == 3
