"""The backward of one micro-batch: b_u compute, AG_u all-gather, RS_u reduction of unit u; unit U is first.

    stage 3        AG_U + max(b_U, AG_{U-1}) + sum_{1<u<U} max(b_u, RS_{u+1} + AG_{u-1})
                   + max(b_1, RS_2) + RS_1
    last kept      b_U + sum_{u<U} max(b_u, AG_{u-1} + RS_{u+1}) + RS_1, AG_0 standing for AG_{U-1}
    stages 0 to 2  b_U + sum_{u<U} max(b_u, RS_{u+1}) + RS_1

One link, first come first served: a unit's reduction is launched when its backward is over, and before the
gather that the next unit launches.  Source: the schedule of FSDP (arXiv 2304.11277, section 3.3) and of the
reference engine.

"Last kept" (the last unit stays gathered since its forward) is the usual formula: it counts the gather of
unit U-1 in the last phase, not beside b_U, where it could run.  With units alike that is longer than the
schedule by events by at most b_U.  With units that differ it may be shorter than that schedule, where the
last phase has room for a gather; so for those it is the schedule by events:

    units differ   max(b_U, AG_{U-1}) + sum_{1<u<U} max(b_u, RS_{u+1} + AG_{u-1}) + max(b_1, RS_2) + RS_1

A root that encloses the others is gathered again, computes (its head) first, and is reduced last.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from zprof.planner.step.phases import Phase
from zprof.planner.step.times import StackTimes, UnitTimes, with_next


@dataclass(frozen=True, slots=True, kw_only=True)
class _Row:
    """Units alike, and what travels beside each: the reduction of the unit before, the gather of the next."""

    unit: UnitTimes
    count: int
    reduce_ns: int
    gather_ns: int


def plain_backward(times: StackTimes) -> tuple[Phase, ...]:
    """Every parameter is there, and nothing is reduced yet."""
    return tuple(_phase(unit, 0, unit.count) for unit in reversed(times.computed))


def reduced_backward(times: StackTimes) -> tuple[Phase, ...]:
    """Stages 0 to 2."""
    return gathered_backward(
        StackTimes(
            units=tuple(replace(unit, gather_ns=0) for unit in times.units),
            root=None if times.root is None else replace(times.root, gather_ns=0),
        )
    )


def gathered_backward(times: StackTimes) -> tuple[Phase, ...]:
    """Stage 3, every unit gathered again."""
    first = times.units[-1].gather_ns if times.units else 0
    return (*_begin(times, first), *_overlapped(_rows(times.units)), _end(times))


def kept_backward(times: StackTimes) -> tuple[Phase, ...]:
    """Stage 3, the last unit kept: the root only where it is alone.  Units alike are one run."""
    rows = _rows(times.units)
    if not rows:
        return reduced_backward(times)
    if len(times.units) > 1:
        return (*_begin(times, 0), *_overlapped(rows), _end(times))
    moved = rows[0].gather_ns
    rows[0] = replace(rows[0], gather_ns=0)
    rows[-1] = replace(rows[-1], gather_ns=rows[-1].gather_ns + moved)
    return (*_begin(times, 0), *_overlapped(rows), _end(times))


def _begin(times: StackTimes, first_ns: int) -> tuple[Phase, ...]:
    """What is gathered before there is compute to hide it; the root's backward hides the first unit's."""
    if times.root is None:
        return (Phase(link_ns=first_ns),)
    return (Phase(link_ns=times.root.gather_ns), _phase(times.root, first_ns, 1))


def _end(times: StackTimes) -> Phase:
    """The reductions that nothing is left to hide: of the unit whose backward is last, and of the root."""
    root = 0 if times.root is None else times.root.reduce_ns
    return Phase(link_ns=root + (times.units[0].reduce_ns if times.units else 0))


def _rows(units: Sequence[UnitTimes]) -> list[_Row]:
    """In the order of the backward; the middle of a run is one row."""
    rows, above = [], 0
    for unit, following in with_next(tuple(reversed(units))):
        own, below = unit.gather_ns, 0 if following is None else following.gather_ns
        if unit.count > 1:
            rows.append(_Row(unit=unit, count=1, reduce_ns=above, gather_ns=own))
            above = unit.reduce_ns
        if unit.count > 2:
            rows.append(_Row(unit=unit, count=unit.count - 2, reduce_ns=above, gather_ns=own))
        rows.append(_Row(unit=unit, count=1, reduce_ns=above, gather_ns=below))
        above = unit.reduce_ns
    return rows


def _overlapped(rows: Sequence[_Row]) -> tuple[Phase, ...]:
    return tuple(_phase(row.unit, row.reduce_ns + row.gather_ns, row.count) for row in rows)


def _phase(unit: UnitTimes, link_ns: int, count: int) -> Phase:
    return Phase(
        count=count,
        compute_ns=unit.backward_ns,
        model_ns=unit.model_backward_ns,
        link_ns=link_ns,
        copy_ns=unit.copy_ns,
    )
