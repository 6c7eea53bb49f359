"""Rows behind numbers of memory: of the same rank, the largest first."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.memory import Allocation, RankMemory
from zprof.tui.meanings.behind import MOST_ROWS, entry_at
from zprof.tui.meanings.meaning import Indices, Rows


def kinds_of(tenant: str = "") -> Rows:
    """What a rank's peak is, by kind: all of it, or of one tenant."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        rank = entry_at(analysis.memory.per_rank, at)
        parts = [part for part in (rank.parts if rank else ()) if part.tenant == tenant or not tenant]
        parts.sort(key=lambda part: -part.bytes)
        return _frame([asdict(part) for part in parts], ("tenant", "sub", "bytes", "basis"))

    return rows


def largest_of(tenant: str) -> Rows:
    """The rank's largest allocations at its peak: all of them, or of one tenant."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        memory = analysis.memory
        entries: Sequence[RankMemory | Allocation] = memory.per_rank if tenant else memory.top
        owner = entry_at(entries, at)
        found = [
            asdict(entry)
            for entry in memory.top
            if owner is not None and entry.rank == owner.rank and entry.tenant in (tenant or entry.tenant,)
        ]
        return _frame(found, ("bytes", "tenant", "sub", "module", "operator"))

    return rows


def phases_of() -> Rows:
    """The rank's phases."""

    def rows(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
        phases = _of_rank(analysis.memory.phases, at)
        return _frame([asdict(entry) for entry in phases], ("phase", "step", "peak_bytes", "untagged_bytes"))

    return rows


def modules_of(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """The rank's modules, by what they hold at its peak."""
    found = sorted(_of_rank(analysis.memory.modules, at), key=lambda entry: -entry.at_rank_peak_bytes)
    return _frame([asdict(entry) for entry in found], ("module", "at_rank_peak_bytes", "peak_bytes"))


def laws_of(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """The same state on all ranks, what is not explained first."""
    law = entry_at(analysis.memory.laws, at)
    found = [entry for entry in analysis.memory.laws if law is not None and entry.tenant == law.tenant]
    found.sort(key=lambda entry: -abs(entry.unexplained_bytes))
    columns = ("rank", "law_bytes", "measured_bytes", "padding_bytes", "scalar_bytes", "unexplained_bytes")
    return _frame([asdict(entry) for entry in found], (*columns, "cause"))


def facts_of(analysis: RunAnalysis, at: Indices) -> pd.DataFrame:
    """What the law is computed from."""
    names = ("stage", "parameters", "shard_ranks", "parameter_bytes", "gradient_bytes")
    more = ("optimizer_state_bytes", "padding_elements", "step_counters")
    return _frame([asdict(analysis.training)], (*names, *more))


def _of_rank(entries: Sequence[Any], at: Indices) -> list[Any]:
    owner = entry_at(entries, at)
    return [entry for entry in entries if owner is not None and entry.rank == owner.rank]


def _frame(rows: Sequence[dict[str, Any]], columns: Sequence[str]) -> pd.DataFrame:
    kept = [{name: row[name] for name in columns} for row in rows[:MOST_ROWS]]
    return pd.DataFrame(kept, columns=list(columns))
