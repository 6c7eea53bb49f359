"""Say in one line what a stuck job waits for; every output has this sentence."""

from zprof.model.findings import SourceLocation
from zprof.model.formatting import format_ns, name_ranks, printable, shorten
from zprof.model.hang import Hang, HangClass, HangStatus, RankAtHang, StuckOperation

_MAX_NAME_LENGTH, _MAX_SIZES_LENGTH = 60, 40
_MAX_CULPRITS = 4
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


def describe_operation(operation: StuckOperation) -> str:
    """Return "all_reduce #12 [1024] Float of the tensor group (ranks 0 and 1)"."""
    sizes = shorten(format_sizes(operation.sizes, operation.dtypes), _MAX_SIZES_LENGTH)
    role = f"{operation.role} group" if operation.role else "group"
    name = shorten(operation.description or operation.group, _MAX_NAME_LENGTH)
    title = f"{operation.operation} #{operation.sequence}{f' {sizes}' if sizes else ''}"
    return printable(f"{title} of the {role} {name} ({name_ranks(operation.ranks, _MAX_CULPRITS)})")


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
        case HangClass.NEVER_ENTERED:
            return f"{who} never entered {operation}{_describe_entry(hang)} and went on{at}"
        case HangClass.HOST_STUCK if not operation:
            return f"{who} {have} nothing to wait for, and {'do' if have == 'have' else 'does'} not go on{at}"
        case HangClass.HOST_STUCK:
            return (
                f"{who} {have} not entered {operation}{_describe_entry(hang)}, "
                f"and nothing holds {_them(hang)} up{at}"
            )
        case HangClass.DIFFERENT_COLLECTIVES | HangClass.MISMATCHED:
            return (
                f"{who} entered {_describe_instead(hang)} in place of {operation}{_describe_entry(hang)}{at}"
            )
        case HangClass.CIRCULAR_WAIT:
            others = " and ".join(describe_operation(each) for each in hang.operations[:2])
            if len(hang.culprits) == 1:
                return f"{who} entered {others} in another order than before, and all wait in a circle{at}"
            return f"{who} wait for one another in {others}, entered in different orders{at}"
        case HangClass.DEVICE_STOPPED:
            peers = _describe_peers(hang)
            return f"{who} {have} not finished {operation}, which {peers} finished: device stopped"
        case HangClass.RANK_MISSING:
            left = "no dump" if not hang.ranks_unread else "no dump that could be read whole"
            return f"{who} left {left}, and {operation}{_describe_entry(hang)} waits for {_them(hang)}"
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


def _describe_entry(hang: Hang) -> str:
    location = hang.operations[0].location if hang.operations else None
    return f" at {describe_location(location)}" if location is not None else ""


def _describe_instead(hang: Hang) -> str:
    entered = {each.entered_instead for each in hang.culprits}
    text = " or ".join(
        shorten(each, _MAX_SIZES_LENGTH + _MAX_NAME_LENGTH) for each in sorted(entered) if each
    )
    return printable(text) or "something else"


def _describe_places(culprits: tuple[RankAtHang, ...]) -> str:
    """Return where the culprits are: the line of the first, and of those that are elsewhere."""
    places = dict.fromkeys(describe_location(each.location) for each in culprits if each.location is not None)
    return f" ({'; '.join(list(places)[:2])})" if places else ""


def _describe_peers(hang: Hang) -> str:
    peers = hang.operations[0].finished if hang.operations else ()
    return name_ranks(peers, _MAX_CULPRITS) if peers else "a peer"


def _them(hang: Hang) -> str:
    return "it" if len(hang.culprits) == 1 else "them"
