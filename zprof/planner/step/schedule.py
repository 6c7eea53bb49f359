"""Lay out the phases of a step under each ZeRO stage: which collectives overlap which compute.

    stage   gathers of all parameters                  reductions of all gradients
    0       none                                       all-reduce, last micro-batch
    1       once, during the first forward             last micro-batch
    2       once, during the first forward             every micro-batch
    3       in every forward and every backward        every micro-batch

Source: arXiv 1910.02054, section 7; with A micro-batches, a sharded gradient cannot wait for the last one,
and a sharded parameter is gathered for one pass only. So the elements moved per step are 2, 2, A+1 and 3A
times the model's, as in ``zprof.analysis.zero_formulas.compute_expected_volume``.

Forward of one micro-batch, with compute c_u and all-gather AG_u of unit u:

    no gathers           sum c
    stage 3              AG_1 + sum_{u<U} max(c_u, AG_{u+1}) + c_U
    stages 1 and 2       sum c + max_u (sum_{v<=u} AG_v - sum_{v<u} c_v): the first forward after an update

A root that encloses the others is gathered first and computes (its head) last. Stage 3 is the schedule of
FSDP (arXiv 2304.11277, section 3.3) with one unit prefetched. Stages 1 and 2 are the schedule of an engine
that gathers updated parameters during the next forward.

Backward of one micro-batch, with compute b_u, all-gather AG_u and reduction RS_u of unit u; unit U is first:

    stage 3        AG_U + max(b_U, AG_{U-1}) + sum_{1<u<U} max(b_u, RS_{u+1} + AG_{u-1})
                   + max(b_1, RS_2) + RS_1
    last kept      b_U + sum_{u<U} max(b_u, AG_{u-1} + RS_{u+1}) + RS_1, with AG_0 meaning AG_{U-1}
    stages 0 to 2  b_U + sum_{u<U} max(b_u, RS_{u+1}) + RS_1

There is one link, served in launch order: a unit's reduction is launched when its backward ends, before the
gather that the next unit launches. Source: the schedule of FSDP (arXiv 2304.11277, section 3.3) and of the
reference engine.

"Last kept" (the last unit stays gathered since its forward) is the usual formula: it counts the gather of
unit U-1 in the last phase instead of during b_U, where it could run. With equal units the result is at most
b_U longer than an event schedule. With unequal units it may be shorter than the event schedule if the last
phase can hide a gather, so unequal units use the event schedule:

    units differ   max(b_U, AG_{U-1}) + sum_{1<u<U} max(b_u, RS_{u+1} + AG_{u-1}) + max(b_1, RS_2) + RS_1

In the backward, a root that encloses the others is gathered again, computes (its head) first and is reduced
last.

A phase lasts as long as the longest activity in it; the part beyond compute is exposed. All times are integer
nanoseconds, so that the terms of a ledger sum exactly to its wall time.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from zprof.model.job import Overlap
from zprof.planner.step.unit_times import StackTimes, UnitTimes, pair_with_next


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """Compute and all concurrent work, repeated ``count`` times.

    ``model_ns``: collectives between pieces of the compute, never hidden because each waits for the other.
    ``link_ns``: collectives concurrent with both. ``hidden_ns``: further collectives, known to be hidden.
    ``copy_ns``: copies to or from the host, concurrent with all of these.
    """

    count: int = 1
    compute_ns: int = 0
    model_ns: int = 0
    link_ns: int = 0
    hidden_ns: int = 0
    copy_ns: int = 0

    @property
    def wall_ns(self) -> int:
        """Wall time of all ``count`` repetitions, in ns."""
        return self.count * max(self.compute_ns + self.model_ns, self.link_ns, self.copy_ns)

    @property
    def collective_ns(self) -> int:
        """Time of collectives, hidden or not, over all repetitions, in ns."""
        return self.count * (self.link_ns + self.model_ns + self.hidden_ns)

    @property
    def exposed_transfer_ns(self) -> int:
        """Time of collectives without concurrent compute, over all repetitions, in ns."""
        return self.count * max(self.model_ns, self.link_ns - self.compute_ns)

    @property
    def exposed_memcpy_ns(self) -> int:
        """Time of copies without concurrent compute or collectives, over all repetitions, in ns."""
        return self.count * max(0, self.copy_ns - max(self.compute_ns + self.model_ns, self.link_ns))


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTotal:
    """Sum of phases: wall = compute + exposed_transfer + exposed_memcpy.

    ``collective_ns`` counts collectives, hidden or not.
    """

    wall_ns: int
    compute_ns: int
    exposed_transfer_ns: int
    exposed_memcpy_ns: int
    collective_ns: int


def sum_phases(phases: Iterable[Phase]) -> PhaseTotal:
    """Sum phases that run one after another."""
    all_phases = tuple(phases)
    return PhaseTotal(
        wall_ns=sum(phase.wall_ns for phase in all_phases),
        compute_ns=sum(phase.count * phase.compute_ns for phase in all_phases),
        exposed_transfer_ns=sum(phase.exposed_transfer_ns for phase in all_phases),
        exposed_memcpy_ns=sum(phase.exposed_memcpy_ns for phase in all_phases),
        collective_ns=sum(phase.collective_ns for phase in all_phases),
    )


def repeat_phases(phases: Sequence[Phase], times: int) -> tuple[Phase, ...]:
    """Return the phases with their counts multiplied by ``times``; none if it is 0."""
    return tuple(replace(phase, count=phase.count * times) for phase in phases) if times else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Phases of one micro-batch."""

    forward: tuple[Phase, ...]
    backward: tuple[Phase, ...]

    @property
    def all(self) -> tuple[Phase, ...]:
        """The forward phases, then the backward ones."""
        return (*self.forward, *self.backward)


