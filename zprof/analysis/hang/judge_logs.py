"""Say what a stuck job waits for from its logs alone, and what they do not tell.

A line is evidence about the rank that wrote it. "All ranks" needs a stated size; who is late needs a line of
that rank, or the launcher's word that it has ended. Without either, the answer is who waits, and whose log is
missing.
"""

import signal
from collections.abc import Mapping, Sequence

from msgspec import Struct

from zprof.analysis.hang.log_groups import LogGroup, list_groups
from zprof.analysis.hang.operations import is_symmetric
from zprof.model.findings import Confidence
from zprof.model.hang import (
    EnteredSide,
    Hang,
    HangClass,
    HangStatus,
    MemberState,
    RankAtHang,
    Wait,
    name_entered,
)
from zprof.run.log_evidence import Basis, LogEvidence

#: Signals of a watchdog that aborts, and of a launcher that ends the other ranks: the rank is a victim.
_OF_VICTIMS = frozenset({-signal.SIGABRT, -signal.SIGTERM, -signal.SIGINT})
#: What decides between groups, the surest first.
_PRECEDENCE = (
    HangClass.MISMATCHED,
    HangClass.DIFFERENT_COLLECTIVES,
    HangClass.NEVER_ENTERED,
    HangClass.HOST_STUCK,
    HangClass.DEVICE_STOPPED,
    HangClass.CIRCULAR_WAIT,
    HangClass.NOT_FINISHED,
    HangClass.RANK_MISSING,
    HangClass.CANNOT_TELL,
)


class _Verdict(Struct, frozen=True, kw_only=True):
    group: LogGroup
    kind: HangClass
    confidence: Confidence = Confidence.LOW
    culprits: tuple[RankAtHang, ...] = ()
    sides: tuple[EnteredSide, ...] = ()


def judge_logs(evidence: LogEvidence) -> Hang:
    """Return what the job waits for, as far as its logs tell."""
    groups = [group for group in list_groups(evidence) if group.sequence is not None or group.has_transfers]
    ended = _list_ended(evidence)
    if not groups:
        return _judge_endings(evidence, ended)
    standing = {rank for group in groups for rank in group.list_ranks(MemberState.ENTERED)}
    verdicts = [
        _judge_group(
            group, evidence, ended, standing - frozenset(group.list_ranks(MemberState.ENTERED)), groups
        )
        for group in groups
    ]
    verdicts.sort(key=_rank_verdict)
    first = verdicts[0]
    operations = tuple(verdict.group.describe_operation() for verdict in verdicts)
    culprits = {culprit.rank for culprit in first.culprits}
    # The ranks that no group knows anything of.
    silent = {rank for group in groups for rank in group.list_ranks(MemberState.SILENT)}
    seen = {rank for group in groups for rank in group.lines}
    return Hang(
        status=HangStatus.STUCK,
        kind=first.kind,
        confidence=first.confidence,
        operations=operations,
        culprits=first.culprits,
        victims=tuple(sorted(standing - culprits)),
        sides=first.sides,
        waits=tuple(
            Wait(operation=place, ranks=operation.entered, for_ranks=operation.late or operation.unknown)
            for place, operation in enumerate(operations)
            if operation.entered and (operation.late or operation.unknown)
        ),
        ranks_seen=len({lines.rank for lines in evidence.lines if lines.rank is not None}),
        ranks_missing=tuple(sorted(silent - seen)),
        ranks=tuple(progress for verdict in verdicts for progress in verdict.group.list_progress()),
        logs=evidence.files,
    )


def _rank_verdict(verdict: _Verdict) -> tuple[bool, int, int]:
    """Return the order of verdicts: a process that ended first, then by class, then by the ranks seen."""
    has_ended = any(culprit.exit_code is not None for culprit in verdict.culprits)
    return not has_ended, _PRECEDENCE.index(verdict.kind), -len(verdict.group.lines)


def _list_ended(evidence: LogEvidence) -> dict[int, int]:
    """Return the exit codes of the ranks whose process ended for its own reason.

    An exception may be the last word of a victim too: it counts if the rank has no line of its own.
    """
    heard = {lines.rank for lines in evidence.lines}
    return {
        ending.rank: ending.exit_code
        for ending in evidence.endings
        if ending.rank is not None
        and ending.exit_code not in _OF_VICTIMS
        and (ending.exit_code < 0 or ending.rank not in heard)
    }


def _judge_endings(evidence: LogEvidence, ended: dict[int, int]) -> Hang:
    """Judge logs in which no operation is named: who has ended, if the launcher says so."""
    culprits = tuple(
        RankAtHang(rank=rank, operation=0, exit_code=code) for rank, code in sorted(ended.items())
    )
    return Hang(
        status=HangStatus.STUCK,
        kind=HangClass.RANK_MISSING if culprits else HangClass.CANNOT_TELL,
        confidence=_rate_ended(culprits),
        culprits=culprits,
        victims=tuple(sorted({each.rank for each in evidence.lines if each.rank is not None} - set(ended))),
        logs=evidence.files,
    )


