"""Read the host calls of each rank and the device work that they launched, in host order.

A task is one call of the host into the driver, with the device work that it launched, if any. Times are
nanoseconds on the common clock, counted from the start of the first replayed step.
"""

import re

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.columns import Columns, Texts
from zprof.analysis.intervals import Int64s
from zprof.analysis.time.event_roles import CALL_CATEGORIES, WORK_CATEGORIES, EventView
from zprof.analysis.time.ledger import RankTracks
from zprof.analysis.time.steps import StepWindows
from zprof.run.reader import Run

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

_COLUMNS = ("start_ns", "duration_ns", "category", "name", "thread", "stream", "correlation")
#: Calls that can block the host until device work is done.
_BLOCKING_CALLS = re.compile(r"(cuda|hip|cu)\w*(Synchronize|Memcpy|Free|Malloc|Query)\w*", re.ASCII)
NONE = -1


class RankTasks(Struct, frozen=True, kw_only=True):
    """The tasks of one rank in host order. All arrays have one entry per task.

    Attributes:
        call: Start and end of the call. ``thread``, ``name`` and ``blocks`` (True if the call can block the
            host) also describe the call.
        work: Start and end of the device work; NaN if the call launched none.
        stream: The stream of the work, ``NONE`` if there is no work.
        kernel: The name of the work, "" if there is no work.
        row: The work's row in the analysis' collectives, ``NONE`` if it is not a collective.
        step: The number of the step that the call was made in.
    """

    rank: int
    thread: Int64s
    name: Texts
    blocks: Bools
    call: Floats
    work: Floats
    stream: Int64s
    kernel: Texts
    row: Int64s
    step: Int64s

    def __len__(self) -> int:
        return len(self.step)

    def at(self, indices: Int64s) -> "RankTasks":
        """Return the tasks at these indices, in that order. Indices may repeat."""
        return replace(
            self,
            thread=self.thread[indices],
            name=self.name.at(indices),
            blocks=self.blocks[indices],
            call=self.call[indices],
            work=self.work[indices],
            stream=self.stream[indices],
            kernel=self.kernel.at(indices),
            row=self.row[indices],
            step=self.step[indices],
        )


def read_tasks(
    run: Run, tracks: RankTracks, rows: Columns, host_steps: StepWindows, origin_ns: int
) -> tuple[RankTasks, float]:
    """Return the tasks of one rank in ``host_steps``, and the share of device time without a recorded launch.

    Args:
        run: The run that holds the rank's events.
        tracks: The rank's clock and steps.
        rows: The rank's rows of the analysis' collectives.
        host_steps: The steps to replay, by the host's marks, on the common clock.
        origin_ns: Time origin.
    """
    view = EventView(run.table(tracks.rank, "events", _COLUMNS), WORK_CATEGORIES | CALL_CATEGORIES)
    spans = tracks.clock.common(view.spans)
    is_work = view.match_categories(*WORK_CATEGORIES) & (spans[:, 1] > spans[:, 0])
    is_call = view.match_categories(*CALL_CATEGORIES)
    inside = host_steps.step_at(spans[:, 0]) >= 0
    calls = _drop_nested_calls(np.flatnonzero(is_call & inside), spans, view.thread)
    work = np.flatnonzero(is_work)
    call_of_work = _find_launches(work, calls, view.correlation)
    launched = call_of_work != NONE
    unlaunched_ratio = _compute_unlaunched_ratio(view, spans, work, np.flatnonzero(is_call), host_steps)
    # a call that launches several tasks (a graph) becomes one task per piece of work; the first carries the
    # duration of the call
    order = np.lexsort((spans[work[launched], 0], call_of_work[launched]))
    task_work, task_call = work[launched][order], call_of_work[launched][order]
    calls_without_work = np.setdiff1d(np.arange(len(calls)), task_call)
    all_calls = np.concatenate((task_call, calls_without_work))
    all_work = np.concatenate((task_work, np.full(len(calls_without_work), NONE, dtype=np.int64)))
    order = np.argsort(all_calls, kind="stable")
    return _make_tasks(
        tracks.rank, view, spans, calls[all_calls[order]], all_work[order], rows, host_steps, origin_ns
    ), unlaunched_ratio


