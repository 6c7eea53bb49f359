"""Shared parts of the hang causes: facts, the words of their sentences, and the sentences about other jobs.

``zprof.analysis.hang`` finds the class of a hang and its ranks; each cause has the sentence of its class, the
next step and the way to disprove it.
"""

from collections.abc import Mapping, Sequence

from zprof.analysis.analysis import Fact, RunAnalysis, make_fact
from zprof.base.formatting import format_ns, name_ranks, printable, shorten
from zprof.causes.cause import Signal
from zprof.model.findings import Confidence, Severity
from zprof.model.hang import (
    MAX_NAME_LENGTH,
    MAX_NAMED_RANKS,
    Hang,
    HangClass,
    HangStatus,
    ProcessState,
    RankAtHang,
    describe_location,
    describe_operation,
    format_line,
    is_stuck,
    name_entered,
    name_operation,
)
from zprof.model.quantities import Unit

EVIDENCE: Mapping[str, tuple[str, Unit]] = {
    "ranks_waiting": ("ranks that wait", Unit.COUNT),
    "ranks_late": ("ranks that have not entered the collective", Unit.COUNT),
    "ranks_entered": ("ranks that have entered it", Unit.COUNT),
    "ranks_finished": ("ranks that have finished it", Unit.COUNT),
    "stuck_operations": ("collectives that cannot finish", Unit.COUNT),
    "ranks_without_dump": ("ranks without a dump", Unit.COUNT),
    "ranks_without_lines": ("ranks without a line about it", Unit.COUNT),
    "logs_read": ("logs", Unit.COUNT),
    "stall": ("time without progress when the state was saved", Unit.NS),
}
_STOPPED = frozenset({ProcessState.STOPPED, ProcessState.TRACED})
_MAX_SIDES, _MAX_PLACES = 3, 2


def find_stuck(analysis: RunAnalysis, kind: HangClass) -> Hang | None:
    """Return the hang if the job is stuck for this reason."""
    return analysis.hang if is_stuck(analysis.hang) and analysis.hang.kind is kind else None


def make_stuck_signal(
    hang: Hang, fix: str, sentence: str = "", words: Mapping[str, object] | None = None
) -> Signal:
    """Return the signal of a class of hang; its fix never asks to record evidence that is already there.

    Two fixes come before that of the class: continue a stopped process, whatever it holds up, and make an
    order that differs between ranks the same.
    """
    if hang.is_swapped:
        fix = enter_in_same_order(hang)
    return Signal(
        confidence=hang.confidence,
        words={**_list_words(hang), **(words or {})},
        facts=_list_facts(hang),
        severity=Severity.HIGH if hang.confidence is not Confidence.LOW else Severity.MEDIUM,
        sentence=sentence,
        fix=_continue_stopped(list_stopped(hang)) or fix,
        locate=lambda: next((each.location for each in hang.culprits if each.location is not None), None),
    )


def _list_words(hang: Hang) -> Mapping[str, object]:
    """Return the words for the sentences of all classes."""
    operation = hang.operations[0] if hang.operations else None
    entry = operation.location if operation is not None else None
    # Where the culprits are, two lines at most; empty if the location of the others already shows it.
    known = [each.location for each in hang.culprits if each.location is not None and each.location != entry]
    places = [describe_location(each) for each in list(dict.fromkeys(known))[:_MAX_PLACES]]
    victims = len(hang.victims)
    return {
        "stopped": _describe_stopped(list_stopped(hang)),
        "who": name_ranks([each.rank for each in hang.culprits], MAX_NAMED_RANKS),
        "have": "has" if len(hang.culprits) == 1 else "have",
        "them": "it" if len(hang.culprits) == 1 else "them",
        "operation": "" if operation is None else describe_operation(operation),
        "entry": "" if entry is None else f" at {describe_location(entry)}",
        "places": f" ({'; '.join(places)})" if places else "",
        "peers": name_ranks(operation.finished, MAX_NAMED_RANKS)
        if operation is not None and operation.finished
        else "a peer",
        "waiting": f"; {victims} rank{'s wait' if victims != 1 else ' waits'}" if victims else "",
    }


def list_stopped(hang: Hang) -> list[RankAtHang]:
    """Return the culprits whose process is stopped: it does nothing until it is continued."""
    return [each for each in hang.culprits if each.process is not None and each.process.state in _STOPPED]


def _describe_stopped(stopped: Sequence[RankAtHang]) -> str:
    if not stopped:
        return ""
    who = name_ranks([each.rank for each in stopped], MAX_NAMED_RANKS)
    states = {each.process.state for each in stopped if each.process is not None}
    how = "stopped by a debugger" if states == {ProcessState.TRACED} else "stopped (SIGSTOP)"
    several = len(stopped) > 1
    return f"the process{'es' if several else ''} of {who} {'are' if several else 'is'} {how}: "


def _continue_stopped(stopped: Sequence[RankAtHang]) -> str:
    if not stopped:
        return ""
    lines = [
        f"rank {each.rank}: kill -CONT {each.process.number} on {printable(each.process.host) or 'its host'}"
        for each in stopped[:MAX_NAMED_RANKS]
        if each.process is not None
    ]
    more = len(stopped) - MAX_NAMED_RANKS
    lines += [f"and {more} more ranks"] if more > 0 else []
    return "\n".join(
        [*lines, "and find out what stopped it: a debugger, a scheduler that suspends jobs, Ctrl-Z"]
    )


