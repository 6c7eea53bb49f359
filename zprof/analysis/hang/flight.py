"""What the flight recorder of one rank says: how far it is in each process group, and what is unfinished.

A rank's operations of one group finish in order, so that its progress there is two numbers: the last sequence
number it entered, and the last it finished. Of the entries themselves only the fronts are kept (the first
unfinished operation of each group, and of each peer and direction of sends), beside arrays of all sequence
numbers and signatures, since a job of a thousand ranks has millions of entries.

What must be equal on all ranks of an operation is numbered once per job.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from zprof.model.findings import SourceLocation
from zprof.model.hang import RankProcess
from zprof.run.log_evidence import EVIDENCE_NAME
from zprof.run.reader import Run
from zprof.run.user_code import CodeOwner, find_code_owner, make_user_location

Integers = np.ndarray[Any, np.dtype[np.int64]]
FLIGHT, FLIGHT_GROUP, FLIGHT_STACK, FLIGHT_THREAD = "flight", "flight_group", "flight_stack", "flight_thread"
#: Operations whose sizes may differ between ranks, or belong to one of them: only kind and dtype must agree.
_UNEVEN = re.compile(r"all_?to_?all|gather$|scatter$|barrier|coalesced|_v$|send|recv")
_EVEN_GATHERS = re.compile(r"all_?gather|reduce_?scatter")


class Group(Struct, frozen=True):
    """A process group; ``ranks`` are global, in the order of the group, and empty if unknown."""

    name: str
    description: str
    ranks: tuple[int, ...]


class Progress(Struct, frozen=True, kw_only=True):
    """How far a rank is in the collectives of one group.

    ``entered`` and ``finished`` are sequence numbers. ``is_exact``: False if the rank may have entered more.
    """

    entered: int
    finished: int
    is_exact: bool = True


class Entry(Struct, frozen=True, kw_only=True):
    """One operation of one rank.

    ``peer``: the other rank of a send or receive, None if unknown; ``sends``: it is a send. ``order``: its
    place among the operations of the rank. ``is_passed``: the rank has finished operations that it entered
    later, so that it does not stand in this one.
    """

    rank: int
    group: Group
    operation: str
    is_p2p: bool
    sequence: int
    order: int
    sizes: str
    dtypes: str
    signature: int
    created_ns: int | None
    stack: int | None = None
    peer: int | None = None
    sends: bool = False
    is_passed: bool = False


class History(Struct, frozen=True, kw_only=True):
    """Arrays of all collectives of a rank in its recorder, oldest first.

    ``group`` is an index into ``groups``; ``signature`` and ``location`` are numbers of the job's
    :class:`Signatures` (``location`` -1: unknown). ``place``: where it is in ``own``.
    """

    groups: tuple[Group, ...]
    group: Integers
    sequence: Integers
    signature: Integers
    location: Integers
    place: Integers
    own: "OwnOrder"


class OwnOrder(Struct, frozen=True, kw_only=True):
    """Arrays of all that a rank entered, sends and receives too, oldest first.

    ``token``: equal for the same operation of the same group. ``group``: as in :class:`History`. ``order``:
    as in :class:`Entry`.
    """

    token: Integers
    group: Integers
    order: Integers


class RankFlight(Struct, frozen=True, kw_only=True):
    """What the flight recorder of one rank says.

    ``progress`` by name of the group, from the entries; ``status``: the numbers that the group itself counted
    (last enqueued, last completed). ``p2p_groups``: groups with sends or receives. ``fronts``: the first
    unfinished operation of each group, and of each peer and direction of its sends and receives, in the order
    in which they were entered. ``last``: the last operation that it entered. ``main_stack``: frames of the
    main thread, innermost first, if a watch saved them; ``is_in_operation``: that thread waits in an
    operation; None if unknown. ``newest_ns``: when the rank last entered, started or finished something, on
    its clock; ``saved_ns``: when its dump was written. ``process``: of a rank that could not save itself.
    """

    rank: int
    groups: Mapping[str, Group]
    progress: Mapping[str, Progress]
    status: Mapping[str, tuple[int | None, int | None]]
    p2p_groups: frozenset[str]
    fronts: tuple[Entry, ...]
    history: History
    last: Entry | None = None
    stacks: Mapping[int, tuple[SourceLocation, ...]] = field(default_factory=dict)
    main_stack: tuple[SourceLocation, ...] = ()
    is_in_operation: bool | None = None
    newest_ns: int | None = None
    saved_ns: int | None = None
    process: RankProcess | None = None

    def locate(self, entry: Entry | None, folder: str = "") -> SourceLocation | None:
        """Return the line of the user's program that entered an operation of this rank."""
        frames = self.stacks.get(entry.stack, ()) if entry is not None and entry.stack is not None else ()
        return find_user_line(frames, folder)


