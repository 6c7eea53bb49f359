"""Which collectives run beside which compute: the phases of a step under each ZeRO stage.

    stage   gathers of all parameters                  reductions of all gradients
    0       none                                       all-reduce, last micro-batch
    1       once, beside the first forward             last micro-batch
    2       once, beside the first forward             every micro-batch
    3       in every forward and every backward        every micro-batch

Source: arXiv 1910.02054, section 7; with A micro-batches a sharded gradient cannot wait for the last one,
and a sharded parameter is there for one pass only.  So elements a step are 2, 2, A+1 and 3A times the
model's, as ``zprof.analysis.zero_formulas.compute_expected_volume`` has it.

Forward of one micro-batch, c_u compute and AG_u all-gather of unit u:

    no gathers           sum c
    stage 3              AG_1 + sum_{u<U} max(c_u, AG_{u+1}) + c_U
    stages 1 and 2       sum c + max_u (sum_{v<=u} AG_v - sum_{v<u} c_v): the first forward after an update

A root that encloses the others is gathered first, and computes (its head) last.  The first one is the
schedule of FSDP (arXiv 2304.11277, section 3.3) with one unit prefetched, the last that of an engine which
gathers updated parameters beside the next forward.

Backward of one micro-batch, b_u compute, AG_u all-gather, RS_u reduction of unit u; unit U is first:

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

A phase lasts as long as the longest of what runs in it; what is beyond compute is exposed.  All in whole
nanoseconds, so that the terms of a ledger sum to its wall time exactly.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from zprof.model.job import Overlap
from zprof.planner.step.unit_times import StackTimes, UnitTimes, pair_with_next


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """``count`` times after another: compute, and what runs beside it.

    ``model_ns``: collectives between pieces of the compute, which wait for each other: never hidden.
    ``link_ns``: collectives beside both.  ``hidden_ns``: further collectives, known to be hidden.
    ``copy_ns``: to or from the host, beside all of these.
    """

    count: int = 1
    compute_ns: int = 0
    model_ns: int = 0
    link_ns: int = 0
    hidden_ns: int = 0
    copy_ns: int = 0

    @property
    def wall_ns(self) -> int:
        """Of all ``count``."""
        return self.count * max(self.compute_ns + self.model_ns, self.link_ns, self.copy_ns)

    @property
    def collective_ns(self) -> int:
        """Hidden or not, of all ``count``."""
        return self.count * (self.link_ns + self.model_ns + self.hidden_ns)

    @property
    def exposed_transfer_ns(self) -> int:
        """Collectives with no compute beside them, of all ``count``."""
        return self.count * max(self.model_ns, self.link_ns - self.compute_ns)

    @property
    def exposed_memcpy_ns(self) -> int:
        """Copies with neither compute nor collectives beside them, of all ``count``."""
        return self.count * max(0, self.copy_ns - max(self.compute_ns + self.model_ns, self.link_ns))


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseTotal:
    """wall = compute + exposed_transfer + exposed_memcpy.  ``collective_ns``: hidden or not."""

    wall_ns: int
    compute_ns: int
    exposed_transfer_ns: int
    exposed_memcpy_ns: int
    collective_ns: int


def sum_phases(phases: Iterable[Phase]) -> PhaseTotal:
    """The sum of phases one after another."""
    listed = tuple(phases)
    return PhaseTotal(
        wall_ns=sum(phase.wall_ns for phase in listed),
        compute_ns=sum(phase.count * phase.compute_ns for phase in listed),
        exposed_transfer_ns=sum(phase.exposed_transfer_ns for phase in listed),
        exposed_memcpy_ns=sum(phase.exposed_memcpy_ns for phase in listed),
        collective_ns=sum(phase.collective_ns for phase in listed),
    )


def repeat_phases(phases: Sequence[Phase], times: int) -> tuple[Phase, ...]:
    """So many times after another."""
    return tuple(replace(phase, count=phase.count * times) for phase in phases) if times else ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Passes:
    """Phases of one micro-batch."""

    forward: tuple[Phase, ...]
    backward: tuple[Phase, ...]

    @property
    def all(self) -> tuple[Phase, ...]:
        """One after another."""
        return (*self.forward, *self.backward)


def step_phases(times: StackTimes, *, stage: int, micro_batches: int, overlap: Overlap) -> tuple[Phase, ...]:
    """All phases of a step."""
    if stage == 3:
        return repeat_phases(sharded_passes(times, overlap).all, micro_batches)
    plain = Passes(forward=plain_forward(times), backward=plain_backward(times))
    first = plain_forward(times) if stage == 0 else refreshed_forward(times)
    reduced = reduced_backward(times)
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


def sharded_passes(times: StackTimes, overlap: Overlap) -> Passes:
    """Stage 3: one micro-batch."""
    if overlap.prefetch == 0:
        return _exposed_passes(times, overlap)
    backward = kept_backward(times) if overlap.keep_last else gathered_backward(times)
    return Passes(forward=gathered_forward(times), backward=backward)


def _exposed_passes(times: StackTimes, overlap: Overlap) -> Passes:
    """Without prefetch a unit waits for its gather, and for the reduction that is on the link before it."""
    last = times.computed[-1] if not times.units else times.units[-1]
    kept = last.gather_ns if overlap.keep_last else 0
    gathered = sum(unit.count * unit.gather_ns for unit in times.computed)
    reduced = sum(unit.count * unit.reduce_ns for unit in times.computed)
    return Passes(
        forward=(Phase(link_ns=gathered), *plain_forward(times)),
        backward=(Phase(link_ns=gathered - kept + reduced), *plain_backward(times)),
    )


def plain_forward(times: StackTimes) -> tuple[Phase, ...]:
    """Every parameter is there."""
    return tuple(_forward_phase(unit, 0, unit.count) for unit in times.computed)


def gathered_forward(times: StackTimes) -> tuple[Phase, ...]:
    """Stage 3: each unit is gathered beside the compute of the one before it.

    Deeper prefetch than of one unit is as one: with units alike it hides no more.
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


