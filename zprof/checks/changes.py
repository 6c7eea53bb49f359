"""The figures of a baseline as rows, and what a new baseline changes in an old one."""

from collections.abc import Iterator, Sequence

from zprof.checks.comparable import differences
from zprof.model.baseline import Baseline, CollectiveBaseline, Conditions, MemoryBaseline, TimeBaseline
from zprof.model.side_by_side import Row

_UPPER, _LOWER = "an upper bound", "a lower bound"
_ONLY, _WITHOUT = "only", "without"
#: Unit and value.
_Figure = tuple[str, int | float | str | None]
_Figures = dict[str, _Figure]


def rows(before: Baseline, after: Baseline) -> tuple[Row, ...]:
    """All figures of both, named as the gates are; None where one does not have it."""
    a, b = dict(_figures(before)), dict(_figures(after))
    return tuple(
        Row(name=name, unit=(b.get(name) or a[name])[0], a=_value(a, name), b=_value(b, name))
        for name in dict.fromkeys([*b, *a])
    )


def doubts(baseline: Baseline) -> tuple[str, ...]:
    """The figures that are bounds or lack ranks, each a line; a check judges less by them."""
    ends = tuple(f", {word}" for word in (_ONLY, _WITHOUT))
    return tuple(f"{name} {value}" for name, (_, value) in _figures(baseline) if name.endswith(ends))


def changed(before: Baseline, after: Baseline) -> tuple[Row, ...]:
    """The figures that are not the same in both."""
    return tuple(row for row in rows(before, after) if row.a != row.b)


def other_conditions(before: Baseline, after: Baseline) -> tuple[str, ...]:
    """Why one cannot take the other's place unasked; empty where it can."""
    return differences(before.conditions, after.conditions)


def _value(figures: _Figures, name: str) -> int | float | str | None:
    return figures[name][1] if name in figures else None


def _figures(baseline: Baseline) -> Iterator[tuple[str, _Figure]]:
    yield from _of_conditions(baseline.conditions)
    if baseline.memory is not None:
        yield "peak_memory", ("bytes", baseline.memory.peak_bytes)
        for tenant, size in baseline.memory.tenants.items():
            yield f"peak_memory.{tenant}", ("bytes", size)
        yield "peak_memory.untagged", ("bytes", baseline.memory.untagged_bytes)
        yield from _of_doubt("peak_memory", _doubts_of_memory(baseline.memory), baseline.memory.missing_ranks)
    for entry in baseline.collectives or ():
        of = _sort(entry)
        yield f"{entry.kind} bytes{of}", ("bytes", entry.bytes)
        yield f"{entry.kind} count{of}", ("count", entry.count)
        yield from _of_doubt(f"{entry.kind} bytes{of}", (_LOWER,) if entry.lower_bound else ())
    if baseline.time is not None:
        yield from _of_time(baseline.time)


def _of_conditions(conditions: Conditions) -> Iterator[tuple[str, _Figure]]:
    yield "device", ("text", conditions.device)
    yield "backend", ("text", conditions.backend)
    yield "world size", ("count", conditions.world_size)
    yield "engine", ("text", conditions.engine)
    yield "stage", ("count", conditions.stage)
    yield "torch", ("text", conditions.torch)
    yield "modelled", ("text", "; ".join(conditions.modelled) or None)
    yield "window", ("text", conditions.window)


def _of_time(time: TimeBaseline) -> Iterator[tuple[str, _Figure]]:
    steps = len(time.wall_ns)
    yield "timed steps", ("count", steps)
    yield "step_time", ("ns", round(sum(time.wall_ns) / steps) if steps else None)
    yield "exposed_ratio", ("ratio", time.exposed_ratio)
    yield "overlap_ratio", ("ratio", time.overlap_ratio)
    yield "exposed_wait", ("ns", time.exposed_wait_ns)
    yield from _of_doubt("exposed times", (_UPPER,) if time.upper_bound else ())
    yield from _of_doubt("exposed_wait", (_LOWER,) if time.wait_lower_bound else ())
    yield from _of_doubt("timed steps", (), time.missing_ranks)


def _of_doubt(
    name: str, bounds: Sequence[str], missing_ranks: Sequence[int] = ()
) -> Iterator[tuple[str, _Figure]]:
    """Why a figure is not the whole truth; a check judges less by it."""
    if bounds:
        yield f"{name}, {_ONLY}", ("text", " and ".join(bounds))
    if missing_ranks:
        yield f"{name}, {_WITHOUT}", ("text", _named(missing_ranks))


def _named(ranks: Sequence[int]) -> str:
    """All of them: a row is to change with each."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"


def _doubts_of_memory(memory: MemoryBaseline) -> tuple[str, ...]:
    sides = ((_UPPER, memory.upper_bound), (_LOWER, memory.lower_bound))
    return tuple(side for side, holds in sides if holds)


def _sort(entry: CollectiveBaseline) -> str:
    ranks = f"{entry.group_size} ranks" if entry.group_size else ""
    return f" ({', '.join(part for part in (entry.dtype, ranks) if part)})" if entry.dtype or ranks else ""
