"""ZP501 allocator_retries: the allocator freed its cached segments and requested device memory again.

Each retry waits for the device and frees and allocates segments, in a step that is near the end of the
memory; the first out-of-memory error is close. Two inputs, whichever is there:

* the allocator's own counters. Any retry is reported, because a steady state has none; support cases saw
  steps slow down from one or two on. High severity from one per step on. Survived out-of-memory errors count
  too.
* the trace: ``cudaFree`` or ``hipFree`` (or unmapping) on a thread that launches, within steps. A steady
  state has none. In fewer than half of the steps, or in the only one, it may be the end of the warm-up, and
  is a note. Without a free, ``cudaMalloc`` alone only grows the cache: a note from 1 % of the step on.

The trace prices it, on the rank that loses most, because all ranks wait for that one:

    saving: 0.7 of the device's idle time in these calls and right behind them .. all of it, exposed transfer
    with an empty queue meanwhile, and 15 % (ranks that are held up at different instants wait for each other)

A CPU rank has no such allocator.
"""

from dataclasses import dataclass

from zprof.analysis.analysis import RunAnalysis
from zprof.model.findings import Cause, Confidence, Evidence, Finding, Severity
from zprof.model.formatting import format_ns
from zprof.model.gaps import Gap
from zprof.model.memory import AllocatorCounters
from zprof.rules.compute.idle_time import recurring_mean, worst_rank_mean
from zprof.rules.memory.largest_rank import find_largest_rank, missing_device_gap
from zprof.rules.rule import make_finding, rate_severity, wall_ns

#: Minimum share of the time that is saved; maximum, because the others then wait for the late rank.
_MIN_SAVING_RATIO = 0.7
_MAX_SAVING_RATIO = 1.15


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorCalls:
    """Allocator calls of the rank that loses most time, as means per step.

    ``busy_ratio``: the share of its steps with a free.
    """

    rank: int
    takes: float
    gives: float
    busy_ratio: float
    steps: int
    lost_ns: float
    exposed_ns: float
    wall_ns: float

    @property
    def saving_ns(self) -> tuple[float, float]:
        """Lower and upper bound of the saving per step."""
        return _MIN_SAVING_RATIO * self.lost_ns, _MAX_SAVING_RATIO * (self.lost_ns + self.exposed_ns)

    @property
    def lost_ratio(self) -> float:
        """Lost time as a share of the step."""
        return self.lost_ns / self.wall_ns if self.wall_ns else 0.0


def read_allocator_calls(analysis: RunAnalysis) -> AllocatorCalls | None:
    """Return the allocator calls of the worst rank, None if the trace shows no device or no launches."""
    rows = analysis.host
    if rows.empty or not (rows["on_device"] & rows["launches_seen"]).all():
        return None
    timed, _ = worst_rank_mean(analysis, "allocator_ns")
    freeing, _ = worst_rank_mean(analysis, "gives")
    rank = timed if rows["allocator_ns"].any() else freeing
    mine = rows[rows["rank"] == rank]
    return AllocatorCalls(
        rank=rank,
        takes=float(mine["takes"].mean()),
        gives=float(mine["gives"].mean()),
        busy_ratio=float((mine["gives"] > 0).mean()),
        steps=len(mine),
        lost_ns=recurring_mean(mine["allocator_ns"]),
        exposed_ns=recurring_mean(mine["allocator_exposed_ns"]),
        wall_ns=wall_ns(analysis),
    )


_OFTEN_PER_STEP = 1.0
_SELDOM_PER_STEP = 0.1
#: From this share of the steps with a free it is no warm-up.
_STEADY_RATIO = 0.5
#: Minimum share of the step for a note if nothing is freed; with frees in steady steps it means high
#: confidence.
_WORTH_RATIO = 0.01

_FIX = (
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
    "leave room: a smaller micro-batch, fewer units gathered ahead, smaller buckets\n"
    "FSDP1: limit_all_gathers=True; DeepSpeed: get_accelerator().empty_cache() on all ranks at the same step"
)


