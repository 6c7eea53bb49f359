"""The tables ``block`` and ``segment`` of one device as numpy columns, checked and put in order.

A block is live in [begin, freed), waits for a stream in [freed, released), and can be used again after that.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from zprof.analysis.memory.rank.lives import FOREVER, Bool, Int
from zprof.model.errors import BadInput

#: No device has more; a larger size in a table is damage, and sums of such could not be held.
_MOST_BYTES = 1 << 46
_COMMON_POOL = "0,0"


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldBlocks:
    """Lives of blocks.  ``stack`` is -1 where no frame was kept; ``tag`` indexes ``tags``, -1 for none.

    ``understated_bytes``: requests above the size that the table gives to their blocks.
    """

    address: Int
    requested_bytes: Int
    block_bytes: Int
    begin_ns: Int
    freed_ns: Int
    released_ns: Int
    before: Bool
    stack: Int
    tag: Int
    tags: tuple[str, ...]
    understated_bytes: int

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretches:
    """Memory that the allocator held.  ``kin`` is equal where two neighbours can be one segment."""

    address: Int
    bytes: Int
    begin_ns: Int
    end_ns: Int
    private: Bool
    expandable: Bool
    kin: Int

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """One device's history; ``begin_ns`` is from when it is true."""

    device: str
    blocks: HeldBlocks
    stretches: Stretches
    begin_ns: int
    end_ns: int


def history_of(block: pd.DataFrame, segment: pd.DataFrame, device: str) -> History | None:
    """The history of one device, or None where there is none.

    Raises:
        BadInput: a size or a time in it is impossible.
    """
    block, segment = (frame[frame["device"].astype(str) == device] for frame in (block, segment))
    if block.empty and segment.empty:
        return None
    blocks, stretches = _blocks(block), _stretches(segment)
    times = np.concatenate(
        [
            *(column[column != FOREVER] for column in (blocks.begin_ns, blocks.freed_ns, blocks.released_ns)),
            *(column[column != FOREVER] for column in (stretches.begin_ns, stretches.end_ns)),
        ]
    )
    return History(
        device=device,
        blocks=blocks,
        stretches=stretches,
        begin_ns=int(times.min()),
        end_ns=int(times.max()),
    )


def devices_in(block: pd.DataFrame) -> list[str]:
    """Devices of a history, the one with the most bytes asked for first."""
    totals = block.groupby(block["device"].astype(str))["requested_bytes"].sum()
    return sorted(totals.index, key=lambda device: (-int(totals[device]), device))


def _blocks(frame: pd.DataFrame) -> HeldBlocks:
    frame = frame.sort_values("allocated_ns", kind="stable")
    requested, block = _sizes(frame["requested_bytes"]), _sizes(frame["block_bytes"])
    begin, freed = _ints(frame["allocated_ns"]), _ints(frame["freed_ns"], FOREVER)
    released = _ints(frame["released_ns"], FOREVER)
    freed = np.where(freed == FOREVER, released, freed)
    freed = np.maximum(freed, begin)
    tag, tags = codes_of(frame["tag"])
    return HeldBlocks(
        address=_ints(frame["address"]),
        requested_bytes=requested,
        block_bytes=np.maximum(block, requested),
        begin_ns=begin,
        freed_ns=freed,
        released_ns=np.maximum(released, freed),
        before=frame["before_history"].to_numpy(dtype=bool),
        stack=_ints(frame["stack"], -1),
        tag=tag,
        tags=tags,
        understated_bytes=int(np.maximum(requested - block, 0).sum()),
    )


def _stretches(frame: pd.DataFrame) -> Stretches:
    begin = _ints(frame["mapped_ns"])
    pool, pools = codes_of(frame["pool"])
    common = np.array([_is_common(name) for name in pools] + [True], dtype=bool)
    stream = _ints(frame["stream"], -1)
    _, kin = np.unique(np.stack([pool, stream], axis=1), axis=0, return_inverse=True)
    return Stretches(
        address=_ints(frame["address"]),
        bytes=_sizes(frame["bytes"]),
        begin_ns=begin,
        end_ns=np.maximum(_ints(frame["unmapped_ns"], FOREVER), begin),
        private=~common[pool],
        expandable=frame["expandable"].to_numpy(dtype=bool),
        kin=kin.reshape(-1).astype(np.int64),
    )


def codes_of(column: "pd.Series[Any]") -> tuple[Int, tuple[str, ...]]:
    """(code of each row, texts by code); -1 where there is no text."""
    if not isinstance(column.dtype, pd.CategoricalDtype):
        column = column.astype("category")
    codes = np.asarray(column.cat.codes.to_numpy(), dtype=np.int64)
    return codes, tuple(str(text) for text in column.cat.categories)


def _is_common(pool: str) -> bool:
    return "".join(pool.split()).strip("()[]") in ("", _COMMON_POOL)


def _sizes(column: "pd.Series[Any]") -> Int:
    sizes = _ints(column)
    if len(sizes) and not (int(sizes.min()) >= 0 and int(sizes.max()) <= _MOST_BYTES):
        raise BadInput("memory history: a block or segment has an impossible size", hint="record it again")
    return sizes


def _ints(column: "pd.Series[Any]", absent: int | None = None) -> Int:
    filled = column if absent is None else column.astype("Int64").fillna(absent)
    return np.asarray(filled.astype("int64").to_numpy(), dtype=np.int64)
