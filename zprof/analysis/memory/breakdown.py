"""Break down a rank's bytes by kind, phase, module and time, and list its largest allocations.

A block counts for the module that allocated it and all enclosing modules. Per nesting level, starts and ends
are sorted by (module, time) once; a running sum within each module yields its peak.

Live bytes over time are thinned to a few points. The window is cut into intervals of equal length. An
interval's point is its first maximum, or its start if no later point is higher, so the window's peak is
always included.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from zprof.analysis.columns import Groups, Texts
from zprof.analysis.memory.live_bytes import RankLives, find_live_segments
from zprof.analysis.memory.roles import Segments, tenant_name
from zprof.analysis.memory.tables import FOREVER, UNTAGGED, Int, Timeline
from zprof.model.memory import Allocation, Basis, MemoryPart, MemoryTimeline, ModulePeak, PhasePeak

#: Maximum number of allocations that a report shows per rank.
MAX_ALLOCATIONS = 10
#: Maximum number of kinds that a report shows; the smallest kinds are merged per tenant.
MAX_PARTS = 64
_REST = "other"
#: Returns the frames of storages by generation.
ReadStacks = Callable[[frozenset[int]], Mapping[int, tuple[str, ...]]]
#: Number of modules that a report shows per rank: those with the largest peaks.
MAX_MODULES = 50
#: Blocks of deeper modules count for their enclosing module at this depth.
_MAX_DEPTH = 32
_NO_MODULE = -1
MAX_POINTS = 240
_Word = TypeVar("_Word", int, str)


def list_parts(lives: RankLives, time_ns: int) -> tuple[MemoryPart, ...]:
    """Return the live bytes by tenant and kind, largest first; they sum to all live bytes."""
    rows = find_live_segments(lives.segments, time_ns)
    tenants, subs = lives.segments.tenant[rows], Texts.of(str(sub) for sub in lives.segments.sub[rows])
    groups = Groups(tenants, subs)
    sizes = groups.sum(lives.segments.bytes[rows])
    largest_first = np.argsort(-sizes, kind="stable")
    places, sizes = groups.first[largest_first], sizes[largest_first]
    shown = list(zip(tenants[places].tolist(), subs.at(places), sizes.tolist(), strict=True))
    rest: dict[int, int] = {}
    for tenant, _, size in shown[MAX_PARTS:]:
        rest[tenant] = rest.get(tenant, 0) + size
    shown = shown[:MAX_PARTS] + [(tenant, _REST, size) for tenant, size in sorted(rest.items())]
    # TAGGED if a hook or the operator identifies the tenant, else UNKNOWN.
    return tuple(
        MemoryPart(
            tenant=tenant_name(tenant),
            sub=sub,
            bytes=size,
            basis=Basis.UNKNOWN if tenant == UNTAGGED else Basis.TAGGED,
        )
        for tenant, sub, size in shown
    )


def split_by_basis(peak_bytes: int, untagged_bytes: int) -> Mapping[Basis, int]:
    """Return a live recording's bytes by the basis of their tenant; they sum to the peak."""
    return {Basis.TAGGED: peak_bytes - untagged_bytes, Basis.RULE: 0, Basis.UNKNOWN: untagged_bytes}


def find_largest_allocations(
    rank: int, lives: RankLives, time_ns: int, stacks: ReadStacks
) -> tuple[Allocation, ...]:
    """Return the largest live allocations at an instant, largest first."""
    rows = find_live_segments(lives.segments, time_ns)
    rows = rows[np.argsort(-lives.segments.bytes[rows], kind="stable")][:MAX_ALLOCATIONS]
    blocks = lives.segments.block[rows]
    generations = [_find_main_generation(lives, int(block)) for block in blocks]
    frames = stacks(frozenset(generation for generation in generations if generation is not None))
    largest = []
    for row, block, generation in zip(rows, blocks, generations, strict=True):
        tenant = int(lives.segments.tenant[row])
        largest.append(
            Allocation(
                rank=rank,
                bytes=int(lives.segments.bytes[row]),
                tenant=tenant_name(tenant),
                sub=str(lives.segments.sub[row]),
                module=str(lives.blocks.module[block] or ""),
                stack=frames.get(-1 if generation is None else generation, ()),
                operator=str(lives.blocks.operator[block] or ""),
                basis=Basis.UNKNOWN if tenant == UNTAGGED else Basis.TAGGED,
            )
        )
    return tuple(largest)


