"""Idle time of each step: the pieces of that step by cause, waiting for data apart."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from detscope.analyze.device.idle import CAUSES, CauseTimes, IdlePieces

piece = st.tuples(
    st.integers(0, 50), st.integers(0, 50), st.sampled_from([0, 1, 3, 4, 5]), st.integers(-1, 4)
)


@settings(max_examples=100, deadline=None)
@given(st.lists(piece, max_size=20))
def test_idle_time_of_a_step_is_that_of_its_pieces(pieces):
    columns = [np.array(column, np.int64) for column in zip(*pieces, strict=True)] or [
        np.empty(0, np.int64)
    ] * 4
    rest, data, cause, step = columns
    nobody = np.full(len(rest), -1)
    found = IdlePieces(np.zeros(len(rest), np.int64), rest + data, cause, data, nobody, nobody, step)
    expected = [dict.fromkeys(CauseTimes.__struct_fields__, 0) for _ in range(4)]
    for rest_ns, data_ns, number, index in pieces:
        if 0 <= index < 4:
            expected[index][f"{list(CAUSES)[number]}_ns"] += rest_ns
            expected[index]["data_ns"] += data_ns
    assert found.sum_by_owner(step, 4) == [CauseTimes(**times) for times in expected]
