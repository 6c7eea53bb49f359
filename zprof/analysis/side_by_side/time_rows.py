"""Time leaves of two reports: ledger, ranks, collectives, links, late ranks, clocks, volume."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from zprof.analysis.side_by_side.pairs import mean_of, paired, rows_of, unit_of, values_of
from zprof.model.report import Comparison, Report
from zprof.model.side_by_side import Row, Section
from zprof.model.time import CollectiveTime, Time

_LEDGER = (
    "wall_ns", "compute_ns", "exposed_transfer_ns", "exposed_wait_ns", "exposed_memcpy_ns", "idle_ns",
    "unexplained_ns",
)  # fmt: skip
_BESIDE = (
    "wall_median_ns", "collective_ns", "overlapped_ns", "overlap_ratio", "memcpy_ns", "first_wait_ns",
    "unsplit_ns", "noise_floor_ns", "steps",
)  # fmt: skip
_SUMMED = ("count", "bytes", "total_ns", "exposed_ns", "wait_ns", "transfer_ns")
_RATES = ("launch_delay_ns", "busbw_bytes_per_s", "algbw_bytes_per_s")
_FIT = ("latency_ns", "busbw_bytes_per_s", "messages")
_LATE = (
    "exposed_wait_per_rank_ns",
    "wait_per_rank_ns",
    "waiting_ranks",
    "last_ratio",
    "own_wait_ns",
)
_CLOCKS = ("uncertainty_ns", "matched", "unmatched")
_VOLUME = ("seen_bytes", "expected_bytes", "ratio")
_ALL = "all ranks"


def time_sections(a: Report, b: Report) -> list[Section]:
    """Every figure of the time side; sections that neither run fills are left out."""
    found = [
        _means(a.time, b.time),
        _equal_work(b.comparison),
        *_ranks(a.time, b.time),
        *_collectives(a, b),
        *_links(a, b),
        *_late(a.time, b.time),
        Section(title="clocks", note="how well the ranks are on one clock",
                rows=rows_of(a.time.alignment, b.time.alignment, _CLOCKS)),
        Section(title="volume", note="a rank and step, against the law of the stage",
                rows=_volume(a, b)),
    ]  # fmt: skip
    return [entry for entry in found if any(row.a is not None or row.b is not None for row in entry.rows)]


def _means(a: Time, b: Time) -> Section:
    rows = tuple(
        Row(name=name, unit=unit_of(name), a=mean_of(a.per_rank, name), b=mean_of(b.per_rank, name))
        for name in (*_LEDGER, *_BESIDE)
    )
    return Section(title="step", note="mean of the ranks", rows=rows)


def _equal_work(comparison: Comparison | None) -> Section:
    work = comparison.equal_work if comparison else None
    times = comparison.step_time if comparison else None
    rows: tuple[Row, ...] = ()
    if work is not None and times is not None:
        rows = (
            Row(name=f"{work.unit.value} a step", unit="count", a=work.a_per_step, b=work.b_per_step),
            Row(name="step_at_equal_work_ns", unit="ns", a=times.a_ns, b=work.b_ns),
        )
    return Section(title="equal work", note="for as much as a rank of A does in a step", rows=rows)


def _ranks(a: Time, b: Time) -> Iterable[Section]:
    if len(a.per_rank) < 2 and len(b.per_rank) < 2:
        return
    pairs = paired(a.per_rank, b.per_rank, lambda entry: (entry.rank,))
    for (rank,), before, after in sorted(pairs, key=lambda pair: pair[0]):
        yield Section(title=f"rank {rank}", note="a step", rows=rows_of(before, after, _LEDGER))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """All collectives of a kind in a group, whatever their data types."""

    kind: str
    place: str
    sums: CollectiveTime
    dtypes: str


def _collectives(a: Report, b: Report) -> Iterable[Section]:
    pairs = paired(_kinds(a), _kinds(b), lambda entry: (entry.kind, entry.place))
    for (kind, place), before, after in pairs:
        rows = _collective_rows(before, after, timed=bool(a.time.per_rank and b.time.per_rank))
        yield Section(title=f"{kind}, {place}", note="a step, mean of the ranks", rows=rows)


def _collective_rows(a: "_Kind | None", b: "_Kind | None", *, timed: bool) -> tuple[Row, ...]:
    """A kind that one run has not: none of it, where that run was timed; its rates are unknown then too."""
    none = 0 if timed else None
    sides = [
        [*values_of(side and side.sums, _SUMMED, none), *values_of(side and side.sums, _RATES, None)]
        for side in (a, b)
    ]
    rows = [
        Row(name=name, unit=unit_of(name), a=before, b=after)
        for name, before, after in zip((*_SUMMED, *_RATES), *sides, strict=True)
    ]
    dtypes = [side.dtypes if side else None for side in (a, b)]
    return (*rows, Row(name="data type", unit="text", a=dtypes[0], b=dtypes[1]))


def _kinds(report: Report) -> list[_Kind]:
    groups: dict[tuple[str, str], list[CollectiveTime]] = {}
    for entry in report.time.collectives:
        groups.setdefault((entry.kind, _place(entry, report)), []).append(entry)
    return [_merged(kind, place, entries) for (kind, place), entries in groups.items()]


def _merged(kind: str, place: str, entries: Sequence[CollectiveTime]) -> _Kind:
    """Sums; delays and bandwidths are those of the data type with most bytes."""
    largest = max(entries, key=lambda entry: entry.bytes)
    sums = {name: sum(getattr(entry, name) for entry in entries) for name in _SUMMED}
    return _Kind(
        kind=kind,
        place=place,
        sums=replace(largest, **sums),
        dtypes=", ".join(dict.fromkeys(entry.dtype for entry in entries)),
    )


def _place(entry: CollectiveTime, report: Report) -> str:
    """Groups of all ranks are the same group in a job of another size."""
    return _ALL if 0 < entry.group_size == report.run.world_size else f"group {entry.group}"


def _links(a: Report, b: Report) -> Iterable[Section]:
    sides = (((fit.kind, _group(report, fit.group)), fit) for report in (a, b) for fit in report.time.fits)
    keys = dict.fromkeys(key for key, _ in sides)
    for kind, group in keys:
        before, after = (
            next((f for f in report.time.fits if (f.kind, _group(report, f.group)) == (kind, group)), None)
            for report in (a, b)
        )
        yield Section(
            title=f"link of {kind}, {group}", note="fitted: latency + bytes / bandwidth",
            rows=rows_of(before, after, _FIT),
        )  # fmt: skip


def _group(report: Report, group: str) -> str:
    whole = {entry.group for entry in report.time.collectives if _place(entry, report) == _ALL}
    return _ALL if group in whole else f"group {group}"


def _late(a: Time, b: Time) -> Iterable[Section]:
    before, after = (side.blame.per_rank if side.blame else () for side in (a, b))
    pairs = paired(before, after, lambda entry: (entry.rank,))
    for (rank,), one, other in sorted(pairs, key=lambda pair: pair[0]):
        yield Section(
            title=f"rank {rank} as the late one", note="what others wait for it a step, per waiting rank",
            rows=rows_of(one, other, _LATE),
        )  # fmt: skip


def _volume(a: Report, b: Report) -> tuple[Row, ...]:
    rows = rows_of(a.volume, b.volume, _VOLUME)
    return tuple(replace(row, unit="ratio") if row.name == "ratio" else row for row in rows)
