"""What a stuck job waits for: operations that cannot finish, which ranks wait for which, and their names."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import TypeGuard

from msgspec import Struct

from zprof.base.formatting import name_ranks, printable, shorten
from zprof.model.findings import Confidence, SourceLocation
from zprof.model.mesh import GroupRole

#: Maximum ranks in a sentence, and in a line of a list or table.
MAX_NAMED_RANKS, MAX_RANKS = 4, 6
#: Maximum characters of a group's name in a sentence, and in a line of a list or table.
MAX_NAME_LENGTH, _MAX_SHORT_NAME_LENGTH = 60, 40
_MAX_SIZES_LENGTH = 40
#: Words before "group" that differ from the role: an unknown engine may not shard, and "other" says nothing.
_ROLE_WORDS: Mapping[str, str] = {GroupRole.SHARD: "data", GroupRole.OTHER: ""}
_DUMP_SETTINGS = "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1"


class HangClass(StrEnum):
    """Why a job makes no progress."""

    #: A rank skipped an operation in which the others wait, or exited before reaching it.
    NEVER_ENTERED = "never_entered"
    #: A rank has finished all operations that it entered, and its host does not enter the next one.
    HOST_STUCK = "host_stuck"
    #: Ranks entered different operations at the same place of one group's sequence.
    DIFFERENT_COLLECTIVES = "different_collectives"
    #: Ranks entered the same operation with different sizes, counts or dtypes.
    MISMATCHED = "mismatched"
    #: Ranks wait for one another in operations of several groups, entered in a different order.
    CIRCULAR_WAIT = "circular_wait"
    #: A rank has not finished what its peers finished: its device, or its process, has stopped.
    DEVICE_STOPPED = "device_stopped"
    #: All ranks have entered an operation, and none leaves it: the network, or an unknown peer.
    NOT_FINISHED = "not_finished"
    #: The ranks that the others wait for left no dump, or no line in the logs: no rank can be blamed.
    RANK_MISSING = "rank_missing"
    #: It is known which ranks wait, but not for whom.
    CANNOT_TELL = "cannot_tell"


class HangStatus(StrEnum):
    """Status of the job: stuck or not."""

    STUCK = "stuck"
    #: A stall that ended: a slow phase, not a hang.
    RESUMED = "resumed"
    #: Every operation that a rank entered has finished.
    FINISHED = "finished"
    #: Operations were pending, as in any running job, and nothing shows that they cannot finish.
    RUNNING = "running"
    #: No operation that was read is stuck, but not all ranks were read.
    UNKNOWN = "unknown"


class MemberState(StrEnum):
    """What a rank did in an operation of its group."""

    ENTERED = "entered"
    #: It has finished all earlier operations, and has not entered this one.
    NOT_ENTERED = "not_entered"
    #: It has finished the operation.
    PAST = "past"
    #: Nothing is known about it.
    SILENT = "silent"


class RankProgress(Struct, frozen=True, kw_only=True):
    """What one rank did in the operation in which its group is stuck.

    ``rank`` is None if only its rank in the group is known. ``sequence`` and ``operation``: the operation
    that it is in, or its last one if it is in none; None and empty if unknown. ``basis``: "dump", or the kind
    of line in a log (``zprof.run.log_evidence.Basis``); empty for a silent rank.
    """

    rank: int | None
    group: str
    state: MemberState
    group_rank: int | None = None
    sequence: int | None = None
    operation: str = ""
    basis: str = ""


class ProcessState(StrEnum):
    """The system's process state of a rank that could not save itself."""

    STOPPED = "stopped"
    TRACED = "stopped by a debugger"
    DEAD = "dead"
    UNINTERRUPTIBLE = "in an uninterruptible system call"
    ENDED = "ended"
    #: It does not answer the other processes of the job.
    UNREACHABLE = "unreachable"


class RankProcess(Struct, frozen=True, kw_only=True):
    """The process of a rank saved from outside: its number on its host, and its state, None if unknown."""

    number: int
    host: str
    state: ProcessState | None = None


