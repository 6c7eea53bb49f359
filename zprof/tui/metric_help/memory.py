"""Explain the memory metrics.

Covers tenants at the peak, the check against the ZeRO formula, and device memory, each with its rows.
"""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.memory import Allocation, RankMemory
from zprof.model.tenants import DISPLAY_ORDER, Tenant
from zprof.tui.metric_help.metric import MAX_ROWS, Indices, MetricHelp, Rows, find_entry

_TERMS = {
    "live_bytes": "Requested bytes of all live allocations: the tenants plus untagged.",
    "rounding_bytes": "Difference between the allocator's block sizes and the requested sizes.",
    "awaiting_free_bytes": "Freed blocks that a stream still uses.",
    "split_bytes": "Free parts of segments that are partly in use: fragmentation.",
    "free_segments_bytes": "Completely free segments that were not returned to the device.",
    "private_pools_bytes": "Free memory in the private pools of CUDA graphs.",
    "reserved_bytes": "All memory that the allocator has reserved on the device.",
    "collectives_bytes": "Growth of the process outside the allocator at the first collective of each group.",
    "context_bytes": "Other memory of the process outside the allocator: CUDA context, modules, libraries.",
    "process_bytes": "All memory of this process on the device.",
    "other_processes_bytes": "Memory of other processes and of the driver.",
    "device_used_bytes": "All memory in use on the device.",
    "device_total_bytes": "Total memory of the device.",
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

_DEVICE_TERMS: tuple[MetricHelp, ...] = tuple(
    MetricHelp(
        leaf=f"memory.devices[].{leaf}",
        title=leaf.removesuffix("_bytes").replace("_", " "),
        says=says,
        formula=_TERM_SUMS.get(leaf, ("", ()))[0],
        inputs=_TERM_SUMS.get(leaf, ("", ()))[1],
    )
    for leaf, says in _TERMS.items()
)
_COUNTERS: tuple[MetricHelp, ...] = tuple(
    MetricHelp(leaf=f"memory.counters[].{leaf}", title=leaf, says=says)
    for leaf, says in (
        ("peak_allocated_bytes", "Peak of allocated bytes, from the allocator's own counter."),
        ("peak_reserved_bytes", "Peak of reserved bytes, from the allocator's own counter."),
        ("retries", "Allocations in the recorded steps that had to release cached memory and retry."),
        ("ooms", "Allocations in the recorded steps that failed because memory ran out."),
    )
)

DEVICES: tuple[MetricHelp, ...] = (*_DEVICE_TERMS, *_COUNTERS)


def make_kind_rows(tenant: str = "") -> Rows:
    """Select the parts of a rank's peak by kind, of all tenants or of one."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        rank = find_entry(analysis.memory.per_rank, at)
        parts = [part for part in (rank.parts if rank else ()) if part.tenant == tenant or not tenant]
        parts.sort(key=lambda part: -part.bytes)
        return _make_frame([asdict(part) for part in parts], ("tenant", "sub", "bytes", "basis"))

    return rows


def make_allocation_rows(tenant: str) -> Rows:
    """Select the rank's largest allocations at its peak, of all tenants or of one."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        memory = analysis.memory
        entries: Sequence[RankMemory | Allocation] = memory.per_rank if tenant else memory.top
        selected = find_entry(entries, at)
        allocations = [
            asdict(entry)
            for entry in memory.top
            if selected is not None
            and entry.rank == selected.rank
            and entry.tenant in (tenant or entry.tenant,)
        ]
        return _make_frame(
            allocations, ("bytes", "count", "total_bytes", "tenant", "sub", "module", "where", "operator")
        )

    return rows


def make_phase_rows() -> Rows:
    """Select the rank's phases."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        phases = _select_rank_entries(analysis.memory.phases, at)
        return _make_frame(
            [asdict(entry) for entry in phases], ("phase", "step", "peak_bytes", "untagged_bytes")
        )

    return rows


def select_module_rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the rank's modules, those with the most live bytes at its peak first."""
    modules = sorted(
        _select_rank_entries(analysis.memory.modules, at), key=lambda entry: -entry.at_rank_peak_bytes
    )
    return _make_frame([asdict(entry) for entry in modules], ("module", "at_rank_peak_bytes", "peak_bytes"))


def select_formula_rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the same model state on all ranks, the most unexplained bytes first."""
    state = find_entry(analysis.memory.laws, at)
    checks = [entry for entry in analysis.memory.laws if state is not None and entry.tenant == state.tenant]
    checks.sort(key=lambda entry: -abs(entry.unexplained_bytes))
    columns = ("rank", "law_bytes", "measured_bytes", "padding_bytes", "scalar_bytes", "unexplained_bytes")
    return _make_frame([asdict(entry) for entry in checks], (*columns, "cause"))


def select_fact_rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the inputs of the ZeRO formula."""
    sizes = ("stage", "parameters", "shard_ranks", "parameter_bytes", "gradient_bytes")
    extras = ("optimizer_state_bytes", "padding_elements", "step_counters")
    return _make_frame([asdict(analysis.training)], (*sizes, *extras))


def _select_rank_entries(entries: Sequence[Any], at: Indices) -> list[Any]:
    selected = find_entry(entries, at)
    return [entry for entry in entries if selected is not None and entry.rank == selected.rank]


def _make_frame(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    records = [{name: row[name] for name in columns} for row in rows[:MAX_ROWS]]
    return pd.DataFrame(records, columns=list(columns))


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


def _make_peak_help(stem: str, moment: str) -> tuple[MetricHelp, ...]:
    """Return help on all leaves of a memory peak."""
    rows = make_kind_rows if stem == "per_rank" else make_phase_rows if stem == "phases" else None
    return (
        MetricHelp(
            leaf=f"memory.{stem}[].peak_bytes",
            title="peak",
            says=f"{moment} Each byte belongs to exactly one tenant or is untagged.",
            formula=_SUM,
            inputs=_PARTS,
            rows=rows() if rows else None,
        ),
        *(
            MetricHelp(
                leaf=f"memory.{stem}[].tenants.{tenant.value}",
                title=tenant.value,
                says=f"{_TENANT_TEXTS[tenant]} {moment}",
                formula=f"{_SUM}; this is one of the terms",
                inputs=("../peak_bytes",),
                rows=make_kind_rows(tenant.value) if stem == "per_rank" else rows() if rows else None,
            )
            for tenant in DISPLAY_ORDER
        ),
        MetricHelp(
            leaf=f"memory.{stem}[].untagged_bytes",
            title="untagged",
            says=f"{_UNTAGGED} {moment}",
            formula="untagged = peak - sum of the tenants",
            inputs=("peak_bytes",),
            rows=make_allocation_rows("untagged") if stem == "per_rank" else None,
        ),
    )


_OUTSIDE = (
    MetricHelp(
        leaf="memory.per_rank[].reserved_unused_bytes",
        title="reserved, unused",
        says="Memory that the allocator has reserved on the device but that no live allocation uses, at the "
        "peak of allocated memory.",
        formula="reserved, unused = reserved by the allocator - allocated",
        inputs=("peak_bytes",),
    ),
    MetricHelp(
        leaf="memory.per_rank[].non_pytorch_bytes",
        title="outside PyTorch",
        says="Device memory of the process outside the allocator: CUDA context, communicators, libraries.",
        formula="outside PyTorch = memory of this process on the device - reserved by the allocator",
        inputs=("peak_bytes", "reserved_unused_bytes"),
    ),
    MetricHelp(
        leaf="memory.spread.difference_bytes",
        title="difference between ranks",
        says="Largest peak of any rank minus the smallest.",
        formula="difference = largest peak - smallest peak",
    ),
    *(
        MetricHelp(
            leaf=f"memory.spread.delta_bytes.{name}",
            title=f"difference in {name}",
            says="Bytes of the rank with the largest peak minus those of the rank with the smallest peak.",
            formula="the differences of the six tenants and of untagged sum to the difference of the peaks",
            inputs=("/memory.spread.difference_bytes",),
        )
        for name in (*(tenant.value for tenant in DISPLAY_ORDER), "untagged")
    ),
)
_FORMULA_CHECKS = (
    MetricHelp(
        leaf="memory.laws[].law_bytes",
        title="formula",
        says="Bytes of this state per rank according to the ZeRO formula, excluding padding and step "
        "counters.",
        formula=_FORMULA,
        rows=select_fact_rows,
    ),
    MetricHelp(
        leaf="memory.laws[].measured_bytes",
        title="measured",
        says=_MEASURED,
        formula="measured = formula + padding + step counters + unexplained",
        inputs=("law_bytes", "padding_bytes", "scalar_bytes", "unexplained_bytes"),
        rows=select_formula_rows,
    ),
    MetricHelp(
        leaf="memory.laws[].padding_bytes",
        title="padding",
        says="Padding that the engine reports adding so that all shards have the same size.",
        formula="padding = bytes per element x padding elements, divided by N if sharded",
        rows=select_fact_rows,
    ),
    MetricHelp(
        leaf="memory.laws[].scalar_bytes",
        title="step counters",
        says="The optimizer's 4-byte step counters, which the formula does not include.",
        formula="4 x number of step counters on the rank",
        rows=select_fact_rows,
    ),
    MetricHelp(
        leaf="memory.laws[].unexplained_bytes",
        title="unexplained",
        says="Bytes that neither the formula nor padding nor step counters account for. The row states the "
        "cause.",
        formula="unexplained = measured - formula - padding - step counters",
        inputs=("measured_bytes", "law_bytes", "padding_bytes", "scalar_bytes"),
        rows=select_formula_rows,
    ),
)
_OTHERS = (
    MetricHelp(
        leaf="memory.top[].bytes",
        title="allocation",
        says="One allocation that was live at the rank's peak. Only the largest of each rank are recorded.",
        rows=make_allocation_rows(""),
    ),
    MetricHelp(
        leaf="memory.top[].total_bytes",
        title="allocations of one place",
        says="What one owner allocated at one place of the user's code, live at the rank's peak. The groups "
        "of a snapshot, with the merged smallest ones, sum to the peak.",
        rows=make_allocation_rows(""),
    ),
    MetricHelp(
        leaf="memory.modules[].at_rank_peak_bytes",
        title="module at the peak",
        says="Live bytes allocated by this module, including its submodules, at the rank's own peak.",
        inputs=("peak_bytes",),
        rows=select_module_rows,
    ),
    MetricHelp(
        leaf="memory.modules[].peak_bytes",
        title="peak of the module",
        says="Maximum of the live bytes allocated by this module, including its submodules.",
        inputs=("at_rank_peak_bytes",),
        rows=select_module_rows,
    ),
    MetricHelp(
        leaf="memory.timelines[].time_ns[]",
        title="time",
        says="Time of a point on the timeline, from the start of the recorded window.",
    ),
    *(
        MetricHelp(
            leaf=f"memory.timelines[].tenants.{name}[]",
            title=name,
            says="Live bytes at a point on the timeline. The window is divided into intervals of equal "
            "length, and each point is the maximum of its interval, so that no peak is lost.",
            formula="live = the six tenants + untagged",
        )
        for name in (*(tenant.value for tenant in DISPLAY_ORDER), "untagged")
    ),
)

MEMORY: tuple[MetricHelp, ...] = (
    *_make_peak_help("per_rank", "Live bytes in the allocator at the rank's peak."),
    *_make_peak_help("phases", "Live bytes at the peak within this phase."),
    *_make_peak_help("init", "Live bytes at the peak before the first step."),
    *_make_peak_help("host", "Host memory at its peak, on a rank with a GPU."),
    *_OUTSIDE,
    *_FORMULA_CHECKS,
    *_OTHERS,
    *DEVICES,
)
