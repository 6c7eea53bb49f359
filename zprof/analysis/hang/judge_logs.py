"""Find what a stuck job waits for from its logs alone, and what the logs do not show.

A line is evidence about the rank that wrote it. "All ranks" requires a stated group size; a late rank
requires a line of its own, or a launcher's report that it has ended. Without either, the result is who waits
and whose log is missing.
"""

import signal
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.hang.flight import find_user_line
from zprof.analysis.hang.operations import is_symmetric
from zprof.analysis.hang.ras import list_failed, settle
from zprof.model.findings import Confidence, SourceLocation
from zprof.model.group_roles import read_role
from zprof.model.hang import (
    EnteredSide,
    Hang,
    HangClass,
    HangStatus,
    MemberState,
    RankAtHang,
    RankProgress,
    StuckOperation,
    Wait,
    name_entered,
)
from zprof.run.log_evidence import CALLS, Basis, LogEvidence, RankLines, Standing, is_default_group

#: Operations in which element counts may differ between ranks.
_UNEVEN = frozenset({"all_to_all", "gather", "scatter", "coalesced", "all_gather_coalesced"})
#: Signals sent by an aborting watchdog, or by a launcher that ends the other ranks: the rank is a victim.
_OF_VICTIMS = frozenset({-signal.SIGABRT, -signal.SIGTERM, -signal.SIGINT})
#: Hang classes in order of certainty, to choose between groups.
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


