"""Build the rows of ``block`` and ``segment`` for one device of a snapshot."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from zprof.collectors.snapshot.blocks import (
    BEFORE_TRACE,
    NO_EVENT,
    BlockLives,
    BlockReplay,
    close_open_lives,
    join_held,
    measure_blocks,
)
from zprof.collectors.snapshot.columns import (
    Flags,
    Integers,
    Row,
    encode_texts,
    nullable_integers,
    read_column,
    read_texts,
)
from zprof.collectors.snapshot.segments import HeldSegments, SegmentSpan, find_segment_spans, read_pools
from zprof.collectors.snapshot.stacks import StackTable
from zprof.collectors.snapshot.trace import DeviceTrace


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceTables:
    """Tables of one device, the start of its history, and what the gaps are made of."""

    name: str
    begin_ns: int
    block: dict[str, Any]
    segment: dict[str, Any]
    lives: BlockLives
    trace: DeviceTrace
    held: HeldSegments
    odd_segments: int
    other_sizes: int


def build_device_tables(
    name: str, trace: DeviceTrace, held: HeldSegments, stacks: StackTable, fallback_ns: int
) -> DeviceTables:
    """Replay the trace and join it to what is held at the end.

    The history starts a nanosecond before its first entry: what that entry frees was there. ``fallback_ns``
    is the start of the history if the trace is empty.
    """
    begin_ns = int(trace.time_ns[0]) - 1 if len(trace.time_ns) else fallback_ns
    replay = BlockReplay(trace)
    replay.run()
    join_held(replay, trace, held.blocks)
    close_open_lives(replay.lives, trace)
    stretches, odd = find_segment_spans(trace, held)
    blocks = _BlockColumns(trace, held, replay.lives, begin_ns, stretches)
    return DeviceTables(
        name=name,
        begin_ns=begin_ns,
        block=blocks.columns(name, stacks),
        segment=_build_segment_columns(name, trace, held, stretches, begin_ns),
        lives=replay.lives,
        trace=trace,
        held=held,
        odd_segments=odd,
        other_sizes=blocks.other_sizes,
    )


class _BlockColumns:
    """Builds the columns of the table ``block``."""

    def __init__(
        self,
        trace: DeviceTrace,
        held: HeldSegments,
        lives: BlockLives,
        begin_ns: int,
        stretches: Sequence[SegmentSpan],
    ) -> None:
        self._trace, self._held, self._begin_ns, self._stretches = trace, held, begin_ns, stretches
        self._entry, self._requested, self._completed, self._at = lives.arrays()
        self._before: Flags = np.array(lives.before, dtype=np.bool_)
        #: Blocks in use at the end whose size in the segments differs from the rule of ``measure_blocks``.
        self.other_sizes = 0

    def columns(self, name: str, stacks: StackTable) -> dict[str, Any]:
        requested = self._either(self._trace.size, self._held.blocks.requested)
        held = self._at >= 0
        block = measure_blocks(self._address(), requested, self._born(), self._completed, self._stretches)
        stated = self._held.blocks.size[self._at[held]]
        self.other_sizes = int((block[held] != stated)[~self._before[held]].sum())
        block[held] = stated
        return {
            "device": encode_texts([name] * len(self._entry)),
            "address": self._address(),
            "requested_bytes": requested,
            "block_bytes": block,
            "allocated_ns": np.where(self._before, self._begin_ns, self._time(self._entry)),
            "freed_ns": nullable_integers(self._time(self._requested)),
            "released_ns": nullable_integers(self._time(self._completed)),
            "before_history": self._before,
            "stream": self._either(self._trace.stream, self._held.stream[self._held.blocks.segment]),
            "pool": encode_texts(self._pools()),
            "stack": nullable_integers(self._stacks(stacks, name)),
            "tag": encode_texts(self._texts("user_metadata")),
            "compile_context": encode_texts(self._texts("compile_context")),
        }

    def _address(self) -> Integers:
        return self._either(self._trace.address, self._held.blocks.address)

    def _either(self, traced: Integers, held: Integers) -> Integers:
        """Return a value per life: from its entry, or from its block at the end if it has no entry."""
        if not len(held):
            return traced[self._entry]
        if not len(traced):
            return held[self._at]
        return np.where(self._entry == NO_EVENT, held[self._at], traced[self._entry])

    def _time(self, entries: Integers) -> Integers:
        """Return the times of these entries, -1 for none."""
        if not len(self._trace.time_ns):
            return np.where(entries == BEFORE_TRACE, self._begin_ns, -1)
        times = np.where(entries >= 0, self._trace.time_ns[np.maximum(entries, 0)], -1)
        return np.where(entries == BEFORE_TRACE, self._begin_ns, times)

    def _texts(self, key: str) -> list[str | None]:
        """Return a text of each allocation; None for blocks from before and for torch's empty values."""
        rows = self._births()
        said = iter(read_texts(rows, key, "trace"))
        texts = [None if before else next(said) for before in self._before.tolist()]
        return [None if text in ("", "N/A") else text for text in texts]

    def _born(self) -> Integers:
        return np.where(self._before, NO_EVENT, self._entry)

    def _births(self) -> list[Row]:
        entries = self._entry[~self._before].tolist()
        return [self._trace.rows[entry] for entry in entries]

    def _stacks(self, stacks: StackTable, name: str) -> Integers:
        """Return the stack of each block's allocation. The stack of a free is not used."""
        found = np.full(len(self._entry), -1, dtype=np.int64)
        found[~self._before] = stacks.numbers(read_column(self._births(), "frames"), name)
        rest = np.flatnonzero((found < 0) & (self._at >= 0))
        blocks = [self._held.blocks.rows[at].get("frames") for at in self._at[rest].tolist()]
        found[rest] = stacks.numbers(blocks, name)
        return found

    def _pools(self) -> list[str | None]:
        """Return each block's pool: from its entry, else from the segment that holds it at the end."""
        rows = [self._trace.rows[entry] if entry >= 0 else {} for entry in self._entry.tolist()]
        found = read_pools(rows, "pool_id", "trace")
        segments = self._segments().tolist() if None in found else []
        if segments:
            found = [
                self._held.pool[segment] if pool is None and segment >= 0 else pool
                for pool, segment in zip(found, segments, strict=True)
            ]
        return found

    def _segments(self) -> Integers:
        """Return the segment at the end that each block was in, -1 if unknown."""
        last = sorted(
            (s for s in self._stretches if s.held >= 0 and s.end == NO_EVENT), key=lambda s: s.address
        )
        nowhere = np.full(len(self._entry), -1, dtype=np.int64)
        if not last:
            return nowhere
        start, size, begin, held = (
            np.array([getattr(s, key) for s in last], dtype=np.int64)
            for key in ("address", "size", "begin", "held")
        )
        address = self._address()
        at = np.searchsorted(start, address, side="right") - 1
        inside = (at >= 0) & (address < start[at] + size[at]) & (begin[at] <= self._born())
        return np.where(inside, held[at], nowhere)


