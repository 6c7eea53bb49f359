"""ZP501: the allocator freed its cached segments and requested device memory again.

Each retry waits for the device, then frees and allocates segments. The step almost fills the memory, and an
out-of-memory error is close. There are two inputs; either suffices:

* the trace: ``cudaFree`` or ``hipFree`` (or unmapping) on a thread that launches, within steps. A steady
  state has none. In fewer than half of the steps, or in a single recorded step, it may be the end of the
  warm-up and is a note. ``cudaMalloc`` without a free only grows the cache: a note from 1 % of the step.
* the allocator's own counters. Any retry is reported, because a steady state has none; in reported issues,
  one or two slowed steps down. High severity from one per step. Survived out-of-memory errors count too.

The loss is measured in the trace, on the rank that loses most, because all ranks wait for it: the device's
idle time in these calls and right after them, plus exposed transfer with an empty queue meanwhile. With the
fix the calls return at once. A CPU rank has no such allocator.
"""

from collections.abc import Sequence

from zprof.analysis.analysis import RunAnalysis, Untested, make_fact
from zprof.analysis.memory.largest_rank import MISSING_DEVICE, find_largest_rank
from zprof.analysis.time.host_time import (
    AllocatorCalls,
    find_worst_counters,
    read_allocator_calls,
)
from zprof.base.formatting import format_frequency
from zprof.causes.cause import Cause, Need, Observation, Signal
from zprof.causes.fix import Fix
from zprof.model.findings import Confidence, Finding, Severity
from zprof.model.memory import AllocatorCounters
from zprof.model.quantities import Unit
from zprof.model.training import Engine, Framework
from zprof.step import edits
from zprof.step.play import PlayedStep
from zprof.step.rank_times import ALLOCATES, are_calls, count_per_step, keep_recurring
from zprof.step.tasks import Bools, Graph, RankGraph

_FREQUENT_PER_STEP, _RARE_PER_STEP = 1.0, 0.1
#: With frees in at least this share of the steps, they are not part of the warm-up.
_MIN_STEADY_RATIO = 0.5
#: Minimum share of the step: for a note if nothing is freed, and for high confidence if steady steps free.
_MIN_STEP_RATIO = 0.01

_SEGMENTS = (
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
    "leave more memory free: a smaller micro-batch, fewer units gathered ahead, smaller buckets"
)

