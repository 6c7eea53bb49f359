"""What a log proves, computed from the facts of the lines that are in it.

The states follow from the lines alone. The planted fault is used only to say whether the log decides it, and
who is innocent.
"""

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.hang_jobs.job import Job
from zprof.model.hang import HangClass

#: Exits of processes that others took down: by the watchdog, by the launcher.
EXITS_OF_VICTIMS = (-6, -15)
UNEVEN = ("ALLTOALL_BASE", "SEND", "RECV", "COALESCED")


class Fact(Struct, frozen=True, kw_only=True):
    """What one line says of one rank.

    ``kind``: "timeout", "status", "signal", "call" (of NCCL) or "exit". ``rank``: the number that the line
    gives it: global, or in its group if ``is_global`` is not. ``group``: the name that the line gives the
    group ("" if none that other ranks' lines share). ``sequence``: the operation that the rank waits in, or
    has called. ``is_own``: a signal that the rank's own watchdog sent.
    """

    kind: str
    rank: int
    is_global: bool = True
    group: str = ""
    sequence: int = -1
    operation: str = ""
    numel_in: int = 0
    enqueued: int = -1
    completed: int = -1
    size: int = 0
    is_p2p: bool = False
    is_own: bool = False
    exit_code: int = 0


class LogGroup(Struct, frozen=True, kw_only=True):
    """A group that lines name.

    ``sequence``: the first operation that a rank stands in (-1 if numbers of ranks cannot be compared).
    ``size`` is None if no line states it.
    """

    name: str
    sequence: int
    size: int | None
    is_p2p: bool


class LogState(Struct, frozen=True, kw_only=True):
    """Where a rank stands with respect to its group's first stuck operation.

    ``state``: "entered", "not_entered", "past" or "silent". ``sequence``: the operation that the rank itself
    stands in or, not entered, the last one that it entered. ``is_global``: whether ``rank`` is global.
    """

    rank: int
    is_global: bool
    group: str
    state: str
    sequence: int
    operation: str


class LogExit(Struct, frozen=True, kw_only=True):
    """The end of a rank, as the launcher says it."""

    rank: int
    exit_code: int


class LogTruth(Struct, frozen=True, kw_only=True):
    """What is true of a log.

    ``path``: what to read, in the folder of the log. ``kinds`` and ``culprits``: any is a right answer if
    the log ``decides``; else what was planted. ``suspects``: ranks that answered a dump signal and wait in
    nothing that the lines show, while others wait. ``innocent``: global ranks that must not be accused above
    low confidence: neither planted nor suspect nor late by the lines.
    """

    seed: int
    fault: str
    version: str
    cut: str
    path: str
    groups: tuple[LogGroup, ...]
    states: tuple[LogState, ...]
    exits: tuple[LogExit, ...]
    decides: bool
    kinds: tuple[HangClass, ...]
    culprits: tuple[tuple[int, ...], ...]
    suspects: tuple[int, ...]
    innocent: tuple[int, ...]


class _Decision(Struct, frozen=True):
    kinds: tuple[HangClass, ...]
    culprits: tuple[int, ...]


def make_truth(job: Job, version: str, cut: str, path: str, facts: Sequence[Fact]) -> LogTruth:
    """Return the truth of a log whose lines say ``facts``."""
    facts = _name_groups(facts)
    groups = _list_groups(facts)
    states = _list_states(facts, groups, job.mesh.world)
    exits = tuple(
        dict.fromkeys(LogExit(rank=each.rank, exit_code=each.exit_code) for each in facts if each.exit_code)
    )
    suspects = _list_suspects(facts)
    decision = _decide(facts, groups, states, exits)
    planted = (*job.truth.culprits, job.outcome.plan.culprits)
    decides = decision is not None and decision.culprits in {tuple(sorted(ranks)) for ranks in planted}
    defensible = {rank for ranks in planted for rank in ranks} | set(suspects)
    defensible |= {each.rank for each in states if each.state == "not_entered"}
    kinds, culprits = job.truth.kinds, job.truth.culprits
    if decision is not None:
        defensible |= set(decision.culprits)
        if decides:
            kinds, culprits = tuple(dict.fromkeys((*decision.kinds, *kinds))), (decision.culprits,)
    return LogTruth(
        seed=job.truth.seed,
        fault=job.truth.fault,
        version=version,
        cut=cut,
        path=path,
        groups=groups,
        states=states,
        exits=exits,
        decides=decides,
        kinds=kinds,
        culprits=culprits,
        suspects=suspects,
        innocent=tuple(rank for rank in range(job.mesh.world) if rank not in defensible),
    )


