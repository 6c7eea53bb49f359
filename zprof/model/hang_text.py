"""Say in one line what a stuck job waits for; every output has this sentence."""

import signal

from zprof.model.findings import SourceLocation
from zprof.model.formatting import format_ns, name_ranks, printable, shorten
from zprof.model.hang import Hang, HangClass, HangStatus, RankAtHang, StuckOperation

_MAX_NAME_LENGTH, _MAX_SIZES_LENGTH = 60, 40
_MAX_CULPRITS = 4
_DUMP_SETTINGS = "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1"
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
    return f"stuck: {_describe_cause(hang)}{waiting if hang.victims else ''}"


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
    """Return "[1024,8] Float" for the sizes of one tensor, "[8],[16] Float,Float" for several."""
    inner = sizes[1:-1] if sizes.startswith("[[") else sizes
    return " ".join(part for part in (inner, dtypes) if part)


def name_operation(operation: StuckOperation) -> str:
    """Return "all_reduce #12 of TENSOR_GROUP"."""
    name = shorten(operation.description or operation.group, _MAX_SHORT_NAME_LENGTH)
    return printable(f"{operation.operation} #{operation.sequence} of {name}")


def describe_last(culprit: RankAtHang) -> str:
    """Return the last that it entered, "all_reduce #11 of GROUP at train.py:42 in step"; empty if unknown."""
    if culprit.last_sequence is None:
        return ""
    name = " ".join(part for part in (culprit.last_operation, f"#{culprit.last_sequence}") if part)
    group = shorten(culprit.last_group, _MAX_SHORT_NAME_LENGTH)
    where = f" at {describe_location(culprit.last_location)}" if culprit.last_location is not None else ""
    return printable(f"{name} of {group}") + where


def describe_location(location: SourceLocation) -> str:
    """Return "train.py:42 in step"."""
    return printable(f"{location.file}:{location.line} in {shorten(location.function, _MAX_NAME_LENGTH)}")


def _describe_cause(hang: Hang) -> str:
    who = name_ranks([each.rank for each in hang.culprits], _MAX_CULPRITS)
    have = "has" if len(hang.culprits) == 1 else "have"
    operation = describe_operation(hang.operations[0]) if hang.operations else ""
    at = _describe_places(hang.culprits)
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
            return (
                f"{who} {have} not entered {operation}{_describe_entry(hang)}, "
                f"and nothing holds {_them(hang)} up{at}"
            )
        case HangClass.DIFFERENT_COLLECTIVES if not hang.culprits:
            entered = name_ranks(hang.operations[0].entered, _MAX_CULPRITS)
            return (
                f"{entered} stand in {operation}, which {_describe_peers(hang)} finished: "
                "the ranks entered different operations before it"
            )
        case HangClass.DIFFERENT_COLLECTIVES | HangClass.MISMATCHED:
            return _describe_sides(hang)
        case HangClass.CIRCULAR_WAIT:
            others = " and ".join(describe_operation(each) for each in hang.operations[:2])
            if len(hang.culprits) == 1:
                return f"{who} entered {others} in another order than before, and all wait in a circle{at}"
            whom = f"{who} wait" if hang.culprits else "ranks wait"
            return f"{whom} for one another in {others}, entered in different orders{at}"
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
    """Return "rank 0 is in all_reduce [4] (a.py:11), rank 1 in barrier (a.py:19): both #12 of GROUP"."""
    operation = hang.operations[0]
    sides: dict[tuple[str, str], list[int]] = {}
    others = [rank for rank in operation.entered if rank not in {each.rank for each in hang.culprits}]
    if others:
        sizes = shorten(format_sizes(operation.sizes, operation.dtypes), _MAX_SIZES_LENGTH)
        location = operation.location
        key = (f"{operation.operation} {sizes}".strip(), _format_place(location))
        sides[key] = others
    for culprit in hang.culprits:
        entered = shorten(culprit.entered_instead, _MAX_SIZES_LENGTH + _MAX_NAME_LENGTH)
        key = (entered or "something else", _format_place(culprit.location))
        sides.setdefault(key, []).append(culprit.rank)
    parts = [
        f"{name_ranks(sorted(ranks), _MAX_CULPRITS)}{verb} in {entered}{place}"
        for (entered, place), ranks, verb in zip(
            sides, sides.values(), _list_verbs(list(sides.values())), strict=True
        )
    ]
    name = shorten(operation.description or operation.group, _MAX_NAME_LENGTH)
    return printable(f"{', '.join(parts)}: each as #{operation.sequence} of {name or 'its group'}")


def _list_verbs(sides: list[list[int]]) -> list[str]:
    return [
        (" is" if len(ranks) == 1 else " are") if not number else "" for number, ranks in enumerate(sides)
    ]


def _format_place(location: SourceLocation | None) -> str:
    return f" ({describe_location(location)})" if location is not None else ""


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
    return ", ".join(_describe_exit(code) for code in codes)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:
        return f"signal {-code}"


def _describe_entry(hang: Hang) -> str:
    location = hang.operations[0].location if hang.operations else None
    return f" at {describe_location(location)}" if location is not None else ""


def _describe_places(culprits: tuple[RankAtHang, ...]) -> str:
    """Return where the culprits are: the line of the first, and of those that are elsewhere."""
    places = dict.fromkeys(describe_location(each.location) for each in culprits if each.location is not None)
    return f" ({'; '.join(list(places)[:2])})" if places else ""


def _describe_peers(hang: Hang) -> str:
    peers = hang.operations[0].finished if hang.operations else ()
    return name_ranks(peers, _MAX_CULPRITS) if peers else "a peer"


def _them(hang: Hang) -> str:
    return "it" if len(hang.culprits) == 1 else "them"
