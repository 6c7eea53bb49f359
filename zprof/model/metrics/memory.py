"""Explain the memory metrics.

Covers tenants at the peak, the check against the ZeRO formula, and device memory.
"""

from zprof.model.quantities import Better, Metric
from zprof.model.tenants import DISPLAY_ORDER, Tenant

_TERMS = {
    "live_bytes": (
        "tenants and untagged",
        "Requested bytes of all live allocations: the tenants plus untagged.",
    ),
    "rounding_bytes": (
        "rounding to blocks",
        "Difference between the allocator's block sizes and the requested sizes.",
    ),
    "awaiting_free_bytes": (
        "freed, still in use by a stream",
        "Freed blocks that a stream still uses.",
    ),
    "split_bytes": (
        "free parts of used segments",
        "Free parts of segments that are partly in use: fragmentation.",
    ),
    "free_segments_bytes": (
        "free segments",
        "Completely free segments that were not returned to the device.",
    ),
    "private_pools_bytes": (
        "free in private pools",
        "Free memory in the private pools of CUDA graphs.",
    ),
    "reserved_bytes": (
        "reserved by the allocator",
        "All memory that the allocator has reserved on the device.",
    ),
    "collectives_bytes": (
        "communicators (estimated from growth)",
        "Growth of the process outside the allocator at the first collective of each group.",
    ),
    "context_bytes": (
        "context and other",
        "Other memory of the process outside the allocator: CUDA context, modules, libraries.",
    ),
    "process_bytes": (
        "this process on the device",
        "All memory of this process on the device.",
    ),
    "other_processes_bytes": (
        "other processes",
        "Memory of other processes and of the driver.",
    ),
    "device_used_bytes": (
        "in use on the device",
        "All memory in use on the device.",
    ),
    "device_total_bytes": (
        "total on the device",
        "Total memory of the device.",
    ),
}
_TERM_SUMS = {
    "reserved_bytes": (
        "reserved = live + rounding + awaiting free + split + free segments + private pools",
        (
            "live_bytes",
            "rounding_bytes",
            "awaiting_free_bytes",
            "split_bytes",
            "free_segments_bytes",
            "private_pools_bytes",
        ),
    ),
    "process_bytes": (
        "process = reserved + collectives + context",
        ("reserved_bytes", "collectives_bytes", "context_bytes"),
    ),
    "device_used_bytes": (
        "used = process + other processes",
        ("process_bytes", "other_processes_bytes"),
    ),
}

_DEVICE_TERMS: tuple[Metric, ...] = tuple(
    Metric(
        path=f"memory.devices[].{leaf}",
        title=title,
        help=help,
        formula=_TERM_SUMS.get(leaf, ("", ()))[0],
        inputs=_TERM_SUMS.get(leaf, ("", ()))[1],
    )
    for leaf, (title, help) in _TERMS.items()
)
_COUNTERS: tuple[Metric, ...] = tuple(
    Metric(path=f"memory.counters[].{leaf}", title=title, help=help)
    for leaf, title, help in (
        (
            "peak_allocated_bytes",
            "peak allocated",
            "Peak of allocated bytes, from the allocator's own counter.",
        ),
        ("peak_reserved_bytes", "peak reserved", "Peak of reserved bytes, from the allocator's own counter."),
        (
            "retries",
            "retries",
            "Allocations in the recorded steps that had to release cached memory and retry.",
        ),
        (
            "ooms",
            "out-of-memory errors",
            "Allocations in the recorded steps that failed because memory ran out.",
        ),
    )
)

DEVICES: tuple[Metric, ...] = (*_DEVICE_TERMS, *_COUNTERS)


_SUM = "peak = parameters + gradients + optimizer state + activations + temporary + communication + untagged"
_FORMULA = (
    "Psi elements x bytes per element, divided by N ranks if the stage shards it (optimizer state from stage "
    "1, gradients from 2, parameters in 3): stage 0 (p+g+k)Psi, 1 (p+g)Psi + kPsi/N, 2 pPsi + (g+k)Psi/N, 3 "
    "(p+g+k)Psi/N; p, g, k: bytes per element of parameters, gradients, optimizer state"
)
_PARTS = (*(f"tenants.{tenant.value}" for tenant in DISPLAY_ORDER), "untagged_bytes")
_TENANT_TEXTS = {
    Tenant.PARAMETERS: "Weights and buffers of modules that persist between steps; in stage 3, a shard. "
    "Parameters gathered for a forward pass are communication buffers.",
    Tenant.GRADIENTS: "Tensors reachable from .grad, and unsharded gradients until the engine reduces them.",
    Tenant.OPTIMIZER_STATE: "Tensors of optimizer.state, step counters, and the fp32 master weights that the "
    "optimizer owns.",
    Tenant.ACTIVATIONS: "Tensors that autograd, activation checkpointing or a custom function saves for the "
    "backward pass.",
    Tenant.TEMPORARY_BUFFERS: "All other memory that operators of the recorded steps allocate or use "
    "internally: gradients of activations, workspaces, temporaries of the optimizer.",
    Tenant.COMMUNICATION_BUFFERS: "Operands of collectives that are not model state: gathered parameters, "
    "inputs of reduce-scatters, buckets, buffers of the communication backend.",
}
_UNTAGGED = "Live bytes that could not be assigned to any tenant."
_MEASURED = (
    "All bytes of this state on the rank at a time when the state is complete, which may differ from the "
    "peak; for gradients, when the optimizer starts."
)