def refreshed_forward(times: StackTimes) -> tuple[Phase, ...]:
    """Stages 1 and 2, first micro-batch: gathers are launched at once, in order; a unit waits for its own.

    Along units alike the wait changes evenly, so that the first and the last of them decide.
    """
    gathered = exposed = 0 if times.root is None else times.root.gather_ns
    computed = 0
    for unit in times.units:
        busy = unit.forward_ns + unit.model_forward_ns
        first = gathered + unit.gather_ns - computed
        exposed = max(exposed, first, first + (unit.count - 1) * (unit.gather_ns - busy))
        gathered += unit.count * unit.gather_ns
        computed += unit.count * busy
    return (Phase(link_ns=exposed, hidden_ns=gathered - exposed), *plain_forward(times))


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
    """Units alike, and what travels beside each: the reduction of the unit before, the gather of the next."""

    unit: UnitTimes
    count: int
    reduce_ns: int
    gather_ns: int


def plain_backward(times: StackTimes) -> tuple[Phase, ...]:
    """Every parameter is there, and nothing is reduced yet."""
    return tuple(_backward_phase(unit, 0, unit.count) for unit in reversed(times.computed))


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
    return (
        *_first_gathers(times, first),
        *_overlap_phases(_backward_rows(times.units)),
        _last_reductions(times),
    )


def kept_backward(times: StackTimes) -> tuple[Phase, ...]:
    """Stage 3, the last unit kept: the root only where it is alone.  Units alike are one run."""
    rows = _backward_rows(times.units)
    if not rows:
        return reduced_backward(times)
    if len(times.units) > 1:
        return (*_first_gathers(times, 0), *_overlap_phases(rows), _last_reductions(times))
    moved = rows[0].gather_ns
    rows[0] = replace(rows[0], gather_ns=0)
    rows[-1] = replace(rows[-1], gather_ns=rows[-1].gather_ns + moved)
    return (*_first_gathers(times, 0), *_overlap_phases(rows), _last_reductions(times))


def _first_gathers(times: StackTimes, first_ns: int) -> tuple[Phase, ...]:
    """What is gathered before there is compute to hide it; the root's backward hides the first unit's."""
    if times.root is None:
        return (Phase(link_ns=first_ns),)
    return (Phase(link_ns=times.root.gather_ns), _backward_phase(times.root, first_ns, 1))


def _last_reductions(times: StackTimes) -> Phase:
    """The reductions that nothing is left to hide: of the unit whose backward is last, and of the root."""
    root = 0 if times.root is None else times.root.reduce_ns
    return Phase(link_ns=root + (times.units[0].reduce_ns if times.units else 0))


def _backward_rows(units: Sequence[UnitTimes]) -> list[_BackwardRow]:
    """In the order of the backward; the middle of a run is one row."""
    rows, above = [], 0
    for unit, following in pair_with_next(tuple(reversed(units))):
        own, below = unit.gather_ns, 0 if following is None else following.gather_ns
        if unit.count > 1:
            rows.append(_BackwardRow(unit=unit, count=1, reduce_ns=above, gather_ns=own))
            above = unit.reduce_ns
        if unit.count > 2:
            rows.append(_BackwardRow(unit=unit, count=unit.count - 2, reduce_ns=above, gather_ns=own))
        rows.append(_BackwardRow(unit=unit, count=1, reduce_ns=above, gather_ns=below))
        above = unit.reduce_ns
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
