"""What a stuck job waits for: the operations that cannot finish, the ranks behind them, and who waits."""

from enum import StrEnum
from typing import TypeGuard

from msgspec import Struct

from zprof.model.findings import Confidence, SourceLocation


class HangClass(StrEnum):
    """Why a job does not go on."""

    #: A rank went on without an operation that the others wait in: it skipped it, or has ended.
    NEVER_ENTERED = "never_entered"
    #: A rank has finished all that it entered, and its host does not enter the next operation.
    HOST_STUCK = "host_stuck"
    #: Ranks entered different operations at the same place of one group's sequence.
    DIFFERENT_COLLECTIVES = "different_collectives"
    #: Ranks entered the same operation with other sizes, counts or dtypes.
    MISMATCHED = "mismatched"
    #: Ranks wait for one another in operations of several groups, entered in a different order.
    CIRCULAR_WAIT = "circular_wait"
    #: A rank has not finished what its peers finished: its device, or its process, has stopped.
    DEVICE_STOPPED = "device_stopped"
    #: All ranks have entered an operation, and none leaves it: the network, or a peer that is not known.
    NOT_FINISHED = "not_finished"
    #: The ranks that the others wait for left no dump, or no line in the logs: nobody can be accused.
    RANK_MISSING = "rank_missing"
    #: What is known names ranks that wait, and does not tell for whom.
    CANNOT_TELL = "cannot_tell"


class HangStatus(StrEnum):
    """Whether the job is stuck."""

    STUCK = "stuck"
    #: A stall that ended: a slow phase, not a hang.
    RESUMED = "resumed"
    #: Every operation that a rank entered has finished.
    FINISHED = "finished"
    #: Operations were pending, as in any job that runs, and nothing shows that they cannot finish.
    RUNNING = "running"
    #: Nothing that was read cannot finish, and not all ranks were read.
    UNKNOWN = "unknown"


class MemberState(StrEnum):
    """What a rank did in an operation of its group."""

    ENTERED = "entered"
    #: It has finished all that it entered before, and not entered the operation.
    NOT_ENTERED = "not_entered"
    #: It has finished the operation.
    PAST = "past"
    #: Nothing is known of it.
    SILENT = "silent"


class RankProgress(Struct, frozen=True, kw_only=True):
    """What one rank did in the operation in which its group is stuck.

    ``rank`` is None if only its rank in the group is known. ``sequence`` and ``operation``: what it stands
    in, or its last one if it stands in none; None and empty if unknown. ``basis``: "dump", or the kind of
    line in a log (``zprof.run.log_evidence.Basis``); empty for a silent rank.
    """

    rank: int | None
    group: str
    state: MemberState
    group_rank: int | None = None
    sequence: int | None = None
    operation: str = ""
    basis: str = ""


class ProcessState(StrEnum):
    """What the system said of the process of a rank that could not save itself."""

    STOPPED = "stopped"
    TRACED = "stopped by a debugger"
    DEAD = "dead"
    UNINTERRUPTIBLE = "in an uninterruptible system call"
    ENDED = "ended"


class RankProcess(Struct, frozen=True, kw_only=True):
    """The process of a rank that others saved: its number on its host, and its state, None if unknown."""

    number: int
    host: str
    state: ProcessState | None = None


class StuckOperation(Struct, frozen=True, kw_only=True):
    """An operation that cannot finish.

    ``group``: the name of the process group; ``role``: tensor, pipeline, data, expert, ... from its
    description, empty if unknown. ``ranks``: its members, the global ranks. ``sequence`` counts the
    collectives of the group (of sends and receives: the sender's own count). ``entered``, ``late`` and
    ``finished``: the members that wait in it, never entered it, and have left it; ``unknown``: members whose
    dump is missing or says nothing. ``sizes`` and ``dtypes`` are those of its input on the first rank in it.
    ``location``: where that rank's program entered it. ``size``: number of members, which may exceed those
    that are known by name; None if not even that is known.
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
        """Number of members that nothing names."""
        return 0 if self.size is None else max(0, self.size - len(self.ranks))


class RankAtHang(Struct, frozen=True, kw_only=True):
    """What a rank that holds the others up was doing.

    ``operation``: the number in ``Hang.operations`` of what it holds up. ``last_operation``: the last one
    that it entered, and its group; empty if it entered none. ``entered_instead``: what it entered in the
    place of the operation. ``location``: the line of the program that it is at (or that entered the wrong
    operation); ``stack``: the frames of its main thread, innermost first; empty if unknown. ``exit_code``:
    its process has ended so (negative: a signal); None if not known. ``process``: of a rank that could not
    save itself.
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


class EnteredSide(Struct, frozen=True, kw_only=True):
    """What some ranks entered at the place of a group at which others entered something else.

    ``sizes`` are those of the input, and of the output if the inputs are equal. ``location``: where the first
    of the ranks entered it.
    """

    ranks: tuple[int, ...]
    operation: str
    sequence: int
    sizes: str
    dtypes: str
    location: SourceLocation | None = None


class Wait(Struct, frozen=True, kw_only=True):
    """Ranks that wait for other ranks, in one operation (its number in ``Hang.operations``)."""

    operation: int
    ranks: tuple[int, ...]
    for_ranks: tuple[int, ...]


class Hang(Struct, frozen=True, kw_only=True):
    """What a job waits for.

    ``kind`` is None if it is not stuck. ``operations`` are in causal order: the first is the one that the
    culprits hold up. ``culprits`` may be several; ``victims`` are all other ranks that wait. ``sides``: what
    the ranks entered at the place at which they differ, what is usual first; empty if they do not.
    ``is_swapped``: they entered the same operations in another order. ``waits`` has one entry per operation
    and set of ranks. ``stall_ns``: how long nothing moved; None if unknown. ``ranks_missing``: ranks of the
    job that left no dump, or no line in its logs; ``ranks_unread``: those whose dump was not read whole.
    ``ranks``: what each rank did, by group. ``logs``: number of logs that this is known from; 0 for dumps.
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


def is_stuck(hang: Hang | None) -> TypeGuard[Hang]:
    """Return True if a job waits for what will not come."""
    return hang is not None and hang.status is HangStatus.STUCK
