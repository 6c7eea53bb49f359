"""Which kernels of a trace are collectives, and how each is described."""

from dataclasses import dataclass

import numpy as np

from zprof.collectors.kineto.collectives.element_types import reduced_type
from zprof.collectors.kineto.collectives.finding import rows_of
from zprof.collectors.kineto.collectives.names import kind_of
from zprof.collectors.kineto.columns import Int64s, Trace
from zprof.collectors.kineto.device.links import Links
from zprof.collectors.kineto.device.metadata import Described, described, first_of
from zprof.collectors.kineto.device.operators import described_by
from zprof.model.collectives import CollectiveKind
from zprof.model.kernels import collective_of, is_collective_kernel

#: Rungs of the description; "_order" where only the order of launch numbers the collectives.
BY_METADATA, BY_OPERATOR, BY_NAME = "nccl", "operator", "kernel_name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A collective on the device: its rows of the trace by start, what is known of it, and by which rung."""

    rows: tuple[int, ...]
    calls: tuple[int, ...]
    described: Described
    rung: str


def kernel_rows(trace: Trace) -> Int64s:
    """Kernels that are collectives by their name or by their metadata, by start."""
    named = rows_of(trace, ("kernel",), is_collective_kernel)
    stated = [
        row
        for row, arguments in trace.arguments.items()
        if arguments.collective is not None
        and trace.category[row] == "kernel"
        and kind_of(arguments.collective) is not None
    ]
    found = np.union1d(named, np.array(stated, dtype=np.int64))
    return found[np.argsort(trace.start_ns[found], kind="stable")]


def find_kernels(trace: Trace, links: Links) -> list[Found]:
    """The collective of each kernel."""
    return [_found(trace, links, index, int(row)) for index, row in enumerate(links.rows.tolist())]


def describe(trace: Trace, links: Links, index: int) -> tuple[Described | None, str]:
    """What metadata says, else what the operators around the launch say."""
    stated = first_of(_stated(trace, row) for row in (int(links.rows[index]), int(links.record[index])))
    around = first_of(_around(trace, int(row[index])) for row in (links.operator, links.annotation))
    if stated is not None:
        return stated if around is None else stated.completed(around), BY_METADATA
    record = int(links.record[index])
    if around is not None and record >= 0:  # of an old torch: it has the shape of the input
        around = around.completed(described_by("nccl:", trace.arguments.get(record)))
    return around, BY_OPERATOR


def _found(trace: Trace, links: Links, index: int, row: int) -> Found:
    description, rung = describe(trace, links, index)
    if description is None:
        known = collective_of(trace.name[row])
        kind = known.kind if known is not None else None
        description, rung = Described(kind=kind or CollectiveKind.OTHER), BY_NAME
    if description.dtype is None:
        dtype, element_bytes = reduced_type(trace.name[row]) or (None, None)
        description = description.completed(Described(dtype=dtype, element_bytes=element_bytes))
    call = int(links.call[index])
    return Found(rows=(row,), calls=(call,) if call >= 0 else (), described=description, rung=rung)


def _stated(trace: Trace, row: int) -> Described | None:
    arguments = trace.arguments.get(row) if row >= 0 else None
    return described(arguments) if arguments is not None else None


def _around(trace: Trace, row: int) -> Described | None:
    return described_by(trace.name[row], trace.arguments.get(row)) if row >= 0 else None
