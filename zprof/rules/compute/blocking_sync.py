"""ZP503 blocking_sync: the host waits for its device again and again, and each time the queue runs dry.

The wait for the last kernel is no loss, it would only be elsewhere. The loss is the time from the end of that
kernel until the next one runs: the host wakes up, continues and launches. Signal: the idle time within
``cuda/hip…Synchronize``, ``aten::item`` and copies that block their caller, and up to 1 ms of the gap right
behind each, on most ranks. From 1 % of the step on it is a note (docs/thresholds.md), from 2 % on a finding.
One such wait per step is how a loss is read: a note at most. The first wait of a window contains the start of
the profiler (0.2 to 0.5 s were seen). What does not recur in most steps is no finding, and of a single step
the longest wait is left out (:mod:`zprof.rules.compute.idle_time`).

    saving: half of it .. all of it, exposed transfer with an empty queue meanwhile, and 15 %: ranks that are
    held up at different instants wait for each other, and what is launched after it starts one by one

A CPU rank has its scalar at once. There the signal is exposed transfer of collectives that the rank waits for
right after it read a scalar: all that is in flight has to end, needed or not. Gathers that are needed next
would be waited for anyway, so there the minimum is a third.
"""

from dataclasses import dataclass

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Evidence, Finding
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.rules.compute.idle_time import (
    is_inference,
    missing_host_gap,
    most_ranks_mean,
    on_device,
    rate_confidence,
    single_occurrence_gap,
)
from zprof.rules.rule import make_finding, rate_severity, wall_ns

#: Minimum share of the step: for a note, for a finding, and for a sure one.
_WORTH_RATIO = 0.01
_LIKELY_RATIO = 0.02
_SURE_RATIO = 0.05
#: Up to this many waits per step are no fault: the loss is read.
_USUAL_COUNT = 1.5
#: Minimum share that is saved, with and without a device; maximum, because ranks then wait for each other.
_MIN_SAVING_RATIO = 0.5
_LEAST_WITHOUT_DEVICE_RATIO = 1 / 3
_MAX_SAVING_RATIO = 1.15

FIX = (
    "total += loss.detach()  # instead of loss.item(); print it every 100 steps\n"
    "torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)  # without error_if_nonfinite\n"
    "tensor.to('cpu', non_blocking=True) into pinned memory; no torch.cuda.synchronize() in the loop"
)
_FIX_OF_INFERENCE = (
    "choose the next token on the device, and copy it to pinned memory with non_blocking=True\n"
    "schedule the next batch while this one runs; look for the end of sequences every few tokens\n"
    "no .item(), .tolist() or torch.cuda.synchronize() between two forwards"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _HostWaits:
    """Means per step: the loss, the range of the saving, and the number of waits."""

    wall_ns: float
    lost_ns: float
    saving_ns: tuple[float, float]
    count: float
    key: str
    what: str


def blocking_sync(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if the hosts of all ranks keep waiting."""
    missing = missing_host_gap(analysis, Cause.BLOCKING_SYNC)
    if missing:
        return missing
    held = _measure_on_device(analysis) if on_device(analysis) else _measure_on_cpu(analysis)
    if held.lost_ns >= _WORTH_RATIO * held.wall_ns:
        return _finding(analysis, held)
    return single_occurrence_gap(analysis, Cause.BLOCKING_SYNC, _LIKELY_RATIO, "sync_ns")


def _measure_on_device(analysis: RunAnalysis) -> _HostWaits:
    lost = most_ranks_mean(analysis, "sync_ns")
    most = _MAX_SAVING_RATIO * (lost + most_ranks_mean(analysis, "sync_exposed_ns"))
    return _HostWaits(
        wall_ns=wall_ns(analysis),
        lost_ns=lost,
        saving_ns=(_MIN_SAVING_RATIO * lost, most),
        count=most_ranks_mean(analysis, "dry_syncs"),
        key="idle_in_waits_per_step",
        what="idle in and right behind waits for the device per step",
    )


def _measure_on_cpu(analysis: RunAnalysis) -> _HostWaits:
    lost = most_ranks_mean(analysis, "read_exposed_ns")
    return _HostWaits(
        wall_ns=wall_ns(analysis),
        lost_ns=lost,
        saving_ns=(_LEAST_WITHOUT_DEVICE_RATIO * lost, _MAX_SAVING_RATIO * lost),
        count=most_ranks_mean(analysis, "held_reads"),
        key="exposed_transfer_of_reads_per_step",
        what="exposed transfer waited for right after a scalar was read per step",
    )


def _finding(analysis: RunAnalysis, held: _HostWaits) -> Finding:
    share = held.lost_ns / held.wall_ns
    # a loss is read once per step, and a decoder reads each token
    usual = held.count <= _USUAL_COUNT or is_inference(analysis)
    return make_finding(
        Cause.BLOCKING_SYNC,
        sentence=f"the host waits for all that runs {held.count:.0f} times per step, which costs "
        f"{format_ns(held.lost_ns)} ({share:.1%})",
        evidence=[
            Evidence(key=held.key, what=held.what, value=held.lost_ns, unit="ns"),
            Evidence(key="share_of_step", what="of the step", value=share, unit="ratio"),
            Evidence(
                key="blocking_waits_per_step",
                what="waits after which nothing was queued per step",
                value=held.count,
                unit="count",
            ),
        ],
        saving_ns=held.saving_ns,
        severity=rate_severity(held.saving_ns[1], held.wall_ns),
        confidence=Confidence.LOW if usual else rate_confidence(analysis, share, _SURE_RATIO, _LIKELY_RATIO),
        fix=_FIX_OF_INFERENCE if is_inference(analysis) else FIX,
        disprove="torch.cuda.set_sync_debug_mode('error') names the line; take it out and record again: if "
        "the idle time stays, it is not the wait",
    )