def _find_main_generation(lives: RankLives, block: int) -> int | None:
    """Return the generation of a block's main storage: the first one made by an operator, else the first
    one.
    """
    rows: Int = np.flatnonzero(lives.blocks.owner == block).astype(np.int64)
    if not len(rows):
        return None
    known = rows[lives.storages.known[rows]]
    return int(lives.storages.generation[(known if len(known) else rows)[0]])


def find_phase_peaks(rank: int, lives: RankLives) -> tuple[PhasePeak, ...]:
    """Return one entry per phase with a duration, by first start; the maximum entry is the peak."""
    # (start, phase) of each non-empty phase interval in the window; each lasts until the next.
    marked = [
        (t, name) for t, name in lives.timeline.phases if lives.timeline.begin_ns < t < lives.timeline.end_ns
    ]
    all_marks = [(lives.timeline.begin_ns, lives.timeline.phase_at(lives.timeline.begin_ns)), *marked]
    ends = [*(t for t, _ in marked), lives.timeline.end_ns]
    non_empty = [mark for mark, end in zip(all_marks, ends, strict=True) if mark[0] < end]
    begins, names = np.array([t for t, _ in non_empty], dtype=np.int64), [name for _, name in non_empty]
    times, live, interval = _list_points(lives, begins)
    peaks = []
    for name in dict.fromkeys(names):
        is_phase = np.array([other == name for other in names], dtype=bool)
        rows = np.flatnonzero(is_phase[interval])
        peak_rows = rows[live[rows] == live[rows].max()]
        time_ns = int(times[peak_rows].min())
        tenants, untagged = lives.sum_tenants_at(time_ns)
        peaks.append(
            PhasePeak(
                rank=rank,
                phase=name,
                step=lives.timeline.step_at(time_ns),
                peak_bytes=sum(tenants.values()) + untagged,
                tenants=tenants,
                untagged_bytes=untagged,
            )
        )
    return tuple(peaks)


def _list_points(lives: RankLives, begins: Int) -> tuple[Int, Int, Int]:
    """Return (time, live bytes, interval) for each interval start and each event in the window."""
    times, live = lives.times_ns, lives.live_bytes
    first = int(np.searchsorted(times, lives.timeline.begin_ns, side="right"))
    last = int(np.searchsorted(times, lives.timeline.end_ns, side="right"))
    inside = times[first:last]
    start_bytes = np.concatenate([np.zeros(1, dtype=np.int64), live])[
        np.searchsorted(times, begins, side="right")
    ]
    interval = np.searchsorted(begins, inside, side="right") - 1
    if not len(begins):
        inside, interval, last = inside[:0], interval[:0], first
    return (
        np.concatenate([begins, inside]),
        np.concatenate([start_bytes, live[first:last]]),
        np.concatenate([np.arange(len(begins)), interval]).astype(np.int64),
    )


def find_module_peaks(rank: int, lives: RankLives, peak_ns: int) -> tuple[ModulePeak, ...]:
    """Return the modules with the largest peaks, in descending order; empty without module names."""
    rows = _find_module_blocks(lives)
    names = Texts.of(lives.blocks.module[rows].tolist())
    if not len(names):
        return ()
    blocks = lives.blocks
    begin, end, size = (column[rows] for column in (blocks.begin_ns, blocks.end_ns, blocks.bytes))
    modules, levels = _build_tree(list(names.words))
    # frees come first among events at the same time
    order = np.argsort(np.concatenate([end, begin]), kind="stable")
    changes = np.concatenate([-size, size])[order]
    block = np.concatenate([np.arange(len(rows))] * 2)[order]
    at_peak = np.where((begin <= peak_ns) & (end > peak_ns), size, 0)
    peaks = np.zeros(len(modules), dtype=np.int64)
    bytes_at_peak = np.zeros(len(modules), dtype=np.int64)
    for level in levels:
        module = level[names.codes]
        _update_peaks(peaks, module[block], changes)
        inside = module >= 0
        np.add.at(bytes_at_peak, module[inside], at_peak[inside])
    by_peak = sorted(range(len(modules)), key=lambda module: (-int(peaks[module]), modules[module]))
    return tuple(
        ModulePeak(
            rank=rank,
            module=modules[module],
            peak_bytes=int(peaks[module]),
            at_rank_peak_bytes=int(bytes_at_peak[module]),
        )
        for module in by_peak[:MAX_MODULES]
    )


def _find_module_blocks(lives: RankLives) -> Int:
    """Return the blocks that a module allocated within the window."""
    blocks, window = lives.blocks, lives.timeline
    inside = (blocks.begin_ns > window.begin_ns) & (blocks.begin_ns <= window.end_ns)
    rows: Int = np.flatnonzero(inside & (blocks.end_ns > blocks.begin_ns)).astype(np.int64)
    named = np.fromiter((name is not None for name in blocks.module[rows]), dtype=bool, count=len(rows))
    return rows[named]


