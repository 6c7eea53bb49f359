"""Put the figures of two runs side by side: rows of time, memory, kernels, findings and settings."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from msgspec.structs import fields, replace

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Groups
from zprof.base.formatting import format_bytes, format_ns
from zprof.model.comparison import ComparedRow, ComparedSection, ComparedValue, Setting, SideBySide
from zprof.model.quantities import Unit, find_unit
from zprof.model.report import Comparison, Report
from zprof.model.tenants import DISPLAY_ORDER
from zprof.model.time import LEDGER_NAMES, CollectiveTime, Time
from zprof.run.reader import Run

_LEDGER = ("wall_ns", *LEDGER_NAMES)
_STEP_FIELDS = (
    *_LEDGER, "wall_median_ns", "collective_ns", "overlapped_ns", "overlap_ratio", "memcpy_ns",
    "first_wait_ns", "unsplit_ns", "noise_floor_ns", "steps",
)  # fmt: skip
_SUMMED = ("count", "bytes", "total_ns", "exposed_ns", "wait_ns", "transfer_ns")
_RATES = ("launch_delay_ns", "busbw_bytes_per_s", "algbw_bytes_per_s")
_FIT_FIELDS = ("latency_ns", "busbw_bytes_per_s", "messages")
_LATE_FIELDS = (
    "exposed_wait_per_rank_ns",
    "wait_per_rank_ns",
    "waiting_ranks",
    "last_ratio",
    "own_wait_ns",
)
_CLOCK_FIELDS = ("uncertainty_ns", "matched", "unmatched")
_VOLUME_FIELDS = ("seen_bytes", "expected_bytes", "ratio")
_ALL_RANKS = "all ranks"
_TIME, _COLLECTIVE, _MEMORY = "time.per_rank[]", "time.collectives[]", "memory.per_rank[]"
_MEMORY_FIELDS = ("untagged_bytes", "peak_bytes", "reserved_unused_bytes", "non_pytorch_bytes")
_MANIFEST_FIELDS = ("zprof_version", "source", "world_size", "device", "backend")
_MAX_LISTED = 12
#: Value of a variable missing from a recorded environment.
_NOT_SET = "not set"
_T = TypeVar("_T")


def pair_runs(
    runs: tuple[Run, Run], analyses: tuple[RunAnalysis, RunAnalysis], reports: tuple[Report, Report]
) -> SideBySide:
    """Pair all figures and settings of a and b; the report on b has a as its baseline."""
    before, after = reports
    optional_sections = (
        build_memory_section(before, after),
        build_kernel_section(*analyses),
        build_finding_section(before, after),
    )
    return SideBySide(
        zprof_version=after.zprof_version,
        a=before.run,
        b=after.run,
        verdict=after.verdict,
        comparison=after.comparison,
        sections=(*build_time_sections(before, after), *filter(_has_values, optional_sections)),
        settings=list_settings(*runs),
    )


def _has_values(section: ComparedSection) -> bool:
    return any(row.a is not None or row.b is not None for row in section.rows)


def build_time_sections(a: Report, b: Report) -> list[ComparedSection]:
    """Return all time figures; sections without a value in either run are left out."""
    ranks = (a.time.per_rank, b.time.per_rank)
    means = [
        _make_row(_TIME, name, _mean_value(ranks[0], name), _mean_value(ranks[1], name))
        for name in _STEP_FIELDS
    ]
    sections = [
        ComparedSection(title="step", note="mean of the ranks", rows=tuple(means)),
        _make_equal_work_section(b.comparison),
        *_make_rank_sections(a.time, b.time),
        *_make_collective_sections(a, b),
        *_make_link_sections(a, b),
        *_make_late_rank_sections(a.time, b.time),
        ComparedSection(title="clocks", note="accuracy of the clock alignment",
                rows=_make_rows("time.alignment", a.time.alignment, b.time.alignment, _CLOCK_FIELDS)),
        ComparedSection(title="volume", note="per rank and step, compared with the ZeRO formula of the stage",
                rows=_make_rows("volume", a.volume, b.volume, _VOLUME_FIELDS)),
    ]  # fmt: skip
    return list(filter(_has_values, sections))


def _make_equal_work_section(comparison: Comparison | None) -> ComparedSection:
    work = comparison.equal_work if comparison else None
    times = comparison.step_time if comparison else None
    rows: tuple[ComparedRow, ...] = ()
    if work is not None and times is not None:
        rows = (
            ComparedRow(
                name=f"{work.unit.value} per step",
                unit="count",
                a=work.a_per_step,
                b=work.b_per_step,
                leaf="comparison.equal_work.per_step",
            ),
            ComparedRow(
                name="step_at_equal_work_ns",
                unit="ns",
                a=times.a_ns,
                b=work.b_ns,
                leaf="comparison.equal_work.b_ns",
            ),
        )
    return ComparedSection(
        title="equal work", note="with B scaled to the work per rank and step of A", rows=rows
    )


def _make_rank_sections(a: Time, b: Time) -> Iterator[ComparedSection]:
    if len(a.per_rank) < 2 and len(b.per_rank) < 2:
        return
    pairs = _pair_by_key(a.per_rank, b.per_rank, lambda entry: entry.rank)
    for rank, before, after in sorted(pairs, key=lambda pair: pair[0]):
        yield ComparedSection(
            title=f"rank {rank}", note="per step", rows=_make_rows(_TIME, before, after, _LEDGER)
        )


def _make_collective_sections(a: Report, b: Report) -> Iterator[ComparedSection]:
    """Yield one section per kind and group; a timed run without the kind has sums of 0, not unknown."""
    absent = 0 if a.time.per_rank and b.time.per_rank else None
    sums_when_absent = dict.fromkeys(_SUMMED, absent)
    pairs = _pair_by_key(_merge_kinds(a), _merge_kinds(b), lambda entry: entry[0])
    for (kind, group_label), *sides in pairs:
        entries = [side[1] if side else None for side in sides]
        rows = [
            _make_row(
                _COLLECTIVE,
                name,
                *(getattr(entry, name) if entry else sums_when_absent.get(name) for entry in entries),
            )
            for name in (*_SUMMED, *_RATES)
        ]
        dtypes = [side[2] if side else None for side in sides]
        rows.append(ComparedRow(name="data type", unit="text", a=dtypes[0], b=dtypes[1]))
        yield ComparedSection(
            title=f"{kind}, {group_label}", note="per step, mean of the ranks", rows=tuple(rows)
        )


def _merge_kinds(report: Report) -> list[tuple[tuple[str, str], CollectiveTime, str]]:
    """Return kind and group, the sums over all data types, and the data type names.

    Delays and bandwidths come from the data type with the most bytes.
    """
    groups: dict[tuple[str, str], list[CollectiveTime]] = {}
    for entry in report.time.collectives:
        groups.setdefault((entry.kind, _label_group(entry, report)), []).append(entry)
    merged = []
    for key, entries in groups.items():
        sums = {name: sum(getattr(entry, name) for entry in entries) for name in _SUMMED}
        largest = max(entries, key=lambda entry: entry.bytes)
        dtypes = ", ".join(dict.fromkeys(entry.dtype for entry in entries))
        merged.append((key, replace(largest, **sums), dtypes))
    return merged


def _label_group(entry: CollectiveTime, report: Report) -> str:
    """Return a label; a group of all ranks has the same label in jobs of different sizes."""
    return _ALL_RANKS if 0 < entry.group_size == report.run.world_size else f"group {entry.group}"


def _make_link_sections(a: Report, b: Report) -> Iterator[ComparedSection]:
    sides = []
    for report in (a, b):
        entries = report.time.collectives
        world_groups = {entry.group for entry in entries if _label_group(entry, report) == _ALL_RANKS}
        sides.append(
            [
                (fit.kind, _ALL_RANKS if fit.group in world_groups else f"group {fit.group}", fit)
                for fit in report.time.fits
            ]
        )
    for (kind, group), before, after in _pair_by_key(sides[0], sides[1], lambda entry: entry[:2]):
        fits = [side[2] if side else None for side in (before, after)]
        yield ComparedSection(
            title=f"link of {kind}, {group}", note="fitted: latency + bytes / bandwidth",
            rows=_make_rows("time.fits[]", fits[0], fits[1], _FIT_FIELDS),
        )  # fmt: skip


def _make_late_rank_sections(a: Time, b: Time) -> Iterator[ComparedSection]:
    before, after = (side.blame.per_rank if side.blame else () for side in (a, b))
    pairs = _pair_by_key(before, after, lambda entry: entry.rank)
    for rank, one, other in sorted(pairs, key=lambda pair: pair[0]):
        yield ComparedSection(
            title=f"rank {rank} as the late one", note="wait of the others per step, per waiting rank",
            rows=_make_rows("time.blame.per_rank[]", one, other, _LATE_FIELDS),
        )  # fmt: skip


def build_memory_section(a: Report, b: Report) -> ComparedSection:
    """Return each tenant's maximum over ranks, at each rank's peak."""
    sides = (a.memory.per_rank, b.memory.per_rank)
    rows = []
    for tenant in DISPLAY_ORDER:
        known = (
            [rank.tenants.get(tenant, 0) for rank in ranks if not rank.is_unknown(tenant)] for ranks in sides
        )
        before, after = (max(sizes, default=None) for sizes in known)
        leaf = f"{_MEMORY}.tenants.{tenant.value}"
        rows.append(ComparedRow(name=f"{tenant.value}_bytes", unit="bytes", a=before, b=after, leaf=leaf))
    for name in _MEMORY_FIELDS:
        values = ([getattr(rank, name) for rank in ranks] for ranks in sides)
        rows.append(
            _make_row(_MEMORY, name, *(max(side) if side and None not in side else None for side in values))
        )
    return ComparedSection(title="memory", note="at the peak, maximum over ranks per row", rows=tuple(rows))


def build_kernel_section(a: RunAnalysis, b: RunAnalysis) -> ComparedSection:
    """Return each kernel's time per step (CPU ranks: each operator's); 0 if only the other run has it."""
    before, after = _sum_kernel_times(a), _sum_kernel_times(b)
    names = sorted(
        dict.fromkeys([*before, *after]), key=lambda name: -max(before.get(name, 0), after.get(name, 0))
    )
    known = bool(before and after)
    rows = [
        ComparedRow(
            name=name,
            unit="ns",
            a=before.get(name, 0 if known else None),
            b=after.get(name, 0 if known else None),
        )
        for name in names
    ]
    return ComparedSection(title="kernels", note="per step, mean of the ranks", rows=tuple(rows))


def _sum_kernel_times(run: RunAnalysis) -> dict[str, int]:
    table = run.kernels
    if not len(table) or not len(run.steps):
        return {}
    names = Groups(table.texts("name"))
    sums = zip(names.first.tolist(), names.sum(table.ints("total_ns")).tolist(), strict=True)
    return {table.texts("name")[row]: round(total / len(run.steps)) for row, total in sorted(sums)}


def build_finding_section(a: Report, b: Report) -> ComparedSection:
    """Return each cause's saving in each run; "not found" if tested without a finding."""
    causes = {finding.cause: finding.id for report in (b, a) for finding in report.findings}
    rows = [
        ComparedRow(
            name=f"{identifier} {cause}",
            unit="text",
            a=_describe_finding(cause, a),
            b=_describe_finding(cause, b),
        )
        for cause, identifier in causes.items()
    ]
    return ComparedSection(title="findings", note="potential savings", rows=tuple(rows))


