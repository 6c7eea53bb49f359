"""Read the gates of memory: the highest peak of all ranks, a tenant of it, and its untagged share."""

from collections.abc import Mapping
from fractions import Fraction

from zprof.checks.baseline import find_highest_peak
from zprof.checks.gates.reading import (
    Figure,
    GateInput,
    Reading,
    find_missing_ranks,
    format_ranks,
    is_relative,
    newly_missing_ranks,
)
from zprof.checks.gates.sentences import clean_name, format_ratio, format_signed
from zprof.checks.limits import UNTAGGED
from zprof.model.baseline import Baseline, MemoryBaseline
from zprof.model.formatting import format_bytes
from zprof.model.memory import RankMemory
from zprof.model.tenants import Tenant

_RECORD_HINT = "record the memory window (--memory-steps 2), and let all ranks reach it"


def peak_memory(asked: GateInput) -> Reading:
    """Read the peak of the rank that has the highest."""
    now, before = _sides(asked)
    if now is None:
        return Reading(before=_peak(before, ()), missing=_MISSING, remedy=_RECORD_HINT, shown=format_bytes)
    place, rank = _highest(asked)
    phase = f" in the {clean_name(rank.peak_phase)}" if rank.peak_phase else ""
    missing = find_missing_ranks(asked, now, before)
    return Reading(
        now=_peak(now, missing),
        before=_peak(before, _ranks_baseline_lacks(before, now)),
        shown=format_bytes,
        leaf=f"memory.per_rank[{place}].peak_bytes",
        subject=f"rank {rank.rank}",
        where=f" on rank {rank.rank}{phase}{_describe_missing(missing)}",
        grew=_describe_growth(now, before),
        remedy=_RECORD_HINT,
    )


def tenant_memory(asked: GateInput) -> Reading:
    """Read the bytes of one tenant (after the dot in the gate's name) at a peak.

    Against a baseline it is the highest peak, because that is all a baseline has. Against an absolute value
    it is the peak of the rank that holds the most.
    """
    tenant = asked.limit.gate.partition(".")[2]
    now, before = _sides(asked)
    before_bytes = None if before is None else _tenants(before).get(tenant)
    place, rank = _holder(asked, tenant) if now is not None else (0, None)
    size = None if rank is None else _size(rank, tenant)
    if now is None or rank is None or size is None:
        missing = _MISSING if now is None else f"the run says nothing of {tenant}"
        return Reading(
            before=_figure(before, before_bytes, ()), missing=missing, remedy=_RECORD_HINT, shown=format_bytes
        )
    missing_ranks = find_missing_ranks(asked, now, before)
    leaf = "untagged_bytes" if tenant == UNTAGGED else f"tenants.{tenant}"
    return Reading(
        now=Figure(
            value=Fraction(size),
            can_be_lower=rank.upper_bound,
            can_be_higher=now.lower_bound or bool(missing_ranks),
        ),
        before=_figure(before, before_bytes, _ranks_baseline_lacks(before, now)),
        shown=format_bytes,
        leaf=f"memory.per_rank[{place}].{leaf}",
        subject=f"{tenant} on rank {rank.rank}",
        where=f" on rank {rank.rank}{_describe_missing(missing_ranks)}",
        grew=_largest_part(rank, tenant),
        remedy=_RECORD_HINT,
    )


def untagged_ratio(asked: GateInput) -> Reading:
    """Read the untagged share of the highest peak, or against an absolute value of the worst rank.

    A baseline has only the rank with the highest peak.
    """
    now, before = _sides(asked)
    if now is None or now.peak_bytes <= 0:
        return Reading(
            before=_untagged(before, ()), missing=_MISSING, remedy=_RECORD_HINT, shown=format_ratio
        )
    place, rank = _highest(asked) if is_relative(asked.limit) else _worst(asked)
    missing = find_missing_ranks(asked, now, before)
    guess = bool(now.upper_bound or now.lower_bound or missing)
    share = Fraction(rank.untagged_bytes, rank.peak_bytes) if rank.peak_bytes > 0 else Fraction(0)
    return Reading(
        now=Figure(value=share, can_be_lower=guess, can_be_higher=guess),
        before=None if before is None else _untagged(before, _ranks_baseline_lacks(before, now)),
        shown=format_ratio,
        leaf=f"memory.per_rank[{place}].untagged_bytes",
        subject=f"rank {rank.rank}",
        where=f" of the peak of rank {rank.rank}{_describe_missing(missing)}",
        grew=f"{format_bytes(rank.untagged_bytes)} belong to no tenant" if rank.untagged_bytes else "",
        remedy=_RECORD_HINT,
    )


