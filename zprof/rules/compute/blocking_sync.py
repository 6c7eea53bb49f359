"""ZP503 blocking_sync: the host waits for its device repeatedly, and each time the queue runs dry.

The wait for the last kernel is not a loss, it would only move elsewhere. The loss is the time from the end of
that kernel until the next one runs: the host wakes up, continues and launches. Signal: the idle time within
``cuda/hip…Synchronize``, ``aten::item`` and copies that block their caller, and up to 1 ms of the gap right
after each, on most ranks. At least 1 % of the step is a note (docs/thresholds.md), at least 2 % a finding.
One such wait per step is normal for reading the loss: a note at most. The first wait of a window contains the
start of the profiler (0.2 to 0.5 s measured). A wait that does not recur in most steps is not reported, and
in a single step the longest wait is ignored (:mod:`zprof.rules.compute.idle_time`).

    saving: half of the loss .. all of it, plus exposed transfer with an empty queue meanwhile, plus 15 %:
    ranks delayed at different times wait for each other, and kernels launched afterwards start one by one

A CPU rank can read a scalar immediately. There the signal is exposed transfer of collectives that the rank
waits for right after reading a scalar: all collectives in flight have to end, needed or not. Gathers that are
needed next would be waited for anyway, so there the minimum is a third.
"""

from collections.abc import Sequence

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.time.program_lines import locate_device_waits, locate_reads
from zprof.model.findings import Cause, Confidence, Finding, SourceLocation
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.model.training import Framework
from zprof.rules.compute.idle_time import (
    find_missing_host_gap,
    find_single_occurrence_gap,
    has_device,
    is_inference,
    mean_of_most_ranks,
    rate_confidence,
)
from zprof.rules.evidence import make_fact
from zprof.rules.fixes import ANY, Fix, choose_fix
from zprof.rules.rule import make_finding, mean_wall_ns, rate_severity

#: Minimum share of the step: for a note, for a finding, and for high confidence.
_MIN_STEP_RATIO = 0.01
_MEDIUM_CONFIDENCE_RATIO = 0.02
_HIGH_CONFIDENCE_RATIO = 0.05
#: Up to this many waits per step are normal: the loss is read.
_MAX_NORMAL_COUNT = 1.5
#: Minimum saving relative to the loss, with and without a device; maximum above 1 as ranks wait for each
#: other.
_MIN_SAVING_RATIO = 0.5
_MIN_SAVING_RATIO_ON_CPU = 1 / 3
_MAX_SAVING_RATIO = 1.15

_FIX = Fix(
    forms={},
    settings={
        (Framework.TRANSFORMERS, ANY): "TrainingArguments(logging_steps=100, logging_nan_inf_filter=False)\n"
        "no .item(), .cpu() or print(tensor) in compute_loss, callbacks and metrics",
        (Framework.LIGHTNING, ANY): 'self.log("loss", loss.detach())  # not loss.item()\n'
        "Trainer(log_every_n_steps=100)",
    },
    general="total += loss.detach()  # instead of loss.item(); print it every 100 steps\n"
    "torch.nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)  # without error_if_nonfinite",
)
_DEVICE_FIX = (
    "tensor.to('cpu', non_blocking=True) into pinned memory; no torch.cuda.synchronize() in the loop"
)
_INFERENCE_FIX = (
    "choose the next token on the device, and copy it to pinned memory with non_blocking=True\n"
    "schedule the next batch while this one runs; check for the end of sequences every few tokens\n"
    "no .item(), .tolist() or torch.cuda.synchronize() between two forwards"
)
_DISPROOF = (
    "torch.cuda.set_sync_debug_mode('error') shows each such line; remove it and record again: if the idle "
    "time remains, the wait is not the cause"
)
_CPU_DISPROOF = "remove the reads and record again: if the exposed transfer remains, they are not the cause"


class _HostWaits(Struct, frozen=True, kw_only=True):
    """Means per step: the loss, the range of the saving, and the number of waits."""

    wall_ns: float
    lost_ns: float
    saving_ns: tuple[float, float]
    count: float
    key: str


def blocking_sync(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if the hosts of all ranks wait repeatedly."""
    missing = find_missing_host_gap(analysis, Cause.BLOCKING_SYNC)
    if missing:
        return missing
    waits = _measure_on_device(analysis) if has_device(analysis) else _measure_on_cpu(analysis)
    if waits.lost_ns >= _MIN_STEP_RATIO * waits.wall_ns:
        return _build_finding(analysis, waits)
    return find_single_occurrence_gap(analysis, Cause.BLOCKING_SYNC, _MEDIUM_CONFIDENCE_RATIO, "sync_ns")


def _measure_on_device(analysis: RunAnalysis) -> _HostWaits:
    lost = mean_of_most_ranks(analysis, "sync_ns")
    max_saving = _MAX_SAVING_RATIO * (lost + mean_of_most_ranks(analysis, "sync_exposed_ns"))
    return _HostWaits(
        wall_ns=mean_wall_ns(analysis),
        lost_ns=lost,
        saving_ns=(_MIN_SAVING_RATIO * lost, max_saving),
        count=mean_of_most_ranks(analysis, "dry_syncs"),
        key="idle_in_waits_per_step",
    )


def _measure_on_cpu(analysis: RunAnalysis) -> _HostWaits:
    lost = mean_of_most_ranks(analysis, "read_exposed_ns")
    return _HostWaits(
        wall_ns=mean_wall_ns(analysis),
        lost_ns=lost,
        saving_ns=(_MIN_SAVING_RATIO_ON_CPU * lost, _MAX_SAVING_RATIO * lost),
        count=mean_of_most_ranks(analysis, "held_reads"),
        key="exposed_transfer_of_reads_per_step",
    )


def _build_finding(analysis: RunAnalysis, waits: _HostWaits) -> Finding:
    basis = analysis.time.basis
    share = waits.lost_ns / waits.wall_ns
    # a loss is read once per step, and a decoder reads each token
    is_normal = waits.count <= _MAX_NORMAL_COUNT or is_inference(analysis)
    return make_finding(
        analysis,
        Cause.BLOCKING_SYNC,
        sentence=f"the host waits for all running work {waits.count:.0f} times {basis}, which costs "
        f"{format_ns(waits.lost_ns)} ({share:.1%})",
        evidence=[
            make_fact(waits.key, waits.lost_ns),
            make_fact("share_of_step", share),
            make_fact("blocking_waits_per_step", waits.count),
        ],
        saving_ns=waits.saving_ns,
        severity=rate_severity(waits.saving_ns[1], waits.wall_ns),
        confidence=Confidence.LOW
        if is_normal
        else rate_confidence(analysis, share, _HIGH_CONFIDENCE_RATIO, _MEDIUM_CONFIDENCE_RATIO),
        fix=choose_sync_fix(analysis),
        disprove=_DISPROOF if has_device(analysis) else _CPU_DISPROOF,
        location=locate_sync(analysis),
    )


def choose_sync_fix(analysis: RunAnalysis) -> str:
    """Return what to do instead of waiting for the device, or for the collectives of a CPU rank."""
    if is_inference(analysis):
        return _INFERENCE_FIX
    text = choose_fix(analysis, _FIX)
    return f"{text}\n{_DEVICE_FIX}" if has_device(analysis) else text


def locate_sync(analysis: RunAnalysis, ranks: Sequence[int] = ()) -> SourceLocation | None:
    """Return the line that waits most for the device, or on CPU ranks the one that reads a scalar."""
    locate = locate_device_waits if has_device(analysis) else locate_reads
    return locate(analysis.source, ranks)