def _describe_finding(cause: str, report: Report) -> str | None:
    finding = {finding.cause: finding for finding in report.findings}.get(cause)
    if finding is None:
        return None if any(cause in gap.causes for gap in report.gaps) else "not found"
    if finding.saving_ns[1] > 0:
        saving = f"{format_ns(finding.saving_ns[0])} to {format_ns(finding.saving_ns[1])}, "
    elif finding.saving_bytes is not None:
        saving = f"{format_bytes(finding.saving_bytes[1])}, "
    else:
        saving = ""
    return f"{saving}{finding.confidence.value}"


def list_settings(a: Run, b: Run) -> tuple[Setting, ...]:
    """Return every setting of either run; None where a run does not state it."""
    sides = (_read_settings(a), _read_settings(b))
    absent = [_NOT_SET if run.manifest.environment else None for run in (a, b)]
    return tuple(
        Setting(
            where=where,
            name=name,
            a=sides[0].get((where, name), absent[0]),
            b=sides[1].get((where, name), absent[1]),
        )
        for where, name in dict.fromkeys([*sides[0], *sides[1]])
    )


def _read_settings(run: Run) -> dict[tuple[str, str], str | None]:
    manifest = run.manifest
    steps = sorted({step for rank in run.rank_manifests.values() for step in rank.time_steps})
    settings: dict[tuple[str, str], str | None] = {
        ("run", name): _to_text(getattr(manifest, name)) for name in _MANIFEST_FIELDS
    }
    settings["run", "ranks loaded"] = _format_numbers(run.ranks)
    settings["run", "timed steps"] = _format_numbers(steps)
    training = manifest.training
    settings |= {
        ("training", field.name): _to_text(getattr(training, field.name)) for field in fields(training)
    }
    return settings | {("environment", name): value for name, value in sorted(manifest.environment.items())}


