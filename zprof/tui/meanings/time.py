"""Leaves of time: the step ledger of a rank, of this run and of its baseline."""

from dataclasses import dataclass

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.time import LEDGER_TERMS
from zprof.tui.meanings.behind import decisive, entry_at
from zprof.tui.meanings.meaning import Indices, Meaning, Rows

_COLLECTIVE = (
    "step", "rank", "kind", "unit", "bytes", "exposed_wait_ns", "exposed_transfer_ns", "hidden_ns", "group",
)  # fmt: skip
_HOST = (
    "step", "rank", "idle_ns", "launch_ns", "loader_ns", "allocator_ns", "limiter_ns", "sync_ns",
    "optimizer_ns", "copy_ns", "other_ns",
)  # fmt: skip


def _of_rank(rows: pd.DataFrame, analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Those of the rank that stands at this place of the report; all of them for ``[*]``."""
    owner = entry_at(analysis.time.per_rank, at)
    return rows if rows.empty or owner is None else rows[rows["rank"] == owner.rank]


def steps_by(term: str) -> Rows:
    """The steps with most of a term first."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        names = tuple(dict.fromkeys(("step", "rank", term, "wall_ns", *LEDGER_TERMS)))
        return decisive(_of_rank(analysis.steps, analysis, at), names, term)

    return rows


def collectives_by(column: str) -> Rows:
    """The collectives with most of a column first."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        return decisive(_of_rank(analysis.collectives, analysis, at), _COLLECTIVE, column)

    return rows


def host_rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """What the host did while nothing ran; the steps themselves where the recording does not show it."""
    rows = _of_rank(analysis.host, analysis, at)
    return decisive(rows, _HOST, "idle_ns") if len(rows) else steps_by("idle_ns")(analysis, at)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Term:
    title: str
    says: str
    formula: str = ""
    inputs: tuple[str, ...] = ()
    rows: Rows | None = None


_SUM = "wall = compute + exposed transfer + exposed wait + exposed copies + idle + unexplained"
_SPLIT = "collectives = hidden + exposed wait + exposed transfer"
_RUNNING = ("collective_ns", "overlapped_ns", "exposed_wait_ns", "exposed_transfer_ns")
_TERMS = {
    "wall_ns": _Term(
        title="step time of a rank",
        says="From the begin of a step to the begin of the next, mean over the steps of the window.",
        formula=_SUM,
        inputs=LEDGER_TERMS,
        rows=steps_by("wall_ns"),
    ),
    "compute_ns": _Term(
        title="compute",
        says="When the rank computes: kernels of the device that are no communication, on a CPU rank "
        "operators of the main thread. Two at once count once; computing hides what runs beside it.",
        formula="length of the union of computing spans within the step, mean over steps",
        inputs=("wall_ns", "noise_floor_ns"),
        rows=steps_by("compute_ns"),
    ),
    "exposed_wait_ns": _Term(
        title="exposed wait",
        says="When the rank does nothing but wait in a collective in which another rank has not arrived: no "
        "byte moves yet. A late rank costs it, not the link.",
        formula="time in collectives before the last rank starts, outside of compute",
        inputs=_RUNNING,
        rows=collectives_by("exposed_wait_ns"),
    ),
    "exposed_transfer_ns": _Term(
        title="exposed transfer",
        says="When the rank does nothing but stand in a collective in which all ranks are: bytes move and "
        "nothing is computed. Hiding it under compute, fewer bytes or a faster link saves it.",
        formula="time in collectives from the last rank's start on, outside of compute",
        inputs=_RUNNING,
        rows=collectives_by("exposed_transfer_ns"),
    ),
    "exposed_memcpy_ns": _Term(
        title="exposed copies",
        says="When the device only copies or fills memory: neither a kernel nor a collective runs.",
        formula="time in copies and fills outside of compute and collectives",
        inputs=("memcpy_ns", "wall_ns"),
        rows=steps_by("exposed_memcpy_ns"),
    ),
    "idle_ns": _Term(
        title="idle",
        says="The rest: nothing computes, no collective is waited for, no copy runs. On a device the host "
        "has not given it work; on a CPU rank it is Python, launches, waking up.",
        formula="idle = wall - compute - exposed wait - exposed transfer - exposed copies - unexplained",
        inputs=("wall_ns", *(term for term in LEDGER_TERMS if term != "idle_ns")),
        rows=host_rows,
    ),
    "unexplained_ns": _Term(
        title="unexplained",
        says="Where the trace is silent: before its first and after its last event, in waits for which no "
        "collective was seen to run, in communication kernels that no collective stands for.",
        formula="time outside of all events that are known, within the step",
        inputs=("wall_ns",),
        rows=steps_by("unexplained_ns"),
    ),
    "overlapped_ns": _Term(
        title="hidden",
        says="The part of the collectives' time that holds nothing up: compute runs beside it, or the host "
        "of a CPU rank works on in Python.",
        formula=_SPLIT,
        inputs=("collective_ns", "exposed_wait_ns", "exposed_transfer_ns"),
        rows=collectives_by("hidden_ns"),
    ),
    "collective_ns": _Term(
        title="collectives",
        says="When at least one collective runs, hidden or not; two at once count once.",
        formula=_SPLIT,
        inputs=("overlapped_ns", "exposed_wait_ns", "exposed_transfer_ns"),
        rows=steps_by("collective_ns"),
    ),
    "overlap_ratio": _Term(
        title="hidden share",
        says="How much of the collectives' time is hidden; unknown where the rank ran none.",
        formula="hidden / collectives",
        inputs=("overlapped_ns", "collective_ns"),
        rows=collectives_by("hidden_ns"),
    ),
    "wall_median_ns": _Term(
        title="median step",
        says="The step in the middle by length: a mean that is far from it comes from a few long steps.",
        inputs=("wall_ns", "steps"),
        rows=steps_by("wall_ns"),
    ),
    "memcpy_ns": _Term(
        title="copies",
        says="All copies and fills of the device, hidden or not.",
        inputs=("exposed_memcpy_ns",),
        rows=steps_by("memcpy_ns"),
    ),
    "first_wait_ns": _Term(
        title="wait of the first",
        says="The part of exposed wait that lies in the first collective of each group: it carries the start "
        "of the profiler, and is no fault of the program.",
        inputs=("exposed_wait_ns",),
        rows=collectives_by("exposed_wait_ns"),
    ),
    "unsplit_ns": _Term(
        title="wait or transfer unknown",
        says="The part of the exposed time in collectives of which not all ranks were seen: there waiting is "
        "the least and transfer the most that it can be.",
        inputs=("exposed_wait_ns", "exposed_transfer_ns"),
        rows=collectives_by("exposed_transfer_ns"),
    ),
    "noise_floor_ns": _Term(
        title="noise floor",
        says="Below this size a term means nothing: edges of spans are stamped to about 1 µs, and the last "
        "rank's arrival is known to twice the doubt of the clocks.",
    ),
    "steps": _Term(title="steps", says="How many steps the means are of.", rows=steps_by("wall_ns")),
}


def _meanings(stem: str) -> tuple[Meaning, ...]:
    return tuple(
        Meaning(
            leaf=f"{stem}.{name}",
            title=term.title,
            says=term.says,
            formula=term.formula,
            inputs=term.inputs,
            rows=term.rows,
        )
        for name, term in _TERMS.items()
    )


TIME: tuple[Meaning, ...] = (*_meanings("time.per_rank[]"), *_meanings("comparison.baseline_time[]"))
