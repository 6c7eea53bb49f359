"""Name what a stuck job is about, in sentences and tables: operations, lines of a program."""

from zprof.model.findings import SourceLocation
from zprof.model.formatting import name_ranks, printable, shorten
from zprof.model.hang import EnteredSide, Hang, HangClass, RankAtHang, StuckOperation

#: Ranks that a sentence names, and a line of a list or a table.
MAX_NAMED_RANKS, MAX_RANKS = 4, 6
#: Characters of a group's name, in a sentence and in a line of a list or a table.
MAX_NAME_LENGTH, _MAX_SHORT_NAME_LENGTH = 60, 40
_MAX_SIZES_LENGTH = 40
_DUMP_SETTINGS = "TORCH_FR_BUFFER_SIZE=2000 TORCH_NCCL_DUMP_ON_TIMEOUT=1"


def describe_operation(operation: StuckOperation) -> str:
    """Return "all_reduce #12 [1024] Float of the tensor group tp (ranks 0 and 1)"."""
    sizes = shorten(format_sizes(operation.sizes, operation.dtypes), _MAX_SIZES_LENGTH)
    role = f"{operation.role} group" if operation.role else "group"
    name = shorten(operation.description or operation.group, MAX_NAME_LENGTH)
    title = f"{operation.operation} #{operation.sequence}{f' {sizes}' if sizes else ''}"
    if not name:
        return printable(f"{title}, in a group without a name")
    return printable(f"{title} of the {role} {name} ({_describe_members(operation)})")


def _describe_members(operation: StuckOperation) -> str:
    if operation.size is None:
        return "members unknown"
    if operation.unnamed:
        return f"{operation.size} members"
    return name_ranks(operation.ranks, MAX_NAMED_RANKS)


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
    return printable(f"{location.file}:{location.line} in {shorten(location.function, MAX_NAME_LENGTH)}")


def name_entered(side: EnteredSide) -> str:
    """Return "all_reduce [4] Float"."""
    sizes = shorten(format_sizes(side.sizes, side.dtypes), _MAX_SIZES_LENGTH)
    return printable(f"{side.operation} {sizes}".strip())


def format_line(location: SourceLocation | None) -> str:
    """Return "train.py:42"; empty if unknown."""
    return printable(f"{location.file}:{location.line}") if location is not None else ""


def name_missing_evidence(hang: Hang) -> str:
    """Return what would tell more than the logs do; empty if they show all members, or there are none."""
    is_told = hang.kind not in (HangClass.RANK_MISSING, HangClass.CANNOT_TELL)
    if not hang.logs or (is_told and hang.operations and hang.operations[0].size is not None):
        return ""
    silent = [] if is_told else [each.rank for each in hang.culprits]
    if silent:
        whose = f"the log of {name_ranks(silent, MAX_NAMED_RANKS)}"
    else:
        whose = "the logs of all ranks (torchrun --log-dir logs -r 3)"
    return f"{whose}, or dumps of the flight recorder ({_DUMP_SETTINGS})"
