"""Read the memory gates: highest peak of all ranks, one tenant's bytes, and untagged share."""

from collections.abc import Callable, Mapping
from fractions import Fraction

from zprof.checks.baseline import find_highest_peak
from zprof.checks.gates.reading import (
    GateFigure,
    GateInput,
    Reading,
    format_ranks,
    is_relative,
    list_missing_ranks,
    list_newly_missing_ranks,
)
from zprof.checks.gates.sentences import clean_name
from zprof.model.baseline import Baseline, MemoryBaseline
from zprof.model.formatting import format_bytes
from zprof.model.memory import RankMemory
from zprof.model.quantities import Unit, format_signed
from zprof.model.tenants import UNTAGGED_NAME, Tenant

_RECORD_HINT = "record a memory window (--memory-steps 2) that all ranks reach"


def read_peak_memory(gate_input: GateInput) -> Reading:
    """Read the highest peak of all ranks."""
    current, baseline = _get_memory(gate_input)
    if current is None:
        return Reading(
            baseline=_make_peak_figure(baseline, ()),
            missing=_MISSING,
            remedy=_RECORD_HINT,
        )
    index, rank = _find_highest_peak_rank(gate_input)
    phase = f" in the {clean_name(rank.peak_phase)}" if rank.peak_phase else ""
    missing = list_missing_ranks(gate_input, current, baseline)
    return Reading(
        current=_make_peak_figure(current, missing),
        baseline=_make_peak_figure(baseline, _list_ranks_missing_in_baseline(baseline, current)),
        report_path=f"memory.per_rank[{index}].peak_bytes",
        subject=f"rank {rank.rank}",
        value_note=f" on rank {rank.rank}{phase}{_describe_missing(missing)}",
        growth_note=_describe_growth(current, baseline),
        remedy=_RECORD_HINT,
        stable=_make_stable_figures(current, baseline, lambda memory: memory.peak_bytes),
        chance_note=_CHANCE_NOTE,
    )


def read_tenant_memory(gate_input: GateInput) -> Reading:
    """Read what one tenant (after the dot in the gate's name) holds at its own maximum, over all ranks.

    Not at the rank's peak: a peak in the optimizer has no activations, however many the backward holds.
    """
    tenant = gate_input.limit.gate.partition(".")[2]
    current, baseline = _get_memory(gate_input)
    baseline_bytes = None if baseline is None else (baseline.tenant_peaks or {}).get(tenant)
    index, rank = _find_rank_with_most(gate_input, tenant) if current is not None else (0, None)
    size = None if rank is None else _get_tenant_size(rank, tenant)
    if current is None or rank is None or size is None:
        missing = _MISSING if current is None else f"the run has no data for {tenant}"
        return Reading(
            baseline=_make_figure(baseline, baseline_bytes, ()),
            missing=missing,
            remedy=_RECORD_HINT,
        )
    missing_ranks = list_missing_ranks(gate_input, current, baseline)
    return Reading(
        current=GateFigure(
            value=Fraction(size),
            can_be_lower=rank.upper_bound,
            can_be_higher=current.lower_bound or bool(missing_ranks),
        ),
        baseline=_make_figure(baseline, baseline_bytes, _list_ranks_missing_in_baseline(baseline, current)),
        report_path=f"memory.per_rank[{index}].tenant_peaks.{tenant}",
        subject=f"{tenant} on rank {rank.rank}",
        value_note=f" at its own peak on rank {rank.rank}{_describe_missing(missing_ranks)}",
        growth_note=_describe_largest_part(rank, tenant),
        remedy=_RECORD_HINT,
        stable=_get_program_buffers(current, baseline)
        if tenant == Tenant.COMMUNICATION_BUFFERS.value
        else None,
        chance_note=_CHANCE_NOTE,
    )


def read_untagged_ratio(gate_input: GateInput) -> Reading:
    """Read the untagged share of the highest peak, or of the worst rank for an absolute limit.

    A baseline stores only the rank with the highest peak.
    """
    current, baseline = _get_memory(gate_input)
    if current is None or current.peak_bytes <= 0:
        return Reading(
            baseline=_make_untagged_figure(baseline, ()),
            missing=_MISSING,
            remedy=_RECORD_HINT,
        )
    index, rank = (
        _find_highest_peak_rank(gate_input) if is_relative(gate_input.limit) else _find_worst_rank(gate_input)
    )
    missing = list_missing_ranks(gate_input, current, baseline)
    is_uncertain = bool(current.upper_bound or current.lower_bound or missing)
    share = Fraction(rank.untagged_bytes, rank.peak_bytes) if rank.peak_bytes > 0 else Fraction(0)
    return Reading(
        current=GateFigure(value=share, can_be_lower=is_uncertain, can_be_higher=is_uncertain),
        baseline=None
        if baseline is None
        else _make_untagged_figure(baseline, _list_ranks_missing_in_baseline(baseline, current)),
        report_path=f"memory.per_rank[{index}].untagged_bytes",
        subject=f"rank {rank.rank}",
        value_note=f" of the peak of rank {rank.rank}{_describe_missing(missing)}",
        growth_note=f"{format_bytes(rank.untagged_bytes)} are untagged" if rank.untagged_bytes else "",
        remedy=_RECORD_HINT,
    )


_MISSING = "no memory window was recorded"
#: gloo's copy of a gathered unit lives until the last rank has launched the gather, so how many there are at
#: the peak depends on how late the ranks are.
_CHANCE_NOTE = "only by copies that the collective backend made, which depend on the timing of the ranks"


