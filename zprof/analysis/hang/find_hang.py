"""Find what a stuck job waits for: the hang class, the culprits, and who waits in which operation."""

import statistics
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.hang.describe import (
    classify,
    describe_divergence,
    describe_rank,
    describe_roots,
    is_passed,
)
from zprof.analysis.hang.flight import (
    Entry,
    Group,
    History,
    OwnOrder,
    Progress,
    RankFlight,
    Signatures,
    read_flight,
)
from zprof.analysis.hang.judge_logs import judge_logs
from zprof.analysis.hang.operations import Job, PendingOperation, is_symmetric
from zprof.analysis.hang.order import Divergence, find_divergences
from zprof.analysis.hang.waits import Root, find_roots
from zprof.model.findings import Confidence, SourceLocation
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.hang import (
    Hang,
    HangClass,
    HangStatus,
    MemberState,
    RankProgress,
    StuckOperation,
    name_missing_evidence,
)
from zprof.run.log_evidence import CALLS, Basis, LogEvidence, RankLines, read_log_evidence
from zprof.run.manifest import FLIGHT_RECORDER
from zprof.run.reader import Run

#: A rank that was active this recently before its dump is not waiting: timeouts are longer.
_MIN_IDLE_NS = 3_000_000_000
#: Order in which classes are reported if there are several independent causes.
_PRECEDENCE = (
    HangClass.MISMATCHED,
    HangClass.DIFFERENT_COLLECTIVES,
    HangClass.NEVER_ENTERED,
    HangClass.DEVICE_STOPPED,
    HangClass.HOST_STUCK,
    HangClass.CIRCULAR_WAIT,
    HangClass.NOT_FINISHED,
    HangClass.RANK_MISSING,
)
_NONE = np.zeros(0, dtype=np.int64)
_STUCK, _RESUMED = "stuck", "resumed"


class Stall(Struct, frozen=True, kw_only=True):
    """What a watch saw last.

    ``status``: stuck if nothing is known of any rank after its stall, resumed if all ranks went on, running
    if only some did (the run ended in between). ``ranks``: the ranks not seen after their stall.
    ``duration_ns``: the longest time without progress.
    """

    status: HangStatus
    ranks: tuple[int, ...]
    duration_ns: int


def find_hang(run: Run) -> Hang | None:
    """Return what a job's ranks wait for; None if the run has neither flight recorders nor logs.

    Raises:
        BadInput: a table of the run is damaged.
    """
    evidence = read_log_evidence(run.path)
    job = read_job(run, evidence)
    if not job.flights:
        return None if evidence is None else judge_logs(evidence)
    stall = find_stall(run)
    if stall is not None and stall.status is not HangStatus.STUCK:
        hang = Hang(status=stall.status)
    else:
        hang = _judge(job, run.manifest.folder, stall)
        if hang.status in (HangStatus.FINISHED, HangStatus.RUNNING) and not _is_whole(job, run):
            hang = Hang(status=HangStatus.UNKNOWN)
    return replace(
        hang,
        ranks_seen=len(job.flights),
        ranks_missing=tuple(sorted(job.missing)),
        ranks_unread=tuple(sorted(job.unread)),
        stall_ns=stall.duration_ns if stall is not None else None,
        ranks=tuple(_list_progress(job, hang.operations)),
    )


def _list_progress(job: Job, operations: Sequence[StuckOperation]) -> Iterator[RankProgress]:
    """Yield each member's progress in the first stuck operation of each group."""
    seen: set[str] = set()
    for operation in operations:
        if operation.group in seen:
            continue
        seen.add(operation.group)
        for state, ranks in (
            (MemberState.ENTERED, operation.entered),
            (MemberState.NOT_ENTERED, operation.late),
            (MemberState.PAST, operation.finished),
            (MemberState.SILENT, operation.unknown),
        ):
            for rank in ranks:
                own = job.progress[rank].get(operation.group) if rank in job.progress else None
                is_late = state is MemberState.NOT_ENTERED
                sequence = (own.entered if own is not None else None) if is_late else operation.sequence
                yield RankProgress(
                    rank=rank,
                    group=operation.group,
                    state=state,
                    sequence=None if state is MemberState.SILENT else sequence,
                    operation=operation.operation if state is MemberState.ENTERED else "",
                    basis="" if state is MemberState.SILENT else "dump",
                )


def list_hang_gaps(hang: Hang | None) -> tuple[Gap, ...]:
    """Return what the logs of a stuck job do not show, and what to record instead."""
    evidence = "" if hang is None else name_missing_evidence(hang)
    if hang is None or not evidence or hang.status is not HangStatus.STUCK:
        return ()
    if not hang.operations:
        return (make_gap("hang_without_operation", evidence=evidence),)
    operation = hang.operations[0]
    if operation.size is None:
        return (make_gap("hang_without_members", evidence=evidence),)
    seen = len(operation.entered) + len(operation.finished)
    return (make_gap("hang_without_lines", seen=seen, members=operation.size, evidence=evidence),)


