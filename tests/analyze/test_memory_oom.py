"""Running out of memory: the request, the account and a batch that fits, from hand-made runs."""

from __future__ import annotations

from detscope.analyze.advice import advise_on_memory
from detscope.analyze.memory.account import memory_account
from memory_samples import BATCH, a_step, block, state, write_run

FAILURE = {
    "request_bytes": 3000,
    "device": "cpu",
    "phase": "forward",
    "module": "head",
    "message": "you tried to allocate 3000 bytes",
}


def parameters() -> list[dict]:
    return [row for row in state() if row["category"] == "parameters"]


def failed_in_forward(tmp_path, batch: int = 8):
    """Two of three modules with parameters had run; unwinding freed their blocks."""
    rows = [
        *parameters(),
        block(4000, 50, 480, category="inputs", name="images", phase="transfer", step=0),
        block(8000, 110, 480, module="body.0.conv1", step=0),
        block(6000, 120, 480, module="body.0.conv2", step=0),
    ]
    return write_run(tmp_path, rows, steps=0, status="oom_host", info={"oom": FAILURE, "batch_size": batch})


def test_the_failed_request_and_the_account_until_then_are_told(tmp_path):
    run = failed_in_forward(tmp_path)
    found = memory_account(run)
    oom = found.oom
    assert (oom.request_bytes, oom.module, oom.phase) == (3000, "head", "forward")
    assert oom.status == "oom_host"
    assert found.peak_bytes == oom.limit_bytes == 700 + 18_000
    assert advise_on_memory(run, found) == [], "of half a step no replay can tell anything"


def test_the_batch_is_that_of_the_slope_with_state_that_was_still_to_come(tmp_path):
    run = failed_in_forward(tmp_path)
    oom = memory_account(run).oom
    assert oom.fixed_bytes == 3 * 700, "parameters, gradients and momentum"
    # what was there, what was asked for, and one module more like the last that ran
    assert oom.bytes_per_image == (18_000 + 3000 + 6000) / 8
    assert oom.suggested_batch == int((18_700 - 2100) // oom.bytes_per_image) == 4
    assert oom.command.endswith("config.toml --batch-size 4")
    assert "2 of 3 modules" in oom.basis


def test_where_steps_ended_their_need_decides(tmp_path):
    late = block(20_000, 2100, None, module="body.0.conv1", step=2)
    run = write_run(
        tmp_path,
        [*state(), *a_step(0), *a_step(1), late],
        status="oom_host",
        info={"oom": FAILURE, "batch_size": BATCH},
    )
    oom = memory_account(run).oom
    assert oom.basis == "the highest of the steps that ended"
    assert oom.bytes_per_image == 9500 / BATCH
    assert oom.suggested_batch == 1, "never the batch that failed"


def test_where_not_even_one_image_fits_it_says_so(tmp_path):
    rows = [*parameters(), block(100, 50, 60, category="inputs", step=0)]
    oom = memory_account(
        write_run(tmp_path, rows, steps=0, status="oom_host", info={"oom": FAILURE, "batch_size": 4})
    ).oom
    assert oom.suggested_batch is None
    assert oom.why == "not even one image fits beside what every step needs"
    assert oom.command is None


def test_a_batch_of_one_cannot_become_smaller(tmp_path):
    oom = memory_account(failed_in_forward(tmp_path, batch=1)).oom
    assert oom.suggested_batch is None


def failed(tmp_path, memory: dict, batch: int = 8, step: int = 1) -> dict:
    """The blocks of a whole forward pass; the request failed behind it."""
    rows = [
        *parameters(),
        block(4000, 50, 480, category="inputs", name="images", phase="transfer", step=0),
        block(40_000, 110, 480, module="body.0.conv1", step=0),
    ]
    info = {"oom": {**FAILURE, "phase": "backward", "step": step}, "batch_size": batch, "memory": memory}
    return memory_account(write_run(tmp_path, rows, steps=0, status="oom_host", info=info)).oom


def test_behind_the_forward_pass_gradients_of_the_largest_map_are_still_to_come(tmp_path):
    oom = failed(tmp_path, {})
    assert oom.bytes_per_image == (44_000 + 3000 + 2 * 40_000) / 8
    assert "after its forward pass" in oom.basis


def test_what_the_account_itself_takes_is_no_room_for_images(tmp_path):
    without, beside = failed(tmp_path / "a", {}), failed(tmp_path / "b", {"own_bytes": 16_000})
    assert beside.kept_back_bytes == 16_000
    assert beside.suggested_batch == without.suggested_batch - 1 == 1


def test_in_the_first_step_what_a_process_still_takes_is_kept_back_and_one_image_is_left_to_try(tmp_path):
    oom = failed(tmp_path, {}, step=0)
    assert oom.kept_back_bytes > 50_000_000
    assert oom.suggested_batch == 1, "by the slope alone it would fit"


def test_where_the_account_was_lost_half_the_batch_is_tried(tmp_path):
    oom = failed(tmp_path, {"unfinished_lost": True}, batch=9)
    assert (oom.suggested_batch, oom.bytes_per_image) == (4, None)
    assert oom.basis.startswith("half the batch")
    assert oom.command.endswith("--batch-size 4")
