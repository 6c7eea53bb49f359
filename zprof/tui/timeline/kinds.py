"""Which events of a rank a timeline shows, and what each is: by the roles that the ledger is made of."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from zprof.analysis.time.activity.device import has_device_work
from zprof.analysis.time.activity.roles import CALLS, WORK, busiest, device_roles, host_roles
from zprof.analysis.time.activity.view import NO_STREAM, EventView, Mask
from zprof.analysis.time.passes.evidence import program_thread
from zprof.run.ranges import RangeVerb, parse_range
from zprof.tui.timeline.items import Kind

#: Functions of Python and the profiler's own overhead are left out.
_HOST = frozenset({"cpu_op", "user_annotation"}) | CALLS
_DEVICE = WORK | {"gpu_user_annotation"}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sorted:
    """Rows of the view: what each is, and on which lane.  ``main``: the thread of the program."""

    view: EventView
    kind: npt.NDArray[np.int8]
    on_stream: Mask
    main: int
    on_device: bool


def sort_events(events: pa.Table, collectives: pa.Table) -> Sorted:
    """Sort a rank's table of events; ``collectives`` is its table of collectives."""
    view = EventView(events, _HOST | _DEVICE)
    kind = np.full(len(view.spans), Kind.RANGE, dtype=np.int8)
    operators = view.category_is("cpu_op")
    kind[operators | view.category_is(*CALLS)] = Kind.HOST
    on_device = has_device_work(events)
    if on_device:
        _device_kinds(view, collectives, kind)
    else:
        _host_kinds(view, kind)
    return Sorted(
        view=view,
        kind=kind,
        on_stream=(view.stream != NO_STREAM) & view.category_is(*_DEVICE),
        main=program_thread(view) if on_device else busiest(view.thread[operators]),
        on_device=on_device,
    )


def _device_kinds(view: EventView, collectives: pa.Table, kind: npt.NDArray[np.int8]) -> None:
    roles = device_roles(view, collectives)
    kind[roles.compute] = Kind.COMPUTE
    kind[roles.copies] = Kind.COPY
    kind[roles.nameless] = Kind.NAMELESS
    kind[roles.described] = Kind.COLLECTIVE


def _host_kinds(view: EventView, kind: npt.NDArray[np.int8]) -> None:
    roles = host_roles(view)
    elsewhere = view.category_is("user_annotation") & ~roles.main
    kind[roles.compute] = Kind.COMPUTE
    kind[roles.copies] = Kind.COPY
    kind[roles.named | roles.anonymous] = Kind.WAIT
    kind[view.name_is(elsewhere, _is_communication)] = Kind.COLLECTIVE


def _is_communication(name: str) -> bool:
    """Whether a thread of a communication library carries a collective out in this range."""
    found = parse_range(name)
    return name.startswith(("gloo:", "nccl:", "mpi:", "ucc:")) or (
        found is not None and found.verb is RangeVerb.COMM
    )
