"""The limits of ``zprof check``: what each one reads from a run and its baseline, and how it is worded.

Both sides are read as baselines, so the same code reads both; details that a baseline lacks come from the
report. Memory: bytes of the rank with the highest peak. Communication: sums per rank and step over the
collectives. Times:

    exposed_ratio = sum(exposed) / sum(wall)        overlap_ratio = 1 - sum(exposed) / sum(collective)

over the steps, each the mean over its ranks. A busy machine makes ranks wait, so exposed wait only warns
unless the rule straggler_rank found one rank late in nearly all steps.
"""

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.compare.differences import ratio_samples
from zprof.base.formatting import format_bytes, format_psi, printable, shorten
from zprof.checks.baseline import find_highest_peak
from zprof.model.baseline import Baseline, CollectiveBaseline, MemoryBaseline, TimeBaseline
from zprof.model.comparison import Figure, Limit, LimitRow, Sense
from zprof.model.findings import Confidence
from zprof.model.gaps import GapKind
from zprof.model.memory import RankMemory
from zprof.model.metrics import METRICS
from zprof.model.quantities import Better, Metric, Unit, format_number, format_signed
from zprof.model.report import Report
from zprof.model.tenants import (
    BACKEND_SCRATCH,
    DISPLAY_ORDER,
    OPERATOR_WORKSPACE,
    UNTAGGED_NAME,
    Tenant,
)

PEAK_MEMORY = "peak_memory"
#: The parts that ``peak_memory.<part>`` accepts: the six tenants and untagged bytes.
MEMORY_PARTS: tuple[str, ...] = (*(tenant.value for tenant in DISPLAY_ORDER), UNTAGGED_NAME)
_MAX_NAME_COLUMNS = 60
_MAX_RANKS = 4
#: A device without an allocator counter, so frees may be unseen.
_CPU = "cpu"
#: Path in the report of the list that the time gates sum over.
_STEPS_PATH = "time.steps"
#: Evidence of a late rank, and the minimum share of steps that counts as nearly all.
_STEPS_LATEST_RATIO, _MIN_LATEST_RATIO = "steps_latest_ratio", 0.8
_RECORD_TIME = "record the time window on all ranks (--time-steps 8)"
_RECORD_MEMORY = "record a memory window (--memory-steps 2) that all ranks reach"
_NO_MEMORY = "no memory window was recorded"
_NO_COLLECTIVES = "no collective was recorded"
_NO_COMMUNICATION = "no collective ran in the timed steps, so there is nothing to overlap"
#: gloo's copy of a gathered unit lives until the last rank has launched the gather, so the number of copies
#: at the peak depends on how late the ranks are.
_CHANCE_NOTE = "only by copies that the collective backend made, which depend on the timing of the ranks"
_CPU_NOTE = (
    "on CPU ranks (DDP, FSDP2) gloo shares the cores of the ranks, so little is hidden to begin with; "
    "guard collective_bytes and exposed_ratio there, and overlap on a GPU or with a modelled link"
)

_RunBaseline = MemoryBaseline | TimeBaseline
_Key = tuple[str, str, int]


class LimitInput(Struct, frozen=True, kw_only=True):
    """A limit, the run to judge, and the baseline; ``current`` is the run as a baseline."""

    limit: Limit
    report: Report
    current: Baseline
    baseline: Baseline | None


def clean_name(text: object) -> str:
    """Make a name from a run or a file printable on one line, shortened."""
    return shorten(printable(text), _MAX_NAME_COLUMNS)


def _list_missing(given: LimitInput, current: _RunBaseline, baseline: _RunBaseline | None) -> tuple[int, ...]:
    """Return the ranks that the run should have but does not.

    For an absolute limit these are all missing ranks, for a relative limit only the missing ranks that the
    baseline has: ranks missing from both do not affect the comparison.
    """
    excused = baseline.missing_ranks if baseline is not None and given.limit.is_relative else ()
    return tuple(sorted(set(current.missing_ranks) - set(excused)))


def _lacks_ranks(baseline: _RunBaseline | None, current: _RunBaseline | None) -> bool:
    """Return True if the baseline lacks ranks that the run has."""
    present = set(current.missing_ranks) if current is not None else set()
    return baseline is not None and bool(set(baseline.missing_ranks) - present)