class LogGroup(Struct, frozen=True, kw_only=True, dict=True):
    """One process group, as seen in the logs.

    ``lines``: lines of ranks with a known global rank; ``others``: lines of ranks known only by their rank in
    the group. ``size``: number of members, None if no line states it. ``members``: global ranks of the
    members, None if unknown. ``has_all_ranks``: it is the group of all ranks. ``is_mixed``: the lines name no
    group and come from several groups.
    """

    name: str
    description: str
    lines: dict[int, RankLines]
    others: tuple[RankLines, ...]
    size: int | None
    members: tuple[int, ...] | None
    has_all_ranks: bool = False
    is_mixed: bool = False
    stacks: Mapping[int, tuple[SourceLocation, ...]] = {}

    @property
    def has_transfers(self) -> bool:
        """Return True if a rank is in a send or receive."""
        return any(
            lines.standing is not None and lines.standing.is_p2p
            for lines in (*self.lines.values(), *self.others)
        )

    @property
    def is_comparable(self) -> bool:
        """Return True if equal sequence numbers of different ranks mean the same operation.

        Each rank numbers its own sends. Lines without a group name may come from several groups: they do if a
        rank has two operations, or if other lines name a group.
        """
        return self.sequence is not None and not self.has_transfers and not self.is_mixed

    @cached_property
    def is_by_calls(self) -> bool:
        """Return True if only the calls are known: which operations were entered, not which finished."""
        return all(lines.basis in CALLS for lines in self.lines.values())

    @cached_property
    def sequence(self) -> int | None:
        """The first operation that a rank has entered but not finished; None if there is none."""
        if self.is_by_calls:
            counted = (*self.lines.values(), *(each for each in self.others if each.basis is Basis.RAS))
            last = [lines.standing.sequence for lines in counted if lines.standing is not None]
            return min(last) + (min(last) < max(last)) if last else None
        pending = [_find_pending(lines) for lines in (*self.lines.values(), *self.others)]
        return min((number for number in pending if number is not None), default=None)

    @cached_property
    def states(self) -> dict[int, MemberState]:
        """The state of each rank that is a member or has a line about the group."""
        silent = dict.fromkeys(self.members or (), MemberState.SILENT)
        return silent | {rank: self.place(lines) for rank, lines in sorted(self.lines.items())}

    def place(self, lines: RankLines) -> MemberState:
        """Return a rank's state from its lines."""
        number = self.sequence
        standing = lines.standing
        if standing is not None and (standing.is_p2p or self.is_mixed):
            return MemberState.ENTERED
        if number is None:
            return MemberState.SILENT
        if standing is not None:
            if self.is_by_calls:
                return MemberState.ENTERED if standing.sequence >= number else MemberState.NOT_ENTERED
            return MemberState.ENTERED if standing.sequence <= number else MemberState.PAST
        if lines.completed is not None and lines.completed >= number:
            return MemberState.PAST
        if lines.enqueued is not None:
            return MemberState.ENTERED if lines.enqueued >= number else MemberState.NOT_ENTERED
        return MemberState.SILENT

    def list_ranks(self, state: MemberState) -> tuple[int, ...]:
        """Return the global ranks in this state."""
        return tuple(rank for rank, each in self.states.items() if each is state)

    @cached_property
    def standings(self) -> dict[int, Standing]:
        """The name of the stuck operation in each rank's line, if any."""
        return {
            rank: lines.standing
            for rank, lines in self.lines.items()
            if lines.standing is not None and lines.standing.sequence == self.sequence and lines.standing.kind
        }

    @cached_property
    def unseen(self) -> int | None:
        """Number of members without a line; None if the size is not known."""
        if self.size is None:
            return None
        silent = sum(state is MemberState.SILENT for state in self.states.values() if self.members)
        return silent if self.members else max(0, self.size - len(self.lines) - len(self.others))

    def find_disagreement(self) -> dict[tuple[str, int | None], tuple[int, ...]]:
        """Return the ranks by the operation entered under the same sequence number, if the operations
        differ.
        """
        entered: dict[tuple[str, int | None], list[int]] = {}
        for rank, standing in self.standings.items():
            inputs = None if standing.kind in _UNEVEN else standing.inputs
            entered.setdefault((standing.kind, inputs), []).append(rank)
        return {key: tuple(ranks) for key, ranks in entered.items()} if len(entered) > 1 else {}

    def describe_operation(self) -> StuckOperation:
        """Return the stuck operation, as named by most ranks."""
        named = Counter(self.standings.values()).most_common(1)
        pending = [lines.standing for lines in self.lines.values() if lines.standing is not None]
        first = pending[0] if pending and self.sequence is None else Standing(sequence=self.sequence or 0)
        standing = named[0][0] if named else first
        role = read_role(self.description)
        named_by = [rank for rank, each in self.standings.items() if each == standing]
        return StuckOperation(
            operation=standing.kind or "operation",
            group=self.name,
            description=self.description,
            role="" if role is None else role.value,
            ranks=self.members or tuple(sorted(self.lines)),
            sequence=standing.sequence,
            sizes="" if not standing.inputs else f"[{standing.inputs}]",
            dtypes="",
            entered=self.list_ranks(MemberState.ENTERED),
            late=self.list_ranks(MemberState.NOT_ENTERED),
            finished=self.list_ranks(MemberState.PAST),
            unknown=self.list_ranks(MemberState.SILENT),
            size=self.size,
            location=next((line for rank in named_by if (line := self.locate(rank)) is not None), None),
        )

    def locate(self, rank: int) -> SourceLocation | None:
        """Return the line of the user's program at which a rank entered its current operation."""
        return find_user_line(self.stacks.get(rank, ()))

    def list_progress(self) -> Iterator[RankProgress]:
        """Yield each rank's progress."""
        for rank, state in self.states.items():
            lines = self.lines.get(rank)
            yield self._make_progress(rank, lines, state)
        for lines in self.others:
            yield self._make_progress(None, lines, self.place(lines))

    def _make_progress(self, rank: int | None, lines: RankLines | None, state: MemberState) -> RankProgress:
        if lines is None:
            return RankProgress(rank=rank, group=self.name, state=state)
        standing = lines.standing
        last = lines.enqueued if state is MemberState.NOT_ENTERED else None
        return RankProgress(
            rank=rank,
            group=self.name,
            state=state,
            group_rank=lines.group_rank,
            sequence=standing.sequence if standing is not None else last or self.sequence,
            operation=standing.kind if standing is not None else "",
            basis=lines.basis.value,
        )


def list_groups(evidence: LogEvidence) -> list[LogGroup]:
    """Return the groups with a stuck or a counted operation."""
    by_name: dict[str, list[RankLines]] = {}
    for lines in evidence.lines:
        if lines.basis is not Basis.CONNECTION:
            by_name.setdefault(lines.group, []).append(_drop_mixed_counters(lines))
    has_names = any(by_name)
    return [_make_group(name, lines, evidence, has_names) for name, lines in by_name.items()]


def _make_group(name: str, lines: Sequence[RankLines], evidence: LogEvidence, has_names: bool) -> LogGroup:
    known = {each.rank: each for each in lines if each.rank is not None}
    description = lines[0].description
    is_default = is_default_group(name, description)
    size = evidence.sizes.get(name)
    has_all_ranks = is_default or (lines[0].basis is Basis.RAS and size == evidence.world_size)
    is_whole = has_all_ranks or lines[0].basis is Basis.CALL
    size = size or (evidence.world_size if is_whole else None)
    seen = set(known) | (set(evidence.speakers) if is_default else set())
    if size is not None and (len(lines) > size or (is_default and max(seen, default=0) >= size)):
        size = None  # what states the size is of another group
    members = None
    if size is not None and is_whole:
        members = tuple(range(size))
    elif size is not None and len(known) == size:
        members = tuple(sorted(known))
    return LogGroup(
        name=name,
        description=description,
        lines=known,
        others=tuple(each for each in lines if each.rank is None),
        size=size,
        members=members,
        stacks={rank: evidence.stacks[rank] for rank in known if rank in evidence.stacks},
        has_all_ranks=has_all_ranks,
        is_mixed=not name and (has_names or len(known) < sum(each.rank is not None for each in lines)),
    )