class StuckOperation(Struct, frozen=True, kw_only=True):
    """An operation that cannot finish.

    ``group``: the name of the process group; ``role``: tensor, pipeline, shard, expert, ... from its
    description, empty if unknown. ``ranks``: its members, the global ranks. ``sequence`` counts the
    collectives of the group (of sends and receives: the sender's own count). ``entered``, ``late`` and
    ``finished``: the members that wait in it, never entered it, and have left it; ``unknown``: members whose
    dump is missing or lacks it. ``sizes`` and ``dtypes`` describe its input on the first rank in it.
    ``location``: where that rank's program entered it. ``size``: number of members, which may exceed the
    known members; None if unknown.
    """

    operation: str
    group: str
    description: str
    role: str
    ranks: tuple[int, ...]
    sequence: int
    sizes: str
    dtypes: str
    entered: tuple[int, ...] = ()
    late: tuple[int, ...] = ()
    finished: tuple[int, ...] = ()
    unknown: tuple[int, ...] = ()
    location: SourceLocation | None = None
    size: int | None = None

    @property
    def unnamed(self) -> int:
        """Number of members that are not identified."""
        return 0 if self.size is None else max(0, self.size - len(self.ranks))


class RankAtHang(Struct, frozen=True, kw_only=True):
    """What a rank that blocks the others was doing.

    ``operation``: the number in ``Hang.operations`` of the operation that it blocks. ``last_operation``: the
    last operation that it entered, and its group; empty if it entered none. ``entered_instead``: the
    operation that it entered instead. ``location``: the current line of its program (or the line that entered
    the wrong operation); ``stack``: the frames of its main thread, innermost first; empty if unknown.
    ``exit_code``: exit code of its process (negative: a signal); None if unknown. ``process``: set for a rank
    that could not save itself, or whose process NCCL's RAS names. ``error``: what NCCL reports for the rank.
    """

    rank: int
    operation: int
    last_operation: str = ""
    last_group: str = ""
    last_sequence: int | None = None
    last_location: SourceLocation | None = None
    entered_instead: str = ""
    location: SourceLocation | None = None
    stack: tuple[SourceLocation, ...] = ()
    exit_code: int | None = None
    process: RankProcess | None = None
    error: str = ""

    @property
    def is_unreachable(self) -> bool:
        """True if its process does not answer the others."""
        return self.process is not None and self.process.state is ProcessState.UNREACHABLE

    @property
    def has_failed(self) -> bool:
        """True if its process is known to have ended, not to answer, or to have failed in NCCL."""
        return self.exit_code is not None or self.is_unreachable or bool(self.error)


class EnteredSide(Struct, frozen=True, kw_only=True):
    """What some ranks entered at a place in a group's sequence where others entered another operation.

    ``sizes`` are the input sizes, with the output sizes if the inputs are equal. ``location``: where the
    first of the ranks entered it.
    """

    ranks: tuple[int, ...]
    operation: str
    sequence: int
    sizes: str
    dtypes: str
    location: SourceLocation | None = None


class Wait(Struct, frozen=True, kw_only=True):
    """Ranks that wait for other ranks in one operation, given by its number in ``Hang.operations``."""

    operation: int
    ranks: tuple[int, ...]
    for_ranks: tuple[int, ...]


class Hang(Struct, frozen=True, kw_only=True):
    """What a job waits for.

    ``kind`` is None if it is not stuck. ``operations`` are in causal order: the culprits block the first one.
    ``culprits`` may be several; ``victims`` are all other ranks that wait. ``sides``: the operations that the
    ranks entered where they differ, the most common first; empty if they do not differ. ``is_swapped``: they
    entered the same operations in another order. ``waits`` has one entry per operation and set of ranks.
    ``stall_ns``: time without progress; None if unknown. ``ranks_missing``: ranks of the job that left no
    dump, or no line in its logs; ``ranks_unread``: ranks whose dump was not read completely. ``ranks``: what
    each rank did, by group. ``logs``: number of logs used; 0 for dumps. ``ras_reports``: answers of NCCL's
    RAS in them.
    """

    status: HangStatus
    kind: HangClass | None = None
    confidence: Confidence = Confidence.LOW
    operations: tuple[StuckOperation, ...] = ()
    culprits: tuple[RankAtHang, ...] = ()
    victims: tuple[int, ...] = ()
    sides: tuple[EnteredSide, ...] = ()
    is_swapped: bool = False
    waits: tuple[Wait, ...] = ()
    stall_ns: int | None = None
    ranks_seen: int = 0
    ranks_missing: tuple[int, ...] = ()
    ranks_unread: tuple[int, ...] = ()
    ranks: tuple[RankProgress, ...] = ()
    logs: int = 0
    ras_reports: int = 0


