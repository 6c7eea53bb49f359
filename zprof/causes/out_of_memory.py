"""ZP210: an allocation failed, in a snapshot dumped at or after the error.

Two cases with different fixes. If the request's pool and the device together had at least the requested bytes
free, memory was free but in pieces: expandable segments make them usable. Otherwise the program needs less
memory, at least by the missing bytes: the largest tenant is the place to start. If the device had room for
the segment, a limit of the process refused it. Of several failures, the one that lacked the most bytes is
reported.
"""

from collections.abc import Mapping

from zprof.analysis.analysis import Fact, RunAnalysis, make_fact
from zprof.base.formatting import format_bytes
from zprof.causes.cause import Cause, Need, Signal
from zprof.model.endings import OutOfMemory
from zprof.model.findings import Confidence, Severity
from zprof.model.quantities import Unit
from zprof.model.tenants import DISPLAY_ORDER, UNTAGGED_NAME, Tenant
from zprof.run.user_code import find_user_frame

_EXPAND = "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"
_ALREADY_EXPANDABLE = (
    "expandable segments are on already: what is free lies in pages that other streams, or small requests, "
    "still use; fewer streams, and sizes that repeat"
)
_LIMIT = "raise the limit: torch.cuda.set_per_process_memory_fraction, or per_process_memory_fraction"
_AWAITING = (
    "a stream still uses freed blocks (record_stream): TORCH_NCCL_AVOID_RECORD_STREAMS=1, or FSDP2 instead "
    "of FSDP1"
)
_NOTHING_LIVE = (
    "the request itself is too large: load, or compute, in parts",
    "or another process holds the device: nvidia-smi lists them",
)
#: How to shrink each tenant, in one line.
_TENANT_FIXES: Mapping[str, str] = {
    Tenant.PARAMETERS: "parameters: shard them (stage 3, fully_shard), or a 16-bit type",
    Tenant.GRADIENTS: "gradients: optimizer.zero_grad(set_to_none=True) after a step; shard them (stage 2)",
    Tenant.OPTIMIZER_STATE: "optimizer state: shard it (stage 1), 8-bit moments, or offload",
    Tenant.ACTIVATIONS: "activations: checkpoint the blocks, or a smaller micro-batch",
    Tenant.TEMPORARY_BUFFERS: "temporary buffers: a fused optimizer, and the loss in pieces",
    Tenant.COMMUNICATION_BUFFERS: "communication buffers: smaller units, and fewer of them in flight",
    UNTAGGED_NAME: "most has no known owner: start torch.cuda.memory._record_memory_history, with stacks, "
    "before the model is built",
}

CAUSE = Cause(
    id="ZP210",
    name="out_of_memory",
    meaning="An allocation failed, and the snapshot shows what filled the device.",
    needs=(Need.MEMORY,),
    is_failure=True,
    is_risk=True,
    sentence="out of memory: rank {rank} requested {requested:bytes}; {allocated:bytes} were "
    "allocated{holder}; {outcome}",
    evidence={
        "requested_bytes": ("request that failed", Unit.BYTES),
        "driver_bytes": ("segment that the driver was asked for, at most", Unit.BYTES),
        "device_free_bytes": ("free on the device, as the driver reported", Unit.BYTES),
        "allocated_at_failure": ("allocated blocks", Unit.BYTES),
        "largest_tenant": ("of them {name}", Unit.BYTES),
        "reserved_at_failure": ("reserved by the allocator", Unit.BYTES),
        "free_segments": ("entirely free segments", Unit.BYTES),
        "largest_free_piece": ("largest free piece in its pool", Unit.BYTES),
        "short_bytes": ("missing even if all free memory were one piece", Unit.BYTES),
        "failed_allocations": ("failed allocations in the snapshots", Unit.COUNT),
    },
    disprove="torch.cuda.memory_summary() at the error: allocated plus what is requested fits on the device",
)