def _drop_mixed_counters(lines: RankLines) -> RankLines:
    """Drop counter lines that also count sends: they contradict the operation."""
    standing, enqueued, completed = lines.standing, lines.enqueued, lines.completed
    if standing is None:
        return lines
    is_mixed = (enqueued is not None and enqueued < standing.sequence) or (
        completed is not None and completed >= standing.sequence
    )
    return replace(lines, enqueued=None, completed=None) if is_mixed or standing.is_p2p else lines


def _find_pending(lines: RankLines) -> int | None:
    """Return the first collective that a rank has entered but not finished."""
    if lines.standing is not None:
        return None if lines.standing.is_p2p else lines.standing.sequence
    if lines.enqueued is None or lines.completed is None or lines.completed >= lines.enqueued:
        return None
    return lines.completed + 1


class _Verdict(Struct, frozen=True, kw_only=True):
    group: LogGroup
    kind: HangClass
    confidence: Confidence = Confidence.LOW
    culprits: tuple[RankAtHang, ...] = ()
    sides: tuple[EnteredSide, ...] = ()


def judge_logs(evidence: LogEvidence) -> Hang:
    """Return what the job waits for, according to its logs."""
    groups = [group for group in list_groups(evidence) if group.sequence is not None or group.has_transfers]
    gone = {culprit.rank: culprit for culprit in _list_gone(evidence)}
    if not groups:
        return settle(_judge_gone(evidence, gone), evidence)
    standing = {rank for group in groups for rank in group.list_ranks(MemberState.ENTERED)}
    verdicts = [
        _judge_group(
            group, evidence, gone, standing - frozenset(group.list_ranks(MemberState.ENTERED)), groups
        )
        for group in groups
    ]
    verdicts.sort(key=_rank_verdict)
    first = verdicts[0]
    operations = tuple(verdict.group.describe_operation() for verdict in verdicts)
    culprits = {culprit.rank for culprit in first.culprits}
    # The ranks that appear in no group.
    silent = {rank for group in groups for rank in group.list_ranks(MemberState.SILENT)}
    seen = {rank for group in groups for rank in group.lines}
    hang = Hang(
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
    return settle(hang, evidence)


def _rank_verdict(verdict: _Verdict) -> tuple[bool, int, int]:
    """Return the sort key of verdicts: failed processes first, then by hang class, then by ranks seen."""
    has_failed = any(culprit.has_failed for culprit in verdict.culprits)
    return not has_failed, _PRECEDENCE.index(verdict.kind), -len(verdict.group.lines)


def _list_gone(evidence: LogEvidence) -> Iterator[RankAtHang]:
    """Yield the ranks whose process ended by itself, does not answer, or failed in NCCL.

    A victim may also end with an exception, so an exception counts only if the rank has no line about a
    group.
    """
    heard = {lines.rank for lines in evidence.lines}
    found = {rank.rank: rank for rank in list_failed(evidence)}
    for ending in evidence.endings:
        if ending.rank is None or ending.exit_code in _OF_VICTIMS:
            continue
        if ending.exit_code < 0 or ending.rank not in heard:
            known = found.get(ending.rank, RankAtHang(rank=ending.rank, operation=0))
            found[ending.rank] = replace(known, exit_code=ending.exit_code)
    yield from (found[rank] for rank in sorted(found))


def _judge_gone(evidence: LogEvidence, gone: Mapping[int, RankAtHang]) -> Hang:
    """Judge logs that name no operation: which ranks are gone, if the launcher or RAS reports it."""
    culprits = tuple(gone.values())
    return Hang(
        status=HangStatus.STUCK,
        kind=HangClass.RANK_MISSING if culprits else HangClass.CANNOT_TELL,
        confidence=_rate_gone(culprits),
        culprits=culprits,
        victims=tuple(sorted({each.rank for each in evidence.lines if each.rank is not None} - set(gone))),
        logs=evidence.files,
    )


def _judge_group(
    group: LogGroup,
    evidence: LogEvidence,
    gone: Mapping[int, RankAtHang],
    elsewhere: set[int],
    groups: Sequence[LogGroup],
) -> _Verdict:
    """Judge one group; ``elsewhere``: ranks that are in an operation of another group."""
    if not group.is_comparable:
        return _judge_gone_members(group, gone) or _Verdict(group=group, kind=HangClass.CANNOT_TELL)
    if entered := group.find_disagreement():
        return _judge_disagreement(group, entered)
    if group.list_ranks(MemberState.PAST) and is_symmetric(group.describe_operation().operation):
        return _judge_shift(group)
    late = group.list_ranks(MemberState.NOT_ENTERED)
    silent = group.list_ranks(MemberState.SILENT)
    if verdict := _judge_gone_members(group, gone):
        return verdict
    free = _narrow_late([rank for rank in late if rank not in elsewhere], groups)
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


def _judge_gone_members(group: LogGroup, gone: Mapping[int, RankAtHang]) -> _Verdict | None:
    """Judge the members that are gone; None if there are none, or if one of them is in the operation."""
    culprits = tuple(gone[rank] for rank in sorted(gone) if group.members is None or rank in group.members)
    # If a line names no group, its rank may be relative to any group.
    entered = set(group.list_ranks(MemberState.ENTERED)) if group.name else set[int]()
    if not culprits or entered & {culprit.rank for culprit in culprits}:
        return None
    return _Verdict(
        group=group, kind=HangClass.RANK_MISSING, confidence=_rate_gone(culprits), culprits=culprits
    )


def _rate_gone(culprits: Sequence[RankAtHang]) -> Confidence:
    """Rate the confidence in ranks that are gone: one of several took down the others, and an exception may
    be a victim's. A process that does not answer holds up its peers, whatever made it so.
    """
    is_signal = len(culprits) == 1 and (culprits[0].exit_code or 0) < 0
    is_sure = is_signal or (bool(culprits) and all(each.is_unreachable for each in culprits))
    return Confidence.MEDIUM if is_sure else Confidence.LOW


def _judge_disagreement(
    group: LogGroup, entered: Mapping[tuple[str, int | None], tuple[int, ...]]
) -> _Verdict:
    """Judge ranks that entered different operations under the same number: the minority is odd."""
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
        # A line that names no group may belong to any group; then numbers match by chance.
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
    """Judge ranks that are in an operation that others have finished.

    With several such ranks, the numbers have shifted: an operation was skipped or entered in another order,
    and it is unknown on which side. A single rank may have a stopped device.
    """
    entered, past = group.list_ranks(MemberState.ENTERED), group.list_ranks(MemberState.PAST)
    is_whole = group.unseen == 0 and len(entered) + len(past) == group.size
    if len(entered) == 1 and len(past) > 1 and is_whole:
        culprits = (RankAtHang(rank=entered[0], operation=0),)
        return _Verdict(group=group, kind=HangClass.DEVICE_STOPPED, culprits=culprits)
    return _Verdict(group=group, kind=HangClass.DIFFERENT_COLLECTIVES)


def _has_unnamed_waits(groups: Sequence[LogGroup]) -> bool:
    """Return True if RAS counts ranks that wait in a communicator, and does not tell which ranks they are."""
    return any(lines.basis is Basis.RAS for group in groups for lines in group.others)


def _narrow_late(late: Sequence[int], groups: Sequence[LogGroup]) -> Sequence[int]:
    """Return the late ranks that are late in most groups, if any of them may wait in a group unnamed.

    Who holds up the others is late in all of its groups; who waits for it is late in one less.
    """
    if not _has_unnamed_waits(groups):
        return late
    times = Counter(rank for group in groups for rank in group.list_ranks(MemberState.NOT_ENTERED))
    most = max((times[rank] for rank in late), default=0)
    return [rank for rank in late if times[rank] == most]


def _rate_late(group: LogGroup, late: Sequence[int], groups: Sequence[LogGroup]) -> Confidence:
    """Rate the confidence in ranks that have not entered an operation in which others wait.

    They may wait in a group without log lines. If most ranks have not entered the operation, the ranks inside
    are the odd ones.
    """
    entered = group.list_ranks(MemberState.ENTERED)
    is_few = len(late) * 2 <= len(entered)
    if all(lines.basis is Basis.RAS for other in groups for lines in other.lines.values()):
        # RAS lists every communicator: another one with a rank that is late by itself makes it unsure.
        others = {rank for other in groups for rank in other.list_ranks(MemberState.NOT_ENTERED)}
        waiting = {rank for other in groups for rank in other.list_ranks(MemberState.ENTERED)}
        is_sure = is_few and others - waiting <= set(late) and not _has_unnamed_waits(groups)
        return Confidence.MEDIUM if is_sure else Confidence.LOW
    has_other_groups = any(other is not group for other in groups) or not group.has_all_ranks
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
