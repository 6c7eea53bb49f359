"""Place the ranks of each group by what their log lines prove: in the stuck operation, before it, past it, or
silent.
"""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.group_roles import find_role
from zprof.analysis.hang.flight import find_user_line
from zprof.model.findings import SourceLocation
from zprof.model.hang import MemberState, RankProgress, StuckOperation
from zprof.run.log_evidence import Basis, LogEvidence, RankLines, Standing, is_default_group

#: Operations in which ranks may have other numbers of elements.
_UNEVEN = frozenset({"all_to_all", "gather", "scatter", "coalesced", "all_gather_coalesced"})


class LogGroup(Struct, frozen=True, kw_only=True, dict=True):
    """One process group as the logs show it.

    ``lines``: those of the ranks whose global rank is known; ``others``: of ranks known in the group only.
    ``size``: number of members, None if no line states it. ``members``: their global ranks, None if unknown.
    ``is_mixed``: the lines have no name, and are of several groups.
    """

    name: str
    description: str
    lines: dict[int, RankLines]
    others: tuple[RankLines, ...]
    size: int | None
    members: tuple[int, ...] | None
    is_mixed: bool = False
    stacks: Mapping[int, tuple[SourceLocation, ...]] = {}

    @property
    def is_default(self) -> bool:
        """Return True for the group of all ranks."""
        return is_default_group(self.name, self.description)

    @property
    def has_transfers(self) -> bool:
        """Return True if a rank stands in a send or receive."""
        return any(
            lines.standing is not None and lines.standing.is_p2p
            for lines in (*self.lines.values(), *self.others)
        )

    @property
    def is_comparable(self) -> bool:
        """Return True if numbers of different ranks mean the same operation.

        Sends count for themselves on each rank. Lines without a name may be of several groups: they are, if a
        rank has two operations, or if other lines do have a name.
        """
        return self.sequence is not None and not self.has_transfers and not self.is_mixed

    @cached_property
    def is_by_calls(self) -> bool:
        """Return True if only the calls are known: what was entered, and not what has finished."""
        return all(lines.basis is Basis.CALL for lines in self.lines.values())

    @cached_property
    def sequence(self) -> int | None:
        """The first operation that a rank has entered and not finished; None if there is none."""
        if self.is_by_calls:
            last = [lines.standing.sequence for lines in self.lines.values() if lines.standing is not None]
            return min(last) + (min(last) < max(last)) if last else None
        pending = [_find_pending(lines) for lines in (*self.lines.values(), *self.others)]
        return min((number for number in pending if number is not None), default=None)

    @cached_property
    def states(self) -> dict[int, MemberState]:
        """Where each rank is that is a member, or has a line on the group."""
        silent = dict.fromkeys(self.members or (), MemberState.SILENT)
        return silent | {rank: self.place(lines) for rank, lines in sorted(self.lines.items())}

    def place(self, lines: RankLines) -> MemberState:
        """Return where a rank is by its lines."""
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
        """The stuck operation as each rank names it, if its line does."""
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
        """Return the ranks by what they entered under the same number, if it is not the same."""
        entered: dict[tuple[str, int | None], list[int]] = {}
        for rank, standing in self.standings.items():
            inputs = None if standing.kind in _UNEVEN else standing.inputs
            entered.setdefault((standing.kind, inputs), []).append(rank)
        return {key: tuple(ranks) for key, ranks in entered.items()} if len(entered) > 1 else {}

    def describe_operation(self) -> StuckOperation:
        """Return the stuck operation as most ranks name it."""
        named = Counter(self.standings.values()).most_common(1)
        pending = [lines.standing for lines in self.lines.values() if lines.standing is not None]
        first = pending[0] if pending and self.sequence is None else Standing(sequence=self.sequence or 0)
        standing = named[0][0] if named else first
        role = find_role(self.description)
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
        """Return the line of the user's program that entered what a rank stands in."""
        return find_user_line(self.stacks.get(rank, ()))

    def list_progress(self) -> Iterator[RankProgress]:
        """Yield what each rank did."""
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
    """Return the groups in which something is stuck or counted."""
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
    is_whole = is_default or lines[0].basis is Basis.CALL
    size = evidence.sizes.get(name) or (evidence.world_size if is_whole else None)
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
        is_mixed=not name and (has_names or len(known) < sum(each.rank is not None for each in lines)),
    )


def _drop_mixed_counters(lines: RankLines) -> RankLines:
    """Return the lines without counters that count sends too: they contradict the operation."""
    standing, enqueued, completed = lines.standing, lines.enqueued, lines.completed
    if standing is None:
        return lines
    is_mixed = (enqueued is not None and enqueued < standing.sequence) or (
        completed is not None and completed >= standing.sequence
    )
    return replace(lines, enqueued=None, completed=None) if is_mixed or standing.is_p2p else lines


def _find_pending(lines: RankLines) -> int | None:
    """Return the first collective that a rank has entered and not finished."""
    if lines.standing is not None:
        return None if lines.standing.is_p2p else lines.standing.sequence
    if lines.enqueued is None or lines.completed is None or lines.completed >= lines.enqueued:
        return None
    return lines.completed + 1
