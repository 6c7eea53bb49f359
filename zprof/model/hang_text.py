"""Say in one line what a stuck job waits for; every output has this sentence."""

from collections.abc import Sequence

from zprof.model.findings import SourceLocation
from zprof.model.formatting import format_ns, name_ranks, name_signal, printable, shorten
from zprof.model.hang import (
    EnteredSide,
    Hang,
    HangClass,
    HangStatus,
    ProcessState,
    RankAtHang,
    StuckOperation,
)

_MAX_NAME_LENGTH, _MAX_SIZES_LENGTH = 60, 40
_MAX_CULPRITS = 4
_MAX_SIDES = 3
_DUMP_SETTINGS = "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1"
_STOPPED = frozenset({ProcessState.STOPPED, ProcessState.TRACED})
#: Ranks that a line of a list or a table names, and characters of a group's name in it.
MAX_RANKS, _MAX_SHORT_NAME_LENGTH = 6, 40


def describe_hang(hang: Hang) -> str:
    """Return the sentence: who holds up which collective, at which line, and how many ranks wait."""
    if hang.status is HangStatus.FINISHED:
        return "not stuck: every collective that a rank entered has finished"
    if hang.status is HangStatus.RUNNING:
        return "not stuck: the ranks went on while the dumps were taken"
    if hang.status is HangStatus.UNKNOWN:
        return f"cannot be told if it is stuck: {_describe_unread(hang)}"
    if hang.status is HangStatus.RESUMED:
        stall = f" of {format_ns(hang.stall_ns)}" if hang.stall_ns else ""
        return f"not stuck: a stall{stall} ended, and all ranks went on"
    waiting = f"; {len(hang.victims)} rank{'s wait' if len(hang.victims) != 1 else ' waits'}"
    stopped = list_stopped(hang)
    return f"stuck: {_describe_stopped(stopped)}{_describe_cause(hang)}{waiting if hang.victims else ''}"


def list_stopped(hang: Hang) -> list[RankAtHang]:
    """Return the ranks to blame whose process is stopped: it does nothing until it is continued."""
    return [each for each in hang.culprits if each.process is not None and each.process.state in _STOPPED]


def _describe_stopped(stopped: Sequence[RankAtHang]) -> str:
    if not stopped:
        return ""
    who = name_ranks([each.rank for each in stopped], _MAX_CULPRITS)
    states = {each.process.state for each in stopped if each.process is not None}
    how = "stopped by a debugger" if states == {ProcessState.TRACED} else "stopped (SIGSTOP)"
    several = len(stopped) > 1
    return f"the process{'es' if several else ''} of {who} {'are' if several else 'is'} {how}: "


def describe_missing_evidence(hang: Hang) -> str:
    """Return what would tell more than the logs do; empty if they show all members, or there are none."""
    is_told = hang.kind not in (HangClass.RANK_MISSING, HangClass.CANNOT_TELL)
    if not hang.logs or (is_told and hang.operations and hang.operations[0].size is not None):
        return ""
    silent = [] if is_told else [each.rank for each in hang.culprits]
    if silent:
        whose = f"the log of {name_ranks(silent, _MAX_CULPRITS)}"
    else:
        whose = "the logs of all ranks (torchrun --log-dir logs -r 3)"
    return f"{whose}, or dumps of the flight recorder ({_DUMP_SETTINGS})"


def describe_operation(operation: StuckOperation) -> str:
    """Return "all_reduce #12 [1024] Float of the tensor group tp (ranks 0 and 1)"."""
    sizes = shorten(format_sizes(operation.sizes, operation.dtypes), _MAX_SIZES_LENGTH)
    role = f"{operation.role} group" if operation.role else "group"
    name = shorten(operation.description or operation.group, _MAX_NAME_LENGTH)
    title = f"{operation.operation} #{operation.sequence}{f' {sizes}' if sizes else ''}"
    if not name:
        return printable(f"{title}, in a group without a name")
    return printable(f"{title} of the {role} {name} ({_describe_members(operation)})")


def _describe_members(operation: StuckOperation) -> str:
    if operation.size is None:
        return "members unknown"
    if operation.unnamed:
        return f"{operation.size} members"
    return name_ranks(operation.ranks, _MAX_CULPRITS)


