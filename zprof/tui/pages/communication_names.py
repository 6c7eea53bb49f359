"""What collectives are called in tables: group, element type, and where these have to be told apart."""

from collections import Counter
from collections.abc import Sequence

from zprof.model.collectives import CollectiveKind
from zprof.model.printable import printable, shorten
from zprof.model.time import CollectiveTime, Time
from zprof.reports.presenters.run_words import group_name
from zprof.reports.presenters.time_figures import is_unknown_size
from zprof.tui.figures import UNKNOWN, Unit, figure
from zprof.tui.session import Loaded
from zprof.tui.tables import Cell, Word

#: Columns of a group's name in a table: the line below, and what a name opens, say all of it.
_GROUP = 16


def place_name(entry: CollectiveTime) -> str:
    """Its group and element type."""
    group = f"group {group_name(entry.group)}"
    return f"{group}, {entry.dtype}" if entry.dtype else group


def group_word(group: str) -> Word:
    """A group in a cell."""
    return Word(shorten(printable(group_name(group)), _GROUP))


def has_groups(time: Time) -> bool:
    """Whether tables need a column for the group: all of one group say it in their title."""
    return len({entry.group for entry in time.collectives}) > 1


def title_of(time: Time) -> str:
    """The title of the collectives, with what all of them share."""
    if has_groups(time) or not time.collectives:
        return "collectives"
    first = time.collectives[0]
    one_type = len({entry.dtype for entry in time.collectives}) == 1
    return f"collectives, {place_name(first) if one_type else f'group {group_name(first.group)}'}"


def kind_names(entries: Sequence[CollectiveTime]) -> tuple[str, ...]:
    """The kind of each, with the element type where its kind and group occur with several."""
    counted = Counter((entry.kind, entry.group) for entry in entries)
    return tuple(
        f"{entry.kind} {entry.dtype}" if counted[entry.kind, entry.group] > 1 else entry.kind
        for entry in entries
    )


def bytes_cell(loaded: Loaded, leaf: str, kind: CollectiveKind | str, size_bytes: int) -> Cell:
    """Bytes; 0 of what moves some are unknown: the trace does not say."""
    return Word(UNKNOWN) if is_unknown_size(kind, size_bytes) else figure(loaded.tree, Unit.BYTES, leaf)