def _format_ranks(ranks: Sequence[int]) -> str:
    """Format ranks as ``rank 1``, ``ranks 1, 2`` or ``ranks 1, 2, 3, 4 and 120 more``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    more = f" and {len(ranks) - _MAX_RANKS} more" if len(ranks) > _MAX_RANKS else ""
    return f"ranks {', '.join(map(str, ranks[:_MAX_RANKS]))}{more}"


def _make_memory_row(
    given: LimitInput,
    values: tuple[Fraction | None, Fraction | None],
    *,
    missing: str = _NO_MEMORY,
    note: str = "",
    is_share: bool = False,
    is_upper: bool | None = None,
) -> LimitRow:
    """Make the row of a value of the run and of the baseline, with their bounds.

    A peak without some ranks is a lower bound; a share of a bound can be off in either direction.
    ``is_upper``: whether the run's value is an upper bound, if it is not that of the rank with the highest
    peak.
    """
    sides = given.current.memory, None if given.baseline is None else given.baseline.memory
    current, baseline = sides
    missing_ranks = () if current is None else _list_missing(given, current, baseline)
    lacks = (bool(missing_ranks), current is not None and _lacks_ranks(baseline, current))
    uppers = [side is not None and side.upper_bound for side in sides]
    if is_upper is not None:
        uppers[0] = is_upper
    figures: list[Figure | None] = []
    for side, value, upper, lacks_ranks in zip(sides, values, uppers, lacks, strict=True):
        lower = (side is not None and side.lower_bound) or lacks_ranks
        figure = None
        if value is not None:
            figure = Figure(
                value=value,
                can_be_lower=upper or (is_share and lower),
                can_be_higher=lower or (is_share and upper),
            )
        figures.append(figure)
    if figures[0] is None:
        return LimitRow(baseline=figures[1], missing=missing, remedy=_RECORD_MEMORY)
    without = f" (without {_format_ranks(missing_ranks)})" if missing_ranks else ""
    return LimitRow(
        current=figures[0], baseline=figures[1], remedy=_RECORD_MEMORY, value_note=f"{note}{without}"
    )


def _read_peak_memory(given: LimitInput) -> LimitRow:
    """Read the highest peak of all ranks."""
    current, baseline = given.current.memory, given.baseline.memory if given.baseline else None
    values = tuple(None if side is None else Fraction(side.peak_bytes) for side in (current, baseline))
    if current is None:
        return _make_memory_row(given, (None, values[1]))
    ranks = given.report.memory.per_rank
    index = find_highest_peak(ranks)
    rank = ranks[index]
    phase = f" in the {clean_name(rank.peak_phase)}" if rank.peak_phase else ""
    row = _make_memory_row(given, (values[0], values[1]), note=f" on rank {rank.rank}{phase}")
    # The peaks without the backend's copies, some of which may have been freed unseen.
    stable = [
        None
        if side is None or side.backend_scratch_bytes is None
        else side.peak_bytes - side.backend_scratch_bytes
        for side in (current, baseline)
    ]
    return replace(
        row,
        report_path=f"memory.per_rank[{index}].peak_bytes",
        subject=f"rank {rank.rank}",
        growth_note=_describe_memory_growth(current, baseline),
        stable=_make_stable(row, *stable),
        chance_note=_CHANCE_NOTE,
    )


def _make_stable(row: LimitRow, current: int | None, baseline: int | None) -> tuple[Figure, Figure] | None:
    """Return the figures without the part that varies by chance, with the bounds of the row's own values."""
    if current is None or baseline is None or row.current is None or row.baseline is None:
        return None
    return replace(row.current, value=Fraction(current)), replace(row.baseline, value=Fraction(baseline))


def _describe_memory_growth(current: MemoryBaseline, baseline: MemoryBaseline | None) -> str:
    """Describe the tenant that grew most; without a baseline the largest."""
    sizes = {**current.tenants, UNTAGGED_NAME: current.untagged_bytes}
    if baseline is not None:
        before = {**baseline.tenants, UNTAGGED_NAME: baseline.untagged_bytes}
        sizes = {tenant: size - before.get(tenant, 0) for tenant, size in sizes.items()}
    largest = max(sizes, key=sizes.__getitem__)
    if sizes[largest] <= 0:
        return ""
    name = "untagged bytes" if largest == UNTAGGED_NAME else largest.replace("_", " ")
    if baseline is None:
        return f"mostly {name}, {format_bytes(sizes[largest])}"
    return f"{name} grew most, {format_signed(sizes[largest], Unit.BYTES)}"