def format_sizes(sizes: str, dtypes: str) -> str:
    """Return "[1024,8] Float" for the sizes of one tensor, "[8],[16] Float,Float" for several.

    Sizes of an output follow those of the input: "[8] -> [32] Float".
    """
    sides = (side[1:-1] if side.startswith("[[") else side for side in sizes.split(" -> "))
    return " ".join(part for part in (" -> ".join(sides), dtypes) if part)


def name_operation(operation: StuckOperation) -> str:
    """Return "all_reduce #12 of TENSOR_GROUP"."""
    name = shorten(operation.description or operation.group, _MAX_SHORT_NAME_LENGTH)
    return printable(f"{operation.operation} #{operation.sequence} of {name}")


def describe_last(culprit: RankAtHang) -> str:
    """Return the last that it entered, "all_reduce #11 of GROUP at train.py:42 in step"; empty if unknown.

    The line is left out if the rank is still at it.
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
    return printable(f"{location.file}:{location.line} in {shorten(location.function, _MAX_NAME_LENGTH)}")


def _describe_cause(hang: Hang) -> str:
    who = name_ranks([each.rank for each in hang.culprits], _MAX_CULPRITS)
    have = "has" if len(hang.culprits) == 1 else "have"
    operation = describe_operation(hang.operations[0]) if hang.operations else ""
    # Where the culprits are, two lines at most; empty if where the others are says it already.
    entry = hang.operations[0].location if hang.operations else None
    places = dict.fromkeys(each.location for each in hang.culprits if each.location not in (None, entry))
    at = f" ({'; '.join(describe_location(each) for each in list(places)[:2] if each)})" if places else ""
    match hang.kind:
        case HangClass.RANK_MISSING if any(each.exit_code is not None for each in hang.culprits):
            waiting = f", and {operation} waits for {_them(hang)}" if operation else ""
            return f"{who} {have} ended ({_describe_endings(hang.culprits)}){waiting}"
        case HangClass.NEVER_ENTERED:
            return f"{who} never entered {operation}{_describe_entry(hang)} and went on{at}"
        case HangClass.HOST_STUCK if not operation:
            return f"{who} {have} nothing to wait for, and {'do' if have == 'have' else 'does'} not go on{at}"
        case HangClass.HOST_STUCK if hang.logs:
            return f"{who} {have} not entered {operation}{_describe_lasts(hang)}"
        case HangClass.HOST_STUCK:
            free = "" if list_stopped(hang) else f", and nothing holds {_them(hang)} up"
            return f"{who} {have} not entered {operation}{_describe_entry(hang)}{free}{at}"
        case HangClass.DIFFERENT_COLLECTIVES if not hang.culprits:
            entered = name_ranks(hang.operations[0].entered, _MAX_CULPRITS)
            return (
                f"{entered} stand in {operation}, which {_describe_peers(hang)} finished: "
                "the ranks entered different operations before it"
            )
        case HangClass.DIFFERENT_COLLECTIVES | HangClass.MISMATCHED:
            return _describe_sides(hang)
        case HangClass.CIRCULAR_WAIT:
            return _describe_circle(hang, who)
        case HangClass.DEVICE_STOPPED:
            peers = _describe_peers(hang)
            return f"{who} {have} not finished {operation}, which {peers} finished: device stopped"
        case HangClass.RANK_MISSING:
            return _describe_missing(hang, who, operation)
        case HangClass.CANNOT_TELL:
            return _describe_unknown(hang, operation)
        case _:
            return f"all ranks have entered {operation}{_describe_entry(hang)}, and none leaves it"


def _describe_unread(hang: Hang) -> str:
    """Return whose dumps are needed to know that a job is not stuck."""
    unread = [
        f"{name_ranks(ranks, _MAX_CULPRITS)} {left}"
        for ranks, left in (
            (hang.ranks_missing, "left no dump"),
            (hang.ranks_unread, "left a dump that could not be read whole"),
        )
        if ranks
    ]
    return " and ".join(unread) or "the dumps do not say which ranks there are"


def _describe_sides(hang: Hang) -> str:
    """Return "rank 0 is in all_reduce [4] (a.py:11), rank 1 in barrier (a.py:19): each as #12 of GROUP".

    A line that all share is said once. A rank that has gone on is not in what it entered.
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
        who = name_ranks(side.ranks, _MAX_CULPRITS)
        parts.append(f"{who} {verb if is_in else 'entered'} {name_entered(side)}{place}")
    more = sum(len(side.ranks) for side in hang.sides[_MAX_SIDES:])
    if more:
        parts.append(f"{more} more rank{'s' if more > 1 else ''} in others")
    name = shorten(operation.description or operation.group, _MAX_NAME_LENGTH) or "its group"
    where = f", all at {lines[0]}" if is_one_line else ""
    order = ", the same operations in another order" if hang.is_swapped else ""
    return printable(f"{', '.join(parts)}{where}: each as #{hang.sides[0].sequence} of {name}{order}")


