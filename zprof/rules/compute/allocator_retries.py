"""ZP501 allocator_retries: the allocator freed its cached segments and requested device memory again.

Each retry waits for the device, then frees and allocates segments. The step almost fills the memory, and an
out-of-memory error is close. Two inputs, whichever is available:

* the allocator's own counters. Any retry is reported, because a steady state has none; in reported issues,
  one or two slowed steps down. High severity from one per step. Survived out-of-memory errors count too.
* the trace: ``cudaFree`` or ``hipFree`` (or unmapping) on a thread that launches, within steps. A steady
  state has none. In fewer than half of the steps, or in a single recorded step, it may be the end of the
  warm-up and is a note. ``cudaMalloc`` without a free only grows the cache: a note from 1 % of the step.

The loss is read from the trace, for the rank that loses most, because all ranks wait for it: the device's
idle time in these calls and right after them, plus exposed transfer with an empty queue meanwhile. With the
fix the calls return at once. A CPU rank has no such allocator.
"""

from msgspec import Struct

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.memory.largest_rank import MISSING_DEVICE, find_largest_rank
from zprof.analysis.per_step import mean_wall_ns
from zprof.analysis.time.host_time import find_worst_rank_mean, mean_of_recurring
from zprof.causes.fix import Fix, choose_fix
from zprof.model.findings import Cause, Confidence, Finding, Severity
from zprof.model.formatting import format_frequency, format_ns
from zprof.model.gaps import Gap
from zprof.model.memory import AllocatorCounters
from zprof.model.training import Engine, Framework
from zprof.rules.evidence import make_fact
from zprof.rules.rule import make_finding, rate_severity, untested_gap


class AllocatorCalls(Struct, frozen=True, kw_only=True):
    """Allocator calls of the rank that loses the most time, as means per step.

    ``ratio_of_steps_with_free``: the share of its steps with a free. ``exposed_ns``: transfer with an empty
    queue meanwhile.
    """

    rank: int
    allocations: float
    frees: float
    ratio_of_steps_with_free: float
    steps: int
    lost_ns: float
    exposed_ns: float
    wall_ns: float

    @property
    def lost_ratio(self) -> float:
        """Lost time as a share of the step."""
        return self.lost_ns / self.wall_ns if self.wall_ns else 0.0


def read_allocator_calls(analysis: RunAnalysis) -> AllocatorCalls | None:
    """Read the allocator calls of the worst rank, None if the trace contains no device or no launches."""
    rows = analysis.host
    if not len(rows) or not (rows.bools("on_device") & rows.bools("launches_seen")).all():
        return None
    slowest_rank, _ = find_worst_rank_mean(analysis, "allocator_ns")
    most_freeing_rank, _ = find_worst_rank_mean(analysis, "gives")
    rank = slowest_rank if rows.ints("allocator_ns").any() else most_freeing_rank
    rank_rows = rows.at(rows.ints("rank") == rank)
    return AllocatorCalls(
        rank=rank,
        allocations=float(rank_rows.ints("takes").mean()),
        frees=float(rank_rows.ints("gives").mean()),
        ratio_of_steps_with_free=float((rank_rows.ints("gives") > 0).mean()),
        steps=len(rank_rows),
        lost_ns=mean_of_recurring(rank_rows.floats("allocator_ns")),
        exposed_ns=mean_of_recurring(rank_rows.floats("allocator_exposed_ns")),
        wall_ns=mean_wall_ns(analysis),
    )


_FREQUENT_PER_STEP = 1.0
_RARE_PER_STEP = 0.1
#: If at least this share of the steps has a free, it is not the warm-up.
_MIN_STEADY_RATIO = 0.5
#: Minimum share of the step for a note if nothing is freed; with frees in steady steps, for high confidence.
_MIN_STEP_RATIO = 0.01

_SEGMENTS = (
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
    "leave more memory free: a smaller micro-batch, fewer units gathered ahead, smaller buckets"
)
FIX = Fix(
    forms={
        Engine.FSDP1: f"{_SEGMENTS}\nFullyShardedDataParallel(model, limit_all_gathers=True)",
        Engine.DEEPSPEED: f"{_SEGMENTS}\nget_accelerator().empty_cache()  # on all ranks in the same step",
    },
    settings={
        (Framework.ACCELERATE, Engine.FSDP1): f"{_SEGMENTS}\n"
        "FullyShardedDataParallelPlugin(limit_all_gathers=True)",
        (Framework.TRANSFORMERS, Engine.FSDP1): f"{_SEGMENTS}\n"
        'TrainingArguments(fsdp_config={"limit_all_gathers": True})',
        (Framework.LIGHTNING, Engine.FSDP1): f"{_SEGMENTS}\nFSDPStrategy(limit_all_gathers=True)",
    },
    general=_SEGMENTS,
)


