"""The forward of one micro-batch: c_u compute and AG_u all-gather of unit u, in the order of the forward.

    no gathers           sum c
    stage 3              AG_1 + sum_{u<U} max(c_u, AG_{u+1}) + c_U
    stages 1 and 2       sum c + max_u (sum_{v<=u} AG_v - sum_{v<u} c_v): the first forward after an update

A root that encloses the others is gathered first, and computes (its head) last.  The first one is the
schedule of FSDP (arXiv 2304.11277, section 3.3) with one unit prefetched, the last that of an engine which
gathers updated parameters beside the next forward.
"""

from zprof.planner.step.phases import Phase
from zprof.planner.step.times import StackTimes, UnitTimes, with_next


def plain_forward(times: StackTimes) -> tuple[Phase, ...]:
    """Every parameter is there."""
    return tuple(_phase(unit, 0, unit.count) for unit in times.computed)


def gathered_forward(times: StackTimes) -> tuple[Phase, ...]:
    """Stage 3: each unit is gathered beside the compute of the one before it.

    Deeper prefetch than of one unit is as one: with units alike it hides no more.
    """
    root = 0 if times.root is None else times.root.gather_ns
    phases = [Phase(link_ns=root + (times.units[0].gather_ns if times.units else 0))]
    for unit, following in with_next(times.units):
        if unit.count > 1:
            phases.append(_phase(unit, unit.gather_ns, unit.count - 1))
        phases.append(_phase(unit, 0 if following is None else following.gather_ns, 1))
    if times.root is not None:
        phases.append(_phase(times.root, 0, 1))
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


def _phase(unit: UnitTimes, link_ns: int, count: int) -> Phase:
    return Phase(
        count=count,
        compute_ns=unit.forward_ns,
        model_ns=unit.model_forward_ns,
        link_ns=link_ns,
        copy_ns=unit.copy_ns,
    )
