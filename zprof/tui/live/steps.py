"""Build the step rows of the live view: one row per rank, and the spread of each step across ranks.

These numbers are not in the report: the ranks log them after each step.
"""

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from msgspec import Struct

from zprof.model.formatting import format_bytes, format_ms
from zprof.model.quantities import UNKNOWN
from zprof.run.live import LiveRank

#: Widths of a row's text columns, and the minimum terminal width for all memory columns.
_RANK_WIDTH, _STEPS_WIDTH, _TIME_WIDTH, _BYTES_WIDTH = 6, 8, 10, 11
_MIN_WIDE_COLUMNS = 100
#: Ranks that wait for each other finish their steps together; smaller differences are noise.
_MIN_EXCESS_RATIO = 0.05


class RankRow(Struct, frozen=True, kw_only=True):
    """Texts of a row in column order, and its bars. ``is_slowest``: slowest in the last common step."""

    rank: int
    cells: tuple[str, ...]
    bars: str
    is_slowest: bool = False
    is_finished: bool = False


class RankRows(Struct, frozen=True, kw_only=True):
    """Rows of all ranks, with column titles and widths."""

    titles: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()
    rows: tuple[RankRow, ...] = ()
    note: str = ""


def build_rank_rows(
    ranks: Sequence[LiveRank], width: int, *, slowest_first: bool, ascii_only: bool
) -> RankRows:
    """Return rows of all ranks for a terminal of this width.

    Memory comes from the allocator's counters if there are any, else from the process; the column title tells
    which.
    """
    on_device = any(step.allocated_bytes is not None for rank in ranks for step in rank.steps[-1:])
    titles, widths = (
        ["rank", "steps", "last ms", "median"],
        [_RANK_WIDTH, _STEPS_WIDTH, _TIME_WIDTH, _TIME_WIDTH],
    )
    if slowest_first:
        titles[-1] += " v" if ascii_only else " ▼"
    memory = ["allocated", "peak so far", "process"] if on_device else ["process"]
    memory = memory if width >= _MIN_WIDE_COLUMNS else memory[:1]
    titles, widths = titles + memory, widths + [_BYTES_WIDTH + 1] * len(memory)
    step_count = max(0, width - sum(widths) - 4)
    walls = [step.wall_ns for rank in ranks for step in rank.steps[-step_count:]] if step_count else []
    max_value, slowest = compute_bar_scale(walls), _find_slowest_rank(ranks)
    ordered = sorted(ranks, key=_get_sort_key) if slowest_first else ranks
    rows = tuple(
        RankRow(
            rank=rank.rank,
            cells=_format_cells(rank, memory),
            bars=draw_bars(
                [step.wall_ns for step in rank.steps[-step_count:]], max_value, ascii_only=ascii_only
            )
            if step_count
            else "",
            is_slowest=rank.rank == slowest,
            is_finished=rank.finished,
        )
        for rank in ordered
    )
    return RankRows(titles=tuple(titles), widths=tuple(widths), rows=rows)


def _format_cells(rank: LiveRank, memory: Sequence[str]) -> tuple[str, ...]:
    last = rank.last
    times = (
        [format_ms(last.wall_ns), format_ms(median(step.wall_ns for step in rank.steps))]
        if last
        else [UNKNOWN, UNKNOWN]
    )
    values = {
        "allocated": last.allocated_bytes if last else None,
        "peak so far": last.peak_allocated_bytes if last else None,
        "process": last.process_bytes if last else None,
    }
    sizes = [UNKNOWN if values[name] is None else format_bytes(values[name] or 0) for name in memory]
    return (str(rank.rank), str(rank.steps_done), *times, *sizes)


def _get_sort_key(rank: LiveRank) -> tuple[float, int]:
    return (-median(step.wall_ns for step in rank.steps) if rank.steps else 0.0, rank.rank)


def _find_slowest_rank(ranks: Sequence[LiveRank]) -> int | None:
    """Return the rank that was clearly the slowest in the last step that all finished, else None."""
    last = min((rank.last.step for rank in ranks if rank.last), default=None)
    walls = [(step.wall_ns, rank.rank) for rank in ranks for step in rank.steps if step.step == last]
    if not walls or max(walls)[0] <= (1 + _MIN_EXCESS_RATIO) * min(walls)[0]:
        return None
    return max(walls)[1]


_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "12345678"
#: Full bar height is twice the median; outliers, such as slow first steps, are clipped.
_BAR_SCALE_RATIO = 2.0
#: Letter shown under each step, by its window.
_WINDOW_LETTERS = {"": ".", "memory": "m", "time": "t"}


class StepSpread(Struct, frozen=True, kw_only=True):
    """Step times of one step across ranks; ``slowest_rank`` took ``max_ns``."""

    step: int
    window: str
    ranks: int
    min_ns: int
    median_ns: float
    max_ns: int
    slowest_rank: int


def compute_spreads(ranks: Sequence[LiveRank], max_steps: int) -> list[StepSpread]:
    """Return the last ``max_steps`` steps that any rank has finished, in order."""
    walls: dict[int, list[tuple[int, int]]] = defaultdict(list)
    windows: dict[int, str] = {}
    for rank in ranks:
        for step in rank.steps[-max_steps:]:
            walls[step.step].append((step.wall_ns, rank.rank))
            windows[step.step] = step.window
    if not max_steps:
        return []
    return [
        StepSpread(
            step=step,
            window=windows[step],
            ranks=len(walls[step]),
            min_ns=min(walls[step])[0],
            median_ns=median(wall for wall, _ in walls[step]),
            max_ns=max(walls[step])[0],
            slowest_rank=max(walls[step])[1],
        )
        for step in sorted(walls)[-max_steps:]
    ]


def compute_bar_scale(values: Sequence[float]) -> float:
    """Return the value at full bar height."""
    return _BAR_SCALE_RATIO * median(values) if values else 0.0


def draw_bars(values: Sequence[float], max_value: float, *, ascii_only: bool) -> str:
    """Draw one bar per value; values above ``max_value`` are clipped."""
    marks = _ASCII_BARS if ascii_only else _BARS
    if max_value <= 0:
        return marks[0] * len(values)
    return "".join(marks[min(len(marks) - 1, int(value / max_value * len(marks)))] for value in values)


def format_windows(steps: Sequence[StepSpread]) -> str:
    """Format the window of each step as one letter."""
    return "".join(_WINDOW_LETTERS.get(step.window, "?") for step in steps)
