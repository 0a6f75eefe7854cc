from __future__ import annotations

import pytest

from detscope.record.script.pacing import StepEnd, StepPacer


def play(events: str) -> tuple[list[str], StepPacer]:
    """Events by letter: i iterator, n asks and gets a batch, x pass ends, f forward, F without gradients,
    t teacher without gradients, b backward, s optimizer step, g step of another optimizer, . end."""
    pacer = StepPacer()
    ended: list[StepEnd] = []
    for _ in {"s", "g"} & set(events):
        pacer.add_optimizer()
    for letter in events.replace(" ", ""):
        if letter == "i":
            found = pacer.ask_batch()
            ended.append(pacer.end_pass() if found is StepEnd.NOTHING else found)
        elif letter == "n":
            ended.append(pacer.ask_batch())
            pacer.add_batch()
        elif letter == "x":
            ended += [pacer.ask_batch(), pacer.end_pass()]
        elif letter in "fF":
            ended.append(pacer.enter_root(1, letter == "f", letter == "f"))
        elif letter == "t":
            ended.append(pacer.enter_root(2, False, False))
        elif letter == "b":
            ended.append(pacer.go_backward())
        elif letter in "sg":
            ended += [pacer.enter_optimizer(ord(letter)), pacer.end_optimizer_step(ord(letter))]
        elif letter == ".":
            ended.append(pacer.end_script())
    names = {StepEnd.TRAINING: "training", StepEnd.EVALUATION: "evaluation", StepEnd.EARLIER: "training"}
    return [names[one] for one in ended if one in names], pacer


TRAINING, EVALUATION = "training", "evaluation"


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ("i nfbs nfbs nfbs x.", [TRAINING] * 3),
        ("i nfbs nfbs .", [TRAINING] * 2),  # left by break
        ("fbs fbs fbs .", [TRAINING] * 3),  # no loader
        ("i nfb nfbs nfb nfbs x.", [TRAINING] * 2),  # accumulation
        ("fb fbs fb fbs .", [TRAINING] * 2),
        ("i nfbs nfbs x i nF nF x i nfbs nfbs x.", [TRAINING] * 2 + [EVALUATION] * 2 + [TRAINING] * 2),
        ("i nF nF nF x.", [EVALUATION] * 3),
        ("F F F .", [EVALUATION] * 3),
        ("fbs fbs F F fbs .", [TRAINING] * 2 + [EVALUATION] * 2 + [TRAINING]),
        ("F i nfbs nfbs x.", [TRAINING] * 2),  # a constructor calls its backbone once
        ("i ntfbs ntfbs x.", [TRAINING] * 2),  # a teacher without gradients
        ("tfbs tfbs tfbs .", [TRAINING] * 3),
        ("i nnfbs nnfbs x.", [TRAINING] * 2),  # two loaders
        ("i nfbs nfbg nfbs nfbg x.", [TRAINING] * 4),
        ("i nfbsfbg nfbsfbg nfbsfbg x.", [TRAINING] * 3),  # two optimizers for every batch
        ("b s b s b s .", [TRAINING] * 3),  # functions instead of modules
        ("i nbs nbs x.", [TRAINING] * 2),
        ("s s s .", [TRAINING] * 3),  # the optimizer calls the model itself
        ("i ns ns ns x.", [TRAINING] * 3),
        ("i n fbs fbs fbs fbs .", [TRAINING] * 4),  # many steps on one batch
        ("fbsfbg fbsfbg fbsfbg .", [TRAINING] * 3),  # two optimizers in turn, no loader
        ("fbsfbsfbg fbsfbsfbg .", [TRAINING] * 4),  # one of them twice as often
        ("fbs fbs fbs fbg fbg fbg .", [TRAINING] * 6),  # one after the other
        ("bs bs bs bg bg bg .", [TRAINING] * 6),
        ("i nfb nfb nfb x.", [TRAINING] * 3),  # no optimizer of torch's
        ("fb fb fb .", [TRAINING] * 3),
        ("i nfbs nf nfbs x.", [TRAINING] * 2),  # a batch whose loss was no good
        ("i nfbs nfb x i nF nF x.", [TRAINING, EVALUATION]),  # the rest of an accumulation is left
    ],
)
def test_steps_are_found_in(events: str, expected: list[str]) -> None:
    assert play(events)[0] == expected