def build_step_phases(
    times: StackTimes, *, stage: int, micro_batches: int, overlap: Overlap
) -> tuple[Phase, ...]:
    """Return all phases of a step."""
    if stage == 3:
        return repeat_phases(build_sharded_passes(times, overlap).all, micro_batches)
    plain = Passes(forward=build_plain_forward(times), backward=build_plain_backward(times))
    first = build_plain_forward(times) if stage == 0 else build_refreshed_forward(times)
    reduced = build_reduced_backward(times)
    if stage == 2:
        return (
            *first,
            *repeat_phases(plain.forward, micro_batches - 1),
            *repeat_phases(reduced, micro_batches),
        )
    return (
        *first,
        *repeat_phases(plain.forward, micro_batches - 1),
        *repeat_phases(plain.backward, micro_batches - 1),
        *reduced,
    )


def build_sharded_passes(times: StackTimes, overlap: Overlap) -> Passes:
    """Return the passes of one micro-batch in stage 3."""
    if overlap.prefetch == 0:
        return _exposed_passes(times, overlap)
    backward = build_kept_backward(times) if overlap.keep_last else build_gathered_backward(times)
    return Passes(forward=build_gathered_forward(times), backward=backward)


def _exposed_passes(times: StackTimes, overlap: Overlap) -> Passes:
    """Return the passes without prefetch: a unit waits for its gather and the reduction queued before it."""
    last = times.computed[-1] if not times.units else times.units[-1]
    kept = last.gather_ns if overlap.keep_last else 0
    gathered = sum(unit.count * unit.gather_ns for unit in times.computed)
    reduced = sum(unit.count * unit.reduce_ns for unit in times.computed)
    return Passes(
        forward=(Phase(link_ns=gathered), *build_plain_forward(times)),
        backward=(Phase(link_ns=gathered - kept + reduced), *build_plain_backward(times)),
    )


def build_plain_forward(times: StackTimes) -> tuple[Phase, ...]:
    """Return the phases of a forward whose parameters are all resident."""
    return tuple(_forward_phase(unit, 0, unit.count) for unit in times.computed)


def build_gathered_forward(times: StackTimes) -> tuple[Phase, ...]:
    """Return the stage 3 forward: each unit is gathered during the compute of the previous one.

    Deeper prefetch is modelled as prefetch of one unit; with equal units it hides no more.
    """
    root = 0 if times.root is None else times.root.gather_ns
    phases = [Phase(link_ns=root + (times.units[0].gather_ns if times.units else 0))]
    for unit, following in pair_with_next(times.units):
        if unit.count > 1:
            phases.append(_forward_phase(unit, unit.gather_ns, unit.count - 1))
        phases.append(_forward_phase(unit, 0 if following is None else following.gather_ns, 1))
    if times.root is not None:
        phases.append(_forward_phase(times.root, 0, 1))
    return tuple(phases)


def build_refreshed_forward(times: StackTimes) -> tuple[Phase, ...]:
    """Return the first forward of stages 1 and 2: all gathers launch at once, each unit waits for its own.

    Along a run of equal units the wait changes linearly, so its maximum is at the first or the last one.
    """
    gathered = exposed = 0 if times.root is None else times.root.gather_ns
    computed = 0
    for unit in times.units:
        busy = unit.forward_ns + unit.model_forward_ns
        first = gathered + unit.gather_ns - computed
        exposed = max(exposed, first, first + (unit.count - 1) * (unit.gather_ns - busy))
        gathered += unit.count * unit.gather_ns
        computed += unit.count * busy
    return (Phase(link_ns=exposed, hidden_ns=gathered - exposed), *build_plain_forward(times))


