"""What the memory pages show and is no leaf of the report: the largest rank, shares, a stacked timeline."""

from collections.abc import Sequence
from dataclasses import dataclass

from zprof.model.memory import Allocation, Memory, MemoryPart, MemoryTimeline, RankMemory

#: Folders of code that the user did not write.
_INSTALLED = ("/site-packages/", "/dist-packages/", "<frozen ", "/lib/python3")


def largest_rank(ranks: Sequence[RankMemory]) -> RankMemory | None:
    """The rank with the largest peak, the first of equals; None where none was measured."""
    return max(ranks, key=lambda rank: (rank.peak_bytes, -rank.rank), default=None)


def of_largest_rank(top: Sequence[Allocation], memory: Memory) -> tuple[Allocation, ...]:
    """The largest allocations of that rank."""
    rank = largest_rank(memory.per_rank)
    return tuple(entry for entry in top if rank is not None and entry.rank == rank.rank)


def shares(parts: Sequence[MemoryPart], peak: int) -> tuple[float, ...]:
    """Each part's share of the peak."""
    return tuple(part.bytes / max(1, peak) for part in parts)


def telling_frames(stack: Sequence[str], most: int) -> tuple[str, ...]:
    """The innermost frame, then those of the program itself; without any, the innermost ones.

    Files keep their last two folders: a page is 80 columns wide, the leaf has them whole.
    """
    own = [frame for frame in stack[1:] if not any(folder in frame for folder in _INSTALLED)]
    chosen = [*stack[:1], *own] if own else list(stack)
    return tuple(_short(frame) for frame in chosen[:most])


def _short(frame: str) -> str:
    return "/".join(frame.split("/")[-3:])


@dataclass(frozen=True, slots=True, kw_only=True)
class Areas:
    """A timeline stacked up: (name, lower rim, upper rim) of each area, bottom first, in bytes.

    ``peak`` is the index of the highest point, ``top_bytes`` a little more than its height, ``end_ns`` where
    the last point ends.
    """

    timeline: MemoryTimeline
    bands: tuple[tuple[str, tuple[int, ...], tuple[int, ...]], ...]
    peak: int
    peak_bytes: int
    top_bytes: float
    end_ns: int


def stacked_areas(memory: Memory, order: Sequence[str]) -> Areas | None:
    """The timeline with the highest point, stacked in ``order``; None where there is none."""
    known = [timeline for timeline in memory.timelines if timeline.time_ns and timeline.tenants]
    if not known:
        return None
    timeline = max(known, key=lambda entry: max(_heights(entry)))
    heights = _heights(timeline)
    peak = heights.index(max(heights))
    lower = (0,) * len(heights)
    bands = []
    for name in order:
        values = timeline.tenants.get(name, (0,) * len(heights))
        upper = tuple(below + value for below, value in zip(lower, values, strict=True))
        bands.append((name, lower, upper))
        lower = upper
    last, first = timeline.time_ns[-1], timeline.time_ns[0]
    return Areas(
        timeline=timeline,
        bands=tuple(bands),
        peak=peak,
        peak_bytes=heights[peak],
        top_bytes=heights[peak] * 1.08,
        end_ns=last + max(1, (last - first) // max(1, len(heights) - 1)),
    )


def _heights(timeline: MemoryTimeline) -> list[int]:
    return [sum(values) for values in zip(*timeline.tenants.values(), strict=True)]
