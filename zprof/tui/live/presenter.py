"""Build the content of the live screen: recording stage, step times by rank, ledger and tenants.

Until a window is measured, its numbers are unknown, and the table note tells when they will be available.
Step times are not from the report: ranks log them after each step.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from enum import StrEnum
from statistics import median
from typing import Any

from msgspec import Struct

from zprof.base.formatting import format_bytes, format_ms
from zprof.model.cursor import Cursor, every, read
from zprof.model.metrics import find_metric
from zprof.model.quantities import UNKNOWN, Aggregation, Value
from zprof.model.tenants import Tenant
from zprof.model.time import LEDGER_NAMES
from zprof.reports.table import Column, Kind, Mark, Row, Table
from zprof.run.live import LiveRank
from zprof.run.manifest import PlannedSteps
from zprof.tui.live.watcher import JobState, LiveSnapshot

#: Widths of the text columns of a row.
_RANK_WIDTH, _STEPS_WIDTH, _TIME_WIDTH, _BYTES_WIDTH = 6, 8, 10, 11
#: Minimum terminal width for all memory columns.
_MIN_WIDE_COLUMNS = 100
#: Ranks that wait for each other finish their steps together; smaller differences are noise.
_MIN_EXCESS_RATIO = 0.05


class Activity(StrEnum):
    """Current activity of the recording."""

    WAITING = "waiting for the first step"
    WARMING = "warming up"
    MEMORY = "memory window"
    WRITING_MEMORY = "writing the memory window"
    TIME = "time window"
    WRITING_TIME = "writing the time window"
    STEPS = "training"
    RECORDED = "recorded"
    CUT_SHORT = "ended before the recording was complete"
    NOTHING = "ended; nothing was recorded"


class Stage(Struct, frozen=True, kw_only=True):
    """Current activity with ``done`` of ``total`` steps finished; 0 of 0 without a step count."""

    activity: Activity
    done: int = 0
    total: int = 0


def find_stage(seen: LiveSnapshot) -> Stage:
    """Return the stage of the slowest rank: a window is complete once all ranks have completed it."""
    state, job = seen.state, seen.job
    if state.manifest is None or not state.ranks:
        return Stage(activity=Activity.NOTHING if _has_ended(job) else Activity.WAITING)
    if state.finished:
        return Stage(activity=Activity.RECORDED)
    if _has_ended(job) or all(rank.finished for rank in state.ranks):
        return Stage(activity=Activity.CUT_SHORT)
    # Steps that all ranks have finished, counted from the program's first step.
    counts = [rank.last.step + 1 if rank.last else 0 for rank in state.ranks]
    done = min(counts, default=0)
    plan = state.manifest.planned
    return (
        Stage(activity=Activity.STEPS, done=done)
        if plan is None
        else _find_planned_stage(plan, done, state.ranks)
    )


def _has_ended(job: JobState) -> bool:
    return job.is_own and not job.runs


def _find_planned_stage(plan: PlannedSteps, done: int, ranks: Sequence[LiveRank]) -> Stage:
    time_start = plan.skip + plan.memory
    if done < plan.skip:
        return Stage(activity=Activity.WARMING, done=done, total=plan.skip)
    if done < time_start:
        return Stage(activity=Activity.MEMORY, done=done - plan.skip, total=plan.memory)
    if done == time_start and plan.memory and not all(rank.manifest.memory_steps for rank in ranks):
        return Stage(activity=Activity.WRITING_MEMORY)
    if done < time_start + plan.time:
        return Stage(activity=Activity.TIME, done=done - time_start, total=plan.time)
    return Stage(activity=Activity.WRITING_TIME)


def describe_stage(seen: LiveSnapshot) -> str:
    """Format activity, progress and job state as one line."""
    stage = find_stage(seen)
    parts = [stage.activity.value]
    if stage.total:
        parts.append(f"{stage.done} of {stage.total} steps done")
    elif stage.done:
        parts.append(f"{stage.done} steps done")
    if stage.activity is Activity.RECORDED:
        parts[0] += " (press w for all screens)"
        parts += ["job still running"] if seen.job.runs else []
    if seen.job.code is not None:
        parts.append("job finished" if seen.job.code == 0 else f"job ended with exit code {seen.job.code}")
    if seen.measured.busy:
        parts.append("analyzing the recorded data")
    elif seen.measured.problem:
        parts.append(f"analysis failed: {seen.measured.problem}")
    if seen.state.problem:
        parts.append(seen.state.problem)
    return ", ".join(parts)


_FINAL_ACTIVITIES = (Activity.RECORDED, Activity.CUT_SHORT, Activity.NOTHING)


def build_ledger_table(seen: LiveSnapshot) -> Table:
    """Build the step ledger: means over the ranks and steps of the time window."""
    tree = seen.measured.tree
    steps = _format_steps(tree, "steps")
    lines = [_build_term(tree, "wall_ns", "step time", Mark.TITLE)]
    lines += [_build_term(tree, term, name, Mark.PLAIN) for term, name in LEDGER_NAMES.items()]
    return Table(
        name="live ledger",
        title="where the time goes",
        columns=(Column(title="step", kind=Kind.TEXT), Column(title="ms"), Column(title="of step")),
        rows=tuple(lines),
        help="Means over the ranks and the steps of the time window. The terms sum to the step time.",
        note=f"mean of steps {steps}" if steps else _explain_unknown(seen, "time window"),
    )


def _build_term(tree: Mapping[str, Any], term: str, name: str, mark: Mark) -> Row:
    ranks = every(Cursor(tree).time.per_rank)
    share = read(ranks[term], ranks.wall_ns, how=Aggregation.SHARE)
    time = read(ranks[term], how=Aggregation.MEAN, in_ms=True)
    return Row(key=term, cells=(name, time, share), mark=mark)


def build_tenants_table(seen: LiveSnapshot) -> Table:
    """Build the tenant table at the peak of the rank with the highest peak."""
    tree = seen.measured.tree
    # Index of the rank with the highest peak; -1 if no memory was measured.
    ranks = tree["memory"]["per_rank"] if tree else []
    peaks = [(rank["peak_bytes"], -index) for index, rank in enumerate(ranks)]
    index = -max(peaks)[1] if peaks else -1
    place = Cursor(tree).memory.per_rank[max(0, index)]
    lines = [_build_bytes_line(place, place.peak_bytes, "peak", Mark.TITLE)]
    lines += [
        _build_bytes_line(place, place.tenants[tenant.value], tenant.replace("_", " "), Mark.PLAIN)
        for tenant in Tenant
    ]
    lines.append(_build_bytes_line(place, place.untagged_bytes, "untagged", Mark.PLAIN))
    note = (
        f"rank {tree['memory']['per_rank'][index]['rank']}, steps {_format_steps(tree, 'memory_steps')}"
        if index >= 0
        else ""
    )
    return Table(
        name="live tenants",
        title="memory at the peak",
        columns=(
            Column(title="tenant", kind=Kind.TEXT),
            Column(title="bytes"),
            Column(title="of peak", from_width=_MIN_WIDE_COLUMNS),
        ),
        rows=tuple(lines),
        help="Memory at the highest peak of any rank in the memory window. The six tenants and untagged sum "
        "to the peak.",
        note=note or _explain_unknown(seen, "memory window"),
    )


def _build_bytes_line(rank: Cursor, part: Cursor, label: str, mark: Mark) -> Row:
    share = read(part, rank.peak_bytes, how=Aggregation.SHARE)
    return Row(key=label, cells=(label, read(part), share), mark=mark)


def _format_steps(tree: Mapping[str, Any], name: str) -> str:
    """Format the steps of a window as ``4-11``; empty without steps."""
    steps: Sequence[int] = tree["run"][name] if tree else ()
    if not steps:
        return ""
    return str(steps[0]) if len(steps) == 1 else f"{min(steps)}-{max(steps)}"


def _explain_unknown(seen: LiveSnapshot, window: str) -> str:
    if seen.measured.busy:
        return "analyzing"
    return f"no {window}" if find_stage(seen).activity in _FINAL_ACTIVITIES else f"known after the {window}"


def get_verdict(seen: LiveSnapshot) -> str:
    """Return the verdict sentence once the time window is measured, else an empty string."""
    tree = seen.measured.tree
    return str(tree["verdict"]["sentence"]) if tree and tree["run"]["steps"] else ""


def explain_number(number: Value) -> str:
    """Format the meaning, formula and leaves of a number."""
    metric = find_metric(number.leaves[0]) if number.leaves else None
    lines = [metric.help, *([f"formula  {metric.formula}"] if metric.formula else [])] if metric else []
    lines += [f"this is  {number.how.value}", *(f"  {leaf}" for leaf in number.leaves)]
    return "\n".join([*lines, "", "press w to open all screens, which also show its inputs and source rows"])


def format_gaps(seen: LiveSnapshot) -> str:
    """Format what could not be measured so far."""
    gaps = seen.measured.tree.get("gaps", [])
    lines = [text for gap in gaps for text in (gap["what"], f"  {gap['reason']}", f"  {gap['remedy']}", "")]
    return "\n".join(lines) if lines else "none so far; windows still being recorded are not listed"


class RankRow(Struct, frozen=True, kw_only=True):
    """Cell texts of a row in column order, and bars. ``is_slowest``: in the last common step."""

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

    Memory comes from the allocator counters if available, else from the process; the column title tells
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
    """Return the rank that was clearly slowest in the last step finished by all ranks, else None."""
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
    """Return the last ``max_steps`` steps finished by any rank, in order."""
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
    """Format the steps' windows, one letter per step."""
    return "".join(_WINDOW_LETTERS.get(step.window, "?") for step in steps)
