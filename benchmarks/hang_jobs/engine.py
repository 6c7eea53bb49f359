"""Run the programs of all ranks: hosts that enqueue ahead, devices that meet in collectives, and who is left.

A host enqueues operations; a device takes them in that order. Operations of one group (of sends and receives:
of one pair and direction) form a lane and run one after the other; an operation that the compute stream waits
for also holds back everything enqueued later. A collective ends when all members of its group have reached
it with the same operation, a send when its receiver has reached the receive. What never ends stays pending,
with all that piled up behind it.
"""

from collections import deque
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from benchmarks.hang_jobs.program import JOIN, SYNC, Op, Program

#: The group and the sequence of a collective, or the ends of a send and its number among theirs.
Key = tuple[Any, ...]
TRANSFER_NS = 150_000


class Entry(Struct, kw_only=True, gc=False):
    """An operation that a rank's host has entered.

    ``index``: its place in the rank's program. ``record_id``: of a coalesced one, that of the whole.
    ``started_ns``: when its device reached it, ``completed_ns`` when it ended; None if never. ``keys``: what
    it takes part in (several if coalesced).
    """

    rank: int
    index: int
    op: Op
    keys: tuple[Key, ...]
    sequence: int
    p2p_sequence: int
    op_id: int
    record_id: int
    created_ns: int
    ready_ns: int = 0
    started_ns: int | None = None
    completed_ns: int | None = None
    open_keys: int = 0


class Meeting(Struct):
    """A collective, or a send with its receive: who has entered it and whose device has reached it."""

    members: int
    entered: list[Entry] = []
    reached: list[Entry] = []
    is_broken: bool = False


class Speed(Struct, frozen=True, kw_only=True):
    """How fast a rank is, and how many operations its host runs ahead (1: it waits for each that blocks)."""

    host_ns: int
    device_ns: int
    max_ahead: int


class Stops(Struct, frozen=True, kw_only=True):
    """Where hosts and devices stop for ever: an index into the rank's program."""

    host: Mapping[int, int] = {}
    device: Mapping[int, int] = {}


class Schedule(Struct, frozen=True, kw_only=True):
    """What happened. ``is_ended``: whether the host of a rank came to the end of its program."""

    entries: tuple[list[Entry], ...]
    meetings: dict[Key, Meeting]
    is_ended: tuple[bool, ...]


def run_programs(programs: list[Program], speeds: list[Speed], stops: Stops) -> Schedule:
    """Run until nothing moves any more."""
    meetings: dict[Key, Meeting] = {}
    ranks = [_Rank(rank, program, speeds[rank], stops, meetings) for rank, program in enumerate(programs)]
    moving = deque(range(len(ranks)))
    while moving:
        rank = moving.popleft()
        for meeting in ranks[rank].advance():
            _end_meeting(meeting, ranks, moving)
    return Schedule(
        entries=tuple(each.entries for each in ranks),
        meetings=meetings,
        is_ended=tuple(each.next_step >= len(each.program) for each in ranks),
    )


def _end_meeting(first: Meeting, ranks: list["_Rank"], moving: deque[int]) -> None:
    ending = [first]
    while ending:
        meeting = ending.pop()
        end_ns = max(entry.started_ns or 0 for entry in meeting.reached) + TRANSFER_NS
        for entry in meeting.reached:
            entry.open_keys -= 1
            entry.ready_ns = max(entry.ready_ns, end_ns)
            if not entry.open_keys:
                ending.extend(ranks[entry.rank].complete(entry))
                moving.append(entry.rank)