def _name_groups(facts: Sequence[Fact]) -> list[Fact]:
    """Give timeout lines the group that other lines of their rank name for the same number.

    Each group has a watchdog of its own: where two groups of a rank wait in the same number, their lines mix,
    and which operation is of which group cannot be told. Then only the lines with a name count.
    """
    names: dict[tuple[int, int], set[str]] = {}
    nameless: dict[tuple[int, int], int] = {}
    for fact in facts:
        key = (fact.rank, fact.sequence)
        if fact.group and fact.kind != "signal":
            names.setdefault(key, set()).add(fact.group)
        elif fact.kind == "timeout":
            nameless[key] = nameless.get(key, 0) + 1
    named = []
    for fact in facts:
        key = (fact.rank, fact.sequence)
        known = names.get(key, set())
        if fact.kind != "timeout" or fact.group or not known:
            named.append(fact)
        elif len(known) == 1 and nameless[key] == 1:
            named.append(replace(fact, group=next(iter(known))))
        elif nameless[key] > len(known):
            named.append(fact)
    return named


def _list_suspects(facts: Sequence[Fact]) -> tuple[int, ...]:
    """Return the ranks that answered another's dump signal, and wait in nothing."""
    waiting = {fact.rank for fact in facts if _find_standing(fact) is not None or fact.is_own}
    answered = {fact.rank for fact in facts if fact.kind == "signal"}
    return tuple(sorted(answered - waiting)) if waiting else ()


def _list_groups(facts: Sequence[Fact]) -> tuple[LogGroup, ...]:
    groups = []
    for name in sorted({fact.group for fact in facts if fact.group}):
        mine = [fact for fact in facts if fact.group == name]
        standing = [number for fact in mine if (number := _find_standing(fact)) is not None]
        if not standing:
            continue
        is_p2p = any(fact.is_p2p for fact in mine)
        sizes = {fact.size for fact in mine if fact.size}
        groups.append(
            LogGroup(
                name=name,
                sequence=-1 if is_p2p else min(standing),
                size=max(sizes) if sizes else None,
                is_p2p=is_p2p,
            )
        )
    return tuple(groups)


def _find_standing(fact: Fact) -> int | None:
    """Return the operation that a rank waits in, by its line."""
    if fact.kind == "signal":
        return max(fact.completed, 0) + 1 if fact.enqueued > fact.completed else None
    return fact.sequence if fact.kind in ("timeout", "status") else None


def _list_states(facts: Sequence[Fact], groups: Sequence[LogGroup], world: int) -> tuple[LogState, ...]:
    states: list[LogState] = []
    sequences = {group.name: group.sequence for group in groups}
    lines: dict[tuple[int, str, int], list[Fact]] = {}
    for fact in facts:
        if fact.kind != "exit" and (not fact.group or fact.group in sequences):
            # Without a name each operation may be of another group.
            number = fact.sequence if not fact.group and fact.kind != "call" else -1
            lines.setdefault((fact.rank, fact.group, number), []).append(fact)
    for key in sorted(lines):
        state = _find_state(lines[key], sequences.get(key[1], -1))
        if state is not None:
            states.append(state)
    for group in groups:
        if group.size == world:
            seen = {state.rank for state in states if state.group == group.name}
            states.extend(
                LogState(
                    rank=rank, is_global=True, group=group.name, state="silent", sequence=-1, operation=""
                )
                for rank in range(world)
                if rank not in seen
            )
    return tuple(states)