def name_entered(side: EnteredSide) -> str:
    """Return "all_reduce [4] Float"."""
    sizes = shorten(format_sizes(side.sizes, side.dtypes), _MAX_SIZES_LENGTH)
    return printable(f"{side.operation} {sizes}".strip())


def format_line(location: SourceLocation | None) -> str:
    """Return "train.py:42"; empty if unknown."""
    return printable(f"{location.file}:{location.line}") if location is not None else ""


def _describe_circle(hang: Hang, who: str) -> str:
    """Return who stands in which of the first two operations that wait for one another."""
    parts = []
    for number, operation in enumerate(hang.operations[:2]):
        ranks = next((wait.ranks for wait in hang.waits if wait.operation == number), operation.entered)
        line = format_line(operation.location)
        verb = "is in" if len(ranks) == 1 else "are in"
        place = f" ({line})" if line else ""
        parts.append(f"{name_ranks(ranks, _MAX_CULPRITS)} {verb} {describe_operation(operation)}{place}")
    if len(hang.culprits) == 1:
        order = f"they wait for one another, {who} in another order than before"
    elif len(hang.culprits) > 2:
        order = f"{who} wait for one another in a circle, in different orders"
    else:
        order = "they wait for one another, in different orders"
    return f"{', '.join(parts)}: {order}"


def _describe_missing(hang: Hang, who: str, operation: str) -> str:
    waiting = f"{operation}{_describe_entry(hang)} waits for"
    if hang.culprits:
        left = "left no dump that could be read whole" if hang.ranks_unread else "left no dump"
        return f"{who} {'wrote no line about it' if hang.logs else left}, and {waiting} {_them(hang)}"
    unnamed = hang.operations[0].unnamed
    return (
        f"{unnamed} of the {hang.operations[0].size} members wrote no line about it, and {waiting} "
        f"{'it' if unnamed == 1 else 'them'}"
    )


def _describe_unknown(hang: Hang, operation: str) -> str:
    if not operation:
        return "what the job waits for cannot be told: the logs name no operation"
    entered = hang.operations[0].entered
    who = (
        f"{name_ranks(entered, _MAX_CULPRITS)} {'is' if len(entered) == 1 else 'are'} in it"
        if entered
        else ""
    )
    return f"who holds up {operation} cannot be told{f': {who}' if who else ''}"


def _describe_lasts(hang: Hang) -> str:
    """Return ": #211 was its last" if all culprits have the same last operation."""
    lasts = {each.last_sequence for each in hang.culprits}
    last = lasts.pop() if len(lasts) == 1 else None
    if last is None:
        return ""
    whose = "its" if len(hang.culprits) == 1 else "their"
    return f": #{last} was {whose} last" if last else f": {'it' if whose == 'its' else 'they'} entered none"


def _describe_endings(culprits: tuple[RankAtHang, ...]) -> str:
    codes = dict.fromkeys(each.exit_code for each in culprits if each.exit_code is not None)
    return ", ".join((f"exit code {code}" if code >= 0 else name_signal(-code)) for code in codes)


def _describe_entry(hang: Hang) -> str:
    location = hang.operations[0].location if hang.operations else None
    return f" at {describe_location(location)}" if location is not None else ""


def _describe_peers(hang: Hang) -> str:
    peers = hang.operations[0].finished if hang.operations else ()
    return name_ranks(peers, _MAX_CULPRITS) if peers else "a peer"


def _them(hang: Hang) -> str:
    return "it" if len(hang.culprits) == 1 else "them"
