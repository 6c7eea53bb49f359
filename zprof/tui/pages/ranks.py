"""The ranks screen's table, the telling ranks first, and what the critical path goes through."""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from heapq import nlargest

from zprof.model.report import Report
from zprof.model.time import Blame, PathShare
from zprof.tui.figures import Figure, How, Unit, figure
from zprof.tui.pages.bounds import AT_LEAST, AT_MOST, EXACT, bound_figure
from zprof.tui.session import Loaded
from zprof.tui.tables import Cell, Column, Line, Mark, Opens, Table, Word, numeric

#: From the first one on there is room for the reason and the idle time, which the heat map has as well.
_ROOM, _WIDE, _WIDER, _WIDEST = 88, 100, 120, 160
_BLAME = "time.blame.per_rank"
_TIMES = ("wall_ns", "compute_ns", "exposed_wait_ns", "exposed_transfer_ns", "idle_ns")
#: Rows of the table at most, and so many of each column's largest are among them.
MOST_RANKS, _OF_EACH = 200, 16
_MOST_PATH = 4
_WORTH = 0.005


def ranks_table(loaded: Loaded) -> Table:
    """Ranks by the waiting that they cause, then by what they lose of their own step."""
    report = loaded.report
    order = telling_order(report)
    columns, places = _columns(), _Places(report)
    lines = [_line(loaded, rank, places) for rank in _chosen(report, order)]
    note = f"{len(lines)} of {len(order)} ranks: the first of each column" if len(lines) < len(order) else ""
    return Table(
        name="ranks",
        title="ranks, those that others wait for most first (ms)",
        columns=columns,
        lines=tuple(lines),
        help="Means of a step. enter on a rank: show it from now on; on a number: its formula and rows.",
        note=note,
    )


def telling_order(report: Report) -> list[int]:
    """All ranks: by exposed waiting caused, then by step time beyond compute, then by number."""
    caused = {entry.rank: entry.exposed_wait_ns for entry in _blames(report)}
    lost = {entry.rank: entry.wall_ns - entry.compute_ns for entry in report.time.per_rank}
    ranks = {*report.run.ranks_loaded, *lost, *(entry.rank for entry in report.memory.per_rank)}
    return sorted(ranks, key=lambda rank: (-caused.get(rank, 0), -lost.get(rank, 0), rank))


def _chosen(report: Report, order: Sequence[int]) -> Sequence[int]:
    """Of very many ranks those that are among the largest of some column, so that sorting finds them."""
    if len(order) <= MOST_RANKS:
        return order
    kept: set[int] = set()
    for values in _by_column(report):
        kept.update(nlargest(_OF_EACH, values, key=lambda rank: (values[rank], -rank)))
    kept.update([rank for rank in order if rank not in kept][: max(0, MOST_RANKS - len(kept))])
    return [rank for rank in order if rank in kept]


def _by_column(report: Report) -> Iterator[Mapping[int, float]]:
    for name in _TIMES:
        yield {entry.rank: getattr(entry, name) for entry in report.time.per_rank}
    for name in ("exposed_wait_per_rank_ns", "last_ratio"):
        yield {entry.rank: getattr(entry, name) for entry in _blames(report)}
    yield {entry.rank: entry.peak_bytes for entry in report.memory.per_rank}
    path: dict[int, float] = defaultdict(float)
    for share in _shares(report):
        path[share.rank] += share.ns
    yield path


class _Places:
    """Where each rank's entries stand in the lists of the report."""

    def __init__(self, report: Report) -> None:
        self.report = report
        self.times = {entry.rank: place for place, entry in enumerate(report.time.per_rank)}
        blames = {entry.rank: place for place, entry in enumerate(_blames(report))}
        is_judged = report.time.blame is not None and report.time.blame.judged > 0
        self.judged = blames if is_judged else {}
        self.unsplit = {entry.rank for entry in report.time.per_rank if entry.unsplit_ns > 0}
        self.memory: dict[int, int] = {}
        for place, entry in enumerate(report.memory.per_rank):
            self.memory.setdefault(entry.rank, place)
        self.path: dict[int, list[int]] = defaultdict(list)
        for place, share in enumerate(_shares(report)):
            self.path[share.rank].append(place)