def has_flight(run: Run) -> bool:
    """Return True if a rank of the run has a flight recorder, or the run has logs of a stuck job."""
    return (run.path / EVIDENCE_NAME).exists() or any(
        run.has_table(rank, FLIGHT) or run.has_table(rank, FLIGHT_GROUP) for rank in run.ranks
    )


def find_user_line(frames: tuple[SourceLocation, ...], folder: str = "") -> SourceLocation | None:
    """Return the innermost frame of the user's code, relative to its folder."""
    located = (make_user_location(frame.file, frame.line, frame.function, folder) for frame in frames)
    return next((location for location in located if location is not None), None)


def trim_stack(frames: tuple[SourceLocation, ...], folder: str = "") -> tuple[SourceLocation, ...]:
    """Return a stack without the recorder's own frames; packages are named without their folder."""
    trimmed = []
    for frame in frames:
        path = frame.file.replace("\\", "/")
        if "/zprof/" in path and find_code_owner(path) is CodeOwner.LIBRARY:
            continue
        located = make_user_location(frame.file, frame.line, frame.function, folder)
        trimmed.append(located or replace(frame, file=path.rpartition("-packages/")[2]))
    return tuple(trimmed)


class Signatures:
    """Numbers for what must be equal on all ranks of an operation; equal signatures have equal numbers.

    Ranks repeat each other: what was derived from a text once is kept for the next rank.
    """

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {}
        self._texts: list[tuple[str, ...]] = []
        self._by_operation: dict[tuple[str, ...], int] = {}
        self._by_frame: dict[tuple[str, int, str], int] = {}
        self._groups: dict[tuple[str, str, str], Group] = {}
        self._ranks: dict[str, tuple[int, ...]] = {}

    def number(self, signature: tuple[str, ...]) -> int:
        """Return the number of a signature."""
        found = self._numbers.get(signature)
        if found is None:
            found = self._numbers[signature] = len(self._texts)
            self._texts.append(signature)
        return found

    def number_operation(self, operation: str, sizes: str, dtypes: str, outputs: str) -> int:
        """Return the number of what must be equal on all ranks of an operation."""
        key = (operation, sizes, dtypes, outputs)
        found = self._by_operation.get(key)
        if found is None:
            found = self._by_operation[key] = self.number(_make_signature(*key))
        return found

    def number_frame(self, file: str, line: int, function: str) -> int:
        """Return the number of the line of a frame; -1 if it is not the user's code."""
        key = (file, line, function)
        found = self._by_frame.get(key)
        if found is None:
            place = make_user_location(file, line, function)
            found = self.number((place.file, str(place.line))) if place is not None else -1
            self._by_frame[key] = found
        return found

    def make_group(self, name: str, description: str, ranks: str) -> Group:
        """Return a group; ``ranks`` is "0,4,8"."""
        key = (name, description, ranks)
        found = self._groups.get(key)
        if found is None:
            if ranks not in self._ranks:
                self._ranks[ranks] = tuple(int(part) for part in ranks.split(",")) if ranks else ()
            found = self._groups[key] = Group(name, description, self._ranks[ranks])
        return found

    def get(self, number: int) -> tuple[str, ...]:
        """Return the signature: operation, then sizes and dtypes, or the line of the program."""
        return self._texts[number]


def _make_signature(operation: str, sizes: str, dtypes: str, outputs: str) -> tuple[str, ...]:
    """Return what must be equal on all ranks of an operation."""
    if _UNEVEN.search(operation) and not _EVEN_GATHERS.search(operation):
        return operation, "", dtypes
    return operation, f"{sizes} -> {outputs}" if _EVEN_GATHERS.search(operation) else sizes, dtypes
