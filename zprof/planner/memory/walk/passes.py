"""The two passes of a micro-batch.

Stage 3 as the reference engine schedules it: the root is gathered first and given back last in both passes;
a unit behind its forward, and behind its backward just before its gradients are reduced.
"""

from collections.abc import Iterable, Iterator

from zprof.model.planning.job import Unit
from zprof.planner.memory.walk.checkpoints import Kept, kept_of
from zprof.planner.memory.walk.layout import Run, has_backward
from zprof.planner.memory.walk.live import NOTHING, Live
from zprof.planner.memory.walk.slots import GATHERED_CHECKPOINT, HELD, SAVED, UNREDUCED, WORK
from zprof.planner.models.units_moments import Moment


def walk_forward(live: Live) -> None:
    """From the tokens to the loss: what each unit keeps is left behind."""
    order = _order(live, live.inner)
    around, last = live.around, None
    if around is not None:
        live.now(f"forward of {around.name}", "gather")
        live.gathers.need(order, 0)
        live.see_outer(live.moments(around).forward, f"forward of {around.name}")
    for run, place in _placed(live.inner, len(order)):
        if run.skipped:
            live.saved_bytes += run.skipped * _stays(live, run.unit)
            continue
        if last is not None:
            live.gathers.release(last)
        last = run.unit
        live.now(f"forward of {last.name}", "gather")
        live.gathers.need(order, place)
        _forward(live, last)
    if last is not None and not live.job.overlap.keep_last:
        live.gathers.release(last)
    if around is not None:
        live.see_outer(live.moments(around).forward_end, f"forward of {around.name}")
        live.gathers.release(around)


def walk_backward(live: Live, *, last: bool) -> None:
    """From the loss to the tokens; ``last``: of the step's micro-batches."""
    inner = tuple(reversed(live.inner))
    order, around = _order(live, inner), live.around
    if around is not None:
        live.now(f"backward of {around.name}", "gather")
        live.gathers.need(order, 0)
        live.see_outer(live.moments(around).backward, f"backward of {around.name}")
    for run, place in _placed(inner, len(order)):
        if not has_backward(run.unit, live.job):
            continue  # it is fetched ahead all the same: the order is that of the forward, reversed
        if run.skipped:
            live.now(f"backward of {run.unit.name}", "end")
            live.drop(run.skipped * _stays(live, run.unit))
            live.gradients.skip(run.unit, run.skipped, last=last)
            continue
        live.now(f"backward of {run.unit.name}", "gather")
        live.gathers.need(order, place)
        _backward(live, run.unit)
        live.gathers.release(run.unit)
        _reduce(live, run.unit, last=last)
    if around is not None:
        live.see_outer(live.moments(around).backward_end, f"backward of {around.name}")
        _reduce(live, around, last=last)
    live.now("backward", "end")
    live.outer = NOTHING
    live.gradients.end_backward()
    live.gathers.release_all()
    live.ledger.put({SAVED: 0, WORK: 0, HELD: 0, UNREDUCED: 0, GATHERED_CHECKPOINT: 0})


def _forward(live: Live, unit: Unit) -> None:
    moments = live.moments(unit)
    again = live.job.residual.checkpointing and has_backward(unit, live.job)
    for moment in moments.checkpointed if again else moments.forward:
        live.see(moment, f"forward of {unit.name}")
    live.saved_bytes += _stays(live, unit)


def _backward(live: Live, unit: Unit) -> None:
    moments, what = live.moments(unit), f"backward of {unit.name}"
    live.saved_bytes -= _stays(live, unit)
    if not live.job.residual.checkpointing:
        for moment in moments.backward:
            live.see(moment, what)
        return
    kept = kept_of(unit, live.job)
    live.see_gather(unit, kept, f"recompute of {unit.name}")
    for moment in _beside_gradient(moments.forward, live, unit):
        live.see_again(moment, unit, kept, f"recompute of {unit.name}")
    for moment in moments.backward:
        live.see_again(moment, unit, kept, what)


def _beside_gradient(moments: Iterable[Moment], live: Live, unit: Unit) -> Iterator[Moment]:
    """A recomputation runs when the gradient of the unit's output is there already."""
    gradient = unit.checkpoint_bytes or 0
    for moment in moments:
        yield Moment(
            operator=moment.operator,
            saved_bytes=moment.saved_bytes,
            work_bytes=moment.work_bytes + gradient,
        )


def _reduce(live: Live, unit: Unit, *, last: bool) -> None:
    moments = live.moments(unit)
    end = (moments.backward_end or moments.backward)[-1]
    live.now(f"backward of {unit.name}", "reduction")
    live.gradients.reduce(unit, live.gradients.unreduced_bytes(end), last=last)


def _stays(live: Live, unit: Unit) -> int:
    """What a unit keeps from its forward to its backward."""
    if not has_backward(unit, live.job):
        return 0
    if live.job.residual.checkpointing:
        kept: Kept = kept_of(unit, live.job)
        return kept.stays_bytes
    return unit.saved_bytes or 0


def _placed(runs: Iterable[Run], length: int) -> Iterator[tuple[Run, int]]:
    """Runs with their place in the order of the pass, in which those of skipped units do not stand."""
    runs = tuple(runs)
    place = length - sum(not run.skipped for run in runs)
    for run in runs:
        yield run, place
        place += not run.skipped


def _order(live: Live, runs: Iterable[Run]) -> tuple[Unit, ...]:
    around = () if live.around is None else (live.around,)
    return (*around, *(run.unit for run in runs if not run.skipped))
