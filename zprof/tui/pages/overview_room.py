"""What of the overview there is room for: lines of the verdict, the ledger, and of what is told."""

import io
from dataclasses import dataclass

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.text import Text

#: Lines of a verdict at most: on a terminal as small as they come, and on others.
_FEW, _MANY = 4, 5
_SMALL = 30
_MORE = " … (?)"
_WIDE = 100
#: Between the facts of a warning.
_PARTING = (";", ",", " ·")
#: Of a table: frame and titles; at least, with one row.
_FRAME, LEAST = 3, 4
#: Lines of what is told of a finding, and the room from which on there is no need to save it.
_MOST_TOLD, _MUCH = 2, 14
#: From so many lines on they show what stands behind a finding.
_LEAST_BEHIND = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """``ledger``: lines of it at most, where it has to give way; ``told``: of what is told of a finding.

    ``is_free``: there is room for all of what is told.  ``below``: lines below the findings.
    """

    ledger: int | None = None
    told: int = 0
    is_free: bool = False
    below: int = 0


def room_for(width: int, left: int, terms: int, findings: int) -> Room:
    """Of the lines that are left for a ledger of some rows, for findings, and for what is told of one."""
    ledger = terms + _FRAME if terms else 0
    free = left - ledger
    return Room(
        ledger=max(LEAST, left - LEAST) if ledger > left - LEAST else None,
        told=max(0, min(_MOST_TOLD, free - _FRAME - findings) if findings else free - LEAST),
        is_free=width >= _WIDE and free >= _MUCH,
        below=free - _FRAME - findings,
    )


def has_room_behind(room: Room, told: Text, width: int) -> bool:
    """Whether evidence and units fit below what is told."""
    lines = told.wrap(Console(file=io.StringIO(), width=width), width)
    return room.is_free and room.below - len(lines) >= _LEAST_BEHIND


def cut_warning(said: str, width: int) -> str:
    """A line that is too long ends with a whole fact, and with the key that says all of them."""
    if cell_len(said) <= width:
        return said
    kept = chop_cells(said, width - len(_MORE))[0]
    at = max(kept.rfind(sign) for sign in _PARTING)
    return f"{kept[:at] if at > width // 2 else kept.rstrip()}{_MORE}"


def verdict_lines(words: Text, width: int, height: int) -> list[Text]:
    """Its lines; where they are too many the last one ends with the key that says all of it."""
    most = _FEW if height < _SMALL else _MANY
    lines = list(words.wrap(Console(file=io.StringIO(), width=width), width))
    if len(lines) > most:
        last = lines[most - 1]
        last.rstrip()
        last.truncate(width - len(_MORE))
        lines = [*lines[: most - 1], last.append(_MORE)]
    for line in lines:
        line.rstrip()
    return lines