def _read_tenant_memory(given: LimitInput) -> LimitRow:
    """Read what one tenant (after the dot in the gate's name) holds at its own maximum, over all ranks.

    Not at the rank's peak: a peak in the optimizer has no activations, however many the backward pass holds.
    """
    tenant = given.limit.gate.partition(".")[2]
    current, baseline = given.current.memory, given.baseline.memory if given.baseline else None
    before = None if baseline is None else (baseline.tenant_peaks or {}).get(tenant)
    baseline_value = None if before is None else Fraction(before)
    if current is None:
        return _make_memory_row(given, (None, baseline_value))
    ranks = given.report.memory.per_rank
    sizes = [_get_tenant_peak(rank, tenant) for rank in ranks]
    index = max(range(len(ranks)), key=lambda position: (sizes[position] or 0, -position))
    rank, size = ranks[index], sizes[index]
    if size is None:
        return _make_memory_row(given, (None, baseline_value), missing=f"the run has no data for {tenant}")
    row = _make_memory_row(
        given,
        (Fraction(size), baseline_value),
        note=f" at its own peak on rank {rank.rank}",
        is_upper=rank.upper_bound,
    )
    parts = [part for part in rank.parts if part.tenant == tenant and part.sub]
    largest = max(parts, key=lambda part: part.bytes, default=None)
    growth = ""
    if largest is not None and largest.bytes > 0:
        growth = f"at the rank's peak mostly {clean_name(largest.sub)}, {format_bytes(largest.bytes)}"
    stable = None
    if tenant == Tenant.COMMUNICATION_BUFFERS.value and baseline is not None:
        stable = _make_stable(row, current.program_buffers_peak_bytes, baseline.program_buffers_peak_bytes)
    return replace(
        row,
        report_path=f"memory.per_rank[{index}].tenant_peaks.{tenant}",
        subject=f"{tenant} on rank {rank.rank}",
        growth_note=growth,
        stable=stable,
        chance_note=_CHANCE_NOTE,
    )


def _get_tenant_peak(rank: RankMemory, tenant: str) -> int | None:
    """Return the tenant's own peak; None if nothing in the recording could be attributed to it."""
    if rank.tenant_peaks is None or (tenant != UNTAGGED_NAME and rank.is_unknown(Tenant(tenant))):
        return None
    return rank.tenant_peaks.get(tenant)


def _read_untagged_ratio(given: LimitInput) -> LimitRow:
    """Read the untagged share of the highest peak, or of the worst rank for an absolute limit.

    A baseline stores only the rank with the highest peak.
    """
    current, baseline = given.current.memory, given.baseline.memory if given.baseline else None
    before = None
    if baseline is not None and baseline.peak_bytes > 0:
        before = Fraction(baseline.untagged_bytes, baseline.peak_bytes)
    if current is None or current.peak_bytes <= 0:
        return _make_memory_row(given, (None, before), is_share=True)
    ranks = given.report.memory.per_rank
    shares = [
        Fraction(rank.untagged_bytes, rank.peak_bytes) if rank.peak_bytes > 0 else Fraction(0)
        for rank in ranks
    ]
    index = find_highest_peak(ranks)
    if not given.limit.is_relative:
        index = max(range(len(ranks)), key=lambda position: (shares[position], -position))
    rank = ranks[index]
    row = _make_memory_row(
        given,
        (shares[index], before),
        note=f" of the peak of rank {rank.rank}",
        is_share=True,
        is_upper=rank.upper_bound,
    )
    if rank.upper_bound and not rank.lower_bound and rank.device == _CPU and row.current is not None:
        # Only frees of blocks without a recorded tensor can be missed: the share without those blocks is the
        # highest.
        unseen = sum(part.bytes for part in rank.parts if part.sub in (BACKEND_SCRATCH, OPERATOR_WORKSPACE))
        if 0 < unseen < rank.peak_bytes:
            highest = Fraction(rank.untagged_bytes, rank.peak_bytes - unseen)
            lacks_ranks = bool(_list_missing(given, current, baseline))
            row = replace(row, current=Figure(value=highest, can_be_lower=True, can_be_higher=lacks_ranks))
    return replace(
        row,
        report_path=f"memory.per_rank[{index}].untagged_bytes",
        subject=f"rank {rank.rank}",
        growth_note=f"{format_bytes(rank.untagged_bytes)} are untagged" if rank.untagged_bytes else "",
    )