def _forward_phase(unit: UnitTimes, link_ns: int, count: int) -> Phase:
    return Phase(
        count=count,
        compute_ns=unit.forward_ns,
        model_ns=unit.model_forward_ns,
        link_ns=link_ns,
        copy_ns=unit.copy_ns,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _BackwardRow:
    """Equal units, each with the concurrent reduction of the previous unit and gather of the next."""

    unit: UnitTimes
    count: int
    reduce_ns: int
    gather_ns: int


def build_plain_backward(times: StackTimes) -> tuple[Phase, ...]:
    """Return the phases of a backward with resident parameters and no reductions."""
    return tuple(_backward_phase(unit, 0, unit.count) for unit in reversed(times.computed))


def build_reduced_backward(times: StackTimes) -> tuple[Phase, ...]:
    """Return the backward of stages 0 to 2, with reductions and no gathers."""
    return build_gathered_backward(
        StackTimes(
            units=tuple(replace(unit, gather_ns=0) for unit in times.units),
            root=None if times.root is None else replace(times.root, gather_ns=0),
        )
    )


def build_gathered_backward(times: StackTimes) -> tuple[Phase, ...]:
    """Return the stage 3 backward with every unit gathered again."""
    first = times.units[-1].gather_ns if times.units else 0
    return (
        *_first_gathers(times, first),
        *_overlap_phases(_backward_rows(times.units)),
        _last_reductions(times),
    )


def build_kept_backward(times: StackTimes) -> tuple[Phase, ...]:
    """Return the stage 3 backward with the last unit kept gathered.

    The root is the last unit only if it is the only one. A single run of equal units uses the "last kept"
    formula.
    """
    rows = _backward_rows(times.units)
    if not rows:
        return build_reduced_backward(times)
    if len(times.units) > 1:
        return (*_first_gathers(times, 0), *_overlap_phases(rows), _last_reductions(times))
    moved_gather = rows[0].gather_ns
    rows[0] = replace(rows[0], gather_ns=0)
    rows[-1] = replace(rows[-1], gather_ns=rows[-1].gather_ns + moved_gather)
    return (*_first_gathers(times, 0), *_overlap_phases(rows), _last_reductions(times))


def _first_gathers(times: StackTimes, first_ns: int) -> tuple[Phase, ...]:
    """Return the gathers that have no compute to hide them; the root's backward hides the first unit's."""
    if times.root is None:
        return (Phase(link_ns=first_ns),)
    return (Phase(link_ns=times.root.gather_ns), _backward_phase(times.root, first_ns, 1))


def _last_reductions(times: StackTimes) -> Phase:
    """Return the fully exposed reductions: of the unit whose backward is last, and of the root."""
    root = 0 if times.root is None else times.root.reduce_ns
    return Phase(link_ns=root + (times.units[0].reduce_ns if times.units else 0))


def _backward_rows(units: Sequence[UnitTimes]) -> list[_BackwardRow]:
    """Return rows in the order of the backward; the middle units of a run share one row."""
    rows, previous_reduce = [], 0
    for unit, following in pair_with_next(tuple(reversed(units))):
        own_gather, next_gather = unit.gather_ns, 0 if following is None else following.gather_ns
        if unit.count > 1:
            rows.append(_BackwardRow(unit=unit, count=1, reduce_ns=previous_reduce, gather_ns=own_gather))
            previous_reduce = unit.reduce_ns
        if unit.count > 2:
            rows.append(
                _BackwardRow(unit=unit, count=unit.count - 2, reduce_ns=previous_reduce, gather_ns=own_gather)
            )
        rows.append(_BackwardRow(unit=unit, count=1, reduce_ns=previous_reduce, gather_ns=next_gather))
        previous_reduce = unit.reduce_ns
    return rows


def _overlap_phases(rows: Sequence[_BackwardRow]) -> tuple[Phase, ...]:
    return tuple(_backward_phase(row.unit, row.reduce_ns + row.gather_ns, row.count) for row in rows)


def _backward_phase(unit: UnitTimes, link_ns: int, count: int) -> Phase:
    return Phase(
        count=count,
        compute_ns=unit.backward_ns,
        model_ns=unit.model_backward_ns,
        link_ns=link_ns,
        copy_ns=unit.copy_ns,
    )
