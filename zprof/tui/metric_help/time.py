"""Explain the time metrics: the step ledger per rank (this run and baseline) and per step."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.time import LEDGER_NAMES, LEDGER_TERMS
from zprof.tui.metric_help.metric import MAX_ROWS, Indices, MetricHelp, Rows, find_entry, pick_top_rows

_COLLECTIVE_COLUMNS = (
    "step", "rank", "kind", "unit", "bytes", "exposed_wait_ns", "exposed_transfer_ns", "hidden_ns", "group",
)  # fmt: skip
_HOST_COLUMNS = (
    "step", "rank", "idle_ns", "launch_ns", "unseen_ns", "loader_ns", "allocator_ns", "limiter_ns", "sync_ns",
    "optimizer_ns", "copy_ns", "other_ns",
)  # fmt: skip


def _select_rank(rows: pd.DataFrame, analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the rows of the rank at this index of the report; all rows for ``[*]``."""
    entry = find_entry(analysis.time.per_rank, at)
    return rows if rows.empty or entry is None else rows[rows["rank"] == entry.rank]


def make_step_rows(term: str) -> Rows:
    """Select the steps with the largest values of a term."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        names = tuple(dict.fromkeys(("step", "rank", term, "wall_ns", *LEDGER_TERMS)))
        return pick_top_rows(_select_rank(analysis.steps, analysis, at), names, term)

    return rows


def make_collective_rows(column: str) -> Rows:
    """Select the collectives with the largest values of a column."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        return pick_top_rows(_select_rank(analysis.collectives, analysis, at), _COLLECTIVE_COLUMNS, column)

    return rows