def allocator_retries(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if the allocator had to free its cache to continue."""
    calls, counters = read_allocator_calls(analysis), _worst_counters(analysis)
    if calls and (calls.frees or calls.lost_ratio >= _MIN_STEP_RATIO):
        retries = (counters.retries or 0) if counters else 0
        retries_note = f"; its counters show {retries} retries" if retries else ""
        lost_ns = calls.lost_ns + calls.exposed_ns
        return make_finding(
            analysis,
            Cause.ALLOCATOR_RETRIES,
            sentence=f"the allocator of rank {calls.rank} {_describe_calls(calls, analysis.time.basis)}, "
            f"leaving the device idle for "
            f"{format_ns(calls.lost_ns)}{retries_note}",
            evidence=[
                make_fact("device_frees_per_step", calls.frees, rank=calls.rank),
                make_fact("device_allocations_per_step", calls.allocations, rank=calls.rank),
                make_fact("steps_with_a_free", calls.ratio_of_steps_with_free, rank=calls.rank),
                make_fact("idle_in_calls_per_step", calls.lost_ns, rank=calls.rank),
            ],
            saving_ns=(0.0, lost_ns),
            severity=rate_severity(lost_ns, calls.wall_ns),
            confidence=_confidence(calls, retries),
            fix=choose_fix(analysis, FIX),
            disprove="leave a tenth of the memory free with a smaller batch and record again: if the calls "
            "remain, the program itself frees the cache (torch.cuda.empty_cache())",
        )
    if counters and (counters.retries or counters.ooms):
        return _find_from_counters(analysis, counters)
    if calls or counters:
        return None
    largest = find_largest_rank(analysis)
    return (
        untested_gap(Cause.ALLOCATOR_RETRIES, MISSING_DEVICE.reason, MISSING_DEVICE.remedy)
        if largest and largest.on_gpu
        else None
    )


def _worst_counters(analysis: RunAnalysis) -> AllocatorCounters | None:
    """Return the counters of the device with the most retries, None if no device has counters."""
    largest = find_largest_rank(analysis)
    counters = [entry for entry in analysis.memory.counters if entry.device != "cpu"]
    if largest is None or not largest.on_gpu or not any(entry.retries is not None for entry in counters):
        return None
    return max(counters, key=lambda entry: (entry.retries or 0, entry.ooms or 0))


def _describe_calls(calls: AllocatorCalls, basis: str) -> str:
    """Name the calls that occur: a trace without frees has none to report."""
    verbs = (("frees", calls.frees), ("allocates", calls.allocations))
    parts = [f"{verb} device memory {format_frequency(count, basis)}" for verb, count in verbs if count]
    return " and ".join(parts) or "neither frees nor allocates device memory"


def _confidence(calls: AllocatorCalls, retries: int) -> Confidence:
    steady = calls.ratio_of_steps_with_free >= _MIN_STEADY_RATIO and calls.steps > 1
    if not steady and not retries:
        return Confidence.LOW
    return Confidence.HIGH if calls.lost_ratio >= _MIN_STEP_RATIO and calls.steps > 1 else Confidence.MEDIUM


def _find_from_counters(analysis: RunAnalysis, worst: AllocatorCounters) -> Finding:
    retries, ooms = worst.retries or 0, worst.ooms or 0
    steps = max(1, len({*analysis.run.steps, *analysis.run.memory_steps}))
    rate = retries / steps
    survived = f", and survived {ooms} out-of-memory errors" if ooms else ""
    severity = Severity.HIGH if rate >= _FREQUENT_PER_STEP or ooms else Severity.MEDIUM
    return make_finding(
        analysis,
        Cause.ALLOCATOR_RETRIES,
        sentence=f"the allocator freed its cache and retried {retries} times on rank {worst.rank}, "
        f"{format_frequency(rate, analysis.time.basis)}{survived}: each retry waits for the device",
        evidence=[
            make_fact("allocation_retries", retries, rank=worst.rank),
            make_fact("out_of_memory_errors", ooms, rank=worst.rank),
            make_fact("steps_recorded", steps),
        ],
        saving_ns=(0, 0),
        saving_bytes=None,
        severity=Severity.LOW if rate < _RARE_PER_STEP and not ooms else severity,
        confidence=Confidence.LOW if rate < _RARE_PER_STEP and not ooms else Confidence.HIGH,
        fix=choose_fix(analysis, FIX),
        disprove="look for cudaFree in a trace of the step: if steady steps have none, the retries happened "
        "before the recording",
    )