def is_stuck(hang: Hang | None) -> TypeGuard[Hang]:
    """Return True if a job waits for something that will never happen."""
    return hang is not None and hang.status is HangStatus.STUCK


def describe_operation(operation: StuckOperation) -> str:
    """Return "all_reduce #12 [1024] Float of the tensor group tp (ranks 0 and 1)"."""
    sizes = shorten(format_sizes(operation.sizes, operation.dtypes), _MAX_SIZES_LENGTH)
    role = " ".join(filter(None, (_ROLE_WORDS.get(operation.role, operation.role), "group")))
    name = shorten(operation.description or operation.group, MAX_NAME_LENGTH)
    title = f"{operation.operation} #{operation.sequence}{f' {sizes}' if sizes else ''}"
    if not name:
        return printable(f"{title}, in a group without a name")
    return printable(f"{title} of the {role} {name} ({_describe_members(operation)})")


def _describe_members(operation: StuckOperation) -> str:
    if operation.size is None:
        return "members unknown"
    if operation.unnamed:
        return f"{operation.size} members"
    return name_ranks(operation.ranks, MAX_NAMED_RANKS)


def format_sizes(sizes: str, dtypes: str) -> str:
    """Return "[1024,8] Float" for the sizes of one tensor, "[8],[16] Float,Float" for several.

    Output sizes follow the input sizes: "[8] -> [32] Float".
    """
    sides = (side[1:-1] if side.startswith("[[") else side for side in sizes.split(" -> "))
    return " ".join(part for part in (" -> ".join(sides), dtypes) if part)


def name_operation(operation: StuckOperation) -> str:
    """Return "all_reduce #12 of TENSOR_GROUP"."""
    name = shorten(operation.description or operation.group, _MAX_SHORT_NAME_LENGTH)
    return printable(f"{operation.operation} #{operation.sequence} of {name}")


def describe_last(culprit: RankAtHang) -> str:
    """Return its last operation, "all_reduce #11 of GROUP at train.py:42 in step"; empty if unknown.

    The line is omitted if the rank is still there.
    """
    if culprit.last_sequence is None:
        return ""
    name = " ".join(part for part in (culprit.last_operation, f"#{culprit.last_sequence}") if part)
    group = shorten(culprit.last_group, _MAX_SHORT_NAME_LENGTH)
    is_new = culprit.last_location is not None and culprit.last_location != culprit.location
    where = f" at {describe_location(culprit.last_location)}" if culprit.last_location and is_new else ""
    return printable(f"{name} of {group}") + where


def describe_location(location: SourceLocation) -> str:
    """Return "train.py:42 in step"."""
    return printable(f"{location.file}:{location.line} in {shorten(location.function, MAX_NAME_LENGTH)}")


def name_entered(side: EnteredSide) -> str:
    """Return "all_reduce [4] Float"."""
    sizes = shorten(format_sizes(side.sizes, side.dtypes), _MAX_SIZES_LENGTH)
    return printable(f"{side.operation} {sizes}".strip())


def format_line(location: SourceLocation | None) -> str:
    """Return "train.py:42"; empty if unknown."""
    return printable(f"{location.file}:{location.line}") if location is not None else ""


def name_missing_evidence(hang: Hang) -> str:
    """Return what would show more than the logs; empty if the logs show all members or there are no logs."""
    is_told = hang.kind not in (HangClass.RANK_MISSING, HangClass.CANNOT_TELL)
    if not hang.logs or (is_told and hang.operations and hang.operations[0].size is not None):
        return ""
    silent = [] if is_told else [each.rank for each in hang.culprits]
    if silent:
        whose = f"the log of {name_ranks(silent, MAX_NAMED_RANKS)}"
    else:
        whose = "the logs of all ranks (torchrun --log-dir logs -r 3)"
    return f"{whose}, or dumps of the flight recorder ({_DUMP_SETTINGS})"


class WaitingRanks(Struct, frozen=True, kw_only=True):
    """Ranks that wait for the same ranks.

    ``operations``: numbers in ``Hang.operations`` of all operations that they wait in, the cause first.
    ``causes``: the culprits among the ranks that they wait for. ``for_ranks`` is empty if all members are in
    the operation.
    """

    ranks: tuple[int, ...]
    for_ranks: tuple[int, ...]
    operations: tuple[int, ...]
    causes: tuple[int, ...] = ()


