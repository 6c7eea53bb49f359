"""Read a rank's flight recorder: its progress in each process group, and its unfinished operations.

A rank's operations in one group finish in order, so two numbers describe its progress there: the last
sequence number it entered and the last it finished. A job of a thousand ranks has millions of entries, so
only the fronts are kept as entries (the first unfinished operation of each group, and of each peer and
direction), along with arrays of all sequence numbers and signatures.

Properties that must be equal on all ranks of an operation are numbered once per job.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from zprof.analysis.columns import Columns, Mask
from zprof.model.collectives import CLOCK_GROUP
from zprof.model.findings import SourceLocation
from zprof.model.hang import RankProcess
from zprof.run.reader import Run
from zprof.run.user_code import CodeOwner, find_code_owner, make_user_location

Integers = np.ndarray[Any, np.dtype[np.int64]]
FLIGHT, FLIGHT_GROUP, FLIGHT_STACK, FLIGHT_THREAD = "flight", "flight_group", "flight_stack", "flight_thread"
#: Operations whose sizes may differ between ranks or apply to one rank: only kind and dtype must agree.
_UNEVEN = re.compile(r"all_?to_?all|gather$|scatter$|barrier|coalesced|_v$|send|recv")
_EVEN_GATHERS = re.compile(r"all_?gather|reduce_?scatter")
_COMPLETED = "completed"
_COALESCED = "coalesced"
#: Backends that retire an operation only when it is done; NCCL also retires operations that timed out.
_BACKENDS_RETIRING_FINISHED = frozenset({"gloo"})
#: Numbers combined from several columns' codes stay below this limit, so they fit in 64 bits.
_MAX_KEY = 1 << 62
_P2P = re.compile(r"(send|recv) (\d{1,7})(?:->|<-)(\d{1,7})")
_COLUMNS = (
    "record_id",
    "group",
    "backend",
    "operation",
    "is_p2p",
    "sequence",
    "p2p_sequence",
    "input_sizes",
    "input_dtypes",
    "output_sizes",
    "state",
    "is_retired",
    "created_ns",
    "started_ns",
    "completed_ns",
    "stack",
)


class Group(Struct, frozen=True):
    """A process group; ``ranks`` are global ranks in group order, empty if unknown."""

    name: str
    description: str
    ranks: tuple[int, ...]


class Progress(Struct, frozen=True, kw_only=True):
    """A rank's progress in the collectives of one group.

    ``entered`` and ``finished`` are sequence numbers. ``is_exact``: False if the rank may have entered more.
    """

    entered: int
    finished: int
    is_exact: bool = True


class Entry(Struct, frozen=True, kw_only=True):
    """One operation of one rank.

    ``peer``: the other rank of a send or receive, None if unknown; ``sends``: True for a send. ``order``:
    position among the rank's operations. ``is_passed``: the rank has finished operations that it entered
    later, so it is not stuck in this one.
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
    """Arrays of all collectives in a rank's recorder, oldest first.

    ``group`` is an index into ``groups``; ``signature`` and ``location`` are numbers from the job's
    :class:`Signatures` (``location`` -1: unknown). ``place``: position in ``own``.
    """

    groups: tuple[Group, ...]
    group: Integers
    sequence: Integers
    signature: Integers
    location: Integers
    place: Integers
    own: "OwnOrder"


class OwnOrder(Struct, frozen=True, kw_only=True):
    """Arrays of all operations that a rank entered, including sends and receives, oldest first.

    ``token``: equal for equal operations of the same group. ``group``: as in :class:`History`. ``order``: as
    in :class:`Entry`.
    """

    token: Integers
    group: Integers
    order: Integers


class RankFlight(Struct, frozen=True, kw_only=True):
    """The contents of one rank's flight recorder.

    ``progress``: by group name, from the entries; ``status``: the group's own counters (last enqueued, last
    completed). ``p2p_groups``: groups with sends or receives. ``fronts``: the first unfinished operation of
    each group, and of each peer and direction of its sends and receives, in the order of entry. ``last``: the
    last operation entered. ``main_stack``: the main thread's frames, innermost first, if a watch saved them;
    ``is_in_operation``: whether that thread waits in an operation, None if unknown. ``newest_ns``: when the
    rank last entered, started or finished an operation, on its clock; ``saved_ns``: when its dump was
    written. ``process``: the process state of a rank that could not save its own dump.
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
        """Return the line of the user's program at which this rank entered an operation."""
        frames = self.stacks.get(entry.stack, ()) if entry is not None and entry.stack is not None else ()
        return find_user_line(frames, folder)