class _Rank:
    """A rank's host and device."""

    def __init__(
        self, rank: int, program: Program, speed: Speed, stops: Stops, meetings: dict[Key, Meeting]
    ) -> None:
        self.rank, self.program, self.speed, self.meetings = rank, program, speed, meetings
        self.host_stop = min(stops.host.get(rank, len(program)), len(program))
        self.device_stop = stops.device.get(rank, len(program))
        self.entries: list[Entry] = []
        self.awaited: list[Entry] = []
        self.next_step = self.records = 0
        self.host_ns = 0
        self.to_launch: deque[tuple[int, Entry | None]] = deque()
        self.lanes: dict[Key, deque[Entry]] = {}
        self.running = 0
        self.blocker: Entry | None = None
        self.frontier_ns = self.last_end_ns = 0
        self.sequences: dict[Key, int] = {}

    def advance(self) -> list[Meeting]:
        """Enqueue and launch as far as possible; return the meetings that this ends."""
        ended: list[Meeting] = []
        while self._enqueue() or self._launch(ended):
            pass
        return ended

    def _enqueue(self) -> bool:
        """Take the host one step further, if nothing keeps it."""
        if self.next_step >= self.host_stop:
            return False
        op = self.program[self.next_step]
        if op.kind == SYNC:
            if self.to_launch or self.blocker is not None:
                return False
            self.host_ns = max(self.host_ns, self.frontier_ns)
        elif op.kind == JOIN:
            self.to_launch.append((self.next_step, None))
        else:
            if len(self.awaited) >= self.speed.max_ahead:
                limit = self.awaited[-self.speed.max_ahead]
                if limit.completed_ns is None:
                    return False
                self.host_ns = max(self.host_ns, limit.completed_ns)
            self.host_ns += self.speed.host_ns
            entry = self._enter(op)
            self.entries.append(entry)
            if op.waits:
                self.awaited.append(entry)
            self.to_launch.append((self.next_step, entry))
        self.next_step += 1
        return True

    def _enter(self, op: Op) -> Entry:
        assert op.group is not None
        name = op.group.name
        parts = op.parts or (op,)
        keys = tuple([self._number(name, part) for part in parts]) if op.parts else (self._number(name, op),)
        is_collective = op.is_collective
        if not is_collective:
            self.sequences[name, "p2p"] = self.sequences.get((name, "p2p"), 0) + 1
        self.records += len(parts) + (1 if op.parts else 0)
        op_id = self.sequences[name, "op"] = self.sequences.get((name, "op"), 0) + len(parts)
        entry = Entry(
            rank=self.rank,
            index=self.next_step,
            op=op,
            keys=keys,
            sequence=self.sequences.get((name, "all"), 0),
            p2p_sequence=0 if is_collective else self.sequences[name, "p2p"],
            op_id=op_id,
            record_id=self.records - 1,
            created_ns=self.host_ns,
            open_keys=len(keys),
        )
        for key in keys:
            meeting = self.meetings.get(key)
            if meeting is None:
                members = len(op.group.ranks) if is_collective else 2
                meeting = self.meetings[key] = Meeting(members, [], [])
            meeting.entered.append(entry)
            meeting.is_broken |= op.is_dead or not _agree(meeting.entered[0].op, op)
        return entry

    def _number(self, name: str, op: Op) -> Key:
        if op.is_collective:
            sequence = self.sequences[name, "all"] = self.sequences.get((name, "all"), 0) + 1
            return (name, sequence)
        ends = (self.rank, op.peer) if op.kind == "send" else (op.peer, self.rank)
        count = self.sequences[name, *ends] = self.sequences.get((name, *ends), 0) + 1
        return (name, *ends, count)

    def _launch(self, ended: list[Meeting]) -> bool:
        """Give the device its next operation, if it can take one."""
        if not self.to_launch or self.blocker is not None:
            return False
        index, entry = self.to_launch[0]
        if index >= self.device_stop or (entry is None and self.running):
            return False
        self.to_launch.popleft()
        if entry is None:
            self.frontier_ns = max(self.frontier_ns, self.last_end_ns)
            return True
        self.running += 1
        self.frontier_ns = max(self.frontier_ns, entry.created_ns) + self.speed.device_ns
        entry.ready_ns = self.frontier_ns
        if entry.op.waits:
            self.blocker = entry
        lane = self.lanes.setdefault(_lane(entry), deque())
        lane.append(entry)
        if len(lane) == 1:
            ended.extend(self._reach(entry))
        return True

    def _reach(self, entry: Entry) -> list[Meeting]:
        entry.started_ns = entry.ready_ns
        ended = []
        for key in entry.keys:
            meeting = self.meetings[key]
            meeting.reached.append(entry)
            if len(meeting.reached) == meeting.members and not meeting.is_broken:
                ended.append(meeting)
        return ended

    def complete(self, entry: Entry) -> list[Meeting]:
        """End an operation; return the meetings that the next one in its lane ends."""
        entry.completed_ns = entry.ready_ns
        self.last_end_ns = max(self.last_end_ns, entry.completed_ns)
        self.running -= 1
        if self.blocker is entry:
            self.blocker = None
            self.frontier_ns = max(self.frontier_ns, entry.completed_ns)
        lane = self.lanes[_lane(entry)]
        lane.popleft()
        if not lane:
            return []
        following = lane[0]
        following.ready_ns = max(following.ready_ns, entry.completed_ns)
        return self._reach(following)


def _lane(entry: Entry) -> Key:
    return entry.keys[0][:-1]


def _agree(one: Op, other: Op) -> bool:
    """Tell whether two ranks entered the same operation with the same data."""
    if one.parts or other.parts:
        return True
    if not one.is_collective:
        return one.in_sizes == other.in_sizes and one.dtype == other.dtype
    is_uneven = one.kind == "all_to_all"
    return (
        one.kind == other.kind and one.dtype == other.dtype and (is_uneven or one.in_sizes == other.in_sizes)
    )