def _columns() -> tuple[Column, ...]:
    return (
        Column(title="rank"),
        numeric("wall", "Its step time."),
        numeric("compute", "Time in which it computes."),
        numeric("wait", "Exposed waiting: for other ranks, with nothing beside it."),
        numeric("transfer", "Exposed transfer: bytes on their way, with nothing beside them."),
        numeric("idle", "Nothing runs, and nothing is waited for.", from_width=_ROOM),
        numeric("caused", "Wait caused: exposed, of a step, per rank that waited for this one."),
        numeric("last", "Of the collectives that could be judged, the share to which it came last."),
        Column(
            title="because",
            says="What it did longer than the others before it came last, mostly.",
            rest=True,
        ),
        numeric("peak", "Most bytes of memory allocated at once.", from_width=_WIDE),
        numeric("on path", "Its part of the critical path of a step.", from_width=_WIDER),
        Column(title="host", says="The machine that it ran on.", from_width=_WIDEST),
    )


def _line(loaded: Loaded, rank: int, places: _Places) -> Line:
    def of(stem: str, found: Mapping[int, int], name: str, unit: Unit = Unit.MS, sign: str = EXACT) -> Figure:
        place = found.get(rank)
        if place is None:
            return Figure(value=None, unit=unit, leaves=(stem,))
        return bound_figure(loaded.tree, unit, f"{stem}[{place}].{name}", sign=sign)

    signs = {"exposed_wait_ns": AT_LEAST, "exposed_transfer_ns": AT_MOST} if rank in places.unsplit else {}
    times = [of("time.per_rank", places.times, name, sign=signs.get(name, EXACT)) for name in _TIMES]
    cells: list[Cell] = [
        Word(f"r{rank}"),
        *times,
        of(_BLAME, places.judged, "exposed_wait_per_rank_ns"),
        of(_BLAME, places.judged, "last_ratio", Unit.RATIO),
        _because(places, rank),
        of("memory.per_rank", places.memory, "peak_bytes", Unit.BYTES),
        _on_path(loaded, places.path.get(rank, [])),
        _host(loaded.analysis.hosts, rank),
    ]
    return Line(key=str(rank), cells=tuple(cells), opens=Opens.RANK, target=rank)


def _because(places: _Places, rank: int) -> Word:
    place = places.judged.get(rank)
    if place is None:
        return Word("unknown", Mark.MUTED)
    reasons = _blames(places.report)[place].reasons
    if not reasons:
        return Word("-", Mark.MUTED)
    return Word(max(reasons, key=lambda reason: (reasons[reason], reason)).replace("_", " "))


def _on_path(loaded: Loaded, shares: Sequence[int]) -> Cell:
    if not shares and _shares(loaded.report):
        return Word("-", Mark.MUTED)
    if not shares:
        return Figure(value=None, unit=Unit.MS, leaves=("time.critical_path",))
    leaves = [f"time.critical_path.shares[{share}].ns" for share in shares]
    return figure(loaded.tree, Unit.MS, *leaves, how=How.SUM)


def _host(hosts: Mapping[int, str], rank: int) -> Word:
    return Word(hosts[rank]) if rank in hosts else Word("unknown", Mark.MUTED)


def path_parts(loaded: Loaded) -> list[list[Cell]]:
    """The critical path in a line: its length and its largest shares; nothing where it is not known."""
    path = loaded.report.time.critical_path
    if path is None or not path.shares:
        return []
    wall = "time.critical_path.wall_ns"
    parts: list[list[Cell]] = [[Word("critical path", Mark.MUTED), figure(loaded.tree, Unit.NS, wall)]]
    shares = sorted(range(len(path.shares)), key=lambda place: -path.shares[place].ns)
    for place in shares[:_MOST_PATH]:
        share = path.shares[place]
        if share.ns >= _WORTH * path.wall_ns:
            part = f"time.critical_path.shares[{place}].ns"
            ratio = figure(loaded.tree, Unit.RATIO, part, wall, how=How.SHARE)
            parts.append([Word(f"r{share.rank} {share.what.value}"), ratio])
    return parts


def _blames(report: Report) -> Sequence[Blame]:
    return report.time.blame.per_rank if report.time.blame else ()


def _shares(report: Report) -> Sequence[PathShare]:
    return report.time.critical_path.shares if report.time.critical_path else ()
