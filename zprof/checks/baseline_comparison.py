"""Compare two baselines: the figures that differ, and the conditions that make them incomparable."""

from collections.abc import Iterator, Sequence

from zprof.checks.gates.reading import MIN_STEPS
from zprof.model.baseline import Baseline, CollectiveBaseline, Conditions, MemoryBaseline, TimeBaseline
from zprof.model.formatting import printable, shorten
from zprof.model.side_by_side import ComparedRow

_UPPER, _LOWER = "an upper bound", "a lower bound"
_ONLY, _WITHOUT = "only", "without"
#: Unit and value.
_Figure = tuple[str, int | float | str | None]
_Figures = dict[str, _Figure]


def compare_figures(before: Baseline, after: Baseline) -> tuple[ComparedRow, ...]:
    """Return all figures of both baselines, named like the gates; None where one lacks a figure."""
    a, b = dict(_list_figures(before)), dict(_list_figures(after))
    return tuple(
        ComparedRow(name=name, unit=(b.get(name) or a[name])[0], a=_value(a, name), b=_value(b, name))
        for name in dict.fromkeys([*b, *a])
    )


def list_bounds(baseline: Baseline) -> tuple[str, ...]:
    """Return one line for each figure that is missing, a bound, or lacks ranks, which weakens a check."""
    parts = (("memory", baseline.memory), ("times", baseline.time), ("collectives", baseline.collectives))
    missing = [f"no {name}" for name, part in parts if part is None]
    steps = 0 if baseline.time is None else len(baseline.time.wall_ns)
    if 0 < steps < MIN_STEPS:
        missing.append(
            f"{steps} timed step{'' if steps == 1 else 's'}, {MIN_STEPS} are needed for an interval"
        )
    suffixes = tuple(f", {word}" for word in (_ONLY, _WITHOUT))
    bounds = [f"{name} {value}" for name, (_, value) in _list_figures(baseline) if name.endswith(suffixes)]
    return (*missing, *bounds)


def list_changes(before: Baseline, after: Baseline) -> tuple[ComparedRow, ...]:
    """Return the figures that differ."""
    return tuple(row for row in compare_figures(before, after) if row.a != row.b)


def list_condition_differences(before: Baseline, after: Baseline) -> tuple[str, ...]:
    """List the differing conditions, which require confirmation before ``after`` replaces ``before``."""
    return find_condition_differences(before.conditions, after.conditions)


def _value(figures: _Figures, name: str) -> int | float | str | None:
    return figures[name][1] if name in figures else None


def _list_figures(baseline: Baseline) -> Iterator[tuple[str, _Figure]]:
    yield from _condition_figures(baseline.conditions)
    if baseline.memory is not None:
        yield "peak_memory", ("bytes", baseline.memory.peak_bytes)
        for tenant, size in (baseline.memory.tenant_peaks or {}).items():
            yield f"peak_memory.{tenant}", ("bytes", size)
        for tenant, size in baseline.memory.tenants.items():
            yield f"{tenant} at the peak", ("bytes", size)
        yield "untagged at the peak", ("bytes", baseline.memory.untagged_bytes)
        yield from _bound_figures(
            "peak_memory", _memory_bounds(baseline.memory), baseline.memory.missing_ranks
        )
    for entry in baseline.collectives or ():
        kind = _describe_kind(entry)
        yield f"{entry.kind} bytes{kind}", ("bytes", entry.bytes)
        yield f"{entry.kind} count{kind}", ("count", entry.count)
        yield from _bound_figures(f"{entry.kind} bytes{kind}", (_LOWER,) if entry.lower_bound else ())
    if baseline.time is not None:
        yield from _time_figures(baseline.time)


def _condition_figures(conditions: Conditions) -> Iterator[tuple[str, _Figure]]:
    yield "device", ("text", conditions.device)
    yield "backend", ("text", conditions.backend)
    yield "world size", ("count", conditions.world_size)
    yield "engine", ("text", conditions.engine)
    yield "stage", ("count", conditions.stage)
    yield "torch", ("text", conditions.torch)
    yield "modelled", ("text", "; ".join(conditions.modelled) or None)
    yield "window", ("text", conditions.window)