def _build_segment_columns(
    name: str, trace: DeviceTrace, held: HeldSegments, stretches: Sequence[SegmentSpan], begin_ns: int
) -> dict[str, Any]:
    times = trace.time_ns.tolist()
    streams = trace.stream.tolist()
    return {
        "device": encode_texts([name] * len(stretches)),
        "address": np.array([s.address for s in stretches], dtype=np.int64),
        "bytes": np.array([s.size for s in stretches], dtype=np.int64),
        "mapped_ns": np.array(
            [begin_ns if s.begin == NO_EVENT else times[s.begin] for s in stretches], np.int64
        ),
        "unmapped_ns": nullable_integers(
            np.array([-1 if s.end == NO_EVENT else times[s.end] for s in stretches], np.int64)
        ),
        "before_history": np.array([s.begin == NO_EVENT for s in stretches], dtype=np.bool_),
        "stream": np.array(
            [int(held.stream[s.held]) if s.held >= 0 else streams[s.end] for s in stretches], np.int64
        ),
        "pool": encode_texts(_find_segment_pools(trace, held, stretches)),
        "expandable": np.array([s.expandable for s in stretches], dtype=np.bool_),
    }


def _find_segment_pools(
    trace: DeviceTrace, held: HeldSegments, stretches: Sequence[SegmentSpan]
) -> list[str | None]:
    rows = [{} if s.held >= 0 else trace.rows[s.end] for s in stretches]
    gone = read_pools(rows, "pool_id", "trace")
    return [held.pool[s.held] if s.held >= 0 else pool for s, pool in zip(stretches, gone, strict=True)]