_MISSING = "no memory window was recorded"


def _sides(asked: GateInput) -> tuple[MemoryBaseline | None, MemoryBaseline | None]:
    before: Baseline | None = asked.before
    return asked.now.memory, None if before is None else before.memory


def _highest(asked: GateInput) -> tuple[int, RankMemory]:
    ranks = asked.report.memory.per_rank
    place = find_highest_peak(ranks)
    return place, ranks[place]


def _holder(asked: GateInput, tenant: str) -> tuple[int, RankMemory]:
    if is_relative(asked.limit):
        return _highest(asked)
    ranks = asked.report.memory.per_rank
    place = max(range(len(ranks)), key=lambda at: (_size(ranks[at], tenant) or 0, -at))
    return place, ranks[place]


def _size(rank: RankMemory, tenant: str) -> int | None:
    return rank.untagged_bytes if tenant == UNTAGGED else rank.tenants.get(Tenant(tenant))


def _worst(asked: GateInput) -> tuple[int, RankMemory]:
    ranks = asked.report.memory.per_rank
    shares = [rank.untagged_bytes / rank.peak_bytes if rank.peak_bytes else 0.0 for rank in ranks]
    place = max(range(len(ranks)), key=lambda at: (shares[at], -at))
    return place, ranks[place]


def _peak(side: MemoryBaseline | None, missing: tuple[int, ...]) -> Figure | None:
    return None if side is None else _figure(side, side.peak_bytes, missing)


def _figure(side: MemoryBaseline | None, size: int | None, missing: tuple[int, ...]) -> Figure | None:
    if side is None or size is None:
        return None
    return Figure(
        value=Fraction(size),
        can_be_lower=side.upper_bound,
        can_be_higher=side.lower_bound or bool(missing),
    )


def _untagged(side: MemoryBaseline | None, missing: tuple[int, ...]) -> Figure | None:
    if side is None or side.peak_bytes <= 0:
        return None
    guess = bool(side.upper_bound or side.lower_bound or missing)
    share = Fraction(side.untagged_bytes, side.peak_bytes)
    return Figure(value=share, can_be_lower=guess, can_be_higher=guess)


def _ranks_baseline_lacks(before: MemoryBaseline | None, now: MemoryBaseline) -> tuple[int, ...]:
    """Return the ranks that the run has and the baseline lacks."""
    return () if before is None else newly_missing_ranks(before.missing_ranks, now.missing_ranks)


def _describe_missing(missing: tuple[int, ...]) -> str:
    return f" (without {format_ranks(missing)})" if missing else ""


def _tenants(side: MemoryBaseline) -> Mapping[str, int]:
    return {**side.tenants, UNTAGGED: side.untagged_bytes}


def _describe_growth(now: MemoryBaseline, before: MemoryBaseline | None) -> str:
    """Return the tenant that grew most; without a baseline the largest."""
    mine = _tenants(now)
    if before is None:
        most = max(mine, key=mine.__getitem__)
        return f"most of it is {_describe_tenant(most)}, {format_bytes(mine[most])}" if mine[most] > 0 else ""
    theirs = _tenants(before)
    grown = {tenant: size - theirs.get(tenant, 0) for tenant, size in mine.items()}
    most = max(grown, key=grown.__getitem__)
    return (
        f"{_describe_tenant(most)} grew most, {format_signed(grown[most], format_bytes)}"
        if grown[most] > 0
        else ""
    )


def _largest_part(rank: RankMemory, tenant: str) -> str:
    parts = [part for part in rank.parts if part.tenant == tenant and part.sub]
    if not parts:
        return ""
    most = max(parts, key=lambda part: part.bytes)
    return f"most of it is {clean_name(most.sub)}, {format_bytes(most.bytes)}" if most.bytes > 0 else ""


def _describe_tenant(tenant: str) -> str:
    return "untagged bytes" if tenant == UNTAGGED else tenant.replace("_", " ")
