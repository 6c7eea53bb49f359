"""What a walk has in hand: the job, its units with their moments, and the bytes that units left behind."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from zprof.model.planning.job import Job, Unit
from zprof.planner.memory.walk.checkpoints import Kept
from zprof.planner.memory.walk.gathers import Gathers
from zprof.planner.memory.walk.gradients import Gradients
from zprof.planner.memory.walk.layout import Run, trained_elements
from zprof.planner.memory.walk.ledger import Ledger
from zprof.planner.memory.walk.slots import GATHERED_CHECKPOINT, HELD, RECOMPUTED, SAVED, UNREDUCED, WORK
from zprof.planner.models.units_moments import Moment, Moments, with_gradients

NOTHING = Moment(operator="", saved_bytes=0, work_bytes=0)


@dataclass(slots=True, kw_only=True)
class Live:
    """``saved_bytes``: what units whose pass is over keep; ``outer``: what the enclosing one does."""

    job: Job
    ledger: Ledger
    gathers: Gathers
    gradients: Gradients
    around: Unit | None
    inner: tuple[Run, ...]
    known: Callable[[Unit], Moments | None]
    saved_bytes: int = 0
    outer: Moment = field(default=NOTHING)

    def moments(self, unit: Unit) -> Moments:
        """Of a unit, operator by operator where that is known."""
        known, trained = self.known(unit), trained_elements(unit, self.job)
        if known is None:
            return coarse(unit, trained)
        return known if trained == unit.elements else with_gradients(known, trained, unit.elements)

    def now(self, what: str, operator: str) -> None:
        """Name the moments that come."""
        self.ledger.now = f"{what} ({operator})"

    def drop(self, size_bytes: int) -> None:
        """Units whose backward is over have given that back."""
        self.saved_bytes -= size_bytes
        self.ledger.put({SAVED: self.outer.saved_bytes + self.saved_bytes})

    def see(self, moment: Moment, what: str) -> None:
        """A moment of a unit, beside what others keep."""
        self._put(
            moment,
            what,
            saved_bytes=self.saved_bytes + moment.saved_bytes,
            recomputed_bytes=0,
            gathered_bytes=0,
        )

    def see_again(self, moment: Moment, unit: Unit, kept: Kept, what: str) -> None:
        """A moment of a unit that was computed again; its checkpoint is its input, or stays beside it."""
        whole = unit.checkpoint_bytes or 0
        has_input = moment.saved_bytes >= whole
        in_chunk = not kept.input_is_new and not kept.stays_bytes
        itself = whole if has_input and (kept.is_gathered or not kept.input_is_new) else 0
        self._put(
            moment,
            what,
            saved_bytes=self.saved_bytes + (0 if in_chunk or kept.is_gathered else itself),
            recomputed_bytes=moment.saved_bytes - itself,
            gathered_bytes=kept.stays_bytes + itself if kept.is_gathered else 0,
        )

    def see_gather(self, unit: Unit, kept: Kept, what: str) -> None:
        """The moment in which a checkpoint comes back, if ranks put it together."""
        size = (unit.checkpoint_bytes or 0) + kept.stays_bytes + kept.copied_bytes
        gradient = Moment(operator="gather", saved_bytes=0, work_bytes=unit.checkpoint_bytes or 0)
        if kept.is_gathered:
            self._put(gradient, what, saved_bytes=self.saved_bytes, recomputed_bytes=0, gathered_bytes=size)

    def _put(
        self, moment: Moment, what: str, *, saved_bytes: int, recomputed_bytes: int, gathered_bytes: int
    ) -> None:
        ledger, gradients = self.ledger, self.gradients
        self.now(what, moment.operator)
        ledger.put(
            {
                SAVED: self.outer.saved_bytes + saved_bytes,
                RECOMPUTED: recomputed_bytes,
                GATHERED_CHECKPOINT: gathered_bytes,
                WORK: moment.work_bytes,
                HELD: self.outer.held_bytes + moment.held_bytes,
                UNREDUCED: gradients.unreduced_bytes(self.outer) + gradients.unreduced_bytes(moment),
            }
        )

    def see_outer(self, moments: tuple[Moment, ...], what: str) -> None:
        """Moments of the enclosing unit; its last one stays."""
        self.outer = NOTHING
        for moment in moments:
            self.see(moment, what)
        if moments:
            self.outer = moments[-1]


def coarse(unit: Unit, trained: int) -> Moments:
    """Moments of a unit that is known by its sums only: an upper bound.

    ``trained``: elements that have a gradient.
    """
    saved, kept = unit.saved_bytes or 0, unit.checkpoint_bytes or 0
    forward, backward = unit.forward_work_bytes or 0, unit.backward_work_bytes or 0
    known = unit.largest_gradient_elements
    largest = trained if known is None else min(known, trained)
    first = Moment(operator="forward", saved_bytes=saved, work_bytes=forward)
    stays = Moment(operator="end", saved_bytes=saved, work_bytes=0)
    begin = Moment(
        operator="backward",
        saved_bytes=saved,
        work_bytes=backward,
        gradient_elements=0 if known is None else largest,
        fresh_elements=0 if known is None else largest,
    )
    end = Moment(
        operator="gradients",
        saved_bytes=kept,
        work_bytes=backward,
        gradient_elements=trained,
        fresh_elements=largest,
    )
    gone = Moment(operator="end", saved_bytes=0, work_bytes=0, gradient_elements=trained)
    if unit.encloses:
        nothing = Moment(operator="begin", saved_bytes=0, work_bytes=0)
        return Moments(
            forward=(nothing,),
            forward_end=(first, stays),
            backward=(begin, replace(nothing, gradient_elements=min(unit.early_gradient_elements, trained))),
            backward_end=(end, gone),
        )
    recompute = Moment(operator="forward", saved_bytes=kept, work_bytes=saved - kept + forward)
    left = Moment(operator="end", saved_bytes=kept, work_bytes=0)
    return Moments(forward=(first, stays), checkpointed=(recompute, left), backward=(begin, end, gone))
