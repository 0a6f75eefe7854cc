"""Where one step of somebody else's loop ends and the next begins. Pure: told what happens, says what ended.

A training step ends when, after an optimizer has stepped, the loop asks a loader for the next batch, or,
in loops without a loader, calls a model again. Batches that only go backward are accumulated, also where
they were all fetched before the first of them went forward. An
iteration that calls a model and does not go backward is one of evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

_PATIENCE = 16  # calls of one model with gradients and without a backward pass, until that is evaluation
_STATISTICS = 4  # batches that nobody passes to a model: somebody counts something
_LONE = 32  # batches that went backward before any optimizer stepped: none will
_DROP_AFTER = 64  # steps of other optimizers after which one that has not stepped is waited for no longer


class StepEnd(Enum):
    """What ended just before the thing that was told."""

    NOTHING = "nothing"
    TRAINING = "training step"
    EVALUATION = "evaluation step"
    DROPPED = "what counts as no step"  # time since the last border is not part of a step
    EARLIER = "a step, some time ago"  # at the moment that was marked as `split`


@dataclass
class _EventCounts:
    batches: int = 0
    backwards: int = 0
    forwards: int = 0
    training_forwards: int = 0  # with gradients, of models in training mode
    roots: dict[int, int] = field(default_factory=dict)  # calls


class StepPacer:
    """Told of every event outside of others; a border is answered before the event itself is counted."""

    def __init__(self) -> None:
        self.trained = False  # an optimizer has stepped at some time
        self.stepped: dict[int, int] = {}  # optimizers that stepped since the border
        self.accumulated = 0  # iterations that went backward before the last one
        self.last_iterations = 1  # of forward and backward in the step which ended last
        self.skipped = 0  # iterations in training mode that did not go backward
        self.unfinished = 0  # accumulated iterations that no optimizer step followed
        self.steps_in_backward = False  # optimizers step from hooks of gradients, inside of backward
        self._alone = False  # optimizers were made, none of them steps
        self._made = self._met = 0  # optimizers that there are, and those of them that have stepped
        self._any_made = False
        self._new = 0  # made since an optimizer stepped, not stepped yet: of a step to come
        self._whole = _EventCounts()  # since the last border
        self._latest = _EventCounts()  # since the last batch was asked for
        self._evaluated: set[int] = set()  # roots that were called in evaluation steps
        self._known: dict[int, int] = {}  # optimizers, and steps of others since their last
        self._by_loader = True  # the same optimizer never stepped twice on one batch
        self._quiet_since_step = False  # nothing has happened since an optimizer stepped
        self._called_since_step = False
        self.begins_iteration = (
            False  # the last call was the first of a model with gradients since a backward
        )
        self._forward_open = False  # a model was called with gradients and nothing went backward since
        self._iterations = 0  # of forward and backward since an optimizer stepped
        self._iterations_stepped = 0  # most of them before one step of an optimizer, since the border
        self._most_fetched = 0  # batches of a training step

    # ---- events that may be borders

    def ask_batch(self) -> StepEnd:
        """The loop asks a loader for a batch, or for its iterator."""
        self._quiet_since_step = False
        if self.stepped:
            return self._end_step(StepEnd.TRAINING)
        latest = self._latest
        if latest.backwards:
            if self.by_backward:
                self.trained = True
                return self._end_step(StepEnd.TRAINING)
            self.accumulated += 1
            self._latest = _EventCounts()
            self._alone = self._alone or (self.accumulated >= _LONE and not self.trained)
            return StepEnd.NOTHING
        if not latest.forwards:
            return StepEnd.NOTHING  # several loaders, or batches that are passed over
        if latest.training_forwards and self.trained:
            self.skipped += 1
            self._latest = _EventCounts()
            return StepEnd.NOTHING if self.accumulated else self._end_step(StepEnd.DROPPED)
        if self.accumulated:
            self.unfinished += self.accumulated
            return self._end_step(StepEnd.DROPPED)
        if not self._whole.batches and not self._evaluated & self._find_called_roots():
            return self._end_step(StepEnd.DROPPED)  # a lone call, as constructors make to learn shapes
        return self._end_step(StepEnd.EVALUATION)

    def enter_root(self, root: int, gradients: bool, training: bool) -> StepEnd:
        """A model is about to be called, inside of nothing else."""
        ended = self._end_before_root(root, gradients and training)
        self._quiet_since_step = False
        self._called_since_step = True
        self.count_root(root, gradients, training)
        return ended

    def count_root(self, root: int, gradients: bool, training: bool) -> None:
        """A model is called, possibly by an optimizer: no border."""
        self.begins_iteration = gradients and not self._forward_open
        self._forward_open = self._forward_open or gradients
        for since in (self._whole, self._latest):
            since.forwards += 1
            since.training_forwards += gradients and training
            since.roots[root] = since.roots.get(root, 0) + 1

    def forget_root(self, root: int, gradients: bool, training: bool) -> None:
        """The call raised: it did not happen."""
        for since in (self._whole, self._latest):
            if since.roots.get(root):
                since.forwards -= 1
                since.training_forwards -= gradients and training
                since.roots[root] -= 1

    def _end_before_root(self, root: int, trains: bool) -> StepEnd:
        if self.stepped:
            if self._whole.batches and self._by_loader:
                return StepEnd.NOTHING
            return self._end_step(StepEnd.TRAINING) if self._all_stepped() else StepEnd.NOTHING
        if self._whole.backwards and not self._whole.batches and self.by_backward:
            self.trained = True
            return self._end_step(StepEnd.TRAINING)
        if self._whole.backwards or self._whole.batches:
            return StepEnd.NOTHING
        again = self._latest.roots.get(root, 0)
        evaluated = not (trains and self._latest.training_forwards)
        if again and (evaluated or (again >= _PATIENCE and not self.trained)):
            return self._end_step(StepEnd.EVALUATION)
        return StepEnd.NOTHING

    def enter_optimizer(self, optimizer: int) -> StepEnd:
        """An optimizer is about to step; twice in a row means that it calls the model itself (a closure)."""
        if self._quiet_since_step and optimizer in self.stepped:
            self._rest_others()
            return self._end_step(StepEnd.TRAINING)
        return StepEnd.NOTHING

    def end_optimizer_step(self, optimizer: int) -> StepEnd:
        """An optimizer has stepped, or a scaler has decided that it should not."""
        ended = StepEnd.NOTHING
        if optimizer in self.stepped and self._called_since_step:
            # many steps on one batch, or of one optimizer while others rest: the border was where a model
            # was called after the earlier step
            self._by_loader = self._by_loader and not self._whole.batches
            self._rest_others()
            under_way = self._iterations
            self._end_step(StepEnd.TRAINING)
            self._iterations = under_way
            self._whole.backwards = self._latest.backwards = 1
            ended = StepEnd.EARLIER
        self._iterations_stepped = max(self._iterations_stepped, self._iterations)
        self._iterations = 0
        self.trained, self._made, self._any_made = True, max(1, self._made), True
        self.stepped[optimizer] = self.stepped.get(optimizer, 0) + 1
        self._quiet_since_step, self._called_since_step = True, False
        for other in list(self._known):
            self._known[other] += 1
            if self._known[other] > _DROP_AFTER:
                del self._known[other]
        if optimizer not in self._known:
            self._met += 1
            self._new = max(0, self._new - 1)
        self._known[optimizer] = 0
        return ended

    # ---- events that are none

    def add_optimizer(self) -> None:
        """An optimizer was made; it may step or not."""
        self._made += 1
        self._any_made = True
        self._new += bool(self.stepped)

    def forget_optimizer(self, optimizer: int) -> None:
        """An optimizer is gone: nobody waits for it, and its number may become another's."""
        self._made -= 1
        if self._known.pop(optimizer, None) is not None:
            self._met -= 1
        else:
            self._new = max(0, self._new - 1)

    @property
    def by_backward(self) -> bool:
        """No optimizer tells when it steps: a batch that goes backward is a step."""
        return self.steps_in_backward or not self._any_made or (self._alone and not self._met)

    def add_batch(self) -> None:
        """A batch has arrived."""
        self._whole.batches += 1
        self._latest.batches += 1
        self._quiet_since_step = False

    def end_pass(self) -> StepEnd:
        """A loader has no more batches: what comes now belongs to no step, unless one is under way."""
        another_loader = 0 < self._whole.batches < max(_STATISTICS, self._most_fetched + 1)
        under_way = self._whole.forwards or self._whole.backwards or self.stepped or another_loader
        return StepEnd.NOTHING if under_way else self._end_step(StepEnd.DROPPED)

    def go_backward(self, in_optimizer: bool = False) -> StepEnd:
        """The autograd engine is entered from outside; where no module is called, that is the border."""
        ended = StepEnd.NOTHING
        by_loader = self._whole.batches and self._by_loader
        if self.stepped and not (self._called_since_step or by_loader or in_optimizer):
            ended = self._end_step(StepEnd.TRAINING) if self._all_stepped() else StepEnd.NOTHING
        if not in_optimizer and (self._forward_open or not self._whole.forwards):
            self._iterations += 1
        self._forward_open = False
        self._whole.backwards += 1
        self._latest.backwards += 1
        self._quiet_since_step = False
        self._called_since_step = self._called_since_step or not in_optimizer
        return ended

    def end_script(self) -> StepEnd:
        """The script has ended: what was complete by then counts."""
        if self.stepped or (self._whole.backwards and self.by_backward):
            return self._end_step(StepEnd.TRAINING)
        if self.accumulated or self._whole.backwards:
            self.unfinished += self.accumulated + bool(self._latest.backwards)
            return self._end_step(StepEnd.DROPPED)
        if self._whole.forwards and not (self._whole.training_forwards and self.trained):
            return self._end_step(StepEnd.EVALUATION)
        return StepEnd.NOTHING

    def _rest_others(self) -> None:
        """One has stepped twice and others have not: they are waited for no longer."""
        self._known = {one: since for one, since in self._known.items() if one in self.stepped}
        self._met = self._made

    def _find_called_roots(self) -> set[int]:
        return {root for root, calls in self._whole.roots.items() if calls}

    def _all_stepped(self) -> bool:
        return set(self._known) <= set(self.stepped) and self._met >= self._made - self._new

    def _end_step(self, what: StepEnd) -> StepEnd:
        if what is StepEnd.EVALUATION:
            self._evaluated |= self._find_called_roots()
        self.last_iterations = max(self.accumulated + 1, self._iterations_stepped or self._iterations)
        if what is StepEnd.TRAINING:
            self._most_fetched = max(self._most_fetched, self._whole.batches)
        self.accumulated = self._iterations = self._iterations_stepped = self._new = 0
        self._forward_open = False
        self._whole, self._latest = _EventCounts(), _EventCounts()
        self.stepped = {}
        self._quiet_since_step = self._called_since_step = False
        return what