def _find_state(facts: Sequence[Fact], first: int) -> LogState | None:
    """Return where a rank stands in a group whose first stuck operation is ``first`` (-1: not comparable)."""
    standing = [fact for fact in facts if _find_standing(fact) is not None or fact.kind == "call"]
    fact = min(standing or facts, key=lambda each: (each.kind not in ("timeout", "call"), -each.sequence))
    sequence = fact.sequence if fact.kind == "call" else _find_standing(fact)
    state = "entered"
    if sequence is None:
        sequence = max(each.enqueued for each in facts)
        if first < 0:
            return None
        state = "past" if sequence >= first else "not_entered"
    elif first >= 0 and sequence > first and fact.kind != "call":
        state = "past"
    return LogState(
        rank=fact.rank,
        is_global=fact.is_global,
        group=fact.group,
        state=state,
        sequence=sequence,
        operation=next((each.operation for each in standing if each.operation), ""),
    )


def _decide(
    facts: Sequence[Fact],
    groups: Sequence[LogGroup],
    states: Sequence[LogState],
    exits: Sequence[LogExit],
) -> _Decision | None:
    """Return what the lines decide by themselves, or None."""
    died = [each.rank for each in exits if each.exit_code not in EXITS_OF_VICTIMS]
    if died:
        return _Decision((HangClass.RANK_MISSING,), tuple(sorted(died)))
    if any(not state.is_global for state in states):
        return None
    called = _find_odd_call(facts)
    if called is not None:
        return called
    odd = [each for group in groups if (each := _find_odd(facts, states, group)) is not None]
    if len(odd) == 1:
        return odd[0]
    standing = {state.rank for state in states if state.state in ("entered", "past")}
    standing |= {fact.rank for fact in facts if fact.is_own}
    late = {state.rank for state in states if state.state == "not_entered"} - standing
    apart = {state.group for state in states if state.state == "past"}
    if late and not apart and not odd:
        return _Decision((HangClass.HOST_STUCK, HangClass.NEVER_ENTERED), tuple(sorted(late)))
    entered = {
        name: sum(state.group == name and state.state == "entered" for state in states)
        for name in {group.name for group in groups}
    }
    if (
        groups
        and not any(state.group == "" for state in states)
        and all(group.size is not None and entered[group.name] == group.size for group in groups)
    ):
        return _Decision((HangClass.NOT_FINISHED,), ())
    return None


def _find_odd(facts: Sequence[Fact], states: Sequence[LogState], group: LogGroup) -> _Decision | None:
    """Return the minority that entered something else under the number of a group's first stuck operation."""
    if group.is_p2p:
        return None
    entered = {
        fact.rank: (fact.operation, 0 if fact.operation in UNEVEN else fact.numel_in)
        for fact in facts
        if fact.group == group.name and fact.kind == "timeout" and fact.sequence == group.sequence
    }
    return _find_minority(entered)


def _find_odd_call(facts: Sequence[Fact]) -> _Decision | None:
    calls: dict[int, dict[int, tuple[str, int]]] = {}
    for fact in facts:
        if fact.kind == "call":
            calls.setdefault(fact.sequence, {})[fact.rank] = (fact.operation, fact.numel_in)
    for sequence in sorted(calls):
        if len(set(calls[sequence].values())) > 1:
            return _find_minority(calls[sequence])
    return None


def _find_minority(entered: dict[int, tuple[str, int]]) -> _Decision | None:
    kinds = list(entered.values())
    common = max(set(kinds), key=kinds.count, default=None)
    odd = tuple(sorted(rank for rank, kind in entered.items() if kind != common))
    if not odd or common is None or 2 * len(odd) >= len(entered):
        return None
    operations = {operation for operation, _ in kinds}
    return _Decision((HangClass.DIFFERENT_COLLECTIVES if len(operations) > 1 else HangClass.MISMATCHED,), odd)
