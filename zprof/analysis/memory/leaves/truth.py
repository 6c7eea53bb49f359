"""How true a rank's peak is: missing frees, hooks alone, and the allocator's own counter."""

from dataclasses import dataclass

from zprof.analysis.memory.leaves.counters import CounterPeak
from zprof.analysis.memory.rank.rank_lives import Peak
from zprof.model.gaps import Gap
from zprof.model.units import format_bytes

#: The analysis must agree with the allocator's counter to this share.
TOLERANCE = 0.01
LIGHT = "light"
UNSEEN = "no hook saw it"
_FULL = "allocator events joined with storage roles"
_STORAGES = "tensor storages only; what operators allocate inside is missing"
_HOOKS = "light mode: the tensor storages that hooks saw"


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """``unseen_bytes`` are those of the peak that the allocator counted and no hook saw."""

    method: str
    upper_bound: bool
    lower_bound: bool
    unseen_bytes: int
    gaps: tuple[Gap, ...]


def truth_of(rank: int, peak: Peak, mode: str, has_events: bool, counter: CounterPeak | None) -> Truth:
    """``mode`` is that of the recording (light or full); ``counter`` None where no allocator counts."""
    if mode == LIGHT:
        return _light(rank, peak, counter)
    gaps = [*_open_ends(rank, peak), *([] if has_events else [_no_events(rank)])]
    off = _disagreement(rank, peak.bytes, counter)
    return Truth(
        method=_FULL if has_events else _STORAGES,
        upper_bound=peak.open_bytes > 0 or (counter is not None and peak.bytes > _most(counter)),
        lower_bound=not has_events or _is_short(peak.bytes, counter),
        unseen_bytes=0,
        gaps=(*gaps, *off, *_unowned(rank, peak)),
    )


def _light(rank: int, peak: Peak, counter: CounterPeak | None) -> Truth:
    """The counter is the truth where it tells; what no hook saw is nobody's."""
    if counter is None or not counter.in_window:
        return Truth(
            method=f"{_HOOKS}: a lower bound",
            upper_bound=False,
            lower_bound=True,
            unseen_bytes=0,
            gaps=(_unknown(rank),),
        )
    unseen = max(0, counter.bytes - peak.bytes)
    return Truth(
        method=f"{_HOOKS}; the peak is the allocator's own counter" if unseen else _HOOKS,
        upper_bound=peak.bytes > _most(counter),
        lower_bound=False,
        unseen_bytes=unseen,
        gaps=_too_high(rank, peak.bytes, counter),
    )


def _disagreement(rank: int, peak_bytes: int, counter: CounterPeak | None) -> tuple[Gap, ...]:
    if counter is None:
        return ()
    if _is_short(peak_bytes, counter):
        return (
            Gap(
                what="part of the allocated peak",
                rank=rank,
                reason=f"the allocator's own counter reached {format_bytes(counter.bytes)} in the window, "
                f"{format_bytes(counter.bytes - peak_bytes)} more than recorded: the peak is a lower bound",
                remedy="record from the start of the program: zprof record -o RUN -- python ...",
            ),
        )
    return _too_high(rank, peak_bytes, counter)


def _is_short(peak_bytes: int, counter: CounterPeak | None) -> bool:
    return counter is not None and counter.in_window and peak_bytes < counter.bytes * (1 - TOLERANCE)


def _too_high(rank: int, peak_bytes: int, counter: CounterPeak) -> tuple[Gap, ...]:
    if peak_bytes <= _most(counter):
        return ()
    return (
        Gap(
            what="allocated peak",
            rank=rank,
            reason=f"the allocator's own counter never was above {format_bytes(counter.bytes)}, "
            f"{format_bytes(peak_bytes - counter.bytes)} less than recorded: the peak is an upper bound",
            remedy="take the counter for the total; some frees were not seen",
        ),
    )


def _most(counter: CounterPeak) -> float:
    return counter.bytes * (1 + TOLERANCE)


def _open_ends(rank: int, peak: Peak) -> list[Gap]:
    if not peak.open_bytes:
        return []
    return [
        Gap(
            what="end of some allocations",
            rank=rank,
            reason=f"{format_bytes(peak.open_bytes)} of the peak were allocated in "
            f"{', '.join(peak.open_operators[:3])} and no free was seen: the peak is an upper bound",
            remedy="none on a CPU; on a GPU the allocator reports every free",
        )
    ]


def _unowned(rank: int, peak: Peak) -> list[Gap]:
    """From a hundredth of the peak on it is worth a look at what it is."""
    if peak.untagged_bytes < max(1, TOLERANCE * peak.bytes):
        return []
    return [
        Gap(
            what=f"owner of {format_bytes(peak.untagged_bytes)} of the peak",
            rank=rank,
            reason="held by nothing that was watched: model, optimizer, autograd, collectives, operators of "
            "the recorded steps; data sets and copies of weights that were made before are such",
            remedy="look at untagged among the largest live at the peak; give the recorder all models and "
            "optimizers",
        )
    ]


def _no_events(rank: int) -> Gap:
    return Gap(
        what="allocator events",
        rank=rank,
        reason="the profiler gave none, so that memory inside operators is not seen",
        remedy="leave torch.profiler to zprof while it records",
    )


def _unknown(rank: int) -> Gap:
    return Gap(
        what="coverage of memory",
        rank=rank,
        reason="unknown: in light mode hooks see tensors, not what operators allocate, and no counter of an "
        "allocator tells the rest; the peak is a lower bound",
        remedy="record in full mode",
    )
