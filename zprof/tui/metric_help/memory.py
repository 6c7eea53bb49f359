"""Help on memory.

Tenants at the peak, the ZeRO formula check, the device's terms, and the source rows of each.
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
    "live_bytes": "What was asked for and is live: the tenants and untagged.",
    "rounding_bytes": "What the allocator's blocks are larger than what was asked for.",
    "awaiting_free_bytes": "Blocks that were freed and that a stream still uses.",
    "split_bytes": "Free parts of segments of which another part is in use: fragmentation.",
    "free_segments_bytes": "Segments that are wholly free and were not given back.",
    "private_pools_bytes": "Free memory in pools of CUDA graphs.",
    "reserved_bytes": "All that the allocator took from the device.",
    "collectives_bytes": "Growth of the process outside the allocator at the first collective of each group.",
    "context_bytes": "The rest of the process outside the allocator: context, modules, libraries.",
    "process_bytes": "All that this process has on the device.",
    "other_processes_bytes": "What other processes have, and the driver's own reserve.",
    "device_used_bytes": "All that is in use on the device.",
    "device_total_bytes": "What the device has.",
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

_MOMENTS: tuple[MetricHelp, ...] = tuple(
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
        ("peak_allocated_bytes", "The highest allocated bytes that the allocator's own counter said."),
        ("peak_reserved_bytes", "The highest reserved bytes that the allocator's own counter said."),
        ("retries", "Allocations in the recorded steps that first had to give cached memory back."),
        ("ooms", "Allocations in the recorded steps that failed for want of memory."),
    )
)

DEVICES: tuple[MetricHelp, ...] = (*_MOMENTS, *_COUNTERS)


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
        owner = find_entry(entries, at)
        found = [
            asdict(entry)
            for entry in memory.top
            if owner is not None and entry.rank == owner.rank and entry.tenant in (tenant or entry.tenant,)
        ]
        return _make_frame(found, ("bytes", "tenant", "sub", "module", "operator"))

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
    """Return the rank's modules, by what they hold at its peak."""
    found = sorted(
        _select_rank_entries(analysis.memory.modules, at), key=lambda entry: -entry.at_rank_peak_bytes
    )
    return _make_frame([asdict(entry) for entry in found], ("module", "at_rank_peak_bytes", "peak_bytes"))


def select_formula_rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the same state on all ranks, the most unexplained bytes first."""
    state = find_entry(analysis.memory.laws, at)
    found = [entry for entry in analysis.memory.laws if state is not None and entry.tenant == state.tenant]
    found.sort(key=lambda entry: -abs(entry.unexplained_bytes))
    columns = ("rank", "law_bytes", "measured_bytes", "padding_bytes", "scalar_bytes", "unexplained_bytes")
    return _make_frame([asdict(entry) for entry in found], (*columns, "cause"))


def select_fact_rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the inputs of the ZeRO formula."""
    names = ("stage", "parameters", "shard_ranks", "parameter_bytes", "gradient_bytes")
    more = ("optimizer_state_bytes", "padding_elements", "step_counters")
    return _make_frame([asdict(analysis.training)], (*names, *more))


def _select_rank_entries(entries: Sequence[Any], at: Indices) -> list[Any]:
    owner = find_entry(entries, at)
    return [entry for entry in entries if owner is not None and entry.rank == owner.rank]


