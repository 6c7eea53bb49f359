"""Live steps: a row per rank with its counters, and the spread of each step over ranks as bars.

These numbers are not in the report: the ranks themselves log them step by step.
"""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from zprof.model.formatting import format_bytes, format_ms
from zprof.run.live import LiveRank
from zprof.tui.figures import UNKNOWN

#: Widths of the text columns of a row, and the terminal width from which on more are shown.
_RANK_WIDTH, _STEPS_WIDTH, _TIME_WIDTH, _BYTES_WIDTH = 6, 8, 10, 11
_WIDE = 100
#: Ranks that wait for each other finish their steps together; a smaller excess is chance.
_MIN_EXCESS_RATIO = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRow:
    """Texts of a row in column order, and its bars. ``is_longest``: slowest in the last common step."""

    rank: int
    cells: tuple[str, ...]
    bars: str
    is_longest: bool = False
    is_over: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRows:
    """The rows and their titles."""

    titles: tuple[str, ...] = ()
    widths: tuple[int, ...] = ()
    rows: tuple[RankRow, ...] = ()
    note: str = ""


def build_rank_rows(
    ranks: Sequence[LiveRank], width: int, *, slowest_first: bool, ascii_only: bool
) -> RankRows:
    """Return rows of all ranks for a terminal of this width.

    Memory is the allocator's counters if it has any, else the process's memory; the title says which.
    """
    on_device = any(step.allocated_bytes is not None for rank in ranks for step in rank.steps[-1:])
    titles, widths = (
        ["rank", "steps", "last ms", "median"],
        [_RANK_WIDTH, _STEPS_WIDTH, _TIME_WIDTH, _TIME_WIDTH],
    )
    if slowest_first:
        titles[-1] += " v" if ascii_only else " ▼"
    memory = ["allocated", "peak so far", "process"] if on_device else ["process"]
    memory = memory if width >= _WIDE else memory[:1]
    titles, widths = titles + memory, widths + [_BYTES_WIDTH + 1] * len(memory)
    step_count = max(0, width - sum(widths) - 4)
    walls = [step.wall_ns for rank in ranks for step in rank.steps[-step_count:]] if step_count else []
    top, longest = compute_bar_top(walls), _find_longest_rank(ranks)
    chosen = sorted(ranks, key=_slowness_key) if slowest_first else ranks
    rows = tuple(
        RankRow(
            rank=rank.rank,
            cells=_format_cells(rank, memory),
            bars=draw_bars([step.wall_ns for step in rank.steps[-step_count:]], top, ascii_only=ascii_only)
            if step_count
            else "",
            is_longest=rank.rank == longest,
            is_over=rank.finished,
        )
        for rank in chosen
    )
    return RankRows(titles=tuple(titles), widths=tuple(widths), rows=rows)


def _format_cells(rank: LiveRank, memory: Sequence[str]) -> tuple[str, ...]:
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


def _slowness_key(rank: LiveRank) -> tuple[float, int]:
    return (-_median(rank) if rank.steps else 0.0, rank.rank)


def _find_longest_rank(ranks: Sequence[LiveRank]) -> int | None:
    """Return the rank that was clearly slowest in the last step finished by all; else None."""
    last = min((rank.last.step for rank in ranks if rank.last), default=None)
    walls = [(step.wall_ns, rank.rank) for rank in ranks for step in rank.steps if step.step == last]
    if not walls or max(walls)[0] <= (1 + _MIN_EXCESS_RATIO) * min(walls)[0]:
        return None
    return max(walls)[1]


_BARS, _ASCII_BARS = "▁▂▃▄▅▆▇█", "12345678"
#: The median is half as high as the highest bar; outliers, such as slow first steps, are cut off.
_TOP_FACTOR = 2.0
#: Letter below a step, by its window.
_WINDOW_LETTERS = {"": ".", "memory": "m", "time": "t"}


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpread:
    """One step over its ranks; ``longest`` is the rank that took ``most_ns``."""

    step: int
    window: str
    ranks: int
    least_ns: int
    median_ns: float
    most_ns: int
    longest: int


def compute_spreads(ranks: Sequence[LiveRank], most: int) -> list[StepSpread]:
    """Return the last `most` steps that any rank has finished, in order."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    windows: dict[int, str] = {}
    for rank in ranks:
        for step in rank.steps[-most:]:
            found[step.step].append((step.wall_ns, rank.rank))
            windows[step.step] = step.window
    return (
        [_spread(step, windows[step], sorted(found[step])) for step in sorted(found)[-most:]] if most else []
    )


def _spread(step: int, window: str, walls: Sequence[tuple[int, int]]) -> StepSpread:
    return StepSpread(
        step=step,
        window=window,
        ranks=len(walls),
        least_ns=walls[0][0],
        median_ns=median(wall for wall, _ in walls),
        most_ns=walls[-1][0],
        longest=walls[-1][1],
    )


def compute_bar_top(values: Sequence[float]) -> float:
    """Return the value of the highest bar."""
    return _TOP_FACTOR * median(values) if values else 0.0


def draw_bars(values: Sequence[float], top: float, *, ascii_only: bool) -> str:
    """Draw a bar per value; values above ``top`` are cut off."""
    marks = _ASCII_BARS if ascii_only else _BARS
    if top <= 0:
        return marks[0] * len(values)
    return "".join(marks[min(len(marks) - 1, int(value / top * len(marks)))] for value in values)


def format_windows(steps: Sequence[StepSpread]) -> str:
    """Return the window of each step as a letter."""
    return "".join(_WINDOW_LETTERS.get(step.window, "?") for step in steps)
