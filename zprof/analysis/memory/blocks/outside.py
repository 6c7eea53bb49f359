"""Memory of a device outside of this process's allocator, from what NVML said near a moment.

    process = reserved + collectives + context        device_used = process + other_processes

Of a sample only differences are used: what the process has beside its allocator's segments, and what others
have.  They change slowly, reserved memory does not, and a sample is rarely taken at the moment itself.
collectives: by how much process - reserved grew over the first collective of each group.  Groups that begin
at the same time grow together and are counted once.  NVML counts the driver's own reserve (ECC, page tables)
as used; it cannot be told from other processes.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from zprof.model.gaps import Gap
from zprof.model.units import format_bytes

_BEFORE, _AFTER = "before_group", "after_group"
_OUTSIDE, _GROUPS = "memory outside the allocator", "memory of collectives"
_AGAIN = "record again; if it stays, please report it"


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """Terms beside the allocator; None is unknown, and ``gaps`` say why.

    ``beside_bytes``: what the process has beside its allocator, collectives and context together.
    """

    beside_bytes: int | None = None
    collectives_bytes: int | None = None
    context_bytes: int | None = None
    process_bytes: int | None = None
    other_processes_bytes: int | None = None
    total_bytes: int | None = None
    used_bytes: int | None = None
    apart_ns: int | None = None
    gaps: tuple[Gap, ...] = ()


@dataclass(frozen=True, slots=True)
class _Sample:
    """A row of the table ``device``."""

    time_ns: int
    reason: str
    group: str | None
    process: int | None
    reserved: int | None
    used: int | None
    total: int | None

    @property
    def beside(self) -> int | None:
        return None if self.process is None or self.reserved is None else self.process - self.reserved


@dataclass(frozen=True, slots=True)
class _Place:
    """Whose samples these are, for gaps."""

    rank: int
    device: str

    def gap(self, what: str, reason: str, remedy: str) -> Gap:
        return Gap(what=what, rank=self.rank, reason=f"{self.device}: {reason}", remedy=remedy)

    def contradiction(self, what: str, size: int) -> Gap:
        return self.gap(
            _OUTSIDE, f"{what}, by {format_bytes(size)}: the samples contradict each other", _AGAIN
        )


def outside_at(device_table: pd.DataFrame | None, rank: int, device: str, time_ns: int) -> Outside:
    """The terms near a moment.  ``device_table``: the rank's table ``device``, or None."""
    samples, place = _samples(device_table, device), _Place(rank, device)
    if not samples:
        gap = place.gap(_OUTSIDE, "no sample of the device was taken", "record with NVML at hand")
        return Outside(gaps=(gap,))
    known = [sample for sample in samples if sample.beside is not None]
    sample = min(known or samples, key=lambda each: abs(each.time_ns - time_ns))
    apart_ns = abs(sample.time_ns - time_ns)
    if sample.process is None or sample.beside is None:
        reason = "NVML does not say what this process has (a container, MIG or WDDM)"
        gap = place.gap(_OUTSIDE, reason, "run where NVML sees the numbers of this host's processes")
        return Outside(total_bytes=sample.total, used_bytes=sample.used, apart_ns=apart_ns, gaps=(gap,))
    collectives, context, gaps = _split(samples, sample.beside, place, time_ns)
    others = None if sample.used is None else sample.used - sample.process
    if others is not None and others < 0:
        gaps.append(place.contradiction("the device has less in use than this process", -others))
        others = None
    return Outside(
        beside_bytes=sample.beside if sample.beside >= 0 else None,
        collectives_bytes=collectives,
        context_bytes=context,
        process_bytes=sample.process,
        other_processes_bytes=others,
        total_bytes=sample.total,
        used_bytes=sample.used,
        apart_ns=apart_ns,
        gaps=tuple(gaps),
    )


def _samples(table: pd.DataFrame | None, device: str) -> list[_Sample]:
    if table is None:
        return []
    rows = table[table["device"].astype(str) == device].sort_values("time_ns", kind="stable")
    columns = ("process_bytes", "reserved_bytes", "used_bytes", "total_bytes")
    numbers = zip(*(_numbers(rows[column]) for column in columns), strict=True)
    words = zip(rows["time_ns"].tolist(), rows["reason"].tolist(), rows["group"].tolist(), strict=True)
    return [
        _Sample(int(time_ns), str(reason), None if pd.isna(group) else str(group), *values)
        for (time_ns, reason, group), values in zip(words, numbers, strict=True)
    ]


def _numbers(column: "pd.Series[int]") -> list[int | None]:
    return [None if pd.isna(value) else int(value) for value in column.tolist()]


def _split(
    samples: Sequence[_Sample], beside: int, place: _Place, time_ns: int
) -> tuple[int | None, int | None, list[Gap]]:
    """(collectives, context): what the process has beside its allocator, in two."""
    grown = 0
    for before, after in _together(_brackets([each for each in samples if each.time_ns <= time_ns])):
        if before.beside is None or after.beside is None:
            reason = "NVML did not answer at the first collective of a group"
            return None, None, [place.gap(_GROUPS, reason, "record again")]
        if after.beside < before.beside:
            what = "memory shrank at the first collective of a group"
            return None, None, [place.contradiction(what, before.beside - after.beside)]
        grown += after.beside - before.beside
    if beside < grown:
        what = "this process has less beside its allocator than its collectives took"
        return None, None, [place.contradiction(what, grown - beside)]
    return grown, beside - grown, []


def _brackets(samples: Sequence[_Sample]) -> list[tuple[_Sample, _Sample]]:
    """The first sample before and the first after each group's first collective."""
    firsts: dict[tuple[str, str], _Sample] = {}
    for sample in samples:
        if sample.group is not None:
            firsts.setdefault((sample.group, sample.reason), sample)
    groups = dict.fromkeys(group for group, _ in firsts)
    pairs = [(firsts.get((group, _BEFORE)), firsts.get((group, _AFTER))) for group in groups]
    return [(before, after) for before, after in pairs if before is not None and after is not None]


def _together(brackets: Sequence[tuple[_Sample, _Sample]]) -> list[tuple[_Sample, _Sample]]:
    """One pair for all brackets that overlap."""
    joined: list[tuple[_Sample, _Sample]] = []
    for before, after in sorted(brackets, key=lambda bracket: bracket[0].time_ns):
        if joined and before.time_ns < joined[-1][1].time_ns:
            first, last = joined.pop()
            joined.append((first, max(last, after, key=lambda sample: sample.time_ns)))
        else:
            joined.append((before, after))
    return joined
