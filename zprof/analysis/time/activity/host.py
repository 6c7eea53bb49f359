"""Sorts the events of a rank that computes on its CPU, by what :mod:`roles` says of them."""

import pyarrow as pa

from zprof.analysis.intervals import EMPTY, subtract, union
from zprof.analysis.time.activity.events import Activity
from zprof.analysis.time.activity.named import named_work, outermost
from zprof.analysis.time.activity.roles import host_roles
from zprof.analysis.time.activity.view import EventView, coverage_of

_CATEGORIES = ("cpu_op", "user_annotation")


def host_activity(events: pa.Table) -> Activity:
    """Sort the rows of an ``events`` table."""
    view = EventView(events, _CATEGORIES)
    roles = host_roles(view)
    named, anonymous = view.spans[roles.named], view.spans[roles.anonymous]
    waits = union(named, anonymous)
    copies = union(view.spans[roles.copies])
    return Activity(
        on_device=False,
        compute=subtract(view.spans[roles.compute], union(waits, copies)),
        waits=waits,
        anonymous_waits=subtract(anonymous, named),
        copies=subtract(copies, waits),
        coverage=coverage_of(events),
        launched=EMPTY,
        named=named_work(
            view, outermost(view, roles.compute), view.spans[:, 0], roles.ranges, roles.main & ~roles.main
        ),
    )
