"""The end of the gradients is heard before those who wait for other ranks: with torch's own DDP."""

import threading
from collections.abc import Iterator
from time import perf_counter_ns, sleep

import pytest
import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from detscope.record.model.last_gradient import hear_last_gradient
from detscope.record.steps.events import EventBuffer

EXCHANGE = 99
SLOW_S = 0.2
LONGEST_S = 900.0  # that a busy machine may take until there is an event


@pytest.fixture
def ranks() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


@pytest.fixture
def buffer() -> EventBuffer:
    made = EventBuffer()
    made.find_exchange = lambda: EXCHANGE
    return made


def exchange_slowly(
    heard: threading.Event, bucket: distributed.GradBucket
) -> torch.futures.Future[torch.Tensor]:
    """A collective, beside the program, that takes its time from the event on."""
    done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    gradients = bucket.buffer()

    def answer() -> None:
        heard.wait(LONGEST_S)
        sleep(SLOW_S)
        done.set_result(gradients)

    threading.Thread(target=answer).start()
    return done


def run_backward(buffer: EventBuffer, loss: torch.Tensor) -> None:
    handle = hear_last_gradient(buffer, (loss,))
    loss.backward()
    if handle is not None:
        handle.remove()


@pytest.mark.usefixtures("ranks")
def test_waiting_for_gradients_of_others_lies_behind_the_event(buffer: EventBuffer) -> None:
    heard = threading.Event()

    def tell_time() -> int:
        time_ns = perf_counter_ns()
        heard.set()
        return time_ns

    buffer.now = tell_time
    model = DistributedDataParallel(nn.Linear(3, 2))
    model.register_comm_hook(heard, exchange_slowly)
    for _ in range(2):
        heard.clear()
        run_backward(buffer, model(torch.ones(1, 3)).sum())
        ended_ns = buffer.now()
        code, time_ns, _ = buffer.take_events().items
        assert code == EXCHANGE
        assert ended_ns - time_ns >= SLOW_S * 1e9


@pytest.mark.usefixtures("ranks")
def test_the_event_comes_before_callbacks_that_hooks_of_the_model_ask_for(buffer: EventBuffer) -> None:
    seen: list[int] = []
    output = torch.ones(2, requires_grad=True) * 2
    engine = torch.autograd.Variable._execution_engine
    output.register_hook(lambda _: engine.queue_callback(lambda: seen.append(len(buffer.items))))
    run_backward(buffer, output.sum())
    assert seen == [3]


@pytest.mark.usefixtures("ranks")
def test_a_graph_that_is_kept_has_nothing_of_ours(buffer: EventBuffer) -> None:
    loss = torch.ones(2, requires_grad=True).sum()
    handle = hear_last_gradient(buffer, (loss,))
    loss.backward(retain_graph=True)
    handle.remove()
    assert len(buffer.items) == 3
    loss.backward()
    assert len(buffer.items) == 3


def test_a_program_without_other_ranks_is_left_alone(buffer: EventBuffer) -> None:
    assert hear_last_gradient(buffer, (torch.ones(2, requires_grad=True).sum(),)) is None


@pytest.mark.usefixtures("ranks")
def test_a_host_without_a_device_is_left_alone() -> None:
    assert hear_last_gradient(EventBuffer(), (torch.ones(2, requires_grad=True).sum(),)) is None