def test_batches_that_count_as_no_step_are_counted_apart() -> None:
    assert play("i nfbs nf nfbs x.")[1].skipped == 1
    assert play("i nfbs nfb x i nF nF x.")[1].unfinished == 1


def test_the_batches_of_an_accumulated_step_are_counted() -> None:
    _, pacer = play("i nfb nfb nfbs x")
    assert pacer.last_iterations == 1  # of what came after the step: nothing
    pacer = StepPacer()
    pacer.add_optimizer()
    for _ in range(3):
        pacer.ask_batch()
        pacer.add_batch()
        pacer.enter_root(1, True, True)
        pacer.go_backward()
    pacer.end_optimizer_step(7)
    assert pacer.ask_batch() is StepEnd.TRAINING
    assert pacer.last_iterations == 3


def test_an_optimizer_that_was_made_and_never_steps_is_not_waited_for() -> None:
    pacer = StepPacer()
    pacer.add_optimizer()
    pacer.add_optimizer()
    ended = []
    for _ in range(4):
        ended += [pacer.enter_root(1, True, True), pacer.go_backward(), pacer.end_optimizer_step(7)]
    ended.append(pacer.end_script())
    assert [one for one in ended if one is not StepEnd.NOTHING] == [StepEnd.EARLIER] + [StepEnd.TRAINING] * 3


def test_an_optimizer_that_never_steps_is_not_waited_for_by_one_that_calls_the_model_itself() -> None:
    pacer = StepPacer()
    pacer.add_optimizer()
    ended = []
    for optimizer in (7, 8):
        pacer.add_optimizer()
        for _ in range(3):
            ended += [pacer.enter_optimizer(optimizer), pacer.end_optimizer_step(optimizer)]
        ended.append(pacer.enter_root(1, False, False))
        pacer.forget_optimizer(optimizer)
    ended.append(pacer.end_script())
    assert [one for one in ended if one is not StepEnd.NOTHING].count(StepEnd.TRAINING) == 6


@pytest.mark.parametrize("kept", [False, True])
def test_a_training_after_another_waits_for_no_optimizer_that_is_made_for_it(kept: bool) -> None:
    pacer = StepPacer()
    ended = []
    for optimizer in (7, 8, 9):
        pacer.add_optimizer()
        for _ in range(3):
            ended += [pacer.enter_root(1, True, True), pacer.go_backward()]
            ended.append(pacer.end_optimizer_step(optimizer))
        if not kept:
            pacer.forget_optimizer(optimizer)
    ended.append(pacer.end_script())
    assert len([one for one in ended if one is not StepEnd.NOTHING]) == 9


def test_an_optimizer_that_is_made_in_every_step_ends_none() -> None:
    """Tasks that are tried on a copy first, and one step for all of them."""
    pacer = StepPacer()
    pacer.add_optimizer()
    ended = []
    for step in range(4):
        for task in range(2):
            inner = 100 + 10 * step + task
            pacer.add_optimizer()
            ended += [pacer.enter_root(2, True, True), pacer.go_backward()]
            ended.append(pacer.end_optimizer_step(inner))
            pacer.forget_optimizer(inner)
        ended += [pacer.enter_root(1, True, True), pacer.go_backward(), pacer.end_optimizer_step(7)]
    ended.append(pacer.end_script())
    assert len([one for one in ended if one is not StepEnd.NOTHING]) in (4, 5)


def test_steps_inside_of_backward_make_every_batch_a_step() -> None:
    pacer = StepPacer()
    pacer.add_optimizer()
    pacer.steps_in_backward = True
    ended = []
    for _ in range(3):
        ended.append(pacer.ask_batch())
        pacer.add_batch()
        ended += [pacer.enter_root(1, True, True), pacer.go_backward()]
    assert [*ended, pacer.end_script()].count(StepEnd.TRAINING) == 3


def test_a_call_that_raised_did_not_happen() -> None:
    pacer = StepPacer()
    pacer.ask_batch()
    pacer.add_batch()
    pacer.enter_root(1, False, False)
    pacer.forget_root(1, False, False)
    assert pacer.end_script() is StepEnd.NOTHING
