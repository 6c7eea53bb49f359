"""Help on time: the step ledger of a rank (this run and baseline) and of a single step."""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.time import LEDGER_NAMES, LEDGER_TERMS
from zprof.tui.metric_help.metric import MAX_ROWS, Indices, MetricHelp, Rows, find_entry, pick_top_rows

_COLLECTIVE = (
    "step", "rank", "kind", "unit", "bytes", "exposed_wait_ns", "exposed_transfer_ns", "hidden_ns", "group",
)  # fmt: skip
_HOST = (
    "step", "rank", "idle_ns", "launch_ns", "loader_ns", "allocator_ns", "limiter_ns", "sync_ns",
    "optimizer_ns", "copy_ns", "other_ns",
)  # fmt: skip


def _select_rank(rows: pd.DataFrame, analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the rows of the rank at this index of the report; all rows for ``[*]``."""
    owner = find_entry(analysis.time.per_rank, at)
    return rows if rows.empty or owner is None else rows[rows["rank"] == owner.rank]


def make_step_rows(term: str) -> Rows:
    """Select the steps with the largest values of a term."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        names = tuple(dict.fromkeys(("step", "rank", term, "wall_ns", *LEDGER_TERMS)))
        return pick_top_rows(_select_rank(analysis.steps, analysis, at), names, term)

    return rows


def make_collective_rows(column: str) -> Rows:
    """Select the collectives with the largest values of a column."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        return pick_top_rows(_select_rank(analysis.collectives, analysis, at), _COLLECTIVE, column)

    return rows


def select_host_rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return what the host did while nothing ran, or the steps if the recording does not show it."""
    rows = _select_rank(analysis.host, analysis, at)
    return pick_top_rows(rows, _HOST, "idle_ns") if len(rows) else make_step_rows("idle_ns")(analysis, at)


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
_LEDGER_TERMS = {
    "wall_ns": _TermHelp(
        title="step time of a rank",
        says="From the begin of a step to the begin of the next, mean over the steps of the window.",
        formula=_SUM,
        inputs=LEDGER_TERMS,
        rows=make_step_rows("wall_ns"),
    ),
    "compute_ns": _TermHelp(
        title=LEDGER_NAMES["compute_ns"],
        says="When the rank computes: kernels of the device that are no communication, on a CPU rank "
        "operators of the main thread. Two at once count once; computing hides what runs beside it.",
        formula="length of the union of computing spans within the step, mean over steps",
        inputs=("wall_ns", "noise_floor_ns"),
        rows=make_step_rows("compute_ns"),
    ),
    "exposed_wait_ns": _TermHelp(
        title=LEDGER_NAMES["exposed_wait_ns"],
        says="When the rank does nothing but wait in a collective in which another rank has not arrived: no "
        "byte moves yet. A late rank costs it, not the link.",
        formula="time in collectives before the last rank starts, outside of compute",
        inputs=_RUNNING,
        rows=make_collective_rows("exposed_wait_ns"),
    ),
    "exposed_transfer_ns": _TermHelp(
        title=LEDGER_NAMES["exposed_transfer_ns"],
        says="When the rank does nothing but stand in a collective in which all ranks are: bytes move and "
        "nothing is computed. Hiding it under compute, fewer bytes or a faster link saves it.",
        formula="time in collectives from the last rank's start on, outside of compute",
        inputs=_RUNNING,
        rows=make_collective_rows("exposed_transfer_ns"),
    ),
    "exposed_memcpy_ns": _TermHelp(
        title=LEDGER_NAMES["exposed_memcpy_ns"],
        says="When the device only copies or fills memory: neither a kernel nor a collective runs.",
        formula="time in copies and fills outside of compute and collectives",
        inputs=("memcpy_ns", "wall_ns"),
        rows=make_step_rows("exposed_memcpy_ns"),
    ),
    "idle_ns": _TermHelp(
        title=LEDGER_NAMES["idle_ns"],
        says="The rest: nothing computes, no collective is waited for, no copy runs. On a device the host "
        "has not given it work; on a CPU rank it is Python, launches, waking up.",
        formula="idle = wall - compute - exposed wait - exposed transfer - exposed copies - unexplained",
        inputs=("wall_ns", *(term for term in LEDGER_TERMS if term != "idle_ns")),
        rows=select_host_rows,
    ),
    "unexplained_ns": _TermHelp(
        title=LEDGER_NAMES["unexplained_ns"],
        says="Where the trace is silent: before its first and after its last event, in waits for which no "
        "collective was seen to run, in communication kernels that no collective stands for.",
        formula="time outside of all events that are known, within the step",
        inputs=("wall_ns",),
        rows=make_step_rows("unexplained_ns"),
    ),
    "overlapped_ns": _TermHelp(
        title="hidden",
        says="The part of the collectives' time that holds nothing up: compute runs beside it, or the host "
        "of a CPU rank works on in Python.",
        formula=_SPLIT,
        inputs=("collective_ns", "exposed_wait_ns", "exposed_transfer_ns"),
        rows=make_collective_rows("hidden_ns"),
    ),
    "collective_ns": _TermHelp(
        title="collectives",
        says="When at least one collective runs, hidden or not; two at once count once.",
        formula=_SPLIT,
        inputs=("overlapped_ns", "exposed_wait_ns", "exposed_transfer_ns"),
        rows=make_step_rows("collective_ns"),
    ),
    "overlap_ratio": _TermHelp(
        title="hidden share",
        says="How much of the collectives' time is hidden; unknown where the rank ran none.",
        formula="hidden / collectives",
        inputs=("overlapped_ns", "collective_ns"),
        rows=make_collective_rows("hidden_ns"),
    ),
    "wall_median_ns": _TermHelp(
        title="median step",
        says="The step in the middle by length: a mean that is far from it comes from a few long steps.",
        inputs=("wall_ns", "steps"),
        rows=make_step_rows("wall_ns"),
    ),
    "memcpy_ns": _TermHelp(
        title="copies",
        says="All copies and fills of the device, hidden or not.",
        inputs=("exposed_memcpy_ns",),
        rows=make_step_rows("memcpy_ns"),
    ),
    "first_wait_ns": _TermHelp(
        title="wait of the first",
        says="The part of exposed wait that lies in the first collective of each group: it carries the start "
        "of the profiler, and is no fault of the program.",
        inputs=("exposed_wait_ns",),
        rows=make_collective_rows("exposed_wait_ns"),
    ),
    "unsplit_ns": _TermHelp(
        title="wait or transfer unknown",
        says="The part of the exposed time in collectives of which not all ranks were seen: there waiting is "
        "the least and transfer the most that it can be.",
        inputs=("exposed_wait_ns", "exposed_transfer_ns"),
        rows=make_collective_rows("exposed_transfer_ns"),
    ),
    "noise_floor_ns": _TermHelp(
        title="noise floor",
        says="Below this size a term means nothing: edges of spans are stamped to about 1 µs, and the last "
        "rank's arrival is known to twice the clock uncertainty.",
    ),
    "steps": _TermHelp(
        title="steps", says="How many steps the means are of.", rows=make_step_rows("wall_ns")
    ),
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
        for name, term in _LEDGER_TERMS.items()
    )


TIME: tuple[MetricHelp, ...] = (*_make_help("time.per_rank[]"), *_make_help("comparison.baseline_time[]"))


_COLLECTIVE_COLUMNS = ["kind", "unit", "bytes", "last_rank"]


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
        mine = frame[(frame["rank"] == entry.rank) & (frame["step"] == entry.step)]
        return pick_top_rows(mine, (*by, *_COLLECTIVE_COLUMNS), by[0])

    return rows


def _step_help(leaf: str, title: str, says: str, *, rows: Rows = _select_step) -> MetricHelp:
    inputs = LEDGER_TERMS if leaf == "wall_ns" else ("wall_ns",)
    formula = _SUM if leaf in ("wall_ns", *LEDGER_TERMS) else ""
    return MetricHelp(
        leaf=f"time.steps[].{leaf}", title=title, says=says, formula=formula, inputs=inputs, rows=rows
    )


STEP_LEAVES: tuple[MetricHelp, ...] = (
    _step_help("wall_ns", "step time", "From the begin of this step to the begin of the next, on this rank."),
    _step_help(
        "compute_ns",
        "compute of a step",
        "Union of all kernels that are no collective; on a CPU rank, of the operators of the main thread.",
    ),
    _step_help(
        "exposed_transfer_ns",
        "exposed transfer of a step",
        "Collectives run, all ranks are there, and this rank is held up: it computes nothing.",
        rows=_make_step_collectives(("exposed_transfer_ns", "transfer_ns", "hidden_ns")),
    ),
    _step_help(
        "exposed_wait_ns",
        "exposed wait of a step",
        "A collective of this rank waits for the last rank to come, and this rank is held up.",
        rows=_make_step_collectives(("exposed_wait_ns", "wait_ns")),
    ),
    _step_help(
        "exposed_memcpy_ns",
        "exposed copies of a step",
        "Copies and fills run, and neither compute nor a collective does.",
    ),
    _step_help(
        "idle_ns",
        "idle time of a step",
        "The rest: the device has nothing to run, or the main thread runs no operator and waits for nothing.",
    ),
    _step_help(
        "unexplained_ns",
        "unexplained time of a step",
        "The trace is silent there, or the rank waits and no collective is seen to run.",
    ),
    _step_help(
        "overlapped_ns",
        "hidden communication of a step",
        "Collectives run and hold nothing up. It is part of the collectives' time, not of the sum.",
        rows=_make_step_collectives(("hidden_ns", "exposed_transfer_ns", "exposed_wait_ns")),
    ),
)