CAUSE = Cause(
    id="ZP501",
    name="allocator_retries",
    meaning="The allocator freed its cached segments and asked the device for memory again.",
    needs=(Need.DEVICE,),
    terms=("idle_ns", "exposed_transfer_ns"),
    idles_device=True,
    is_risk=True,
    sentence="the allocator of rank {rank} {calls}, leaving the device idle for {lost:ns}{retries}",
    observed="the allocator allocates or frees device memory {frequency}: without these calls {step_is} "
    "shorter",
    evidence={
        "device_frees_per_step": ("frees of device memory {per_step}", Unit.COUNT),
        "device_allocations_per_step": ("allocations of device memory {per_step}", Unit.COUNT),
        "steps_with_a_free": ("steps with a free", Unit.RATIO),
        "idle_in_calls_per_step": ("idle time in these calls {per_step}", Unit.NS),
        "memory_calls_per_step": ("calls that allocate or free device memory, {per_step}", Unit.COUNT),
        "allocation_retries": ("retries of cudaMalloc", Unit.COUNT),
        "out_of_memory_errors": ("out-of-memory errors", Unit.COUNT),
        "steps_recorded": ("steps recorded", Unit.COUNT),
    },
    fix=Fix(
        forms={
            Engine.FSDP1: f"{_SEGMENTS}\nFullyShardedDataParallel(model, limit_all_gathers=True)",
            Engine.DEEPSPEED: f"{_SEGMENTS}\n"
            "get_accelerator().empty_cache()  # on all ranks in the same step",
        },
        settings={
            (Framework.ACCELERATE, Engine.FSDP1): f"{_SEGMENTS}\n"
            "FullyShardedDataParallelPlugin(limit_all_gathers=True)",
            (Framework.TRANSFORMERS, Engine.FSDP1): f"{_SEGMENTS}\n"
            'TrainingArguments(fsdp_config={"limit_all_gathers": True})',
            (Framework.LIGHTNING, Engine.FSDP1): f"{_SEGMENTS}\nFSDPStrategy(limit_all_gathers=True)",
        },
        general=_SEGMENTS,
    ),
    disprove="leave a tenth of the memory free with a smaller batch and record again: if the calls "
    "remain, the program itself frees the cache (torch.cuda.empty_cache())",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | Untested | None:
    """Return a signal if the allocator had to free its cache to continue."""
    calls, counters = read_allocator_calls(analysis), find_worst_counters(analysis)
    if calls and (calls.frees or calls.lost_ratio >= _MIN_STEP_RATIO):
        return _judge_calls(analysis, calls, (counters.retries or 0) if counters else 0)
    if counters and (counters.retries or counters.ooms):
        return _judge_counters(analysis, counters)
    if calls or counters:
        return None
    largest = find_largest_rank(analysis)
    return MISSING_DEVICE if largest and largest.on_gpu else None


def _judge_calls(analysis: RunAnalysis, calls: AllocatorCalls, retries: int) -> Signal:
    is_steady = calls.steps_with_free_ratio >= _MIN_STEADY_RATIO and calls.steps > 1
    is_sure = calls.lost_ratio >= _MIN_STEP_RATIO and calls.steps > 1
    sure = Confidence.HIGH if is_sure else Confidence.MEDIUM
    # a trace without frees has nothing to report
    verbs, basis = (("frees", calls.frees), ("allocates", calls.allocations)), analysis.time.basis
    parts = [f"{verb} device memory {format_frequency(count, basis)}" for verb, count in verbs if count]
    return Signal(
        confidence=sure if is_steady or retries else Confidence.LOW,
        words={
            "rank": calls.rank,
            "calls": " and ".join(parts) or "neither frees nor allocates device memory",
            "lost": calls.lost_ns,
            "retries": f"; its counters show {retries} retries" if retries else "",
        },
        facts=[
            make_fact("device_frees_per_step", calls.frees, rank=calls.rank),
            make_fact("device_allocations_per_step", calls.allocations, rank=calls.rank),
            make_fact("steps_with_a_free", calls.steps_with_free_ratio, rank=calls.rank),
            make_fact("idle_in_calls_per_step", calls.lost_ns, rank=calls.rank),
        ],
        lost_ns=calls.lost_ns + calls.exposed_ns,
    )


def _judge_counters(analysis: RunAnalysis, worst: AllocatorCounters) -> Signal:
    retries, ooms = worst.retries or 0, worst.ooms or 0
    steps = max(1, len({*analysis.run.steps, *analysis.run.memory_steps}))
    rate = retries / steps
    is_rare = rate < _RARE_PER_STEP and not ooms
    severity = Severity.HIGH if rate >= _FREQUENT_PER_STEP or ooms else Severity.MEDIUM
    return Signal(
        sentence="the allocator freed its cache and retried {retries} times on rank {rank}, "
        "{frequency}{survived}: each retry waits for the device",
        confidence=Confidence.LOW if is_rare else Confidence.HIGH,
        severity=Severity.LOW if is_rare else severity,
        words={
            "retries": retries,
            "rank": worst.rank,
            "frequency": format_frequency(rate, analysis.time.basis),
            "survived": f", and survived {ooms} out-of-memory errors" if ooms else "",
        },
        facts=[
            make_fact("allocation_retries", retries, rank=worst.rank),
            make_fact("out_of_memory_errors", ooms, rank=worst.rank),
            make_fact("steps_recorded", steps),
        ],
        disprove="look for cudaFree in a trace of the step: if steady steps have none, the retries happened "
        "before the recording",
    )


@CAUSE.observe
def observe(step: PlayedStep) -> Observation | None:
    """Return the recurring calls that allocate or free device memory."""
    assert step.graph is not None
    graph = step.graph

    def select(rank: RankGraph) -> Bools:
        return keep_recurring(rank, graph.steps, are_calls(rank, ALLOCATES))

    count = count_per_step(graph, select)
    if not count:
        return None
    return Observation(
        changed=[edits.unblock_calls(graph, select)],
        words={"frequency": format_frequency(count, step.analysis.time.basis)},
        facts=[make_fact("memory_calls_per_step", count)],
    )


@CAUSE.edit
def keep_allocations(analysis: RunAnalysis, graph: Graph, finding: Finding) -> Sequence[Graph]:
    """Return the step in which these calls return at once."""
    return [edits.unblock_calls(graph, lambda rank: are_calls(rank, ALLOCATES))]