def _read_collectives(given: LimitInput) -> LimitRow:
    """Read a sum over collectives, per step and rank: their count, or the bytes of their full tensors.

    Its note gives the kind, data type and group size that grew, is new or was removed.
    """
    field = given.limit.gate.removeprefix("collective_")
    unit = GATES[given.limit.gate].unit
    base, current = given.baseline, given.current.collectives
    base_time, time = None if base is None else base.time, given.current.time
    before = None if base is None else base.collectives
    is_bytes = field == "bytes"
    baseline = None if before is None else _sum_collectives(before, field, is_bytes=is_bytes)
    ranks = () if time is None else _list_missing(given, time, base_time)
    if time is None:
        missing = "no step was timed, so no collectives were recorded"
    elif ranks:
        missing = f"{_format_ranks(ranks)} {'is' if len(ranks) == 1 else 'are'} missing"
    else:
        missing = "" if current is not None else _NO_COLLECTIVES
    if current is None or missing:
        return LimitRow(baseline=baseline, missing=missing, remedy=_RECORD_TIME)
    lacks_ranks = before is not None and _lacks_ranks(base_time, time)
    sums = [_sum_by_key(entries or (), field) for entries in (current, before)]
    grown = {key: sums[0].get(key, Fraction(0)) - sums[1].get(key, 0) for key in [*sums[1], *sums[0]]}
    largest = max(sums[0], key=sums[0].__getitem__, default=None)
    if before is not None and grown and max(grown.values()) > 0:
        largest = max(grown, key=grown.__getitem__)
    entries = given.report.time.collectives
    is_single_group = len(entries) == 1 and entries[0].group_size >= given.report.run.world_size
    return LimitRow(
        current=_sum_collectives(current, field, is_bytes=is_bytes),
        baseline=None if lacks_ranks else baseline,
        report_path=f"time.collectives[0].{field}" if is_single_group else "time.collectives",
        subject="" if largest is None else _name_collective(largest),
        value_note=" per step",
        growth_note=_describe_collective_growth(sums[0], None if before is None else sums[1], grown, unit),
        has_different_parts=before is not None and not lacks_ranks and set(sums[0]) != set(sums[1]),
        remedy=_RECORD_TIME,
    )


def _sum_by_key(entries: Sequence[CollectiveBaseline], field: str) -> dict[_Key, Fraction]:
    return {
        (entry.kind, entry.dtype, entry.group_size): Fraction(str(getattr(entry, field))) for entry in entries
    }


def _sum_collectives(entries: Sequence[CollectiveBaseline], field: str, *, is_bytes: bool) -> Figure:
    value = sum(_sum_by_key(entries, field).values(), Fraction(0))
    return Figure(value=value, can_be_higher=is_bytes and any(entry.lower_bound for entry in entries))


def _describe_collective_growth(
    current: Mapping[_Key, Fraction],
    baseline: Mapping[_Key, Fraction] | None,
    grown: Mapping[_Key, Fraction],
    unit: Unit,
) -> str:
    """Describe what grew most, is new or was removed: the largest of each, and how many more."""
    if baseline is None:
        largest = max(current, key=current.__getitem__, default=None)
        if largest is None:
            return ""
        return f"mostly {_name_collective(largest)}, {format_number(float(current[largest]), unit)}"
    groups = (
        ("grew most", [key for key in current.keys() & baseline.keys() if grown[key] > 0]),
        ("is new", list(current.keys() - baseline.keys())),
        ("was removed", list(baseline.keys() - current.keys())),
    )
    parts = []
    for change, keys in groups:
        if keys:
            largest = max(keys, key=lambda key: (abs(grown[key]), key))
            more = f" (and {len(keys) - 1} more)" if len(keys) > 1 else ""
            amount = format_signed(float(grown[largest]), unit)
            parts.append(f"{_name_collective(largest)} {change}, {amount}{more}")
    return "; ".join(parts)


def _name_collective(key: _Key) -> str:
    kind, dtype, size = key
    over = f" over {size} ranks" if size else ""
    return f"{clean_name(kind)} of {clean_name(dtype) or 'unknown type'}{over}"


