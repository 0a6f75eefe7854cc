from __future__ import annotations

import os
import pickle
import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from detscope.errors import InputError
from detscope.ingest.unpickle import load_plain

plain = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.text() | st.integers(), inner) | st.lists(inner).map(tuple)
    ),
    max_leaves=20,
)


@given(plain, st.integers(3, 5))
def test_plain_data_comes_back_as_it_was(value: Any, protocol: int) -> None:
    assert load_plain(pickle.dumps(value, protocol)) == value


class Harm:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self) -> Any:
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_runs_a_command_is_refused_before_it_does(tmp_path, protocol: int) -> None:
    with pytest.raises(InputError, match="refused, nothing of it was run"):
        load_plain(pickle.dumps({"segments": [Harm(f"touch {tmp_path}/harm")]}, protocol))
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x02cos\nsystem\n.",
        b"\x80\x02(S'a'\nios\nsystem\n.",
        b"\x80\x04K\x01Q.",  # persistent id
        b"\x80\x02Pabc\n.",
        b"\x80\x02\x82\x01.",  # registered extension
        b"\x80\x05\x97.",  # outside buffer
        b"\x80\x02}}b.",  # state of an object
        b"\x80\x04\x8c\x02os\x8c\x06system\x93.",
    ],
)
def test_every_instruction_that_is_not_plain_data_is_refused(data: bytes) -> None:
    with pytest.raises(InputError):
        load_plain(data)


def test_a_deeply_nested_key_does_not_crash_the_interpreter() -> None:
    with pytest.raises(InputError, match="damaged"):
        load_plain(b"\x80\x04})" + b"\x85" * 1_000_000 + b"Ns.")


def test_a_high_place_in_memory_is_not_reserved() -> None:
    assert load_plain(b"\x80\x04Nr\xff\xff\xff\xff.") is None


def test_many_open_containers_are_refused() -> None:
    with pytest.raises(InputError, match="nests deeper"):
        load_plain(b"\x80\x04" + b"(" * 5000 + b".")


def test_500_damaged_pickles_are_read_or_refused() -> None:
    whole = pickle.dumps({"segments": [{"device": 0, "blocks": [{"size": 5, "state": "inactive"}]}] * 30}, 4)
    chance = random.Random(3)
    for _ in range(500):
        data = bytearray(whole[: chance.randrange(1, len(whole))] if chance.random() < 0.3 else whole)
        for _ in range(chance.randrange(0, 8)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            load_plain(bytes(data))
        except InputError as error:
            assert error.message and error.hint
