"""A row for each rank: its steps and its counters, as they come.

These numbers are in no report: they are what the ranks themselves write, step by step.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from zprof.model.units import format_bytes, format_ms
from zprof.run.live import LiveRank
from zprof.tui.figures import UNKNOWN
from zprof.tui.live.spread import bars, top_of

#: Room for texts at the left of a row, and what comes with more of it.
_RANK, _STEPS, _TIME, _BYTES = 6, 8, 10, 11
_WIDE = 100
#: Ranks that wait for each other end their steps together: what differs by less is chance.
_CLEARLY = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """Texts of a row, in the order of its columns, and its bars.  ``is_longest``: in the last step."""

    rank: int
    cells: tuple[str, ...]
    bars: str
    is_longest: bool = False
    is_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRows:
    """The rows, under their titles."""

    titles: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()
    rows: tuple[RankRow, ...] = ()
    note: str = ""


def rank_rows(ranks: Sequence[LiveRank], width: int, *, slowest_first: bool, ascii_only: bool) -> RankRows:
    """All ranks, for a terminal of this width.

    The allocator's counters where it has any, else what the process holds: the title says which.
    """
    on_device = any(step.allocated_bytes is not None for rank in ranks for step in rank.steps[-1:])
    titles, widths = ["rank", "steps", "last ms", "median"], [_RANK, _STEPS, _TIME, _TIME]
    if slowest_first:
        titles[-1] += " v" if ascii_only else " ▼"
    memory = ["allocated", "peak so far", "process"] if on_device else ["process"]
    memory = memory if width >= _WIDE else memory[:1]
    titles, widths = titles + memory, widths + [_BYTES + 1] * len(memory)
    room = max(0, width - sum(widths) - 4)
    walls = [step.wall_ns for rank in ranks for step in rank.steps[-room:]] if room else []
    top, longest = top_of(walls), _longest(ranks)
    chosen = sorted(ranks, key=_by_slowness) if slowest_first else ranks
    rows = tuple(
        RankRow(
            rank=rank.rank,
            cells=_cells(rank, memory),
            bars=bars([step.wall_ns for step in rank.steps[-room:]], top, ascii_only=ascii_only)
            if room
            else "",
            is_longest=rank.rank == longest,
            is_over=rank.finished,
        )
        for rank in chosen
    )
    return RankRows(titles=tuple(titles), widths=tuple(widths), rows=rows)


def _cells(rank: LiveRank, memory: Sequence[str]) -> tuple[str, ...]:
    last = rank.last
    times = [format_ms(last.wall_ns), format_ms(_median(rank))] if last else [UNKNOWN, UNKNOWN]
    values = {
        "allocated": last.allocated_bytes if last else None,
        "peak so far": last.peak_allocated_bytes if last else None,
        "process": last.process_bytes if last else None,
    }
    shown = [UNKNOWN if values[name] is None else format_bytes(values[name] or 0) for name in memory]
    return (str(rank.rank), str(rank.steps_done), *times, *shown)


def _median(rank: LiveRank) -> float:
    return median(step.wall_ns for step in rank.steps)


def _by_slowness(rank: LiveRank) -> tuple[float, int]:
    return (-_median(rank) if rank.steps else 0.0, rank.rank)


def _longest(ranks: Sequence[LiveRank]) -> int | None:
    """The rank that took clearly longest for the last step that all have finished; else None."""
    last = min((rank.last.step for rank in ranks if rank.last), default=None)
    walls = [(step.wall_ns, rank.rank) for rank in ranks for step in rank.steps if step.step == last]
    if not walls or max(walls)[0] <= (1 + _CLEARLY) * min(walls)[0]:
        return None
    return max(walls)[1]