def read_job(run: Run, evidence: LogEvidence | None = None) -> Job:
    """Return the flight recorders of a job; ranks without one are filled in from logs.

    Raises:
        BadInput: a table of the run is damaged.
    """
    signatures = Signatures()
    flights = {rank: read_flight(run, rank, signatures) for rank in run.ranks}
    known = {rank: flight for rank, flight in flights.items() if flight is not None}
    if known and evidence is not None:
        known |= make_flights(evidence, known, signatures)
    missing = frozenset(range(run.manifest.world_size)) - set(known)
    unread = frozenset(rank for rank in run.ranks if run.rank_manifests[rank].entries_left_out != 0)
    return Job(flights=known, missing=missing, signatures=signatures, unread=unread)


def _is_whole(job: Job, run: Run) -> bool:
    """Return True if every rank's data could be read, and the dumps tell which ranks exist."""
    groups = [group for flight in job.flights.values() for group in flight.groups.values()]
    is_known = run.manifest.source != FLIGHT_RECORDER or (
        bool(groups) and all(group.ranks for group in groups)
    )
    return is_known and not job.missing and not job.unread


def _judge(job: Job, folder: str, stall: Stall | None) -> Hang:
    if not job.operations:
        # Judge a job without a pending operation: it has finished, unless a watch saw inactive ranks.
        standing = [
            flight
            for rank, flight in job.flights.items()
            if stall is not None and rank in stall.ranks and flight.is_in_operation is False
        ]
        # True if a rank's group counters show that it has entered a collective.
        has_begun = any(
            flight.last is not None
            or any(enqueued is not None and enqueued > 0 for enqueued, _ in flight.status.values())
            for flight in job.flights.values()
        )
        if (
            not standing or not has_begun
        ):  # nobody waits for a rank that starts, or compiles, before all others
            return Hang(status=HangStatus.FINISHED)
        culprits = tuple(describe_rank(job, flight, folder, operation=0) for flight in standing)
        is_sure = len(standing) < len(job.flights)
        return Hang(
            status=HangStatus.STUCK,
            kind=HangClass.HOST_STUCK,
            confidence=Confidence.MEDIUM if is_sure else Confidence.LOW,
            culprits=culprits,
        )
    if stall is None and (_is_moving(job) or _is_active(job)):
        return Hang(status=HangStatus.RUNNING)
    # The ranks that have not finished a symmetric collective that a peer has finished.
    stopped = frozenset(
        rank
        for operation in job.operations
        if operation.finished and not operation.key.is_p2p and _proves_stop(operation)
        for rank in operation.entries
    )
    divergence = _find_blocking_divergence(job)
    if divergence is not None:
        return describe_divergence(job, folder, divergence)
    roots = find_roots(job, stopped)
    by_class: dict[HangClass, list[Root]] = {}
    for root in roots:
        by_class.setdefault(classify(job, root, stopped), []).append(root)
    if len(by_class) > 1:
        unfinished = by_class.get(HangClass.NOT_FINISHED, [])
        by_class[HangClass.NOT_FINISHED] = [root for root in unfinished if not is_passed(root)]
    kind = next((each for each in _PRECEDENCE if by_class.get(each)), HangClass.NOT_FINISHED)
    return describe_roots(job, folder, kind, by_class.get(kind, []))


def _is_moving(job: Job) -> bool:
    """Return True if the dumps contradict each other because the job continued while they were taken.

    No rank can finish a symmetric collective before all have entered it.
    """
    entered: dict[str, int] = {}
    finished: dict[str, int] = {}
    groups: dict[str, Group] = {}
    for rank, flight in job.flights.items():
        if rank in job.unread:
            continue
        for name, progress in job.progress[rank].items():
            groups[name] = flight.groups[name]
            finished[name] = max(progress.finished, finished.get(name, 0))
            if progress.is_exact:
                entered[name] = min(progress.entered, entered.get(name, progress.entered))
    return any(
        finished[name] > least and is_symmetric(job.name_operation(groups[name], least + 1))
        for name, least in entered.items()
    )


def _is_active(job: Job) -> bool:
    """Return True if most ranks were active right before their dump, so they are not waiting."""
    idle_ns = [
        flight.saved_ns - flight.newest_ns
        for flight in job.flights.values()
        if flight.saved_ns is not None and flight.newest_ns is not None
    ]
    return bool(idle_ns) and abs(statistics.median(idle_ns)) < _MIN_IDLE_NS


def _proves_stop(operation: PendingOperation) -> bool:
    """Return True if an operation that a peer finished should have finished everywhere."""
    has_left = len(operation.entries) == 1 and not (operation.late or operation.behind or operation.unknown)
    return has_left or is_symmetric(operation.entry.operation)


