"""ZP503 blocking_sync: the host waits for its device repeatedly, and each time the queue runs dry.

The wait for the last kernel is not a loss, it would only move elsewhere. The loss is the time from the end of
that kernel until the next one runs: the host wakes up, continues and launches. Signal: the idle time within
calls that block until the device is done (:mod:`zprof.analysis.time.device_waits`), and up to 1 ms of the gap
right after each, on most ranks. At least 1 % of the step is a note (docs/thresholds.md), at least 2 % a
finding. One such wait per step is normal for reading the loss: a note at most. The first wait of a window
contains the start of the profiler (0.2 to 0.5 s measured). A wait that does not recur in most steps is not
reported, and in a single step the longest wait is ignored (:mod:`zprof.rules.compute.idle_time`).

The evidence and the fixes are those of the operators and kinds of wait that cost most. With the fix the
blocking calls return at once.

A CPU rank can read a scalar immediately. There the signal is exposed transfer of collectives that the rank
waits for right after reading a scalar: all collectives in flight have to end, needed or not.
"""

from collections.abc import Sequence

import numpy as np
from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Groups
from zprof.analysis.per_step import mean_wall_ns
from zprof.analysis.time.device_waits import WaitKind
from zprof.analysis.time.host_time import has_device, is_inference, mean_of_most_ranks, rate_confidence
from zprof.analysis.time.program_lines import locate_device_waits, locate_reads
from zprof.causes.fix import ANY, Fix, choose_fix, is_on_cpu
from zprof.model.findings import Cause, Confidence, Finding, SourceLocation
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.model.training import Framework
from zprof.rules.compute.idle_time import find_missing_host_gap, find_single_occurrence_gap
from zprof.rules.evidence import Fact, make_fact
from zprof.rules.rule import make_finding, rate_severity

#: Minimum share of the step: for a note, for a finding, and for high confidence.
_MIN_STEP_RATIO = 0.01
_MEDIUM_CONFIDENCE_RATIO = 0.02
_HIGH_CONFIDENCE_RATIO = 0.05
#: Up to this many waits per step are normal: the loss is read.
_MAX_NORMAL_COUNT = 1.5
#: Waits per step and rank by which a run has more of them than its baseline.
_MORE_WAITS = 0.5

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
_TO_HOST_FIX = "tensor.to('cpu', non_blocking=True) into pinned memory, and read it a step later"
_TO_DEVICE_FIX = "DataLoader(..., pin_memory=True); tensor.to(device, non_blocking=True)"
_SHAPE_FIX = "torch.where(mask, x, 0) instead of x[mask] and nonzero(): their shape has to come to the host"
_SYNC_FIX = "no torch.cuda.synchronize(), event.synchronize() or empty_cache() in the loop"
#: Operators that read one value, and those whose result's shape depends on values.
_READ_OPERATORS = frozenset({"aten::item", "aten::_local_scalar_dense", "aten::is_nonzero", "aten::equal"})
_SHAPE_OPERATORS = frozenset(
    {
        "aten::nonzero",
        "aten::masked_select",
        "aten::index",
        "aten::index_put_",
        "aten::unique_dim",
        "aten::_unique2",
        "aten::repeat_interleave",
    }
)
_TO_DEVICE = frozenset({WaitKind.TO_DEVICE, WaitKind.TO_DEVICE_PINNED, WaitKind.TO_DEVICE_PAGEABLE})
_SYNCS = frozenset({WaitKind.STREAM, WaitKind.EVENT, WaitKind.DEVICE})
#: Groups of waits that are named, and their minimum share of the cost of all.
_MAX_GROUPS = 4
_MIN_GROUP_RATIO = 0.05
_INFERENCE_FIX = (
    "choose the next token on the device, and copy it to pinned memory with non_blocking=True\n"
    "schedule the next batch while this one runs; check for the end of sequences every few tokens\n"
    "no .item(), .tolist() or torch.cuda.synchronize() between two forwards"
)
_CPU_INFERENCE_FIX = (
    "schedule the next batch while this one runs; check for the end of sequences every few tokens\n"
    "no .item() or .tolist() between two forwards"
)
_DISPROOF = (
    "torch.cuda.set_sync_debug_mode('error') shows each such line; remove it and record again: if the idle "
    "time remains, the wait is not the cause"
)
_CPU_DISPROOF = "remove the reads and record again: if the exposed transfer remains, they are not the cause"


class _HostWaits(Struct, frozen=True, kw_only=True):
    """Means per step: the loss, exposed transfer with an empty queue meanwhile, and the number of waits."""

    wall_ns: float
    lost_ns: float
    exposed_ns: float
    count: float
    key: str