def _read_bytes_against_formula(given: LimitInput) -> LimitRow:
    """Read the bytes that a rank moves per step relative to all parameters; all_reduces count twice."""
    volume = given.report.volume
    if volume is None or not volume.parameter_bytes:
        gap = next((gap for gap in given.report.gaps if gap.kind is GapKind.VOLUME), None)
        missing = "the bytes per step cannot be compared with the ZeRO formula"
        return LimitRow(missing=missing, remedy=_RECORD_TIME if gap is None else clean_name(gap.remedy))
    if given.current.collectives is None:
        return LimitRow(missing=_NO_COLLECTIVES, remedy=_RECORD_TIME)
    lacks_ranks = bool(given.current.time and given.current.time.missing_ranks)
    expected = format_psi(volume.expected_bytes / volume.parameter_bytes)
    return LimitRow(
        current=Figure(
            value=Fraction(volume.seen_bytes, volume.parameter_bytes),
            can_be_lower=lacks_ranks,
            can_be_higher=lacks_ranks,
        ),
        report_path="volume.seen_bytes",
        value_note=f" ({format_bytes(volume.seen_bytes)}) per step",
        growth_note=f"the ZeRO formula of the stage expects {expected}",
    )


_Times = tuple[TimeBaseline | None, TimeBaseline | None]


def _select_times(given: LimitInput, *, communication: bool = True) -> tuple[_Times, str]:
    """Return the times of the run and the baseline, None if unknown, and the reason for the run's None.

    The run's times are unknown if it lacks a rank that the baseline has, and vice versa, and for
    ``communication`` if it has no collective.
    """
    current, base = given.current.time, given.baseline
    baseline = None if base is None else base.time
    missing = ""
    if current is None:
        missing = "no step was timed"
    elif ranks := _list_missing(given, current, baseline):
        current, missing = None, f"{_format_ranks(ranks)} {'was' if len(ranks) == 1 else 'were'} not timed"
    elif _lacks_ranks(baseline, current):
        baseline = None
    if communication and current is not None and given.current.collectives is None:
        current, missing = None, _NO_COLLECTIVES
    if communication and base is not None and base.collectives is None:
        baseline = None
    return (current, baseline), missing


def _read_step_time(given: LimitInput) -> LimitRow:
    """Read the mean step time."""
    times, missing = _select_times(given, communication=False)
    current, baseline = (
        None if side is None else Figure(value=Fraction(sum(side.wall_ns), len(side.wall_ns)))
        for side in times
    )
    samples = tuple(None if side is None else side.wall_ns for side in times)
    return LimitRow(
        current=current,
        baseline=baseline,
        missing=missing,
        remedy=_RECORD_TIME,
        report_path=_STEPS_PATH,
        value_note=" per step",
        samples=(samples[0], samples[1]),
    )


def _read_exposed_ratio(given: LimitInput) -> LimitRow:
    """Read the share of a step that is exposed communication."""
    times, missing = _select_times(given)
    parts = [None if side is None else (side.exposed_ns, side.wall_ns) for side in times]
    row = _make_share_row(times, parts, is_upper=True)
    return replace(row, missing=missing, value_note=" of a step")


def _read_overlap_ratio(given: LimitInput) -> LimitRow:
    """Read the share of communication that is overlapped by compute.

    The overlapped share is a lower bound if the exposed time is an upper bound.
    """
    facts = given.report.run
    times, missing = _select_times(given)
    parts = []
    for side in times:
        part = None
        if side is not None:
            pairs = zip(side.collective_ns, side.exposed_ns, strict=False)
            part = ([all_ns - exposed_ns for all_ns, exposed_ns in pairs], side.collective_ns)
        parts.append(part)
    return replace(
        _make_share_row(times, parts, is_upper=False),
        missing=missing or _NO_COMMUNICATION,
        value_note=" of the communication overlapped",
        has_nothing=not missing,
        device_note=_CPU_NOTE if facts.device == "cpu" and not facts.modelled else "",
    )