def allocator_retries(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Return a finding if the allocator had to free its cache to continue."""
    seen, counted = read_allocator_calls(analysis), _worst_counters(analysis)
    if seen and (seen.gives or seen.lost_ratio >= _WORTH_RATIO):
        return _find_from_trace(seen, counted)
    if counted and (counted.retries or counted.ooms):
        return _find_from_counters(analysis, counted)
    if seen or counted:
        return None
    big = find_largest_rank(analysis)
    return missing_device_gap(Cause.ALLOCATOR_RETRIES) if big and big.on_gpu else None


def _worst_counters(analysis: RunAnalysis) -> AllocatorCounters | None:
    """Return the counters with most retries, None if no device has any."""
    big = find_largest_rank(analysis)
    counted = [entry for entry in analysis.memory.counters if entry.device != "cpu"]
    if big is None or not big.on_gpu or not any(entry.retries is not None for entry in counted):
        return None
    return max(counted, key=lambda entry: (entry.retries or 0, entry.ooms or 0))


def _find_from_trace(seen: AllocatorCalls, counted: AllocatorCounters | None) -> Finding:
    retries = (counted.retries or 0) if counted else 0
    told = f"; its counters hold {retries} retries" if retries else ""
    return make_finding(
        Cause.ALLOCATOR_RETRIES,
        sentence=f"the allocator of rank {seen.rank} gives memory back {seen.gives:.1f} and takes it "
        f"{seen.takes:.1f} times per step, while the device is idle for {format_ns(seen.lost_ns)}{told}",
        evidence=[
            Evidence(
                key="device_frees_per_step",
                what="frees of the device's memory per step",
                value=seen.gives,
                unit="count",
                rank=seen.rank,
            ),
            Evidence(
                key="device_allocations_per_step",
                what="allocations of it per step",
                value=seen.takes,
                unit="count",
                rank=seen.rank,
            ),
            Evidence(
                key="steps_with_a_free",
                what="steps with a free",
                value=seen.busy_ratio,
                unit="ratio",
                rank=seen.rank,
            ),
            Evidence(
                key="idle_in_calls_per_step",
                what="idle in these calls per step",
                value=seen.lost_ns,
                unit="ns",
                rank=seen.rank,
            ),
        ],
        saving_ns=seen.saving_ns,
        severity=rate_severity(seen.saving_ns[1], seen.wall_ns),
        confidence=_confidence(seen, retries),
        fix=_FIX,
        disprove="leave a tenth of the memory free with a smaller batch and record again: if the calls stay, "
        "the program frees by itself (torch.cuda.empty_cache())",
    )


def _confidence(seen: AllocatorCalls, retries: int) -> Confidence:
    steady = seen.busy_ratio >= _STEADY_RATIO and seen.steps > 1
    if not steady and not retries:
        return Confidence.LOW
    return Confidence.HIGH if seen.lost_ratio >= _WORTH_RATIO and seen.steps > 1 else Confidence.MEDIUM


def _find_from_counters(analysis: RunAnalysis, worst: AllocatorCounters) -> Finding:
    retries, ooms = worst.retries or 0, worst.ooms or 0
    steps = max(1, len({*analysis.run.steps, *analysis.run.memory_steps}))
    rate = retries / steps
    survived = f", and {ooms} out-of-memory errors were survived" if ooms else ""
    severity = Severity.HIGH if rate >= _OFTEN_PER_STEP or ooms else Severity.MEDIUM
    return make_finding(
        Cause.ALLOCATOR_RETRIES,
        sentence=f"the allocator freed its cache and asked again {retries} times on rank {worst.rank}, "
        f"{rate:.1f} times per step{survived}: each waits for the device",
        evidence=[
            Evidence(
                key="allocation_retries",
                what="retries of cudaMalloc",
                value=retries,
                unit="count",
                rank=worst.rank,
            ),
            Evidence(
                key="out_of_memory_errors",
                what="out-of-memory errors",
                value=ooms,
                unit="count",
                rank=worst.rank,
            ),
            Evidence(key="steps_recorded", what="steps recorded", value=steps, unit="count"),
        ],
        saving_ns=(0, 0),
        saving_bytes=None,
        severity=Severity.LOW if rate < _SELDOM_PER_STEP and not ooms else severity,
        confidence=Confidence.LOW if rate < _SELDOM_PER_STEP and not ooms else Confidence.HIGH,
        fix=_FIX,
        disprove="look for cudaFree in a trace of the step: without it in steady steps, the retries lie "
        "before the recording",
    )
