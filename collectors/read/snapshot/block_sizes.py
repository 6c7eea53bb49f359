"""Find the size of each block within its segment: what torch's allocator made of each request.

The allocator (``CUDACachingAllocator.cpp``) rounds a request up, takes the front of a free block, and splits
off the remainder if it is large enough: 512 bytes in the small pool (up to 1 MiB) and with expandable
segments, more than 1 MiB in the large pool, never from ``max_split_size`` on. Free neighbors are always
merged, so the free block at an address extends to the next block in use, or to the end of the segment:

    block = rounded             if free - rounded > 1 MiB and rounded < max_split_size
          = free                else (large pool; the remainder stays part of the block)

Requests are rounded to multiples of 512 bytes, or, with ``roundup_power2_divisions``, to one of that many
sizes between powers of two.

This is exact except for large blocks allocated before the history with more than 1 MiB free after them: their
size is a lower bound.

Values are from ``AllocatorConfig.h`` (torch 2.8 to 2.13). Snapshots of older versions have no settings, and
options of newer ones appear only in the text of the environment variable.
"""

import re
from bisect import bisect_right, insort
from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from zprof.collectors.read.snapshot.columns import Integers
from zprof.collectors.read.snapshot.segments import NO_ENTRY, SegmentSpan

UNIT_BYTES = 512
SMALL_BYTES = 1 << 20
_NO_LIMIT = 1 << 62
SMALL_SEGMENT_BYTES = 2 << 20
_LARGE_SEGMENT_BYTES = 20 << 20
#: Requests of at least this size get their own segment, a multiple of 2 MiB.
_MIN_OWN_SEGMENT_BYTES = 10 << 20
#: Kinds of events, in their order at one entry. Blocks from before the first entry are measured once all of
#: them are in place (_OCCUPY, _MEASURE), a new block when it is allocated.
_UNMAP, _RELEASE, _MAP, _OCCUPY, _MEASURE, _ALLOCATE = range(6)
#: ``roundup_power2_divisions`` has one value per power of two from 1 MiB on; the last one is for all above.
_ROUNDUP_KEYS = tuple(str(1 << exponent) for exponent in range(16))
_MAX_DIVISIONS = 1 << 40
_CONF_TEXT = "PYTORCH_CUDA_ALLOC_CONF"
_MAX_CONF_CHARS = 4096
_LARGE_SEGMENT = re.compile(r"large_segment_size_mb\s*:\s*(\d{1,7})")
_MEBIBYTE = 1 << 20


class AllocatorSettings(Struct, frozen=True, kw_only=True):
    """Settings of the allocator; None if the default applies, or the snapshot does not state it.

    ``max_split_bytes``: requests of at least this size take whole segments. ``roundup_divisions``: the number
    of block sizes within each power of two, from 1 MiB on. ``large_segment_bytes``: size of the segments for
    requests of 1 to 10 MiB.
    """

    expandable_segments: bool | None = None
    max_split_bytes: int | None = None
    roundup_divisions: tuple[int, ...] = ()
    large_segment_bytes: int | None = None


def measure_blocks(
    address: Integers,
    requested: Integers,
    allocated: Integers,
    released: Integers,
    segment_spans: Sequence[SegmentSpan],
    settings: AllocatorSettings,
) -> Integers:
    """Return the size of each block.

    ``allocated`` and ``released`` are entries; ``NO_ENTRY`` means before the first entry, or not yet
    released.
    """
    sizes = round_requests(requested, settings)
    if settings.expandable_segments:
        return sizes
    large = np.flatnonzero(sizes > SMALL_BYTES)
    kinds, indices = _order_events(large, allocated, released, segment_spans)
    starts = address.tolist()
    used: list[int] = []
    segment_starts: list[int] = []
    segment_ends: dict[int, int] = {}
    rounded = sizes.tolist()
    max_split = settings.max_split_bytes or _NO_LIMIT
    for kind, index in zip(kinds, indices, strict=True):
        # a single flat loop, because two thirds of the events of a long history pass through it
        if kind == _RELEASE:
            _remove_sorted(used, starts[index])
        elif kind == _MAP:
            span = segment_spans[index]
            insort(segment_starts, span.address)
            segment_ends[span.address] = span.address + span.size
        elif kind == _UNMAP:
            _remove_sorted(segment_starts, segment_spans[index].address)
        else:
            start = starts[index]
            if kind != _MEASURE:
                insort(used, start)
            if kind == _OCCUPY:
                continue
            at = bisect_right(segment_starts, start) - 1
            end = segment_ends[segment_starts[at]] if at >= 0 else 0
            next_index = bisect_right(used, start)
            if next_index < len(used) and used[next_index] < end:
                end = used[next_index]
            remainder = end - start - rounded[index]
            if 0 < remainder <= (SMALL_BYTES if rounded[index] < max_split else _NO_LIMIT):
                sizes[index] += remainder
    return sizes