def _judge_group(
    group: LogGroup,
    evidence: LogEvidence,
    ended: dict[int, int],
    elsewhere: set[int],
    groups: Sequence[LogGroup],
) -> _Verdict:
    """Judge one group; ``elsewhere``: ranks that stand in an operation of another group."""
    if not group.is_comparable:
        return _judge_ended(group, ended) or _Verdict(group=group, kind=HangClass.CANNOT_TELL)
    if entered := group.find_disagreement():
        return _judge_disagreement(group, entered)
    if group.list_ranks(MemberState.PAST) and is_symmetric(group.describe_operation().operation):
        return _judge_shift(group)
    late = group.list_ranks(MemberState.NOT_ENTERED)
    silent = group.list_ranks(MemberState.SILENT)
    if gone := _judge_ended(group, ended):
        return gone
    free = [rank for rank in late if rank not in elsewhere]
    if free:
        return _Verdict(
            group=group,
            kind=HangClass.HOST_STUCK,
            confidence=_rate_late(group, free, groups),
            culprits=tuple(_describe_late(group, rank) for rank in free),
        )
    stuck = [rank for rank in evidence.stuck_watchdogs if rank in silent]
    if stuck:
        culprits = tuple(RankAtHang(rank=rank, operation=0) for rank in stuck)
        return _Verdict(group=group, kind=HangClass.HOST_STUCK, culprits=culprits)
    if late:
        return _Verdict(group=group, kind=HangClass.CIRCULAR_WAIT)
    if group.unseen is None or group.is_by_calls:
        return _Verdict(group=group, kind=HangClass.CANNOT_TELL)
    if group.unseen:
        missing = tuple(RankAtHang(rank=rank, operation=0) for rank in silent)
        return _Verdict(group=group, kind=HangClass.RANK_MISSING, culprits=missing)
    return _Verdict(group=group, kind=HangClass.NOT_FINISHED, confidence=Confidence.MEDIUM)


def _judge_ended(group: LogGroup, ended: dict[int, int]) -> _Verdict | None:
    """Judge ranks of the group that have ended; None if there are none, or one stands in the operation."""
    gone = [rank for rank in ended if group.members is None or rank in group.members]
    # Without a name of the group, a line may have the rank in any group.
    entered = set(group.list_ranks(MemberState.ENTERED)) if group.name else set[int]()
    if not gone or set(gone) & entered:
        return None
    culprits = tuple(RankAtHang(rank=rank, operation=0, exit_code=ended[rank]) for rank in sorted(gone))
    return _Verdict(
        group=group, kind=HangClass.RANK_MISSING, confidence=_rate_ended(culprits), culprits=culprits
    )


def _rate_ended(culprits: Sequence[RankAtHang]) -> Confidence:
    """Rate processes that ended: of several, one took the others down; an exception may be a victim's."""
    is_sure = len(culprits) == 1 and (culprits[0].exit_code or 0) < 0
    return Confidence.MEDIUM if is_sure else Confidence.LOW


def _judge_disagreement(
    group: LogGroup, entered: Mapping[tuple[str, int | None], tuple[int, ...]]
) -> _Verdict:
    """Judge ranks that entered different operations under the same number: the fewer ones are odd."""
    by_count = sorted(entered.items(), key=lambda item: -len(item[1]))
    most, *rest = by_count
    is_other = len({kind for kind, _ in entered}) > 1
    has_majority = len(most[1]) > sum(len(ranks) for _, ranks in rest)
    odd = rest if has_majority else by_count
    sides = {
        key: EnteredSide(
            ranks=tuple(sorted(ranks)),
            operation=key[0],
            sequence=group.sequence or 0,
            sizes="" if key[1] is None else f"[{key[1]}]",
            dtypes="",
            location=group.locate(min(ranks)),
        )
        for key, ranks in by_count
    }
    return _Verdict(
        group=group,
        kind=HangClass.DIFFERENT_COLLECTIVES if is_other else HangClass.MISMATCHED,
        # Without a name of its group a line may be of any: then numbers are alike by chance.
        confidence=Confidence.MEDIUM if has_majority and group.name else Confidence.LOW,
        culprits=tuple(
            RankAtHang(
                rank=rank,
                operation=0,
                entered_instead=name_entered(sides[key]),
                location=group.locate(rank),
            )
            for key, ranks in odd
            for rank in sorted(ranks)
        ),
        sides=tuple(sides.values()),
    )


def _judge_shift(group: LogGroup) -> _Verdict:
    """Judge ranks that stand in an operation which others have finished.

    Of several, the numbers have shifted: an operation was skipped, or entered in another order, and nobody
    can say on which side. A single one may have a device that stopped.
    """
    entered, past = group.list_ranks(MemberState.ENTERED), group.list_ranks(MemberState.PAST)
    is_whole = group.unseen == 0 and len(entered) + len(past) == group.size
    if len(entered) == 1 and len(past) > 1 and is_whole:
        culprits = (RankAtHang(rank=entered[0], operation=0),)
        return _Verdict(group=group, kind=HangClass.DEVICE_STOPPED, culprits=culprits)
    return _Verdict(group=group, kind=HangClass.DIFFERENT_COLLECTIVES)


def _rate_late(group: LogGroup, late: Sequence[int], groups: Sequence[LogGroup]) -> Confidence:
    """Rate ranks that have not entered what others stand in.

    They may wait in a group of which no line is there; and if most have not entered it, those in it are the
    odd ones.
    """
    entered = group.list_ranks(MemberState.ENTERED)
    has_other_groups = any(other is not group for other in groups) or not group.is_default
    is_few = len(late) * 2 <= len(entered)
    has_cut_calls = group.is_by_calls  # the end of a log may be missing
    return Confidence.MEDIUM if is_few and not (has_other_groups or has_cut_calls) else Confidence.LOW


def _describe_late(group: LogGroup, rank: int) -> RankAtHang:
    lines = group.lines[rank]
    last = lines.enqueued if lines.standing is None else lines.standing.sequence
    return RankAtHang(
        rank=rank,
        operation=0,
        last_operation="" if lines.standing is None or lines.basis is not Basis.CALL else lines.standing.kind,
        last_group=group.description or group.name,
        last_sequence=last,
    )