def find_user_line(frames: tuple[SourceLocation, ...], folder: str = "") -> SourceLocation | None:
    """Return the innermost frame of user code, with a path relative to its folder."""
    located = (make_user_location(frame.file, frame.line, frame.function, folder) for frame in frames)
    return next((location for location in located if location is not None), None)


def trim_stack(frames: tuple[SourceLocation, ...], folder: str = "") -> tuple[SourceLocation, ...]:
    """Return a stack without the recorder's own frames; package paths are shortened."""
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

    Ranks repeat each other, so parsed strings are cached for the next rank.
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
        """Return the number of an operation's signature."""
        key = (operation, sizes, dtypes, outputs)
        found = self._by_operation.get(key)
        if found is None:
            found = self._by_operation[key] = self.number(_make_signature(*key))
        return found

    def number_frame(self, file: str, line: int, function: str) -> int:
        """Return the number of a frame's line; -1 if it is not user code."""
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


class Stacks(Mapping[int, tuple[SourceLocation, ...]]):
    """A rank's stacks by number, innermost frame first; frames are decoded on demand."""

    def __init__(self, run: Run, rank: int) -> None:
        self._starts: dict[int, tuple[int, int]] = {}
        self._frames: list[tuple[str, int, str]] = []
        if not run.has_table(rank, FLIGHT_STACK):
            return
        table = Columns.from_arrow(run.table(rank, FLIGHT_STACK)).sort_by("stack", "depth")
        lines = table.ints("line").tolist()
        self._frames = list(zip(table.texts("file"), lines, table.texts("function"), strict=True))
        numbers, starts = np.unique(table.ints("stack"), return_index=True)
        ends = np.append(starts[1:], len(table))[: len(starts)]
        places = zip(starts.tolist(), ends.tolist(), strict=True)
        self._starts = dict(zip(numbers.tolist(), places, strict=True))

    def __getitem__(self, number: int) -> tuple[SourceLocation, ...]:
        return tuple(
            SourceLocation(file=file, line=line, function=function)
            for file, line, function in self._frames[slice(*self._starts[number])]
        )

    def __iter__(self) -> Iterator[int]:
        return iter(self._starts)

    def __len__(self) -> int:
        return len(self._starts)

    def number_lines(self, signatures: Signatures) -> dict[int, int]:
        """Return the number of the innermost line of user code in each stack that has one."""
        lines = {}
        for number, (start, end) in self._starts.items():
            found = (signatures.number_frame(*frame) for frame in self._frames[start:end])
            lines[number] = next((line for line in found if line >= 0), -1)
        return lines


def read_flight(run: Run, rank: int, signatures: Signatures) -> RankFlight | None:
    """Read a rank's flight recorder; None if the rank has none.

    Raises:
        BadInput: a table is damaged.
    """
    if not run.has_table(rank, FLIGHT) and not run.has_table(rank, FLIGHT_GROUP):
        return None
    entries = _Entries(run, rank, signatures)
    stacks = Stacks(run, rank)
    history = entries.make_history(stacks)
    main_stack = read_main_stack(run, rank, stacks)
    return RankFlight(
        rank=rank,
        groups=entries.groups,
        progress=entries.measure_progress(),
        status=entries.list_status(),
        p2p_groups=entries.list_p2p_groups(),
        fronts=entries.list_fronts(),
        history=history,
        last=entries.make_entry(len(entries.order) - 1) if len(entries.order) else None,
        stacks=stacks,
        main_stack=main_stack,
        is_in_operation=is_in_operation(main_stack) if main_stack else None,
        newest_ns=entries.newest_ns,
        saved_ns=run.rank_manifests[rank].saved_ns,
        process=run.rank_manifests[rank].process,
    )