def round_requests(requested: Integers, settings: AllocatorSettings) -> Integers:
    """Round requests up to the block sizes of the allocator."""
    units = np.maximum((requested + UNIT_BYTES - 1) // UNIT_BYTES * UNIT_BYTES, UNIT_BYTES)
    if not settings.roundup_divisions:
        return units
    divisions = np.array(settings.roundup_divisions, dtype=np.int64)
    exponent = _floor_log2(np.maximum(requested, 1))
    of_request = divisions[np.clip(exponent - 20, 0, len(divisions) - 1)]
    power = np.left_shift(np.int64(1), exponent)
    step = np.right_shift(power, _floor_log2(np.maximum(of_request, 1)))
    stepped = np.where(step > 0, -(-requested // np.maximum(step, 1)) * step, power * 2)
    divided = np.where(requested == power, requested, stepped)
    is_divided = (of_request > 1) & (requested >= UNIT_BYTES) & (requested > UNIT_BYTES * of_request)
    return np.where(is_divided, divided, units)


def compute_driver_bytes(rounded: Integers, settings: AllocatorSettings) -> Integers:
    """Return what the allocator asks the driver for if no free block is large enough: whole segments.

    Expandable segments grow in pages of the same sizes, at their end, where some bytes may be free already:
    for them this is an upper bound.
    """
    large_bytes = settings.large_segment_bytes or _LARGE_SEGMENT_BYTES
    by_pages = -(-rounded // SMALL_SEGMENT_BYTES) * SMALL_SEGMENT_BYTES
    if settings.expandable_segments:
        by_pages = -(-rounded // large_bytes) * large_bytes
    whole = np.where(rounded < _MIN_OWN_SEGMENT_BYTES, np.maximum(large_bytes, by_pages), by_pages)
    return np.where(rounded <= SMALL_BYTES, SMALL_SEGMENT_BYTES, whole)


def _floor_log2(values: Integers) -> Integers:
    """Return the exponent of the largest power of two in each value; exact, unlike a logarithm of floats."""
    powers = np.left_shift(np.int64(1), np.arange(63, dtype=np.int64))
    return np.searchsorted(powers, values, side="right").astype(np.int64) - 1


def _order_events(
    large: Integers, allocated: Integers, released: Integers, segment_spans: Sequence[SegmentSpan]
) -> tuple[list[int], list[int]]:
    """Return the kind, and the block or segment span, of each event in the order of the entries."""
    fixed = np.array([n for n, span in enumerate(segment_spans) if not span.expandable], dtype=np.int64)
    begin = np.array([segment_spans[number].begin for number in fixed.tolist()], dtype=np.int64)
    end = np.array([segment_spans[number].end for number in fixed.tolist()], dtype=np.int64)
    is_unmapped, is_freed = end != NO_ENTRY, released[large] >= 0
    preexisting, newly_allocated = large[allocated[large] == NO_ENTRY], large[allocated[large] != NO_ENTRY]
    parts = [
        (_MAP, fixed, begin),
        (_UNMAP, fixed[is_unmapped], end[is_unmapped]),
        (_OCCUPY, preexisting, allocated[preexisting]),
        (_MEASURE, preexisting, allocated[preexisting]),
        (_ALLOCATE, newly_allocated, allocated[newly_allocated]),
        (_RELEASE, large[is_freed], released[large][is_freed]),
    ]
    kinds = np.concatenate([np.full(len(index), kind, dtype=np.int64) for kind, index, _ in parts])
    index = np.concatenate([each for _, each, _ in parts])
    entry = np.concatenate([each for _, _, each in parts])
    order = np.argsort(entry * (_ALLOCATE + 1) + kinds, kind="stable")
    return kinds[order].tolist(), index[order].tolist()


def _remove_sorted(values: list[int], value: int) -> None:
    at = bisect_right(values, value) - 1
    if at >= 0 and values[at] == value:
        del values[at]


def read_settings(value: object) -> AllocatorSettings:
    """Return the settings; missing or unknown values, and those of another type, count as not stated."""
    if not isinstance(value, Mapping):
        return AllocatorSettings()
    expandable, max_split = value.get("expandable_segments"), value.get("max_split_size")
    conf = value.get(_CONF_TEXT)
    large = _LARGE_SEGMENT.search(conf[:_MAX_CONF_CHARS]) if type(conf) is str else None
    return AllocatorSettings(
        expandable_segments=expandable if type(expandable) is bool else None,
        # torch writes the largest integer, which is -1 here, if nothing is set
        max_split_bytes=max_split if type(max_split) is int and 0 < max_split < 1 << 62 else None,
        roundup_divisions=_read_divisions(value.get("roundup_power2_divisions")),
        large_segment_bytes=int(large[1]) * _MEBIBYTE if large and int(large[1]) else None,
    )


def _read_divisions(value: object) -> tuple[int, ...]:
    if not isinstance(value, Mapping):
        return ()
    found: Sequence[object] = [value.get(key, 0) for key in _ROUNDUP_KEYS]
    divisions = tuple(each for each in found if type(each) is int and 0 <= each < _MAX_DIVISIONS)
    return divisions if len(divisions) == len(_ROUNDUP_KEYS) and max(divisions) > 1 else ()