def blocking_sync(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if the hosts of all ranks wait repeatedly."""
    missing = find_missing_host_gap(analysis, Cause.BLOCKING_SYNC)
    if missing:
        return missing
    waits = _measure_on_device(analysis) if has_device(analysis) else _measure_on_cpu(analysis)
    if waits.lost_ns >= _MIN_STEP_RATIO * waits.wall_ns:
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
                *make_wait_facts(list_wait_groups(analysis)),
            ],
            saving_ns=(0.0, waits.lost_ns + waits.exposed_ns),
            severity=rate_severity(waits.lost_ns + waits.exposed_ns, waits.wall_ns),
            confidence=Confidence.LOW
            if is_normal
            else rate_confidence(analysis, share, _HIGH_CONFIDENCE_RATIO, _MEDIUM_CONFIDENCE_RATIO),
            fix=choose_sync_fix(analysis),
            disprove=_DISPROOF if has_device(analysis) else _CPU_DISPROOF,
            location=locate_sync(analysis),
        )
    return find_single_occurrence_gap(
        analysis,
        Cause.BLOCKING_SYNC,
        _MEDIUM_CONFIDENCE_RATIO,
        "sync_ns",
        what=_describe_longest_wait(analysis),
    )


class WaitGroup(Struct, frozen=True, kw_only=True):
    """Waits of one operator and kind; means per rank and step. ``stalled_ns``: what they cost the device."""

    operator: str
    kind: WaitKind
    count: float
    wait_ns: float
    stalled_ns: float


def list_wait_groups(analysis: RunAnalysis, ranks: Sequence[int] = ()) -> list[WaitGroup]:
    """Return the waits for the device by operator and kind, the costliest first, without negligible ones.

    Args:
        analysis: The run.
        ranks: Its ranks; default: all.
    """
    rows, steps = analysis.waits, analysis.steps
    if ranks:
        rows, steps = (table.at(np.isin(table.ints("rank"), ranks)) for table in (rows, steps))
    if not len(rows) or not len(steps):
        return []
    operator, kind = rows.texts("operator"), rows.texts("kind")
    groups = Groups(operator, kind)
    wait_ns, stalled_ns = groups.sum(rows.ints("wait_ns")), groups.sum(rows.ints("stalled_ns"))
    order = np.lexsort((-wait_ns, -stalled_ns))
    order = order[stalled_ns[order] >= _MIN_GROUP_RATIO * stalled_ns.sum()][:_MAX_GROUPS]
    return [
        WaitGroup(
            operator=operator[int(groups.first[group])],
            kind=WaitKind(kind[int(groups.first[group])]),
            count=float(groups.sizes[group] / len(steps)),
            wait_ns=float(wait_ns[group] / len(steps)),
            stalled_ns=float(stalled_ns[group] / len(steps)),
        )
        for group in order
    ]


def is_waiting_as_often(analysis: RunAnalysis, baseline: RunAnalysis) -> bool:
    """Return True if the hosts of the baseline waited for their devices about as often, at whatever cost."""
    now, before = (len(each.waits) / max(1, len(each.steps)) for each in (analysis, baseline))
    return 0 < now < before + _MORE_WAITS


def make_wait_facts(groups: Sequence[WaitGroup]) -> list[Fact]:
    """Return two rows of evidence per group: how long the host waited, and what that cost its device."""
    return [
        fact
        for number, group in enumerate(groups, 1)
        for fact in (
            make_fact(
                "wait_{number}_host_blocked_per_step",
                group.wait_ns,
                number=number,
                operator=group.operator,
                kind=group.kind,
                count=f"{group.count:.3g}",
            ),
            make_fact("wait_{number}_stalled_per_step", group.stalled_ns, number=number),
        )
    ]


def _describe_longest_wait(analysis: RunAnalysis) -> str:
    """Return which call of which operator the longest wait is; empty if it is not known."""
    if not len(analysis.waits):
        return ""
    waits = analysis.waits
    longest = int(waits.ints("wait_ns").argmax())
    operator, kind = waits.texts("operator")[longest], waits.texts("kind")[longest]
    return f": {operator}, {kind}, {format_ns(int(waits.ints('wait_ns')[longest]))}"


def _measure_on_device(analysis: RunAnalysis) -> _HostWaits:
    return _HostWaits(
        wall_ns=mean_wall_ns(analysis),
        lost_ns=mean_of_most_ranks(analysis, "sync_ns"),
        exposed_ns=mean_of_most_ranks(analysis, "sync_exposed_ns"),
        count=mean_of_most_ranks(analysis, "dry_syncs"),
        key="idle_in_waits_per_step",
    )


def _measure_on_cpu(analysis: RunAnalysis) -> _HostWaits:
    return _HostWaits(
        wall_ns=mean_wall_ns(analysis),
        lost_ns=mean_of_most_ranks(analysis, "read_exposed_ns"),
        exposed_ns=0.0,
        count=mean_of_most_ranks(analysis, "held_reads"),
        key="exposed_transfer_of_reads_per_step",
    )


def choose_sync_fix(analysis: RunAnalysis, ranks: Sequence[int] = ()) -> str:
    """Return what to do instead of waiting for the device, or for the collectives of a CPU rank.

    One fix per kind of wait, that of the costliest first.
    """
    if is_inference(analysis):
        return _CPU_INFERENCE_FIX if is_on_cpu(analysis) else _INFERENCE_FIX
    read_fix = choose_fix(analysis, _FIX)
    if not has_device(analysis):
        return read_fix
    fixes = [_choose_group_fix(group, read_fix) for group in list_wait_groups(analysis, ranks)]
    return "\n".join(dict.fromkeys(fixes or [read_fix, _TO_HOST_FIX, _SYNC_FIX]))


def _choose_group_fix(group: WaitGroup, read_fix: str) -> str:
    if group.operator in _SHAPE_OPERATORS:
        return _SHAPE_FIX
    if group.operator in _READ_OPERATORS:
        return read_fix
    if group.kind in _TO_DEVICE:
        return _TO_DEVICE_FIX
    return _SYNC_FIX if group.kind in _SYNCS else _TO_HOST_FIX


def locate_sync(analysis: RunAnalysis, ranks: Sequence[int] = ()) -> SourceLocation | None:
    """Return the line that waits most for the device, or on CPU ranks the one that reads a scalar."""
    locate = locate_device_waits if has_device(analysis) else locate_reads
    return locate(analysis.source, ranks)
