"""What each event of a rank does: it computes, communicates, copies, or waits.

On a device compute is every kernel that is no collective; copies and fills are neither compute nor
communication.  An event without length is no work: the profiler writes such where it lost the times of a
kernel.  On a CPU the main thread (the one with most operators) computes while it runs an operator such as
``aten::mm``, or a ``::compute`` range.  Wrappers are no compute: ``autograd::…`` encloses hooks and the
waits in them, ``c10d::…`` is the launch of a collective.
"""

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd
import pyarrow as pa

from zprof.analysis.intervals import Int64s
from zprof.analysis.time.activity.view import EventView, Mask
from zprof.model.kernels import is_collective_kernel
from zprof.run.ranges import RangeVerb, parse_range

#: Categories of the host's calls into a device's driver, and of what a device runs.
CALLS = frozenset({"cuda_runtime", "cuda_driver"})
COPIES = frozenset({"gpu_memcpy", "gpu_memset"})
WORK = frozenset({"kernel"}) | COPIES
_OPERATOR = re.compile(r"(?!_?c10d|autograd::|torch::|profiler::|record_function)\w+::\w", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceRoles:
    """Of the rows of a view: all ``work`` of a device, and what it is.

    ``described``: work that a row of the table of collectives stands for.  ``nameless``: communication
    kernels that none stands for.
    """

    work: Mask
    compute: Mask
    copies: Mask
    described: Mask
    nameless: Mask


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRoles:
    """Of the rows of a view: those of the ``main`` thread, and what they are.

    ``ranges`` are its annotations; waits are ``named`` where they say for what, else ``anonymous``.
    """

    main: Mask
    ranges: Mask
    compute: Mask
    copies: Mask
    named: Mask
    anonymous: Mask


def device_roles(view: EventView, collectives: pa.Table) -> DeviceRoles:
    """Of the work of a device.

    Args:
        view: The events, those of ``WORK`` among them.
        collectives: start_ns, end_ns and stream of the collectives of this rank.  Those that a device ran
            are known among the events by these three.
    """
    work = view.category_is(*WORK) & (view.spans[:, 1] > view.spans[:, 0])
    kernels = work & view.category_is("kernel")
    described = _described(view, work, collectives)
    communicates = view.name_is(kernels, is_collective_kernel)
    return DeviceRoles(
        work=work,
        compute=kernels & ~communicates & ~described,
        copies=work & view.category_is(*COPIES) & ~described,
        described=described,
        nameless=communicates & ~described,
    )


def host_roles(view: EventView) -> HostRoles:
    """Of the main thread of a rank that computes on its CPU; the view has operators and annotations."""
    operators = view.category_is("cpu_op")
    main = view.thread == busiest(view.thread[operators])
    ranges = main & view.category_is("user_annotation")
    return HostRoles(
        main=main,
        ranges=ranges,
        compute=view.name_is(operators & main, _is_operator) | view.name_is(ranges, _is_compute),
        copies=view.name_is(ranges, _is_copy),
        named=view.name_is(ranges, _is_named_wait),
        anonymous=view.name_is(ranges, _is_anonymous_wait),
    )


def busiest(threads: Int64s) -> int:
    """The number that stands there most often; -1 for none."""
    if not len(threads):
        return -1
    numbers, counts = np.unique(threads, return_counts=True)
    return int(numbers[np.argmax(counts)])


def _described(view: EventView, work: Mask, collectives: pa.Table) -> Mask:
    """Rows of ``work`` that are a collective: same start, end and stream."""
    rows = _on_streams(collectives)
    likely = np.flatnonzero(work & np.isin(view.spans[:, 0], rows["start_ns"]))
    mine = pd.MultiIndex.from_arrays([view.spans[likely, 0], view.spans[likely, 1], view.stream[likely]])
    found = np.zeros(len(work), dtype=np.bool_)
    if len(likely):
        found[likely] = mine.isin(pd.MultiIndex.from_frame(rows))
    return found


def _on_streams(collectives: pa.Table) -> pd.DataFrame:
    frame: pd.DataFrame = collectives.select(["start_ns", "end_ns", "stream"]).drop_null().to_pandas()
    return frame


def _is_operator(name: str) -> bool:
    return _OPERATOR.match(name) is not None


def _is_compute(name: str) -> bool:
    found = parse_range(name)
    return found is not None and found.verb is RangeVerb.COMPUTE


def _is_copy(name: str) -> bool:
    found = parse_range(name)
    return found is not None and found.verb is RangeVerb.COPY


def _is_named_wait(name: str) -> bool:
    found = parse_range(name)
    return found is not None and found.verb is RangeVerb.WAIT and found.kind is not None


def _is_anonymous_wait(name: str) -> bool:
    found = parse_range(name)
    return found is not None and found.verb is RangeVerb.WAIT and found.kind is None
