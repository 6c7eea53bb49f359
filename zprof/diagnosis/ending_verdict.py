"""Say how a recording ended, if it did not end as planned: the first words of its verdict."""

from collections.abc import Sequence

from zprof.model.ending_text import describe_endings
from zprof.model.endings import RankEnd
from zprof.model.formatting import format_bytes
from zprof.model.gaps import Gap, GapKind
from zprof.model.memory import Memory
from zprof.model.out_of_memory import OutOfMemory
from zprof.model.tenants import DISPLAY_ORDER

#: Gaps that prevent a verdict from covering the entire run, and their wording for several ranks.
_LOST_RANKS = {
    GapKind.PROGRAM_FAILED: "failed",
    GapKind.RANK_MISSING: "recorded nothing",
    GapKind.RANK_CUT_SHORT: "ended before the recording",
    GapKind.DISK_FULL: "ran out of disk space",
}
#: Maximum number of ranks listed, and of failures described.
_MAX_NAMED_RANKS = 4
UNTAGGED = "untagged"
#: What a user, a scheduler or a closed terminal ends a job with.
_INTERRUPTS = frozenset({"SIGINT", "SIGTERM", "SIGHUP"})
_INTERRUPT_ERROR = "KeyboardInterrupt"


def describe_ending(gaps: Sequence[Gap], memory: Memory | None, endings: Sequence[RankEnd] = ()) -> str:
    """Return what the verdict does not cover: "rank 1 ended before the recording"; empty if nothing.

    A program that ended because an allocation failed is described by its memory at that moment, others by
    how their processes ended, if that is known.
    """
    failed_ranks = {gap.rank for gap in gaps if gap.kind is GapKind.PROGRAM_FAILED}
    failures = [entry for entry in memory.out_of_memory if entry.rank in failed_ranks] if memory else []
    last_by_rank = {entry.rank: entry for entry in failures}
    descriptions = [_describe_failure(entry) for entry in list(last_by_rank.values())[:1]]
    if len(last_by_rank) > 1:
        descriptions.append(f"{len(last_by_rank) - 1} more ranks did as well")
    described = {end.rank for end in endings}
    if endings and not failures:
        descriptions.append(describe_endings(endings))
    for kind, verb in _LOST_RANKS.items():
        found = {gap.rank: gap for gap in gaps if gap.kind is kind and gap.rank is not None}
        ranks = sorted(
            rank
            for rank in found
            if kind is GapKind.DISK_FULL or (rank not in described and rank not in last_by_rank)
        )
        if not ranks:
            continue
        shown = ", ".join(str(rank) for rank in ranks[:_MAX_NAMED_RANKS])
        more = f" and {len(ranks) - _MAX_NAMED_RANKS} more" if len(ranks) > _MAX_NAMED_RANKS else ""
        same_steps = {found[rank].step for rank in ranks}
        step = same_steps.pop() if len(same_steps) == 1 else None
        when = f" in step {step}" if step is not None else ""
        detail = f" ({found[ranks[0]].detail})" if found[ranks[0]].detail else ""
        descriptions.append(f"{'ranks' if len(ranks) > 1 else 'rank'} {shown}{more} {verb}{when}{detail}")
    return ", ".join(descriptions)


def has_failed(endings: Sequence[RankEnd]) -> bool:
    """Return True if a job failed by itself, and was not ended from outside."""
    causes = [end for end in endings if end.is_first] or [end for end in endings if end.has_failed]
    return any(end.signal not in _INTERRUPTS and end.error != _INTERRUPT_ERROR for end in causes)


def has_run_out_of_memory(gaps: Sequence[Gap], memory: Memory | None) -> bool:
    """Return True if the program of a rank ended with a failed allocation."""
    failed_ranks = {gap.rank for gap in gaps if gap.kind is GapKind.PROGRAM_FAILED}
    return memory is not None and any(entry.rank in failed_ranks for entry in memory.out_of_memory)


def _describe_failure(failure: OutOfMemory) -> str:
    moment = f" in step {failure.step}" if failure.step is not None else ""
    phase = f", {failure.phase}" if failure.phase else ""
    sizes = {UNTAGGED: failure.untagged_bytes}
    sizes |= {tenant.value: failure.tenants.get(tenant, 0) for tenant in DISPLAY_ORDER}
    largest = max(sizes, key=lambda name: sizes[name])
    return (
        f"rank {failure.rank} ran out of memory{moment}{phase}: {format_bytes(failure.requested_bytes)} "
        f"requested, {format_bytes(failure.live_bytes)} live, of it {format_bytes(sizes[largest])} "
        f"{largest.replace('_', ' ')}"
    )
