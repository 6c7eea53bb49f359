"""The tables of the live view: the ledger and the tenants of the windows that are over.

Pure functions of the report's JSON; until there is one every number is unknown, and the note says when it
comes.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from zprof.model.tenants import Tenant
from zprof.reports.presenters.time_figures import LEDGER
from zprof.tui.figures import Figure, How, Unit, figure
from zprof.tui.live.seen import Seen
from zprof.tui.live.stage import Doing, stage_of
from zprof.tui.meanings.registry import meaning_of
from zprof.tui.tables import Column, Line, Mark, Table, Word, numeric

_RANKS = "time.per_rank[*]"
_WIDE = 100
_OVER = (Doing.RECORDED, Doing.CUT_SHORT, Doing.NOTHING)


def ledger_table(seen: Seen) -> Table:
    """Where a step goes: means over the ranks and the steps of the time window."""
    tree = seen.measured.tree
    steps = _steps(tree, "steps")
    lines = [_term(tree, "wall_ns", "step time", Mark.TITLE)]
    lines += [_term(tree, term, name, Mark.PLAIN) for term, name in LEDGER]
    return Table(
        name="live ledger",
        title="where a step goes",
        columns=(Column(title="step"), numeric("ms"), numeric("of step")),
        lines=tuple(lines),
        help="Means over ranks and steps of the time window. The terms sum to the step time.",
        note=f"mean of steps {steps}" if steps else _awaited(seen, "time window"),
    )


def _term(tree: Mapping[str, Any], term: str, name: str, mark: Mark) -> Line:
    share = figure(tree, Unit.RATIO, f"{_RANKS}.{term}", f"{_RANKS}.wall_ns", how=How.SHARE)
    time = figure(tree, Unit.MS, f"{_RANKS}.{term}", how=How.MEAN)
    return Line(key=term, cells=(Word(name), time, share), mark=mark)


def tenants_table(seen: Seen) -> Table:
    """Who owns the bytes at the peak, on the rank whose peak is highest."""
    tree = seen.measured.tree
    place = _highest(tree)
    stem = f"memory.per_rank[{max(0, place)}]"
    lines = [_bytes_line(tree, stem, "peak_bytes", "peak", Mark.TITLE)]
    lines += [
        _bytes_line(tree, stem, f"tenants.{each}", each.replace("_", " "), Mark.PLAIN) for each in Tenant
    ]
    lines.append(_bytes_line(tree, stem, "untagged_bytes", "untagged", Mark.PLAIN))
    at = (
        f"rank {tree['memory']['per_rank'][place]['rank']}, steps {_steps(tree, 'memory_steps')}"
        if place >= 0
        else ""
    )
    return Table(
        name="live tenants",
        title="memory at the peak",
        columns=(Column(title="tenant"), numeric("bytes"), numeric("of peak", from_width=_WIDE)),
        lines=tuple(lines),
        help="The six tenants at the highest peak of all ranks in the memory window; they sum to it.",
        note=at or _awaited(seen, "memory window"),
    )


def _bytes_line(tree: Mapping[str, Any], stem: str, name: str, says: str, mark: Mark) -> Line:
    size = figure(tree, Unit.BYTES, f"{stem}.{name}")
    share = figure(tree, Unit.RATIO, f"{stem}.{name}", f"{stem}.peak_bytes", how=How.SHARE)
    return Line(key=name, cells=(Word(says), size, share), mark=mark)


def _highest(tree: Mapping[str, Any]) -> int:
    """The place of the rank with the highest peak; -1 where no memory was measured."""
    ranks = tree["memory"]["per_rank"] if tree else []
    peaks = [(rank["peak_bytes"], -place) for place, rank in enumerate(ranks)]
    return -max(peaks)[1] if peaks else -1


def _steps(tree: Mapping[str, Any], name: str) -> str:
    """The steps of a window, as ``4-11``; empty where there are none."""
    steps: Sequence[int] = tree["run"][name] if tree else ()
    if not steps:
        return ""
    return str(steps[0]) if len(steps) == 1 else f"{min(steps)}-{max(steps)}"


def _awaited(seen: Seen, window: str) -> str:
    if seen.measured.busy:
        return "measuring"
    return f"no {window}" if stage_of(seen).doing in _OVER else f"known after the {window}"


def verdict_text(seen: Seen) -> str:
    """The verdict, once the time window is measured; else nothing."""
    tree = seen.measured.tree
    return str(tree["verdict"]["sentence"]) if tree and tree["run"]["steps"] else ""


def said_of(number: Figure) -> str:
    """A number, explained: what it means, its formula, its leaves."""
    meaning = meaning_of(number.leaves[0]) if number.leaves else None
    lines = [meaning.says, *([f"formula  {meaning.formula}"] if meaning.formula else [])] if meaning else []
    lines += [f"this is  {number.how.value}", *(f"  {leaf}" for leaf in number.leaves)]
    return "\n".join([*lines, "", "w shows its inputs and rows, among all screens of the run"])


def gaps_text(seen: Seen) -> str:
    """What could not be measured so far."""
    gaps = seen.measured.tree.get("gaps", [])
    lines = [text for gap in gaps for text in (gap["what"], f"  {gap['reason']}", f"  {gap['remedy']}", "")]
    return "\n".join(lines) if lines else "nothing so far: windows that are not over are no gaps"
