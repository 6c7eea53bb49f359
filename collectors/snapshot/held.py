"""What a snapshot says that the allocator held when it was taken: its segments and their blocks."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from zprof.collectors.snapshot.fields import (
    Budget,
    Flags,
    Integers,
    Row,
    check_sum,
    column,
    damaged,
    integers,
    rows_of,
    sizes,
    words,
)

ALLOCATED = "active_allocated"
#: torch's documentation and its C++ writer spell this differently.
AWAITING_FREE = frozenset({"active_pending_free", "active_awaiting_free"})
_STATES = AWAITING_FREE | {ALLOCATED, "inactive"}


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBlocks:
    """The blocks that were in use: ``awaiting`` those that the program gave back already."""

    rows: Sequence[Row]
    address: Integers
    size: Integers
    requested: Integers
    segment: Integers
    awaiting: Flags


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Segments of one device, sorted by address, and their blocks that were in use."""

    address: Integers
    size: Integers
    stream: Integers
    pool: Sequence[str | None]
    expandable: Flags
    blocks: HeldBlocks


def held_of(segments: Sequence[Row], where: str, budget: Budget) -> Held:
    """The segments of one device.

    Raises:
        BadInput: a segment or block is not as torch writes it, or two segments overlap.
    """
    segments = sorted(segments, key=lambda row: int(integers([row], "address", where)[0]))
    address = sizes(segments, "address", where)
    size = sizes(segments, "total_size", where)
    check_sum(size, where)
    if (address[1:] < address[:-1] + size[:-1]).any():
        raise damaged(f"{where} overlap")
    return Held(
        address=address,
        size=size,
        stream=integers(segments, "stream", where, default=0),
        pool=pools(segments, "segment_pool_id", where),
        expandable=np.array([bool(row.get("is_expandable", False)) for row in segments], dtype=np.bool_),
        blocks=_blocks(segments, address, where, budget),
    )


def pools(rows: Sequence[Row], key: str, where: str) -> list[str | None]:
    """A column of pool ids, pairs of integers, as "a,b"; None where a row has none."""
    texts: dict[Any, str | None] = {}
    return [_pool(value, texts, where) for value in column(rows, key)]


def _pool(value: object, texts: dict[Any, str | None], where: str) -> str | None:
    if value is None:
        return None
    pair = tuple(value) if type(value) is list else value
    if type(pair) is not tuple or len(pair) != 2 or {type(pair[0]), type(pair[1])} != {int}:
        raise damaged(f"{where}: a pool id is not a pair of integers")
    if pair not in texts:
        if max(abs(pair[0]), abs(pair[1])) >> 64:
            raise damaged(f"{where}: a pool id does not fit into 64 bits")
        texts[pair] = f"{pair[0]},{pair[1]}"
    return texts[pair]


def _blocks(segments: Sequence[Row], starts: Integers, where: str, budget: Budget) -> HeldBlocks:
    lists = [rows_of(row.get("blocks", []), f"blocks of {where}", budget) for row in segments]
    where = f"blocks of {where}"
    rows = list(chain.from_iterable(lists))
    segment = np.repeat(np.arange(len(lists), dtype=np.int64), [len(each) for each in lists])
    size = sizes(rows, "size", where)
    check_sum(size, where)
    states = words(rows, "state", where)
    unknown = set(states) - _STATES
    if unknown:
        raise damaged(f"{where}: a state that torch does not have")
    address = _addresses(rows, size, segment, starts, where)
    used = np.array([state != "inactive" for state in states], dtype=np.bool_)
    awaiting = np.array([state in AWAITING_FREE for state in states], dtype=np.bool_)
    requested = integers(rows, "requested_size", where, default=-1)
    requested = np.where(requested < 0, size, requested)
    return HeldBlocks(
        rows=[row for row, kept in zip(rows, used, strict=True) if kept],
        address=address[used],
        size=size[used],
        requested=requested[used],
        segment=segment[used],
        awaiting=awaiting[used],
    )


def _addresses(
    rows: Sequence[Row], size: Integers, segment: Integers, starts: Integers, where: str
) -> Integers:
    """Where each block is: as it says, else (older torch) behind the one before it."""
    if all("address" in row for row in rows):
        return sizes(rows, "address", where)
    ends = np.cumsum(size)
    before = ends - size
    first = np.zeros(len(starts) + 1, dtype=np.int64)
    np.maximum.at(first, segment + 1, ends)
    return starts[segment] + before - np.maximum.accumulate(first)[segment]