def _make_peak_help(stem: str, moment: str) -> tuple[Metric, ...]:
    """Return help on all leaves of a memory peak."""
    return (
        Metric(
            path=f"memory.{stem}[].peak_bytes",
            better=Better.LESS,
            title="peak",
            help=f"{moment} Each byte belongs to exactly one tenant or is untagged.",
            formula=_SUM,
            inputs=_PARTS,
        ),
        *(
            Metric(
                path=f"memory.{stem}[].tenants.{tenant.value}",
                better=Better.LESS,
                title=tenant.value.replace("_", " "),
                help=f"{_TENANT_TEXTS[tenant]} {moment}",
                formula=f"{_SUM}; this is one of the terms",
                inputs=("../peak_bytes",),
            )
            for tenant in DISPLAY_ORDER
        ),
        Metric(
            path=f"memory.{stem}[].untagged_bytes",
            better=Better.LESS,
            title="untagged",
            help=f"{_UNTAGGED} {moment}",
            formula="untagged = peak - sum of the tenants",
            inputs=("peak_bytes",),
        ),
    )


_OUTSIDE = (
    Metric(
        path="memory.per_rank[].reserved_unused_bytes",
        better=Better.LESS,
        has_interval=False,
        title="reserved, unused",
        help="Memory that the allocator has reserved on the device but that no live allocation uses, at the "
        "peak of allocated memory.",
        formula="reserved, unused = reserved by the allocator - allocated",
        inputs=("peak_bytes",),
    ),
    Metric(
        path="memory.per_rank[].non_pytorch_bytes",
        better=Better.LESS,
        has_interval=False,
        title="outside PyTorch",
        help="Device memory of the process outside the allocator: CUDA context, communicators, libraries.",
        formula="outside PyTorch = memory of this process on the device - reserved by the allocator",
        inputs=("peak_bytes", "reserved_unused_bytes"),
    ),
    Metric(
        path="memory.spread.difference_bytes",
        title="difference between ranks",
        help="Largest peak of any rank minus the smallest.",
        formula="difference = largest peak - smallest peak",
    ),
    *(
        Metric(
            path=f"memory.spread.delta_bytes.{name}",
            title=f"difference in {name}",
            help="Bytes of the rank with the largest peak minus those of the rank with the smallest peak.",
            formula="the differences of the six tenants and of untagged sum to the difference of the peaks",
            inputs=("/memory.spread.difference_bytes",),
        )
        for name in (*(tenant.value for tenant in DISPLAY_ORDER), "untagged")
    ),
)
_FORMULA_CHECKS = (
    Metric(
        path="memory.formulas[].formula_bytes",
        title="formula",
        help="Bytes of this state per rank according to the ZeRO formula, excluding padding and step "
        "counters.",
        formula=_FORMULA,
    ),
    Metric(
        path="memory.formulas[].measured_bytes",
        title="measured",
        help=_MEASURED,
        formula="measured = formula + padding + step counters + unexplained",
        inputs=("formula_bytes", "padding_bytes", "scalar_bytes", "unexplained_bytes"),
    ),
    Metric(
        path="memory.formulas[].padding_bytes",
        title="padding",
        help="Padding that the engine reports adding so that all shards have the same size.",
        formula="padding = bytes per element x padding elements, divided by N if sharded",
    ),
    Metric(
        path="memory.formulas[].scalar_bytes",
        title="step counters",
        help="The optimizer's 4-byte step counters, which the formula does not include.",
        formula="4 x number of step counters on the rank",
    ),
    Metric(
        path="memory.formulas[].unexplained_bytes",
        title="unexplained",
        help="Bytes that neither the formula nor padding nor step counters account for. The row states the "
        "cause.",
        formula="unexplained = measured - formula - padding - step counters",
        inputs=("measured_bytes", "formula_bytes", "padding_bytes", "scalar_bytes"),
    ),
)
_OTHERS = (
    Metric(
        path="memory.top[].bytes",
        title="allocation",
        help="One allocation that was live at the rank's peak. Only the largest of each rank are recorded.",
    ),
    Metric(
        path="memory.top[].total_bytes",
        title="allocations of one place",
        help="What one owner allocated at one place of the user's code, live at the rank's peak. The groups "
        "of a snapshot, with the merged smallest ones, sum to the peak.",
    ),
    Metric(
        path="memory.modules[].at_rank_peak_bytes",
        title="module at the peak",
        help="Live bytes allocated by this module, including its submodules, at the rank's own peak.",
        inputs=("peak_bytes",),
    ),
    Metric(
        path="memory.modules[].peak_bytes",
        title="peak of the module",
        help="Maximum of the live bytes allocated by this module, including its submodules.",
        inputs=("at_rank_peak_bytes",),
    ),
    Metric(
        path="memory.timelines[].time_ns[]",
        title="time",
        help="Time of a point on the timeline, from the start of the recorded window.",
    ),
    *(
        Metric(
            path=f"memory.timelines[].tenants.{name}[]",
            title=name,
            help="Live bytes at a point on the timeline. The window is divided into intervals of equal "
            "length, and each point is the maximum of its interval, so that no peak is lost.",
            formula="live = the six tenants + untagged",
        )
        for name in (*(tenant.value for tenant in DISPLAY_ORDER), "untagged")
    ),
)

MEMORY: tuple[Metric, ...] = (
    *_make_peak_help("per_rank", "Live bytes in the allocator at the rank's peak."),
    *_make_peak_help("phases", "Live bytes at the peak within this phase."),
    *_make_peak_help("init", "Live bytes at the peak before the first step."),
    *_make_peak_help("host", "Host memory at its peak, on a rank with a GPU."),
    *_OUTSIDE,
    *_FORMULA_CHECKS,
    *_OTHERS,
    *DEVICES,
)