def _build_tree(names: list[str]) -> tuple[list[str], list[Int]]:
    """Return (modules including enclosing modules, levels); levels[d]: each name's module at depth d, or
    -1.
    """
    index: dict[str, int] = {}
    paths = [
        [index.setdefault(enclosing, len(index)) for enclosing in _list_enclosing(name)] for name in names
    ]
    depth = max(len(path) for path in paths)
    levels = [
        np.array([path[level] if level < len(path) else _NO_MODULE for path in paths], dtype=np.int64)
        for level in range(depth)
    ]
    return list(index), levels


def _list_enclosing(name: str) -> list[str]:
    """Return the root, each module that encloses ``name``, and ``name`` itself."""
    parts = name.split(".")[:_MAX_DEPTH] if name else []
    return ["", *(".".join(parts[: count + 1]) for count in range(len(parts)))]


def _update_peaks(peaks: Int, module: Int, changes: Int) -> None:
    """Set each module's peak from its changes of live bytes, in time order."""
    order = np.argsort(module, kind="stable")
    order = order[int(np.searchsorted(module[order], 0)) :]
    groups = module[order]
    if not len(groups):
        return
    # each allocation is also freed, so each group ends at 0
    running = np.cumsum(changes[order], dtype=np.int64)
    first = np.flatnonzero(np.diff(groups, prepend=_NO_MODULE))
    peaks[groups[first]] = np.maximum.reduceat(running, first)


def thin_recording(rank: int, device: str, lives: RankLives, points: int = MAX_POINTS) -> MemoryTimeline:
    """Return at most ``points`` points of a recording; at each point, the columns sum to the live bytes."""
    window = lives.timeline
    # The start of each interval; the last interval includes the last instant of the window.
    length = window.end_ns - window.begin_ns
    count = max(1, min(points, length))
    begins = np.array([window.begin_ns + length * index // count for index in range(count)], dtype=np.int64)
    # The time of the first maximum of each interval.
    times, live = lives.times_ns, lives.live_bytes
    last = int(np.searchsorted(times, lives.timeline.end_ns, side="right"))
    edges = np.append(np.searchsorted(times[:last], begins, side="right"), last)
    maxima = begins.copy()
    for interval, (left, right) in enumerate(zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)):
        if right > left:
            best = left + int(np.argmax(live[left:right]))
            if live[best] > (live[left - 1] if left else 0):
                maxima[interval] = times[best]
    times = maxima
    return MemoryTimeline(
        rank=rank,
        device=device,
        time_ns=tuple((times - window.begin_ns).tolist()),
        tenants={
            tenant_name(code): tuple(sum_tenant_bytes_at(lives.segments, code, times).tolist())
            for code in range(UNTAGGED + 1)
        },
        steps=_select_last_marks(window.steps, begins, window),
        phases=_select_last_marks(
            [(window.begin_ns, window.phase_at(window.begin_ns)), *window.phases], begins, window
        ),
    )


def sum_tenant_bytes_at(segments: Segments, tenant: int, times_ns: Int) -> Int:
    """Return one tenant's bytes at each of these times."""
    is_tenant = segments.tenant == tenant
    ended = is_tenant & (segments.end_ns != FOREVER)
    return _sum_until(segments.begin_ns[is_tenant], segments.bytes[is_tenant], times_ns) - _sum_until(
        segments.end_ns[ended], segments.bytes[ended], times_ns
    )


def _sum_until(event_ns: Int, size: Int, times_ns: Int) -> Int:
    """Return the sum over the events at or before each time."""
    order = np.argsort(event_ns, kind="stable")
    sums = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(size[order], dtype=np.int64)])
    return sums[np.searchsorted(event_ns[order], times_ns, side="right")]


def _select_last_marks(
    marks: Sequence[tuple[int, _Word]], begins: Int, window: Timeline
) -> tuple[tuple[int, _Word], ...]:
    """Return the last mark of each interval, without consecutive duplicates."""
    times = np.array([time_ns for time_ns, _ in marks], dtype=np.int64)
    interval = np.searchsorted(begins, times, side="right")
    last = np.flatnonzero(np.diff(interval, append=-1))
    selected: list[tuple[int, _Word]] = []
    for index in last.tolist():
        if not selected or selected[-1][1] != marks[index][1]:
            selected.append((marks[index][0] - window.begin_ns, marks[index][1]))
    return tuple(selected)
