"""Select the source rows of a memory metric: kinds, allocations, phases, modules and formulas."""

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from msgspec.structs import asdict

from zprof.analysis.analysis import RunAnalysis
from zprof.model.memory import Allocation, RankMemory
from zprof.model.tenants import DISPLAY_ORDER
from zprof.tui.source_rows.selection import MAX_ROWS, Indices, Rows, find_entry


def _make_kind_rows(tenant: str = "") -> Rows:
    """Select the parts of a rank's peak by kind, of all tenants or of one."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        rank = find_entry(analysis.memory.per_rank, at)
        parts = [part for part in (rank.parts if rank else ()) if part.tenant == tenant or not tenant]
        parts.sort(key=lambda part: -part.bytes)
        return _make_frame([asdict(part) for part in parts], ("tenant", "sub", "bytes", "basis"))

    return rows


def _make_allocation_rows(tenant: str) -> Rows:
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


def _select_phase_rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the rank's phases."""
    phases = _select_rank_entries(analysis.memory.phases, at)
    return _make_frame([asdict(entry) for entry in phases], ("phase", "step", "peak_bytes", "untagged_bytes"))


def _select_module_rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the rank's modules, those with the most live bytes at its peak first."""
    modules = sorted(
        _select_rank_entries(analysis.memory.modules, at), key=lambda entry: -entry.at_rank_peak_bytes
    )
    return _make_frame([asdict(entry) for entry in modules], ("module", "at_rank_peak_bytes", "peak_bytes"))


def _select_formula_rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """Return the same model state on all ranks, the most unexplained bytes first."""
    state = find_entry(analysis.memory.laws, at)
    checks = [entry for entry in analysis.memory.laws if state is not None and entry.tenant == state.tenant]
    checks.sort(key=lambda entry: -abs(entry.unexplained_bytes))
    columns = ("rank", "law_bytes", "measured_bytes", "padding_bytes", "scalar_bytes", "unexplained_bytes")
    return _make_frame([asdict(entry) for entry in checks], (*columns, "cause"))


def _select_fact_rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
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


_PEAK_PARTS = ("peak_bytes", *(f"tenants.{tenant.value}" for tenant in DISPLAY_ORDER))
MEMORY_ROWS: Mapping[str, Rows] = {
    "memory.per_rank[].peak_bytes": _make_kind_rows(),
    **{
        f"memory.per_rank[].tenants.{tenant.value}": _make_kind_rows(tenant.value) for tenant in DISPLAY_ORDER
    },
    "memory.per_rank[].untagged_bytes": _make_allocation_rows("untagged"),
    **dict.fromkeys((f"memory.phases[].{part}" for part in _PEAK_PARTS), _select_phase_rows),
    **dict.fromkeys(
        (f"memory.laws[].{name}" for name in ("law_bytes", "padding_bytes", "scalar_bytes")),
        _select_fact_rows,
    ),
    **dict.fromkeys(
        (f"memory.laws[].{name}" for name in ("measured_bytes", "unexplained_bytes")), _select_formula_rows
    ),
    **dict.fromkeys((f"memory.top[].{name}" for name in ("bytes", "total_bytes")), _make_allocation_rows("")),
    **dict.fromkeys(
        (f"memory.modules[].{name}" for name in ("at_rank_peak_bytes", "peak_bytes")), _select_module_rows
    ),
}
