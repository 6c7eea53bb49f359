"""Collectives that copy engines carry out: copies between devices, launched as part of a collective.

One that has a kernel too is that kernel's.  Of one rank alone NCCL makes a copy within the device.
"""

from collections import defaultdict

import numpy as np

from zprof.collectors.kineto.collectives.finding import rows_of
from zprof.collectors.kineto.columns import Int64s, Trace
from zprof.collectors.kineto.device.kernels import Found, describe
from zprof.collectors.kineto.device.links import Host, Links
from zprof.collectors.kineto.device.metadata import Described

BY_COPIES = "copies"
_BETWEEN = ("PtoP", "PeerToPeer")
_WITHIN = ("DtoD", "DeviceToDevice", *_BETWEEN)


def copy_rows(trace: Trace) -> Int64s:
    """Copies between and within devices, by start."""
    return rows_of(trace, ("gpu_memcpy",), lambda name: any(word in name for word in _WITHIN))


def find_copies(trace: Trace, host: Host, kernels: Links) -> list[Found]:
    """The collectives that consist of copies, each with all of its copies."""
    links = host.links(copy_rows(trace))
    taken = set(_owners(kernels).tolist()) - {-1}
    copies: dict[int, list[int]] = defaultdict(list)
    for index, owner in enumerate(_owners(links).tolist()):
        if owner >= 0 and owner not in taken:
            copies[owner].append(index)
    found = (_found(trace, links, indices) for indices in copies.values())
    return [collective for collective in found if collective is not None]


def _owners(links: Links) -> Int64s:
    """The host's row that a copy or kernel is part of."""
    return np.where(
        links.record >= 0, links.record, np.where(links.operator >= 0, links.operator, links.annotation)
    )


def _found(trace: Trace, links: Links, indices: list[int]) -> Found | None:
    description, _ = describe(trace, links, indices[0])
    rows = tuple(int(links.rows[index]) for index in indices)
    if description is None or not _are_its_own(trace, rows, description):
        return None
    moved = sum(max(0, int(trace.bytes[row])) for row in rows)
    if description.elements is None or description.element_bytes is None:
        description = description.completed(Described(elements=moved, element_bytes=1))
    calls = tuple(int(links.call[index]) for index in indices if links.call[index] >= 0)
    return Found(rows=rows, calls=calls, described=description, rung=BY_COPIES)


def _are_its_own(trace: Trace, rows: tuple[int, ...], description: Described) -> bool:
    """Copies within a device only move results about, unless the group is this rank alone."""
    if description.group_size == 1 or len(description.ranks) == 1:
        return True
    return any(word in trace.name[row] for row in rows for word in _BETWEEN)