def _time_figures(time: TimeBaseline) -> Iterator[tuple[str, _Figure]]:
    steps = len(time.wall_ns)
    yield "timed steps", ("count", steps)
    yield "step_time", ("ns", round(sum(time.wall_ns) / steps) if steps else None)
    yield "exposed_ratio", ("ratio", time.exposed_ratio)
    yield "overlap_ratio", ("ratio", time.overlap_ratio)
    yield "exposed_wait", ("ns", time.exposed_wait_ns)
    yield from _bound_figures("exposed times", (_UPPER,) if time.upper_bound else ())
    yield from _bound_figures("exposed_wait", (_LOWER,) if time.wait_lower_bound else ())
    yield from _bound_figures("timed steps", (), time.missing_ranks)


def _bound_figures(
    name: str, bounds: Sequence[str], missing_ranks: Sequence[int] = ()
) -> Iterator[tuple[str, _Figure]]:
    """Yield the reasons why a figure is a bound or incomplete."""
    if bounds:
        yield f"{name}, {_ONLY}", ("text", " and ".join(bounds))
    if missing_ranks:
        yield f"{name}, {_WITHOUT}", ("text", _format_all_ranks(missing_ranks))


def _format_all_ranks(ranks: Sequence[int]) -> str:
    """Format all ranks without shortening, so that the row changes with each rank."""
    return f"{'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))}"


def _memory_bounds(memory: MemoryBaseline) -> tuple[str, ...]:
    bounds = ((_UPPER, memory.upper_bound), (_LOWER, memory.lower_bound))
    return tuple(bound for bound, applies in bounds if applies)


def _describe_kind(entry: CollectiveBaseline) -> str:
    ranks = f"{entry.group_size} ranks" if entry.group_size else ""
    return f" ({', '.join(part for part in (entry.dtype, ranks) if part)})" if entry.dtype or ranks else ""


_UNKNOWN = "unknown"
#: Prefixes of ``modelled`` entries for planted faults, which a check should detect: they are not conditions.
_PLANTED = ("planted ", "straggler:")
#: Maximum columns of a condition in a sentence; the comparison uses the full text.
_MAX_COLUMNS = 120
_WINDOWS = {"step": "step by step", "trace": "as one interval"}


def find_condition_differences(baseline: Conditions, run: Conditions) -> tuple[str, ...]:
    """Describe each difference: ``world size 4, the baseline has 2``; empty if there is none."""
    pairs = zip(_describe_conditions(baseline), _describe_conditions(run), strict=True)
    return tuple(
        f"{name} {shorten(current, _MAX_COLUMNS)}, the baseline has {shorten(before, _MAX_COLUMNS)}"
        for (name, before), (_, current) in pairs
        if before != current
    )


def torch_release(version: str) -> str:
    """Return ``2.13.0`` for ``2.13.0+cpu``: the local part identifies the build, not the behavior."""
    return version.partition("+")[0]


def _describe_conditions(conditions: Conditions) -> tuple[tuple[str, str], ...]:
    return (
        ("device", _text_or_unknown(conditions.device)),
        ("backend", _text_or_unknown(conditions.backend)),
        ("world size", str(conditions.world_size)),
        ("engine", _text_or_unknown(conditions.engine)),
        ("stage", _text_or_unknown("" if conditions.stage is None else str(conditions.stage))),
        ("torch", _text_or_unknown(torch_release(conditions.torch))),
        ("modelled", _describe_modelled(conditions.modelled)),
        ("time measured", _WINDOWS.get(conditions.window, _text_or_unknown(conditions.window))),
    )


def _describe_modelled(descriptions: Sequence[str]) -> str:
    return printable("; ".join(part for part in descriptions if not part.startswith(_PLANTED))) or "nothing"


def _text_or_unknown(text: str) -> str:
    return printable(text) or _UNKNOWN
