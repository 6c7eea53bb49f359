"""Evidence in the logs of a stuck job, one record per rank and group: ``log_evidence.json`` of a run.

A log is about the ranks that wrote to it. Facts that it lacks (the members of a group, the ranks that wrote
nothing) are None or empty here, and never filled in.
"""

from enum import StrEnum
from pathlib import Path

import msgspec
from msgspec import Struct

from zprof.base.errors import BadInput
from zprof.model.findings import SourceLocation
from zprof.run.files import open_plain, write_atomically

EVIDENCE_NAME = "log_evidence.json"
#: The name of the group of all ranks, and torch's description of it.
DEFAULT_GROUP, DEFAULT_DESCRIPTION = "0", "default_pg"
_MAX_BYTES = 256 << 20


class Basis(StrEnum):
    """Kind of the log line that shows what a rank did."""

    #: Its watchdog timed out in the operation.
    TIMEOUT = "timeout"
    #: Its watchdog reported the group's counters of enqueued and completed operations.
    COUNTERS = "counters"
    #: It answered another rank's dump signal with its counters of the default group.
    SIGNAL = "signal"
    #: NCCL logged the call (NCCL_DEBUG_SUBSYS=COLL).
    CALL = "call"
    #: It reported a lost or timed-out connection.
    CONNECTION = "connection"
    #: NCCL's RAS reported how many operations it has launched.
    RAS = "ras"


#: Kinds that show which operations a rank has entered, not which have finished.
CALLS = frozenset((Basis.CALL, Basis.RAS))


class Standing(Struct, frozen=True, kw_only=True):
    """An operation that a rank has entered and not finished, as its line describes it.

    ``sequence``: its number in the group. ``kind``: torch's name in lower case ("all_reduce"), empty if the
    line has none. ``inputs`` and ``outputs``: numbers of elements, None if the line has none or they are not
    sizes.
    """

    sequence: int
    kind: str = ""
    inputs: int | None = None
    outputs: int | None = None
    timeout_ms: int | None = None

    @property
    def is_p2p(self) -> bool:
        """Return True for sends and receives, which each rank counts separately."""
        return self.kind in ("send", "recv", "recv_any_source") or (
            self.kind == "coalesced" and not self.inputs and not self.outputs
        )


class RankLines(Struct, frozen=True, kw_only=True):
    """The lines of one rank about one group.

    ``rank``: global, None if only the rank in the group is known. ``group``: name of the group, empty if no
    line contains it. ``enqueued`` and ``completed``: the group's own counts on this rank; 0 for none, None if
    not reported. ``local_timeout``: its own watchdog signalled the timeout; ``signalled_by``: the other rank
    that did.
    """

    rank: int | None
    group: str
    group_rank: int | None = None
    description: str = ""
    standing: Standing | None = None
    enqueued: int | None = None
    completed: int | None = None
    basis: Basis = Basis.COUNTERS
    local_timeout: bool = False
    signalled_by: int | None = None


class RankEnding(Struct, frozen=True, kw_only=True):
    """How the process of a rank ended, as reported by its launcher.

    ``rank`` is None if only the rank on its node is known. ``exit_code`` is negative for a signal.
    """

    rank: int | None
    local_rank: int
    exit_code: int


class RankHealth(Struct, frozen=True, kw_only=True):
    """What NCCL's RAS says of a rank and its process. ``error`` is empty if NCCL reports none for it.

    ``is_unreachable``: the process did not answer the others.
    """

    rank: int
    process: int
    host: str
    is_unreachable: bool = False
    error: str = ""


class LogEvidence(Struct, frozen=True, kw_only=True):
    """All that was read from the logs of a job, and from the answers of NCCL's RAS.

    ``speakers``: global ranks that wrote any line. ``sizes``: reported group sizes, by name. ``world_size``:
    None if no line contains it. ``unread``: lines that look like evidence but were not understood.
    ``skipped``: logs of which only the start and the end were read. ``stuck_watchdogs``: ranks whose own
    watchdog, or GIL, was stuck. ``stacks``: frames of the failed operation by global rank, innermost first.
    ``ras_reports``: answers of RAS; ``health``: ranks of which they tell the process. ``is_moving``: ranks
    launched operations between the answers. ``unplaced``: unreachable processes whose ranks are unknown.
    """

    files: int
    lines: tuple[RankLines, ...] = ()
    endings: tuple[RankEnding, ...] = ()
    speakers: tuple[int, ...] = ()
    sizes: dict[str, int] = {}
    world_size: int | None = None
    unread: int = 0
    skipped: int = 0
    stuck_watchdogs: tuple[int, ...] = ()
    stacks: dict[int, tuple[SourceLocation, ...]] = {}
    ras_reports: int = 0
    health: tuple[RankHealth, ...] = ()
    is_moving: bool = False
    unplaced: int = 0

    @property
    def is_empty(self) -> bool:
        """Return True if the logs contain nothing about a stuck job."""
        return not (self.has_logged or self.ras_reports)

    @property
    def has_logged(self) -> bool:
        """Return True if the job itself wrote that it is stuck."""
        has_lines = any(lines.basis is not Basis.RAS for lines in self.lines)
        return bool(has_lines or self.endings or self.stuck_watchdogs)


def is_default_group(name: str, description: str) -> bool:
    """Return True for the group of all ranks, whose ranks are global ranks."""
    return name == DEFAULT_GROUP or description == DEFAULT_DESCRIPTION


def write_log_evidence(run: Path, evidence: LogEvidence) -> None:
    """Write the evidence into a run.

    Raises:
        OSError: The file cannot be written.
    """
    write_atomically(run / EVIDENCE_NAME, msgspec.json.encode(evidence))


def read_log_evidence(run: Path) -> LogEvidence | None:
    """Return the evidence of a run's logs; None if it has none.

    Raises:
        BadInput: The file is damaged.
    """
    path = run / EVIDENCE_NAME
    try:
        with open_plain(path) as file:
            content = file.read(_MAX_BYTES + 1)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadInput(f"{path}: cannot be read ({error.strerror})", hint="import the logs again") from None
    try:
        if len(content) > _MAX_BYTES:
            raise ValueError
        return msgspec.json.decode(content, type=LogEvidence)
    except (msgspec.MsgspecError, ValueError, RecursionError):
        raise BadInput(f"{path}: damaged", hint="import the logs again") from None