def _make_frame(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    kept = [{name: row[name] for name in columns} for row in rows[:MAX_ROWS]]
    return pd.DataFrame(kept, columns=list(columns))


_SUM = "peak = parameters + gradients + optimizer state + activations + temporary + communication + untagged"
_FORMULA = (
    "Psi elements x bytes of one, / N ranks where the stage shards it (optimizer state from 1, gradients "
    "from 2, parameters in 3): stage 0 (p+g+k)Psi, 1 (p+g)Psi + kPsi/N, 2 pPsi + (g+k)Psi/N, 3 (p+g+k)Psi/N"
)
_PARTS = (*(f"tenants.{tenant.value}" for tenant in DISPLAY_ORDER), "untagged_bytes")
_TENANT_TEXTS = {
    Tenant.PARAMETERS: "Weights and buffers of modules: what stays between steps, a shard in stage 3. What "
    "is gathered for a forward is a communication buffer.",
    Tenant.GRADIENTS: "What .grad reaches, and whole gradients until an engine reduces them.",
    Tenant.OPTIMIZER_STATE: "Tensors of optimizer.state, step counters, and fp32 masters that it owns.",
    Tenant.ACTIVATIONS: "What autograd, a checkpoint or a custom function keeps for the backward.",
    Tenant.TEMPORARY_BUFFERS: "All else that an operator of the recorded steps made or used inside: "
    "gradients of activations, workspaces, temporaries of the optimizer.",
    Tenant.COMMUNICATION_BUFFERS: "Operands of collectives that are no state: gathered parameters, inputs of "
    "reduce-scatters, buckets, what the backend allocates for itself.",
}
_UNTAGGED = "Live bytes that no hook, tag or rule claims. They are in no tenant."
_MEASURED = (
    "All bytes of this state on the rank while it is complete, which need not be at the peak: gradients when "
    "the optimizer begins."
)


def _make_peak_help(stem: str, what: str) -> tuple[MetricHelp, ...]:
    """Return help on all leaves of a memory peak."""
    rows = make_kind_rows if stem == "per_rank" else make_phase_rows if stem == "phases" else None
    return (
        MetricHelp(
            leaf=f"memory.{stem}[].peak_bytes",
            title="peak",
            says=f"{what} Each byte has one tenant, and what none claims is untagged.",
            formula=_SUM,
            inputs=_PARTS,
            rows=rows() if rows else None,
        ),
        *(
            MetricHelp(
                leaf=f"memory.{stem}[].tenants.{tenant.value}",
                title=tenant.value,
                says=f"{_TENANT_TEXTS[tenant]} {what}",
                formula=f"{_SUM}: this is one of its terms",
                inputs=("../peak_bytes",),
                rows=make_kind_rows(tenant.value) if stem == "per_rank" else rows() if rows else None,
            )
            for tenant in DISPLAY_ORDER
        ),
        MetricHelp(
            leaf=f"memory.{stem}[].untagged_bytes",
            title="untagged",
            says=f"{_UNTAGGED} {what}",
            formula="untagged = peak - all tenants",
            inputs=("peak_bytes",),
            rows=make_allocation_rows("untagged") if stem == "per_rank" else None,
        ),
    )


_OUTSIDE = (
    MetricHelp(
        leaf="memory.per_rank[].reserved_unused_bytes",
        title="reserved, unused",
        says="What the allocator took from the device and nothing live uses, at the allocated peak.",
        formula="reserved, unused = reserved by the allocator - allocated",
        inputs=("peak_bytes",),
    ),
    MetricHelp(
        leaf="memory.per_rank[].non_pytorch_bytes",
        title="outside PyTorch",
        says="What the process has on the device outside the allocator: context, communicators, libraries.",
        formula="outside PyTorch = this process on the device - reserved by the allocator",
        inputs=("peak_bytes", "reserved_unused_bytes"),
    ),
    MetricHelp(
        leaf="memory.spread.difference_bytes",
        title="difference between ranks",
        says="The largest peak of a rank minus the smallest.",
        formula="difference = peak of the largest rank - peak of the smallest",
    ),
    *(
        MetricHelp(
            leaf=f"memory.spread.delta_bytes.{name}",
            title=f"difference in {name}",
            says="What the rank with the largest peak holds more of it than the one with the smallest.",
            formula="the six tenants and untagged sum to the difference",
            inputs=("/memory.spread.difference_bytes",),
        )
        for name in (*(tenant.value for tenant in DISPLAY_ORDER), "untagged")
    ),
)
_FORMULA_CHECKS = (
    MetricHelp(
        leaf="memory.laws[].law_bytes",
        title="formula",
        says="What ZeRO's formula gives one rank of this state, without padding and counters.",
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
        says="What the engine says that it adds so that all shards have the same size.",
        formula="padding = bytes of an element x padding elements, / N where it is sharded",
        rows=select_fact_rows,
    ),
    MetricHelp(
        leaf="memory.laws[].scalar_bytes",
        title="step counters",
        says="The optimizer's 4-byte step counters, of which the formula knows nothing.",
        formula="4 x step counters of the rank",
        rows=select_fact_rows,
    ),
    MetricHelp(
        leaf="memory.laws[].unexplained_bytes",
        title="unexplained",
        says="What neither the formula nor what is stated beside it gives. The cause stands in the row.",
        formula="unexplained = measured - formula - padding - step counters",
        inputs=("measured_bytes", "law_bytes", "padding_bytes", "scalar_bytes"),
        rows=select_formula_rows,
    ),
)
_OTHERS = (
    MetricHelp(
        leaf="memory.top[].bytes",
        title="allocation",
        says="One allocation that was live at the rank's peak; a rank's largest are kept.",
        rows=make_allocation_rows(""),
    ),
    MetricHelp(
        leaf="memory.modules[].at_rank_peak_bytes",
        title="module at the peak",
        says="What this module, with all inside of it, had allocated and was live at the rank's own peak.",
        inputs=("peak_bytes",),
        rows=select_module_rows,
    ),
    MetricHelp(
        leaf="memory.modules[].peak_bytes",
        title="module, most at one time",
        says="The most that was live at one time of what this module, with all inside of it, allocated.",
        inputs=("at_rank_peak_bytes",),
        rows=select_module_rows,
    ),
    MetricHelp(
        leaf="memory.timelines[].time_ns[]",
        title="when",
        says="Time of a point of the timeline, from the begin of the recorded window.",
    ),
    *(
        MetricHelp(
            leaf=f"memory.timelines[].tenants.{name}[]",
            title=name,
            says="Live bytes at a point of the timeline, which is the highest of its stretch of the window: "
            "the window is cut into stretches of equal length, and no peak is lost.",
            formula="live = the six tenants + untagged",
        )
        for name in (*(tenant.value for tenant in DISPLAY_ORDER), "untagged")
    ),
)

MEMORY: tuple[MetricHelp, ...] = (
    *_make_peak_help("per_rank", "Live in the allocator when the rank was at its highest."),
    *_make_peak_help("phases", "At the highest point within this phase."),
    *_make_peak_help("init", "At the highest point before the first step."),
    *_make_peak_help("host", "Host memory of a rank that has a GPU, at its highest point."),
    *_OUTSIDE,
    *_FORMULA_CHECKS,
    *_OTHERS,
    *DEVICES,
)
