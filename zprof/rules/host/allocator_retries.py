"""ZP501 allocator_retries: cudaMalloc failed, the allocator freed its cached segments and asked again.

Each retry waits for the device and frees and allocates segments, in a step that is near the end of the
memory; the first out-of-memory error is close.  Any retry is reported, because a steady state has none;
support cases saw steps slow down from one or two on.  High severity from one a step on.  Out-of-memory
errors that the program survived count too.
"""

from zprof.analysis.analysis import RunAnalysis
from zprof.model.causes import Cause
from zprof.model.findings import Confidence, Evidence, Finding, Severity
from zprof.model.gaps import Gap
from zprof.model.memory import AllocatorCounters
from zprof.rules.memory.finding import no_device
from zprof.rules.memory.largest import largest_rank
from zprof.rules.rule import finding

_OFTEN = 1.0
_SELDOM = 0.1

_FIX = (
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
    "leave room: a smaller micro-batch, fewer units gathered ahead, smaller buckets\n"
    "FSDP1: limit_all_gathers=True; DeepSpeed: get_accelerator().empty_cache() on all ranks at the same step"
)


def allocator_retries(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Finding | Gap | None:
    """Finding where the allocator had to free its cache to go on."""
    big = largest_rank(analysis)
    if big is None or not big.on_gpu:
        return None
    counted = [entry for entry in analysis.memory.counters if entry.device != "cpu"]
    if not any(entry.retries is not None for entry in counted):
        return no_device(Cause.ALLOCATOR_RETRIES)
    worst = max(counted, key=lambda entry: (entry.retries or 0, entry.ooms or 0))
    return _finding(analysis, worst) if worst.retries or worst.ooms else None


def _finding(analysis: RunAnalysis, worst: AllocatorCounters) -> Finding:
    retries, ooms = worst.retries or 0, worst.ooms or 0
    steps = max(1, len({*analysis.run.steps, *analysis.run.memory_steps}))
    rate = retries / steps
    survived = f", and {ooms} out-of-memory errors were survived" if ooms else ""
    severity = Severity.HIGH if rate >= _OFTEN or ooms else Severity.MEDIUM
    return finding(
        Cause.ALLOCATOR_RETRIES,
        sentence=f"the allocator freed its cache and asked again {retries} times on rank {worst.rank}, "
        f"{rate:.1f} times a step{survived}: each waits for the device",
        evidence=[
            Evidence(what="retries of cudaMalloc", value=retries, unit="count", rank=worst.rank),
            Evidence(what="out-of-memory errors", value=ooms, unit="count", rank=worst.rank),
            Evidence(what="steps recorded", value=steps, unit="count"),
        ],
        saving_ns=(0, 0),
        saving_bytes=None,
        severity=Severity.LOW if rate < _SELDOM and not ooms else severity,
        confidence=Confidence.LOW if rate < _SELDOM and not ooms else Confidence.HIGH,
        fix=_FIX,
        disprove="look for cudaFree in a trace of the step: without it in steady steps, the retries lie "
        "before the recording",
    )