def _make_share_row(
    times: _Times, parts: Sequence[tuple[Sequence[int], Sequence[int]] | None], *, is_upper: bool
) -> LimitRow:
    """Make the row of ratios of sums over the steps, with one sample per step; None if the total is 0."""
    figures: list[Figure | None] = []
    samples: list[Sequence[float] | None] = []
    for side, sums in zip(times, parts, strict=True):
        if side is None or sums is None or sum(sums[1]) <= 0:
            figures.append(None)
            samples.append(None)
            continue
        part, whole = sums
        figures.append(
            Figure(
                value=Fraction(sum(part), sum(whole)),
                can_be_lower=is_upper and side.upper_bound,
                can_be_higher=not is_upper and side.upper_bound,
            )
        )
        arrays = (np.asarray(column, dtype=np.float64) for column in sums)
        samples.append(tuple(ratio_samples(*arrays).tolist()))
    return LimitRow(
        current=figures[0],
        baseline=figures[1],
        remedy=_RECORD_TIME,
        report_path=_STEPS_PATH,
        samples=(samples[0], samples[1]),
    )


def _read_exposed_wait(given: LimitInput) -> LimitRow:
    """Read the exposed wait per step, the mean over steps and ranks."""
    times, missing = _select_times(given)
    current, baseline = (
        None
        if side is None or side.exposed_wait_ns is None
        else Figure(
            value=Fraction(side.exposed_wait_ns),
            can_be_lower=side.upper_bound,
            can_be_higher=side.wait_lower_bound,
        )
        for side in times
    )
    late = find_late_rank(given.report)
    return LimitRow(
        current=current,
        baseline=baseline,
        missing=missing,
        remedy=_RECORD_TIME,
        report_path=_STEPS_PATH,
        subject="" if late is None else f"rank {late}",
        value_note=" per step",
        growth_note="" if late is None else f"rank {late} is late in nearly all steps",
        warn_reason="this only warns because no rank is late in nearly all steps" if late is None else "",
    )


def find_late_rank(report: Report) -> int | None:
    """Return the rank that is late in nearly all steps according to the straggler finding, else None."""
    for finding in report.findings:
        share = next((row.value for row in finding.evidence if row.key == _STEPS_LATEST_RATIO), None)
        if share is not None and finding.confidence is not Confidence.LOW:
            rank = next((row.rank for row in finding.evidence if row.rank is not None), None)
            return rank if share >= _MIN_LATEST_RATIO else None
    return None


class Gate(Struct, frozen=True, kw_only=True):
    """A quantity that can have a limit, and the kinds of limits that it accepts.

    ``read``: how its row is read. ``exact``: the value is a count that is equal in each recording of the same
    work, so it accepts ``exact``. ``sampled``: the value varies over steps, so it accepts ``confidence``.
    ``of_baseline``: limits may be relative to the baseline. ``is_timed``: it measures time, which depends on
    the load of the machine.
    """

    name: str
    read: Callable[[LimitInput], LimitRow]
    exact: bool = False
    sampled: bool = False
    of_baseline: bool = True
    is_timed: bool = False

    @property
    def metric(self) -> Metric:
        """The catalogue entry of the measured quantity."""
        return METRICS[f"check.{self.name}"]

    @property
    def unit(self) -> Unit:
        """The unit of its value and its limits."""
        return self.metric.unit

    @property
    def sense(self) -> Sense:
        """The allowed side of a limit without a sign."""
        return Sense.AT_LEAST if self.metric.better is Better.MORE else Sense.AT_MOST


#: All gates by name, in the order in which they are judged and displayed.
GATES: Mapping[str, Gate] = {
    gate.name: gate
    for gate in (
        Gate(name=PEAK_MEMORY, read=_read_peak_memory, exact=True),
        *(Gate(name=f"{PEAK_MEMORY}.{part}", read=_read_tenant_memory, exact=True) for part in MEMORY_PARTS),
        Gate(name="untagged_ratio", read=_read_untagged_ratio),
        Gate(name="exposed_ratio", read=_read_exposed_ratio, sampled=True, is_timed=True),
        Gate(name="overlap_ratio", read=_read_overlap_ratio, sampled=True, is_timed=True),
        Gate(name="collective_bytes", read=_read_collectives, exact=True),
        Gate(name="collective_count", read=_read_collectives, exact=True),
        Gate(name="collective_bytes_law", read=_read_bytes_against_formula, of_baseline=False),
        Gate(name="step_time", read=_read_step_time, sampled=True, is_timed=True),
        Gate(name="exposed_wait", read=_read_exposed_wait, is_timed=True),
    )
}
