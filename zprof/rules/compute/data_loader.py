"""ZP504 data_loader: the device has nothing to run while the host waits for the next batch.

Signal: the idle time within ``enumerate(DataLoader)#….__next__``, with the launch gap right behind it, on
most ranks and in the typical step. From 2 % of the step on it is a finding (docs/thresholds.md; healthy
loaders that were measured take 0.3 to 0.7 %), from 5 % on a sure one.

    saving: 0.6 of (idle in the loader - collectives that ran meanwhile) .. idle in the loader, and exposed
    transfer with an empty queue meanwhile

A late first batch (workers start, caches are cold) is no finding if the others are on time. A loader that
keeps up still takes a moment for each batch, and on a CPU rank a collective in the background loses the time
that it hid in. A batch that is late on one rank alone belongs to ZP301 and ZP302.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Evidence, Finding
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.rules.compute.idle_time import (
    missing_host_gap,
    most_ranks_mean,
    most_ranks_median,
    rate_confidence,
    single_occurrence_gap,
)
from zprof.rules.rule import make_finding, rate_severity, untested_gap, wall_ns

#: Minimum share of the step: for a finding, and for a sure one.
_WORTH_RATIO = 0.02
_SURE_RATIO = 0.05
#: Minimum share of it that is saved.
_MIN_SAVING_RATIO = 0.6

FIX = (
    "DataLoader(..., num_workers=8, prefetch_factor=4, pin_memory=True, persistent_workers=True)\n"
    "and batch.to(device, non_blocking=True); move decoding and tokenizing out of the loop"
)


def data_loader(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if all ranks wait for data."""
    missing = _missing_input_gap(analysis)
    if missing:
        return missing
    wall, lost = wall_ns(analysis), most_ranks_mean(analysis, "loader_ns")
    if min(lost, most_ranks_median(analysis, "loader_ns")) < _WORTH_RATIO * wall:
        return single_occurrence_gap(analysis, Cause.DATA_LOADER, _WORTH_RATIO, "loader_ns")
    return _finding(analysis, lost, wall)


def _missing_input_gap(analysis: RunAnalysis) -> Gap | None:
    if analysis.host.empty:
        return missing_host_gap(analysis, Cause.DATA_LOADER)
    if analysis.host["loads"].any():
        return None
    return untested_gap(
        Cause.DATA_LOADER,
        "the trace shows no data loader",
        'iterate a torch DataLoader, or fetch in record_function("enumerate(DataLoader)#mine.__next__")',
    )


def _finding(analysis: RunAnalysis, lost: float, wall: float) -> Finding:
    under = most_ranks_mean(analysis, "loader_under_ns")
    high = lost + most_ranks_mean(analysis, "loader_exposed_ns")
    return make_finding(
        Cause.DATA_LOADER,
        sentence=f"every rank waits {format_ns(lost)} of each step for its data loader ({lost / wall:.0%})",
        evidence=[
            Evidence(
                key="idle_in_data_loader_per_step",
                what="idle while the loader is asked for a batch per step",
                value=lost,
                unit="ns",
            ),
            Evidence(
                key="idle_beside_collective",
                what="of it with a collective in the background",
                value=under,
                unit="ns",
            ),
            Evidence(key="share_of_step", what="of the step", value=lost / wall, unit="ratio"),
        ],
        saving_ns=(_MIN_SAVING_RATIO * max(0.0, lost - under), high),
        severity=rate_severity(high, wall),
        confidence=rate_confidence(analysis, lost / wall, _SURE_RATIO, _WORTH_RATIO),
        fix=FIX,
        disprove="run on one batch that is kept in memory and record again: if the step stays as long, "
        "the loader is not what it waits for",
    )