@CAUSE.detect
def detect(analysis: RunAnalysis, baseline: RunAnalysis | None) -> Signal | None:
    """Return a signal if a snapshot contains a failed allocation."""
    failures = analysis.memory.out_of_memory
    if not failures:
        return None
    failure = max(failures, key=lambda entry: (entry.short_bytes or 0, entry.requested_bytes, -entry.rank))
    folder = analysis.source.manifest.folder if analysis.source is not None else ""
    name, size = _find_largest_tenant(failure)
    usable = None  # by defragmentation; otherwise the program must use less memory
    if failure.would_fit_defragmented:
        usable = failure.requested_bytes, max(failure.requested_bytes, failure.split_bytes or 0)
    return Signal(
        confidence=Confidence.HIGH if failure.would_fit_defragmented is False else Confidence.MEDIUM,
        words={
            "rank": failure.rank,
            "requested": failure.requested_bytes,
            "allocated": failure.allocated_bytes,
            "holder": f", mostly {name.replace('_', ' ')} ({format_bytes(size)})" if size else "",
            "outcome": _describe_outcome(failure),
        },
        facts=[*_list_facts(failure), make_fact("failed_allocations", len(failures))],
        saving_bytes=usable,
        severity=Severity.HIGH,
        fix="\n".join(_list_fixes(failure)),
        disprove="dump a snapshot of the changed run: no allocation of this size fails"
        if failure.would_fit_defragmented
        else "",
        locate=lambda: find_user_frame(failure.stack, folder),
    )


def _describe_outcome(failure: OutOfMemory) -> str:
    if failure.is_limited:
        device_free = format_bytes(failure.device_free_bytes or 0)
        return f"a limit of the process refused it: the device had {device_free} free"
    if failure.would_fit_defragmented:
        largest = format_bytes(failure.largest_free_bytes or 0)
        return f"a defragmented pool would have had room: its largest free piece was {largest}"
    if failure.short_bytes is not None:
        return f"even a defragmented pool would have been {format_bytes(failure.short_bytes)} short of it"
    return "it is unknown if free memory would have been enough"


def _list_fixes(failure: OutOfMemory) -> list[str]:
    fixes = [_LIMIT] if failure.is_limited else []
    if failure.would_fit_defragmented:
        return [*fixes, _ALREADY_EXPANDABLE if failure.expandable else _EXPAND]
    name, size = _find_largest_tenant(failure)
    fixes += [_TENANT_FIXES[name]] if size else _NOTHING_LIVE
    if failure.short_bytes:
        fixes.append(f"it takes {format_bytes(failure.short_bytes)} less to fit")
        if failure.awaiting_free_bytes >= failure.short_bytes:
            fixes.append(_AWAITING)
    return fixes


def _list_facts(failure: OutOfMemory) -> list[Fact]:
    name, size = _find_largest_tenant(failure)
    known = (
        ("requested_bytes", failure.requested_bytes),
        ("driver_bytes", failure.driver_bytes),
        ("device_free_bytes", failure.device_free_bytes),
        ("allocated_at_failure", failure.allocated_bytes),
        ("largest_tenant", size or None),
        ("reserved_at_failure", failure.reserved_bytes),
        ("free_split_bytes", failure.split_bytes),
        ("free_segments", failure.free_segments_bytes),
        ("awaiting_free", failure.awaiting_free_bytes),
        ("largest_free_piece", failure.largest_free_bytes),
        ("short_bytes", failure.short_bytes),
    )
    tenant = name.replace("_", " ")
    return [
        make_fact(key, value, rank=failure.rank, name=tenant) for key, value in known if value is not None
    ]


def _find_largest_tenant(failure: OutOfMemory) -> tuple[str, int]:
    """Return the name and bytes of the tenant with the most live memory; it may be ``untagged``."""
    sizes = {UNTAGGED_NAME: failure.untagged_bytes}
    sizes |= {tenant.value: failure.tenants.get(tenant, 0) for tenant in DISPLAY_ORDER}
    name = max(sizes, key=lambda each: sizes[each])
    return name, sizes[name]
