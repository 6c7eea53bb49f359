"""Find what grew to the peak of a history: from the low before it, by tenant and by place of allocation."""

import numpy as np

from zprof.analysis.memory.attribution.block_tenants import BlockTenants
from zprof.analysis.memory.attribution.frames import StackIndex
from zprof.analysis.memory.history import History, find_live_blocks
from zprof.analysis.memory.live_bytes import compute_live_curve
from zprof.analysis.memory.roles import tenant_name
from zprof.analysis.memory.stack_groups import list_largest_groups
from zprof.analysis.memory.steps_and_phases import Timeline
from zprof.analysis.memory.tables import UNTAGGED, Int
from zprof.model.memory import PeakGrowth

_MAX_GROUPS = 3
#: A low counts as one between two peaks if the memory fell to it by at least this share of the rise after it.
_MIN_PEAK_RATIO = 0.25
#: Minimum depth of such a low below the peak, relative to the peak: a step's own ups and downs are smaller.
_MIN_DEPTH_RATIO = 0.1
#: Of lows that differ by less than this share of the rise, the last one is the start.
_TOLERANCE_RATIO = 0.05


def measure_growth(
    rank: int, history: History, timeline: Timeline, peak_ns: int, names: BlockTenants, stacks: StackIndex
) -> PeakGrowth:
    """Return what grew from the start of the step to the peak; without steps, from the low before it."""
    blocks = history.blocks
    begins = [time_ns for time_ns, _ in timeline.steps if history.begin_ns < time_ns <= peak_ns]
    start_ns = begins[-1] - 1 if begins else _find_low(history, peak_ns)
    at_start, at_peak = find_live_blocks(blocks, start_ns), find_live_blocks(blocks, peak_ns)
    before, after = (
        np.bincount(names.tenant[rows], weights=blocks.requested_bytes[rows], minlength=UNTAGGED + 1)
        for rows in (at_start, at_peak)
    )
    grown = {tenant_name(code): int(after[code] - before[code]) for code in range(UNTAGGED + 1)}
    new = at_peak[blocks.begin_ns[at_peak] > start_ns]
    groups = list_largest_groups(rank, blocks, new, names, stacks)
    return PeakGrowth(
        rank=rank,
        device=history.device,
        start_ns=start_ns - history.begin_ns,
        peak_ns=peak_ns - history.begin_ns,
        start_bytes=int(before.sum()),
        peak_bytes=int(after.sum()),
        grown_bytes=grown,
        largest=groups[:_MAX_GROUPS],
    )


def _find_low(history: History, peak_ns: int) -> int:
    """Return the time of the low between the peak and the one before it, else of the least before the peak.

    In a training loop that is the end of the previous step.
    """
    blocks = history.blocks
    times, live = compute_live_curve(blocks.begin_ns, blocks.freed_ns, blocks.requested_bytes)
    last = int(np.searchsorted(times, peak_ns, side="right"))
    if not last:
        return peak_ns
    times, live = times[:last], live[:last]
    peak_bytes = int(live[-1])
    is_low = live == np.minimum.accumulate(live[::-1])[::-1]
    highest = np.maximum.accumulate(live)
    is_between = is_low & (highest - live >= _MIN_PEAK_RATIO * (peak_bytes - live))
    is_between &= peak_bytes - live >= _MIN_DEPTH_RATIO * peak_bytes
    lows: Int = np.flatnonzero(is_between if is_between.any() else is_low)
    least = int(live[lows].min())
    lows = lows[live[lows] <= least + _TOLERANCE_RATIO * (peak_bytes - least)]
    return int(times[lows[-1]])
