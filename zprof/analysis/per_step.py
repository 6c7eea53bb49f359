"""Select and average the rows of the analysis: per rank and step, without what the start of a window adds."""

import numpy as np

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns
from zprof.analysis.intervals import Int64s
from zprof.analysis.signal import Untested, make_untested

#: Column that identifies one collective across ranks (sequence numbers do not if some ranks lack rows).
INSTANCE = "instance"


def select_steady_rows(analysis: RunAnalysis) -> Columns:
    """Return the collectives without the first of the window, which contain the profilers' start-up skew."""
    rows = analysis.collectives
    return rows.at(~rows.bools("first_of_window"))


def measure_queueing_ns(rows: Columns) -> Int64s:
    """Measure how long the host was blocked on each collective before it started, queued behind others.

    0 if the recording has no wait span.
    """
    start = rows.ints("start_ns")
    until = np.where(rows.known("wait_end_ns"), np.minimum(start, rows.ints("wait_end_ns")), start)
    blocked = np.maximum(0, until - rows.ints("wait_start_ns"))
    return np.where(rows.known("wait_start_ns"), blocked, 0)


def mean_per_step(analysis: RunAnalysis, total_ns: float) -> float:
    """Convert a sum over all ranks and steps to the mean per rank and step."""
    return float(total_ns) / max(1, len(analysis.steps))


def mean_wall_ns(analysis: RunAnalysis) -> float:
    """Return the mean wall time of a step over ranks and steps, in ns."""
    return float(analysis.steps.floats("wall_ns").mean()) if len(analysis.steps) else 0.0


def count_steps(analysis: RunAnalysis) -> int:
    """Return the number of steps of the window, over all ranks."""
    return len(np.unique(analysis.steps.ints("step"))) if len(analysis.steps) else 0


def max_noise_floor_ns(analysis: RunAnalysis) -> int:
    """Return the noise floor of durations on the noisiest rank."""
    return max((rank.noise_floor_ns for rank in analysis.time.per_rank), default=0)


def get_clock_uncertainty_ns(analysis: RunAnalysis) -> int:
    """Return the maximum remaining offset between the aligned clocks of two ranks, 0 if not aligned."""
    alignment = analysis.time.alignment
    return alignment.uncertainty_ns if alignment else 0


def has_no_collectives(analysis: RunAnalysis) -> bool:
    """Return True if several ranks ran but no collectives were recorded."""
    return analysis.run.world_size > 1 and not len(analysis.collectives)


def find_missing_collectives(analysis: RunAnalysis) -> Untested | None:
    """Return what is missing if several ranks ran but no collectives were recorded, else None."""
    if not has_no_collectives(analysis):
        return None
    return make_untested("no_collective_recorded")


def can_play_kernels(analysis: RunAnalysis) -> bool:
    """Return True if the step has kernels to be played; what a fix gains then decides if it is proposed."""
    return analysis.source is not None and analysis.run.device != "cpu"


#: The operator that packs gradients into the buffer of a reduction.
GRADIENT_COPY_KERNEL = "chunk_cat"


def select_copy_kernels(analysis: RunAnalysis) -> Columns:
    """Return the rows of kernels that are copies."""
    kernels = analysis.kernels
    return kernels.at(~kernels.texts("role").equals("compute")) if len(kernels) else kernels


def list_copy_names(analysis: RunAnalysis) -> frozenset[str]:
    """Return the names of the kernels that are copies."""
    rows = select_copy_kernels(analysis)
    return frozenset(rows.texts("name").list_distinct()) if len(rows) else frozenset()