def _find_blocking_divergence(job: Job) -> Divergence | None:
    """Return the position at which ranks entered different operations, if the job waits there.

    Different sizes count only if the group has finished nothing since; operations that finished with
    different sizes before are meant to have them.
    """
    pending = {
        operation.key.group: operation.key.sequence
        for operation in job.operations
        if not operation.key.is_p2p and not operation.late
    }
    waiting = {operation.key.group for operation in job.operations if not operation.key.is_p2p}
    found = [
        divergence
        for divergence in find_divergences(job)
        if (divergence.by_line and divergence.group in waiting)
        or pending.get(divergence.group) == divergence.sequence
        or (
            divergence.group in waiting
            and (len({job.signatures.get(number)[0] for number in divergence.entered.values()}) > 1)
        )
    ]
    # A divergence with known odd ranks is stronger evidence than a mere difference.
    return min(found, key=lambda each: (each.by_line, each.expected is None), default=None)


def make_flights(
    evidence: LogEvidence, dumps: Mapping[int, RankFlight], signatures: Signatures
) -> dict[int, RankFlight]:
    """Build a flight recorder for each rank with log lines but no dump; dumps list the groups' members."""
    groups = {name: group for flight in dumps.values() for name, group in flight.groups.items()}
    by_rank: dict[int, list[RankLines]] = {}
    for lines in evidence.lines:
        is_usable = lines.basis not in (*CALLS, Basis.CONNECTION) and lines.group in groups
        if lines.rank is not None and lines.rank not in dumps and is_usable:
            by_rank.setdefault(lines.rank, []).append(lines)
    return {
        rank: _make_flight(rank, lines, groups, signatures, evidence.stacks.get(rank, ()))
        for rank, lines in by_rank.items()
    }


def _make_flight(
    rank: int,
    all_lines: list[RankLines],
    groups: Mapping[str, Group],
    signatures: Signatures,
    stack: tuple[SourceLocation, ...],
) -> RankFlight:
    progress: dict[str, Progress] = {}
    fronts = []
    for order, lines in enumerate(all_lines):
        standing = lines.standing
        if standing is None or not standing.is_p2p:
            entered = lines.enqueued or (standing.sequence if standing is not None else 0)
            finished = standing.sequence - 1 if standing is not None else lines.completed or 0
            is_exact = lines.enqueued is not None
            progress[lines.group] = Progress(entered=entered, finished=finished, is_exact=is_exact)
        if standing is not None and not standing.is_p2p:
            sizes = "" if standing.inputs is None else f"[[{standing.inputs}]]"
            fronts.append(
                Entry(
                    rank=rank,
                    group=groups[lines.group],
                    operation=standing.kind or "collective",
                    is_p2p=False,
                    sequence=standing.sequence,
                    order=order,
                    sizes=sizes,
                    dtypes="",
                    signature=signatures.number_operation(standing.kind, sizes, "", ""),
                    created_ns=None,
                    stack=0 if stack else None,
                )
            )
    own_groups = {lines.group: groups[lines.group] for lines in all_lines}
    return RankFlight(
        rank=rank,
        groups=own_groups,
        progress=progress,
        status={lines.group: (lines.enqueued, lines.completed) for lines in all_lines},
        p2p_groups=frozenset(),
        fronts=tuple(fronts),
        history=History(
            groups=tuple(own_groups.values()),
            group=_NONE,
            sequence=_NONE,
            signature=_NONE,
            location=_NONE,
            place=_NONE,
            own=OwnOrder(token=_NONE, group=_NONE, order=_NONE),
        ),
        last=fronts[-1] if fronts else None,
        stacks={0: stack} if stack else {},
    )


def find_stall(run: Run) -> Stall | None:
    """Return the last stall that a watch saw; None if it saw none.

    Raises:
        BadInput: a table of the run is damaged.
    """
    duration_ns: dict[int, int] = {}
    stuck = []
    for rank in run.ranks:
        if not run.has_table(rank, "mark"):
            continue
        marks = run.table(rank, "mark", ("time_ns", "kind", "number")).to_pylist()
        marks = [mark for mark in marks if mark["kind"] in (_STUCK, _RESUMED)]
        if not marks:
            continue
        last = max(marks, key=lambda mark: mark["time_ns"])
        duration_ns[rank] = last["number"]
        # A rank went on if its stall ended or it finished a step later; a killed rank writes no mark.
        step_end_ns = run.last_step_end_ns(rank)
        if last["kind"] == _STUCK and (step_end_ns is None or step_end_ns <= last["time_ns"]):
            stuck.append(rank)
    if not duration_ns:
        return None
    status = HangStatus.STUCK if len(stuck) == len(duration_ns) else HangStatus.RUNNING
    return Stall(
        status=status if stuck else HangStatus.RESUMED,
        ranks=tuple(stuck),
        duration_ns=max(duration_ns[rank] for rank in stuck or duration_ns),
    )