class _Entries:
    """One rank's table as arrays, in the order of entry."""

    def __init__(self, run: Run, rank: int, signatures: Signatures) -> None:
        self.rank, self._signatures = rank, signatures
        rows = read_group_rows(run, rank)
        self.groups = {name: signatures.make_group(name, *facts) for name, *facts, _, _ in rows}
        self._status = {name: (enqueued, completed) for name, _, _, enqueued, completed in rows}
        columns = read_columns(run, rank)
        self.order = columns.ints("record_id")
        names = columns.texts("group")
        for name in names.words:
            if name not in self.groups:
                self.groups[name] = signatures.make_group(name, "", "")
        self._group_list = tuple(self.groups.values())
        index = {group.name: number for number, group in enumerate(self._group_list)}
        self._group = np.array([*(index[name] for name in names.words), -1], dtype=np.int64)[names.codes]
        self._operation, self._sizes = columns.texts("operation"), columns.texts("input_sizes")
        self._dtypes, self._outputs = columns.texts("input_dtypes"), columns.texts("output_sizes")
        self._is_p2p, self._sequence = columns.bools("is_p2p"), columns.ints("sequence")
        self._p2p_sequence, self._created = columns.ints("p2p_sequence"), columns.ints("created_ns", -1)
        self._stack = columns.ints("stack", -1)
        newest_ns = max(
            int(columns.ints(name, -1).max(initial=-1))
            for name in ("created_ns", "started_ns", "completed_ns")
        )
        self.newest_ns = newest_ns if newest_ns > 0 else None
        self._is_nccl = not _BACKENDS_RETIRING_FINISHED & set(columns.texts("backend").words)
        finished = columns.texts("state").equals(_COMPLETED)
        retires_finished = columns.texts("backend").equals(*_BACKENDS_RETIRING_FINISHED)
        finished = finished | (columns.bools("is_retired") & retires_finished)
        if self._is_p2p.any() or _COALESCED in self._operation.words:
            self._finish_batches(finished)
        self._finished = finished
        self._signature = self._number_signatures()

    def _finish_batches(self, finished: Mask) -> None:
        """Set the state of the parts of coalesced operations, which is not recorded.

        They finish with the last entry of the batch. A dump of pending entries omits that entry once it has
        finished, but not the parts. A batch of one send looks like a plain send; its group and the group's
        last completed count tell them apart.
        """
        key = np.stack([self._group, self._sequence, self._p2p_sequence])
        is_first = np.append(True, (key[:, 1:] != key[:, :-1]).any(axis=0))
        first = np.flatnonzero(is_first)
        last = np.append(first[1:], key.shape[1]) - 1
        is_end = self._operation.equals(_COALESCED)
        has_end = is_end[last]
        is_batch = has_end | (last > first)
        is_coalescing = np.isin(self._group, self._group[first[is_batch]])
        batch = np.cumsum(is_first) - 1
        parts = has_end[batch] & ~is_end
        finished[parts] = finished[last[batch]][parts]
        finished[is_coalescing & ~has_end[batch] & (self._is_p2p | is_batch[batch])] = True
        if self._is_nccl:
            for number, group in enumerate(self._group_list):
                completed = self._status.get(group.name, (None, None))[1]
                rows = self._group == number
                if completed is not None and self._is_p2p[rows].all():
                    finished[rows & (self._p2p_sequence == completed)] = True

    def _number_signatures(self) -> Integers:
        """Number each row by the properties that must agree between ranks."""
        parts = (self._operation, self._sizes, self._dtypes, self._outputs)
        if not len(self.order):
            return np.zeros(0, dtype=np.int64)
        key, size = np.zeros(len(self.order), dtype=np.int64), 1
        for part in parts:
            count = max(len(part.words), 1)
            if size * count > _MAX_KEY:
                key = np.unique(key, return_inverse=True)[1]
                size = len(key)
            key = key * count + part.codes
            size *= count
        _, rows, inverse = np.unique(key, return_index=True, return_inverse=True)
        numbers = map(self._signatures.number_operation, *(part.at(rows) for part in parts))
        return np.asarray(list(numbers), dtype=np.int64)[inverse]

    def make_history(self, stacks: "Stacks") -> History:
        """Return the arrays of the collectives, without the recorder's own collectives."""
        recorder = [group.description == CLOCK_GROUP for group in self._group_list]
        is_own = ~np.asarray([*recorder, False], dtype=bool)[self._group]
        rows = np.flatnonzero(is_own & ~self._is_p2p & ~self._operation.equals(_COALESCED))
        used, inverse = np.unique(self._stack[rows], return_inverse=True)
        lines = stacks.number_lines(self._signatures)
        location = np.asarray([lines.get(number, -1) for number in used.tolist()], dtype=np.int64)
        return History(
            groups=self._group_list,
            group=self._group[rows],
            sequence=self._sequence[rows],
            signature=self._signature[rows],
            location=location[inverse],
            place=(np.cumsum(is_own) - 1)[rows],
            own=OwnOrder(
                token=(self._signature * len(self._group_list) + self._group)[is_own],
                group=self._group[is_own],
                order=self.order[is_own],
            ),
        )

    def measure_progress(self) -> dict[str, Progress]:
        """Return the rank's progress in each group's collectives, from its entries."""
        progress = {}
        for number, group in enumerate(self._group_list):
            rows = np.flatnonzero((self._group == number) & ~self._is_p2p)
            sequences = self._sequence[rows]
            entered = int(sequences.max()) if len(rows) else 0
            pending = sequences[~self._finished[rows]]
            progress[group.name] = Progress(
                entered=entered,
                finished=int(pending.min()) - 1 if len(pending) else entered,
                is_exact=len(rows) > 0,
            )
        return progress

    def list_status(self) -> dict[str, tuple[int | None, int | None]]:
        """Return each group's last enqueued and completed operation, where the group numbers them like its
        entries.

        The group also counts sends, so for a group with sends the counters say nothing about its collectives.
        """
        return self._status if self._is_nccl else {}

    def list_p2p_groups(self) -> frozenset[str]:
        """Return the names of the groups with sends or receives."""
        numbers = np.unique(self._group[self._is_p2p]).tolist()
        return frozenset(self._group_list[number].name for number in numbers)

    def list_fronts(self) -> tuple[Entry, ...]:
        """Return the first unfinished operation of each group, and of each peer and direction, in order of
        entry.
        """
        # The last finished operation; operations missing from a dump had finished.
        finished = self.order[self._finished]
        last_finished = int(finished[-1]) if len(finished) else -1
        if len(self.order) > 1 and not len(finished):
            holes = np.flatnonzero(np.diff(self.order) > 1)
            if len(holes):
                last_finished = int(self.order[holes[-1] + 1]) - 1
        seen: set[tuple[Any, ...]] = set()
        fronts = []
        for row in np.flatnonzero(~self._finished).tolist():
            if self._operation[row] == _COALESCED and self._is_part_of_coalesced(row):
                continue
            entry = self.make_entry(row, is_passed=int(self.order[row]) < last_finished)
            key = (entry.group.name, entry.peer, entry.sends) if entry.is_p2p else (entry.group.name,)
            if key not in seen:
                seen.add(key)
                fronts.append(entry)
        return tuple(fronts)

    def _is_part_of_coalesced(self, row: int) -> bool:
        """Return True if the previous entry belongs to the same coalesced operation and represents it."""
        return row > 0 and bool(
            self._group[row - 1] == self._group[row]
            and self._sequence[row - 1] == self._sequence[row]
            and self._p2p_sequence[row - 1] == self._p2p_sequence[row]
        )

    def make_entry(self, row: int, *, is_passed: bool = False) -> Entry:
        """Return one row as an entry."""
        group = self._group_list[int(self._group[row])]
        operation, is_p2p = self._operation[row], bool(self._is_p2p[row])
        match = _P2P.fullmatch(operation) if is_p2p else None
        peer = int(match[3]) if match else None
        if peer is not None and group.ranks:
            peer = group.ranks[peer] if peer < len(group.ranks) else None
        created_ns, stack = int(self._created[row]), int(self._stack[row])
        return Entry(
            rank=self.rank,
            group=group,
            operation=match[1] if match else operation,
            is_p2p=is_p2p,
            sequence=int(self._p2p_sequence[row] if is_p2p else self._sequence[row]),
            order=int(self.order[row]),
            sizes=self._sizes[row],
            dtypes=self._dtypes[row],
            signature=int(self._signature[row]),
            created_ns=created_ns if created_ns > 0 else None,
            stack=stack if stack >= 0 else None,
            peer=peer,
            sends=bool(match and match[1] == "send"),
            is_passed=is_passed,
        )