def _to_text(value: object) -> str | None:
    if isinstance(value, tuple):
        return "; ".join(map(str, value)) or "nothing"
    return None if value is None or value in ("", "unknown") else str(value)


def _format_numbers(numbers: "tuple[int, ...] | list[int]") -> str | None:
    """Return ``0-7`` for consecutive numbers, else the list of numbers."""
    if not numbers:
        return None
    low, high = min(numbers), max(numbers)
    if len(numbers) == high - low + 1:
        return str(low) if low == high else f"{low}-{high}"
    shown = ",".join(map(str, numbers[:_MAX_LISTED]))
    return shown if len(numbers) <= _MAX_LISTED else f"{shown},.. ({len(numbers)})"


def _make_rows(
    stem: str, a: object | None, b: object | None, names: Sequence[str]
) -> tuple[ComparedRow, ...]:
    """Return one row per attribute of two entries of ``stem``; a missing entry's values are unknown."""
    return tuple(_make_row(stem, name, getattr(a, name, None), getattr(b, name, None)) for name in names)


def _make_row(stem: str, name: str, a: ComparedValue, b: ComparedValue) -> ComparedRow:
    return ComparedRow(name=name, unit=find_unit(name).value, a=a, b=b, leaf=f"{stem}.{name}")


def _mean_value(items: Sequence[object], name: str) -> ComparedValue:
    """Return the mean of an attribute, rounded for nanoseconds and bytes; None if any value is unknown."""
    values: list[float | None] = [getattr(item, name) for item in items]
    known = [value for value in values if value is not None]
    if not known or len(known) < len(values):
        return None
    mean = sum(known) / len(known)
    return round(mean) if find_unit(name) in (Unit.NS, Unit.BYTES) else mean


def _pair_by_key(
    a: Iterable[_T], b: Iterable[_T], key: Callable[[_T], Any]
) -> list[tuple[Any, _T | None, _T | None]]:
    """Pair items by key: ``a``'s in their order, then those only in ``b``.

    Of several items with the same key, the first counts.
    """
    before: dict[Any, _T] = {}
    after: dict[Any, _T] = {}
    for found, items in ((before, a), (after, b)):
        for item in items:
            found.setdefault(key(item), item)
    return [(name, before.get(name), after.get(name)) for name in dict.fromkeys([*before, *after])]
