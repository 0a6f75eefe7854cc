from __future__ import annotations

import pytest

from detscope.record.script.pacing import Ended, Pacer


def play(events: str) -> tuple[list[str], Pacer]:
    """Events by letter: i iterator, n asks and gets a batch, x pass ends, f forward, F without gradients,
    t teacher without gradients, b backward, s optimizer step, g step of another optimizer, . end."""
    pacer = Pacer()
    ended: list[Ended] = []
    for letter in events.replace(" ", ""):
        if letter == "i":
            found = pacer.asks_batch()
            ended.append(pacer.pass_ends() if found is Ended.NOTHING else found)
        elif letter == "n":
            ended.append(pacer.asks_batch())
            pacer.gets_batch()
        elif letter == "x":
            ended += [pacer.asks_batch(), pacer.pass_ends()]
        elif letter in "fF":
            ended.append(pacer.enters_root(1, letter == "f", letter == "f"))
        elif letter == "t":
            ended.append(pacer.enters_root(2, False, False))
        elif letter == "b":
            ended.append(pacer.goes_backward())
        elif letter in "sg":
            ended += [pacer.enters_optimizer(ord(letter)), pacer.optimizer_stepped(ord(letter))]
        elif letter == ".":
            ended.append(pacer.finishes())
    names = {Ended.TRAINING: "training", Ended.EVALUATION: "evaluation", Ended.EARLIER: "training"}
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
    assert pacer.last_batches == 1  # of what came after the step: nothing
    pacer = Pacer()
    for _ in range(3):
        pacer.asks_batch()
        pacer.gets_batch()
        pacer.enters_root(1, True, True)
        pacer.goes_backward()
    pacer.optimizer_stepped(7)
    assert pacer.asks_batch() is Ended.TRAINING
    assert pacer.last_batches == 3


def test_two_optimizers_without_a_loader_make_one_step_together_once_both_are_known() -> None:
    found, _ = play("fbs fbg fbs fbg fbs fbg fbs fbg .")
    assert len(found) in (4, 5)


def test_a_call_that_raised_did_not_happen() -> None:
    pacer = Pacer()
    pacer.asks_batch()
    pacer.gets_batch()
    pacer.enters_root(1, False, False)
    pacer.root_failed(1, False, False)
    assert pacer.finishes() is Ended.NOTHING