def name_processes(hang: Hang) -> str:
    """Return a line for each culprit whose process NCCL's RAS names; empty without any."""
    named = [each for each in hang.culprits if each.process is not None and hang.ras_reports]
    lines = [
        f"rank {each.rank} is process {each.process.number} on {printable(each.process.host)}\n"
        for each in named[:MAX_NAMED_RANKS]
        if each.process is not None
    ]
    return "".join(lines)


def _list_facts(hang: Hang) -> list[Fact]:
    operation = hang.operations[0] if hang.operations else None
    known = {
        "ranks_waiting": len(hang.victims),
        "ranks_late": len(operation.late) if operation else 0,
        "ranks_entered": len(operation.entered) if operation else 0,
        "ranks_finished": len(operation.finished) if operation else 0,
        "stuck_operations": len(hang.operations),
        "ranks_without_dump": 0 if hang.logs else len(hang.ranks_missing),
        "ranks_without_lines": len(hang.ranks_missing) if hang.logs else 0,
        "logs_read": hang.logs,
        "stall": hang.stall_ns or 0,
    }
    return [make_fact(key, value) for key, value in known.items() if value]


def enter_in_same_order(hang: Hang) -> str:
    """Return the fix for an order that differs between ranks, with the lines."""
    if hang.sides:
        entered = [(name_entered(side), side.location) for side in hang.sides[:2]]
    else:
        entered = [(name_operation(each), each.location) for each in hang.operations[:2]]
    named = [name if location is None else f"{name} ({format_line(location)})" for name, location in entered]
    return (
        f"enter {' and '.join(named)} in the same order on all ranks\n"
        "(a branch that turns them round, threads, or hooks of a backward, that make the order a race)"
    )


def describe_sides(hang: Hang) -> str:
    """Return "rank 0 is in all_reduce [4] (a.py:11), rank 1 in barrier (a.py:19): each as #12 of GROUP".

    A line that all share appears once. A rank that has moved on is no longer in the operation that it
    entered.
    """
    operation = hang.operations[0]
    is_at_first = all(side.sequence == operation.sequence for side in hang.sides)
    standing = set(operation.entered) if is_at_first else set()
    lines = [format_line(side.location) for side in hang.sides]
    is_one_line = len(set(lines)) == 1 and bool(lines[0])
    parts = []
    for side, line in list(zip(hang.sides, lines, strict=True))[:_MAX_SIDES]:
        is_in = standing.issuperset(side.ranks)
        verb = "is in" if len(side.ranks) == 1 else "are in"
        place = f" ({line})" if line and not is_one_line else ""
        who = name_ranks(side.ranks, MAX_NAMED_RANKS)
        parts.append(f"{who} {verb if is_in else 'entered'} {name_entered(side)}{place}")
    more = sum(len(side.ranks) for side in hang.sides[_MAX_SIDES:])
    if more:
        parts.append(f"{more} more rank{'s' if more > 1 else ''} in others")
    name = shorten(operation.description or operation.group, MAX_NAME_LENGTH) or "its group"
    where = f", all at {lines[0]}" if is_one_line else ""
    order = ", the same operations in another order" if hang.is_swapped else ""
    return printable(f"{', '.join(parts)}{where}: each as #{hang.sides[0].sequence} of {name}{order}")


def describe_not_stuck(hang: Hang) -> str:
    """Return the sentence about a job that is not stuck, or may not be."""
    if hang.status is HangStatus.FINISHED:
        return "not stuck: every collective that a rank entered has finished"
    if hang.ras_reports:
        return _describe_answers(hang)
    if hang.status is HangStatus.RUNNING:
        return "not stuck: the ranks went on while the dumps were taken"
    if hang.status is HangStatus.RESUMED:
        stall = f" of {format_ns(hang.stall_ns)}" if hang.stall_ns else ""
        return f"not stuck: a stall{stall} ended, and all ranks went on"
    unread = [
        f"{name_ranks(ranks, MAX_NAMED_RANKS)} {left}"
        for ranks, left in (
            (hang.ranks_missing, "left no dump"),
            (hang.ranks_unread, "left a dump that could not be read whole"),
        )
        if ranks
    ]
    missing = " and ".join(unread) or "the dumps do not say which ranks there are"
    return f"cannot be told if it is stuck: {missing}"


def _describe_answers(hang: Hang) -> str:
    """Return the sentence about answers of NCCL's RAS that do not show a stuck job."""
    if hang.status is HangStatus.RUNNING:
        return "not stuck: ranks launched operations between the answers of NCCL's RAS"
    again = "ask ncclras again in a minute, and pass both answers"
    if hang.ras_reports > 1:
        return (
            "cannot be told if it is stuck: all ranks launched the same operations, and none between the "
            "answers of NCCL's RAS: they wait in the last one, or no host goes on"
        )
    if not hang.culprits or not hang.operations:
        return f"cannot be told if it is stuck: NCCL's RAS shows no rank behind the others; {again}"
    who = name_ranks([each.rank for each in hang.culprits], MAX_NAMED_RANKS)
    have = "has" if len(hang.culprits) == 1 else "have"
    operation = describe_operation(hang.operations[0])
    return (
        f"cannot be told if it is stuck: in one answer of NCCL's RAS {who} {have} not launched {operation}, "
        f"as happens in a running job; {again}"
    )