def select_host_rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the host's activity during idle time, or the steps if host activity was not recorded."""
    rows = _select_rank(analysis.host, analysis, at)
    return (
        pick_top_rows(rows, _HOST_COLUMNS, "idle_ns")
        if len(rows)
        else make_step_rows("idle_ns")(analysis, at)
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _TermHelp:
    title: str
    says: str
    formula: str = ""
    inputs: tuple[str, ...] = ()
    rows: Rows | None = None


_SUM = "wall = compute + exposed transfer + exposed wait + exposed copies + idle + unexplained"
_SPLIT = "collectives = hidden + exposed wait + exposed transfer"
_RUNNING = ("collective_ns", "overlapped_ns", "exposed_wait_ns", "exposed_transfer_ns")
_TERM_HELP = {
    "wall_ns": _TermHelp(
        title="step time",
        says="Time from the start of a step to the start of the next one, averaged over the steps of the "
        "window.",
        formula=_SUM,
        inputs=LEDGER_TERMS,
        rows=make_step_rows("wall_ns"),
    ),
    "compute_ns": _TermHelp(
        title=LEDGER_NAMES["compute_ns"],
        says="Time in which the rank computes: on a device, kernels other than communication; on a CPU rank, "
        "operators of the main thread. Overlapping compute counts once. Communication and copies that "
        "overlap compute are hidden.",
        formula="length of the union of all compute spans within the step, mean over steps",
        inputs=("wall_ns", "noise_floor_ns"),
        rows=make_step_rows("compute_ns"),
    ),
    "exposed_wait_ns": _TermHelp(
        title=LEDGER_NAMES["exposed_wait_ns"],
        says="Time in which the rank only waits, in a collective that another rank has not entered yet. No "
        "data moves during this time: it is caused by the late rank, not by the link.",
        formula="time in collectives before the last rank starts, not overlapped by compute",
        inputs=_RUNNING,
        rows=make_collective_rows("exposed_wait_ns"),
    ),
    "exposed_transfer_ns": _TermHelp(
        title=LEDGER_NAMES["exposed_transfer_ns"],
        says="Time in which all ranks have entered a collective and this rank does not compute: only data "
        "moves. Overlapping it with compute, moving fewer bytes, or a faster link reduces it.",
        formula="time in collectives after the last rank starts, not overlapped by compute",
        inputs=_RUNNING,
        rows=make_collective_rows("exposed_transfer_ns"),
    ),
    "exposed_memcpy_ns": _TermHelp(
        title=LEDGER_NAMES["exposed_memcpy_ns"],
        says="Time in which the device only copies or fills memory; neither compute kernels nor collectives "
        "run.",
        formula="time in copies and fills, not overlapped by compute or collectives",
        inputs=("memcpy_ns", "wall_ns"),
        rows=make_step_rows("exposed_memcpy_ns"),
    ),
    "idle_ns": _TermHelp(
        title=LEDGER_NAMES["idle_ns"],
        says="The remaining time: no compute, no copy, and the rank does not wait for a collective. On a "
        "device, the host has not submitted work; on a CPU rank, this is Python code, launches and thread "
        "wake-ups.",
        formula="idle = wall - compute - exposed wait - exposed transfer - exposed copies - unexplained",
        inputs=("wall_ns", *(term for term in LEDGER_TERMS if term != "idle_ns")),
        rows=select_host_rows,
    ),
    "unexplained_ns": _TermHelp(
        title=LEDGER_NAMES["unexplained_ns"],
        says="Time that the trace does not account for: before its first and after its last event, waits "
        "during which no recorded collective runs, and communication kernels that match no recorded "
        "collective.",
        formula="time within the step that no known event covers",
        inputs=("wall_ns",),
        rows=make_step_rows("unexplained_ns"),
    ),
    "overlapped_ns": _TermHelp(
        title="hidden",
        says="Time in collectives that does not delay the rank: compute runs concurrently, or, on a CPU "
        "rank, Python code continues to run.",
        formula=_SPLIT,
        inputs=("collective_ns", "exposed_wait_ns", "exposed_transfer_ns"),
        rows=make_collective_rows("hidden_ns"),
    ),
    "collective_ns": _TermHelp(
        title="collectives",
        says="Time in which at least one collective runs, hidden or exposed. Overlapping collectives count "
        "once.",
        formula=_SPLIT,
        inputs=("overlapped_ns", "exposed_wait_ns", "exposed_transfer_ns"),
        rows=make_step_rows("collective_ns"),
    ),
    "overlap_ratio": _TermHelp(
        title="hidden share",
        says="Share of the time in collectives that is hidden. Unknown if the rank ran no collective.",
        formula="hidden / collectives",
        inputs=("overlapped_ns", "collective_ns"),
        rows=make_collective_rows("hidden_ns"),
    ),
    "wall_median_ns": _TermHelp(
        title="median step time",
        says="Median of the step times. If the mean is far above it, a few long steps dominate the mean.",
        inputs=("wall_ns", "steps"),
        rows=make_step_rows("wall_ns"),
    ),
    "memcpy_ns": _TermHelp(
        title="copies",
        says="Time of all copies and fills on the device, hidden or exposed.",
        inputs=("exposed_memcpy_ns",),
        rows=make_step_rows("memcpy_ns"),
    ),
    "first_wait_ns": _TermHelp(
        title="exposed wait in first collectives",
        says="Exposed wait in the first collective of each group in the window. It includes profiler "
        "start-up and is not caused by the program.",
        inputs=("exposed_wait_ns",),
        rows=make_collective_rows("exposed_wait_ns"),
    ),
    "unsplit_ns": _TermHelp(
        title="wait and transfer not separable",
        says="Exposed time in collectives that were not recorded on all ranks. For these, the wait is a "
        "lower bound and the transfer an upper bound.",
        inputs=("exposed_wait_ns", "exposed_transfer_ns"),
        rows=make_collective_rows("exposed_transfer_ns"),
    ),
    "noise_floor_ns": _TermHelp(
        title="noise floor",
        says="Terms smaller than this are not significant: timestamps are accurate to about 1 µs, and the "
        "last rank's arrival is known to within twice the clock uncertainty.",
    ),
    "steps": _TermHelp(title="steps", says="Number of steps in the means.", rows=make_step_rows("wall_ns")),
}


def _make_help(stem: str) -> tuple[MetricHelp, ...]:
    return tuple(
        MetricHelp(
            leaf=f"{stem}.{name}",
            title=term.title,
            says=term.says,
            formula=term.formula,
            inputs=term.inputs,
            rows=term.rows,
        )
        for name, term in _TERM_HELP.items()
    )


TIME: tuple[MetricHelp, ...] = (*_make_help("time.per_rank[]"), *_make_help("comparison.baseline_time[]"))


_STEP_COLLECTIVE_COLUMNS = ["kind", "unit", "bytes", "last_rank"]


def _select_step(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the row of this step in the table of steps."""
    rows, entry = analysis.steps, find_entry(analysis.time.steps, at)
    if entry is None:
        return rows.head(MAX_ROWS)
    return rows[(rows["rank"] == entry.rank) & (rows["step"] == entry.step)]


def _make_step_collectives(by: Sequence[str]) -> Rows:
    """Select this rank's collectives of this step, largest value of ``by[0]`` first."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        frame, entry = analysis.collectives, find_entry(analysis.time.steps, at)
        if entry is None:
            return frame.head(0)
        own_rows = frame[(frame["rank"] == entry.rank) & (frame["step"] == entry.step)]
        return pick_top_rows(own_rows, (*by, *_STEP_COLLECTIVE_COLUMNS), by[0])

    return rows


def _step_help(leaf: str, title: str, says: str, *, rows: Rows = _select_step) -> MetricHelp:
    inputs = LEDGER_TERMS if leaf == "wall_ns" else ("wall_ns",)
    formula = _SUM if leaf in ("wall_ns", *LEDGER_TERMS) else ""
    return MetricHelp(
        leaf=f"time.steps[].{leaf}", title=title, says=says, formula=formula, inputs=inputs, rows=rows
    )


STEP_LEAVES: tuple[MetricHelp, ...] = (
    _step_help(
        "wall_ns", "step time", "Time from the start of this step to the start of the next one, on this rank."
    ),
    _step_help(
        "compute_ns",
        "compute in a step",
        "Union of all kernels other than communication; on a CPU rank, of the operators of the main thread.",
    ),
    _step_help(
        "exposed_transfer_ns",
        "exposed transfer in a step",
        "Time in collectives after all ranks have arrived, while this rank is blocked and does not compute.",
        rows=_make_step_collectives(("exposed_transfer_ns", "transfer_ns", "hidden_ns")),
    ),
    _step_help(
        "exposed_wait_ns",
        "exposed wait in a step",
        "Time in collectives before the last rank has arrived, while this rank is blocked.",
        rows=_make_step_collectives(("exposed_wait_ns", "wait_ns")),
    ),
    _step_help(
        "exposed_memcpy_ns",
        "exposed copies in a step",
        "Time in which copies and fills run, but neither compute nor a collective.",
    ),
    _step_help(
        "idle_ns",
        "idle time in a step",
        "The remaining time: the device has no work, or the main thread runs no operator and does not wait "
        "for a collective.",
    ),
    _step_help(
        "unexplained_ns",
        "unexplained time in a step",
        "Time that the trace does not account for, including waits during which no recorded collective runs.",
    ),
    _step_help(
        "overlapped_ns",
        "hidden communication in a step",
        "Time in collectives that does not delay the rank. It is not one of the terms that sum to the step "
        "time.",
        rows=_make_step_collectives(("hidden_ns", "exposed_transfer_ns", "exposed_wait_ns")),
    ),
)