def _make_stable_figures(
    current: MemoryBaseline, baseline: MemoryBaseline | None, read_bytes: Callable[[MemoryBaseline], int]
) -> tuple[GateFigure, GateFigure] | None:
    """Return the bytes of run and baseline without the backend's copies; None if those are unknown."""
    if baseline is None or current.backend_scratch_bytes is None or baseline.backend_scratch_bytes is None:
        return None
    return (
        GateFigure(value=Fraction(read_bytes(current) - current.backend_scratch_bytes)),
        GateFigure(value=Fraction(read_bytes(baseline) - baseline.backend_scratch_bytes)),
    )


def _get_program_buffers(
    current: MemoryBaseline, baseline: MemoryBaseline | None
) -> tuple[GateFigure, GateFigure] | None:
    """Return the peaks of the communication buffers without the backend's copies; None if unknown."""
    now = current.program_buffers_peak_bytes
    before = None if baseline is None else baseline.program_buffers_peak_bytes
    if now is None or before is None:
        return None
    return GateFigure(value=Fraction(now)), GateFigure(value=Fraction(before))


def _get_memory(gate_input: GateInput) -> tuple[MemoryBaseline | None, MemoryBaseline | None]:
    baseline: Baseline | None = gate_input.baseline
    return gate_input.current.memory, None if baseline is None else baseline.memory


def _find_highest_peak_rank(gate_input: GateInput) -> tuple[int, RankMemory]:
    ranks = gate_input.report.memory.per_rank
    index = find_highest_peak(ranks)
    return index, ranks[index]


def _find_rank_with_most(gate_input: GateInput, tenant: str) -> tuple[int, RankMemory]:
    ranks = gate_input.report.memory.per_rank
    index = max(
        range(len(ranks)), key=lambda position: (_get_tenant_size(ranks[position], tenant) or 0, -position)
    )
    return index, ranks[index]


def _get_tenant_size(rank: RankMemory, tenant: str) -> int | None:
    """Return the tenant's own peak, None if nothing in the recording could be attributed to it."""
    if rank.tenant_peaks is None or (tenant != UNTAGGED_NAME and rank.is_unknown(Tenant(tenant))):
        return None
    return rank.tenant_peaks.get(tenant)


def _find_worst_rank(gate_input: GateInput) -> tuple[int, RankMemory]:
    ranks = gate_input.report.memory.per_rank
    shares = [rank.untagged_bytes / rank.peak_bytes if rank.peak_bytes else 0.0 for rank in ranks]
    index = max(range(len(ranks)), key=lambda position: (shares[position], -position))
    return index, ranks[index]


def _make_peak_figure(memory: MemoryBaseline | None, missing: tuple[int, ...]) -> GateFigure | None:
    return None if memory is None else _make_figure(memory, memory.peak_bytes, missing)


def _make_figure(
    memory: MemoryBaseline | None, size: int | None, missing: tuple[int, ...]
) -> GateFigure | None:
    if memory is None or size is None:
        return None
    return GateFigure(
        value=Fraction(size),
        can_be_lower=memory.upper_bound,
        can_be_higher=memory.lower_bound or bool(missing),
    )


def _make_untagged_figure(memory: MemoryBaseline | None, missing: tuple[int, ...]) -> GateFigure | None:
    if memory is None or memory.peak_bytes <= 0:
        return None
    is_uncertain = bool(memory.upper_bound or memory.lower_bound or missing)
    share = Fraction(memory.untagged_bytes, memory.peak_bytes)
    return GateFigure(value=share, can_be_lower=is_uncertain, can_be_higher=is_uncertain)


def _list_ranks_missing_in_baseline(
    baseline: MemoryBaseline | None, current: MemoryBaseline
) -> tuple[int, ...]:
    """Return the ranks that the run has but the baseline lacks."""
    return () if baseline is None else list_newly_missing_ranks(baseline.missing_ranks, current.missing_ranks)


def _describe_missing(missing: tuple[int, ...]) -> str:
    return f" (without {format_ranks(missing)})" if missing else ""


def _get_tenant_bytes(memory: MemoryBaseline) -> Mapping[str, int]:
    return {**memory.tenants, UNTAGGED_NAME: memory.untagged_bytes}


def _describe_growth(current: MemoryBaseline, baseline: MemoryBaseline | None) -> str:
    """Describe the tenant that grew most; without a baseline the largest."""
    sizes = _get_tenant_bytes(current)
    if baseline is None:
        largest = max(sizes, key=sizes.__getitem__)
        if sizes[largest] <= 0:
            return ""
        return f"mostly {_describe_tenant(largest)}, {format_bytes(sizes[largest])}"
    baseline_sizes = _get_tenant_bytes(baseline)
    grown = {tenant: size - baseline_sizes.get(tenant, 0) for tenant, size in sizes.items()}
    largest = max(grown, key=grown.__getitem__)
    return (
        f"{_describe_tenant(largest)} grew most, {format_signed(grown[largest], Unit.BYTES)}"
        if grown[largest] > 0
        else ""
    )


def _describe_largest_part(rank: RankMemory, tenant: str) -> str:
    parts = [part for part in rank.parts if part.tenant == tenant and part.sub]
    if not parts:
        return ""
    largest = max(parts, key=lambda part: part.bytes)
    if largest.bytes <= 0:
        return ""
    return f"at the rank's peak mostly {clean_name(largest.sub)}, {format_bytes(largest.bytes)}"


def _describe_tenant(tenant: str) -> str:
    return "untagged bytes" if tenant == UNTAGGED_NAME else tenant.replace("_", " ")