def group_waits(hang: Hang) -> tuple[WaitingRanks, ...]:
    """Return one entry per set of waiting ranks and awaited ranks: the causes first, then by size."""
    accused = {culprit.rank for culprit in hang.culprits}
    numbers: dict[tuple[tuple[int, ...], tuple[int, ...]], list[int]] = {}
    for wait in hang.waits:
        numbers.setdefault((wait.ranks, wait.for_ranks), []).append(wait.operation)
    groups = [
        WaitingRanks(
            ranks=ranks,
            for_ranks=for_ranks,
            operations=tuple(operations),
            causes=tuple(rank for rank in for_ranks if rank in accused),
        )
        for (ranks, for_ranks), operations in numbers.items()
    ]
    return tuple(sorted(groups, key=lambda group: (not group.causes, -len(group.ranks))))


def are_all_in(hang: Hang, wait: WaitingRanks) -> bool:
    """Return True if no rank is late for an operation and all its members are known to be in it."""
    operation = hang.operations[wait.operations[0]]
    return not wait.for_ranks and operation.size is not None and len(operation.entered) == operation.size


def name_cause(hang: Hang) -> str:
    """Return the mark of the ranks that everything waits for: a missing dump is not blamed on a rank."""
    if hang.kind is not HangClass.RANK_MISSING or any(each.has_failed for each in hang.culprits):
        return "cause"
    return "no line" if hang.logs else "no dump"


def mark_cause(hang: Hang, wait: WaitingRanks) -> str:
    """Return "cause", or "cause: 8" if other ranks are awaited too; empty without a culprit."""
    if not wait.causes or wait.causes == wait.for_ranks:
        return name_cause(hang) if wait.causes else ""
    numbers = name_ranks(wait.causes, MAX_RANKS).removeprefix("ranks ").removeprefix("rank ")
    return f"{name_cause(hang)}: {numbers}"


class RankState(StrEnum):
    """What a rank of a stuck job does."""

    CAUSE = "cause"
    WAITS = "waits"
    #: It has not entered an operation in which others wait, has none pending, and is not the cause.
    LATE = "late"
    NOTHING_PENDING = "nothing pending"
    NO_DUMP = "no dump"
    #: No line of the logs is about it.
    NO_LINE = "no line"


class RankStanding(Struct, frozen=True, kw_only=True):
    """What a rank does; ``operation``: number in ``Hang.operations`` of the one that it is in or late for."""

    rank: int
    state: RankState
    operation: int | None = None


def list_standings(hang: Hang, ranks: Iterable[int]) -> tuple[RankStanding, ...]:
    """Return the state of these ranks and of ranks without a dump: the causes first, then by state."""
    culprits = {culprit.rank: culprit.operation for culprit in hang.culprits}
    waiting: dict[int, int] = {}
    late: dict[int, int] = {}
    for wait in hang.waits:
        for rank in wait.ranks:
            waiting.setdefault(rank, wait.operation)
    for number, operation in enumerate(hang.operations):
        for rank in operation.entered:
            waiting.setdefault(rank, number)
        for rank in operation.late:
            late.setdefault(rank, number)
    victims, missing = set(hang.victims), set(hang.ranks_missing)

    def make_standing(rank: int) -> RankStanding:
        if rank in missing:
            state = RankState.NO_LINE if hang.logs else RankState.NO_DUMP
            return RankStanding(rank=rank, state=state, operation=culprits.get(rank))
        if rank in culprits:
            return RankStanding(rank=rank, state=RankState.CAUSE, operation=culprits[rank])
        if rank in waiting or rank in victims:
            return RankStanding(rank=rank, state=RankState.WAITS, operation=waiting.get(rank))
        if rank in late:
            return RankStanding(rank=rank, state=RankState.LATE, operation=late[rank])
        return RankStanding(rank=rank, state=RankState.NOTHING_PENDING)

    order = list(RankState)
    standings = [make_standing(rank) for rank in sorted({*ranks, *missing})]
    return tuple(sorted(standings, key=lambda each: (order.index(each.state), each.rank)))