def read_columns(run: Run, rank: int) -> Columns:
    """Return the columns of the rank's entries, in the order of entry; empty columns without entries."""
    from zprof.run.schema import TABLES
    from zprof.run.table_reader import make_empty_table

    if run.has_table(rank, FLIGHT):
        return Columns.from_arrow(run.table(rank, FLIGHT, _COLUMNS))
    return Columns.from_arrow(make_empty_table(TABLES[FLIGHT])).pick(_COLUMNS)


def read_group_rows(run: Run, rank: int) -> list[tuple[str, str, str, int | None, int | None]]:
    """Return each group's name, description, ranks, last enqueued and last completed operation."""
    if not run.has_table(rank, FLIGHT_GROUP):
        return []
    columns = ("group", "description", "ranks", "last_enqueued", "last_completed")
    table = run.table(rank, FLIGHT_GROUP, columns)
    return list(zip(*(table[name].to_pylist() for name in columns), strict=True))


def read_main_stack(
    run: Run, rank: int, stacks: Mapping[int, tuple[SourceLocation, ...]]
) -> tuple[SourceLocation, ...]:
    """Return the main thread's frames, innermost first; empty if no watch saved them."""
    if not run.has_table(rank, FLIGHT_THREAD):
        return ()
    rows = run.table(rank, FLIGHT_THREAD).to_pylist()
    return next((stacks.get(row["stack"], ()) for row in rows if row["is_main"]), ())


def is_in_operation(stack: tuple[SourceLocation, ...]) -> bool | None:
    """Return True if a thread is in torch.distributed; None in a backward pass, which may wait for it."""
    files = [frame.file.replace("\\", "/") for frame in stack]
    if any("/torch/distributed/" in file and "/elastic/" not in file for file in files):
        return True
    return None if any("/torch/autograd/" in file for file in files) else False