def _compute_unlaunched_ratio(
    view: EventView, spans: Int64s, work: Int64s, calls: Int64s, host_steps: StepWindows
) -> float:
    """Return the share of the device time in the steps that no recorded call launched.

    Calls before the steps count as launches: a host that runs ahead launches the first work of a step before
    that step starts.
    """
    in_steps = work[(spans[work, 1] > host_steps.begin_ns[0]) & (spans[work, 0] < host_steps.end_ns[-1])]
    length = (spans[in_steps, 1] - spans[in_steps, 0]).astype(np.float64)
    unknown = _find_launches(in_steps, calls, view.correlation) == NONE
    return float(length[unknown].sum() / max(1.0, length.sum()))


def _make_tasks(
    rank: int,
    view: EventView,
    spans: Int64s,
    calls: Int64s,
    work: Int64s,
    rows: Columns,
    host_steps: StepWindows,
    origin_ns: int,
) -> RankTasks:
    has_work = work != NONE
    call = (spans[calls] - origin_ns).astype(np.float64)
    is_repeat = np.zeros(len(calls), dtype=np.bool_)  # a truncated trace may have no call in these steps
    is_repeat[1:] = calls[1:] == calls[:-1]
    call[is_repeat, 0] = call[is_repeat, 1]
    work_spans = np.where(has_work[:, None], (spans[work] - origin_ns).astype(np.float64), np.nan)
    names = Texts(*view.coded(calls))
    kernels, kernel = view.coded(work[has_work])
    kernel_codes = np.full(len(work), len(kernels), dtype=np.int64)
    kernel_codes[has_work] = kernel
    return RankTasks(
        rank=rank,
        thread=view.thread[calls],
        name=names,
        blocks=names.match(_BLOCKING_CALLS.match),
        call=call,
        work=work_spans,
        stream=np.where(has_work, view.stream[work], NONE),
        kernel=Texts((*kernels, ""), kernel_codes),
        row=_find_rows(spans, work, rows),
        step=host_steps.step_at(spans[calls, 0]),
    )


def _drop_nested_calls(calls: Int64s, spans: Int64s, thread: Int64s) -> Int64s:
    """Drop calls nested in another call of their thread, such as a driver call within a runtime call."""
    order = calls[np.lexsort((-spans[calls, 1], spans[calls, 0], thread[calls]))]
    begin, end = spans[order].T
    is_kept = np.ones(len(order), dtype=np.bool_)
    for mine in np.split(np.arange(len(order)), np.flatnonzero(np.diff(thread[order])) + 1):
        until = np.maximum.accumulate(end[mine])[:-1]
        is_kept[mine[1:]] = (begin[mine[1:]] >= until) | (end[mine[1:]] > until)
    chosen = order[is_kept]
    return chosen[np.argsort(spans[chosen, 0], kind="stable")]


def _find_launches(work: Int64s, calls: Int64s, correlation: Int64s) -> Int64s:
    """Return the index into ``calls`` of the launch of each row of ``work``, ``NONE`` if not among them."""
    order = np.argsort(correlation[calls], kind="stable")
    known = correlation[calls][order]
    expected = correlation[work]
    if not len(known):
        return np.full(len(work), NONE, dtype=np.int64)
    at = np.minimum(np.searchsorted(known, expected), len(known) - 1)
    return np.where((known[at] == expected) & (expected > 0), order[at], NONE).astype(np.int64)


def _find_rows(spans: Int64s, work: Int64s, rows: Columns) -> Int64s:
    """Return the collective row of each piece of work, matched by equal start and end, or ``NONE``."""
    known = dict(
        zip(
            zip(rows.ints("start_ns").tolist(), rows.ints("end_ns").tolist(), strict=True),
            rows.row.tolist(),
            strict=True,
        )
    )
    found = np.full(len(work), NONE, dtype=np.int64)
    # few kernels are collectives: only those that start as one does are looked up
    candidates = np.flatnonzero((work != NONE) & np.isin(spans[work, 0], rows.ints("start_ns")))
    keys = map(tuple, spans[work[candidates]].tolist())
    found[candidates] = [known.get(key, NONE) for key in keys]
    return found
