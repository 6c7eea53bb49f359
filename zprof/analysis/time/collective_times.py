"""Sum collectives and compute their bandwidth: by kind, group and dtype, by message size, by unit.

Bandwidth comes from the intrinsic time T of a matched collective, from last start to first end, so waiting
for a rank does not count as a slow link: algbw = bytes / T, busbw = algbw times the bus factor. It is a
median over the window without the first collectives; None if T is below the clock uncertainty.

*Links.* A link's latency and bandwidth are fitted to the intrinsic times:  T = latency + bytes / bandwidth.

The fit is robust: each message size is represented by its median T; the slope is the median of the slopes
between sizes (Theil-Sen), weighted by their distance; the latency is the median of the residuals, with weight
1 / T. Neither is negative. Sizes within a factor of two give no fit.

*Volume.* A rank's transferred bytes per step are compared with the ZeRO formula of its stage.

An all-reduce transfers its tensor twice, other kinds once; both sides ignore the ring's factor (N-1)/N. The
formula covers data parallelism over the ranks that share the states: collectives of tensor-parallel groups
and point-to-point messages are not counted. All-reduces between replicas of the shards (HSDP) are counted if
the number of replicas is known, and reported as a gap if not.
"""

import math
from collections.abc import Iterable

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Columns, Floats, Groups, Mask, OptionalInts
from zprof.analysis.time.decomposition import StepCounts, group_rows_by_text, parse_group_ranks
from zprof.analysis.time.ledger import is_unsplit
from zprof.analysis.zero_formulas import (
    compute_engine_volume,
    compute_expected_volume,
    compute_wire_parameter_bytes,
)
from zprof.model.collectives import UNKNOWN_GROUP, CollectiveKind, bus_factor, is_unknown_size
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap
from zprof.model.machines import find_machine
from zprof.model.report import RunFacts, Volume
from zprof.model.time import (
    CollectiveTime,
    ExposedInCollectives,
    LinkFit,
    MessageSizes,
    PartialGroup,
    UnitTime,
)
from zprof.model.training import TrainingFacts

#: Columns needed for a bandwidth.
BANDWIDTH_COLUMNS = ("bytes", "intrinsic_ns", "offset_uncertainty_ns", "first_of_window", "group_size")
_EXPOSED_COLUMNS = ("exposed_wait_ns", "exposed_transfer_ns")
_SUM_COLUMNS = (
    *BANDWIDTH_COLUMNS, *_EXPOSED_COLUMNS, "rank", "method", "matched", "bound", "start_ns", "end_ns",
    "launch_start_ns", "wait_ns", "transfer_ns", "dependency_ns", "tail_ns",
)  # fmt: skip
_MESSAGE_COLUMNS = (*BANDWIDTH_COLUMNS, "rank", "exposed_wait_ns", "exposed_transfer_ns")
#: 0, 1 KiB, 4 KiB, ... 4 EiB; the last bin is open.
_SIZE_EDGES = np.array([0, *(1 << exponent for exponent in range(10, 63, 2))], dtype=np.int64)
_UNIT_COLUMNS = ("rank", "bytes", "bound", "exposed_wait_ns", "exposed_transfer_ns")
_MIN_SPREAD = 2.0
#: Missing ranks whose traces are asked for.
_MAX_NEXT_RANKS = 4
#: Maximum number of sizes, because slopes are computed over all pairs; more are thinned out.
_MAX_SIZES = 256
_POINT_TO_POINT = (CollectiveKind.SEND, CollectiveKind.RECV)
#: Traffic of other groups (a norm, a flag) below this share of the formula are not reported.
_MIN_REPORTED_RATIO = 0.01


def sum_collective_times(collectives: Columns, steps: StepCounts) -> tuple[CollectiveTime, ...]:
    """Return one entry per kind, group and dtype, largest exposed time first.

    Args:
        collectives: Collectives of the window's steps.
        steps: Steps of the window by rank.
    """
    entries = [
        _make_collective_time(kind, group, dtype, rows, steps.sum_for_group(group, rows))
        for (kind, group, dtype), rows in group_rows_by_text(
            collectives, ("kind", "group", "dtype"), _SUM_COLUMNS
        )
    ]
    return tuple(sorted(entries, key=lambda entry: (-entry.exposed_ns, entry.kind, entry.group, entry.dtype)))


def select_resolved(rows: Columns) -> Columns:
    """Return the rows whose intrinsic time exceeds the clock uncertainty and contains no profiler
    start-up.
    """
    is_long = rows.floats("intrinsic_ns") > rows.ints("offset_uncertainty_ns")
    return rows.at(is_long & ~rows.bools("first_of_window"))


def compute_algorithm_bandwidth(rows: Columns) -> float | None:
    """Return the resolved rows' median bandwidth in bytes per second; None without resolved rows."""
    good = select_resolved(rows)
    good = good.at(good.ints("bytes") > 0)
    if not len(good):
        return None
    median = float(np.median(good.ints("bytes") / good.floats("intrinsic_ns")))
    return median * 1e9 if math.isfinite(median) else None


def compute_bus_bandwidth(rows: Columns, kind: str, algorithm: float | None) -> float | None:
    """Return the bus bandwidth of rows with one kind and group."""
    factor = bus_factor(CollectiveKind(kind), int(rows.ints("group_size")[0]))
    return algorithm * factor if algorithm is not None and factor > 0 else None


def _make_collective_time(
    kind: str, group: str, dtype: str, rows: Columns, rank_steps: int
) -> CollectiveTime:
    algorithm = compute_algorithm_bandwidth(rows)
    steady = rows.at(~rows.bools("first_of_window"))
    start = rows.ints("start_ns")
    launch_delay = OptionalInts(start - rows.ints("launch_start_ns"), rows.known("launch_start_ns"))
    return CollectiveTime(
        kind=kind,
        group=group,
        dtype=dtype,
        count=len(rows) / rank_steps,
        launch_delay_ns=_median_or_none(launch_delay.to_floats()),
        algbw_bytes_per_s=algorithm,
        busbw_bytes_per_s=compute_bus_bandwidth(rows, kind, algorithm),
        method=_describe_method(kind, rows),
        group_size=int(rows.ints("group_size")[0]),
        bound=bool(rows.bools("bound").any()),
        dependency_ns=_median_or_none(rows.floats("dependency_ns")),
        tail_ns=_median_or_none(steady.floats("tail_ns")),
        intrinsic_ns=_median_or_none(select_resolved(rows).floats("intrinsic_ns")),
        bytes=int(rows.ints("bytes").sum()) // rank_steps,
        total_ns=int((rows.ints("end_ns") - start).sum()) // rank_steps,
        exposed_ns=sum_exposed(rows) // rank_steps,
        exposed_wait_ns=int(rows.ints("exposed_wait_ns").sum()) // rank_steps,
        exposed_transfer_ns=int(rows.ints("exposed_transfer_ns").sum()) // rank_steps,
        wait_ns=int(rows.ints("wait_ns").sum()) // rank_steps,
        transfer_ns=int(rows.ints("transfer_ns").sum()) // rank_steps,
    )


def sum_exposed(rows: Columns) -> int:
    """Return the rows' total exposed time."""
    return sum(int(rows.ints(name).sum()) for name in _EXPOSED_COLUMNS)


def _median_or_none(values: Floats) -> int | None:
    known = values[~np.isnan(values)]
    return int(np.median(known)) if len(known) else None


def _describe_method(kind: str, rows: Columns) -> str:
    """Describe how the rows were matched, and whether their waits are exact or bounds."""
    methods = sorted(rows.texts("method").list_distinct())
    description = ", ".join(methods)
    if kind == CollectiveKind.REDUCE_SCATTER and any(method.startswith("gloo") for method in methods):
        description += (
            " (gloo implements reduce-scatter as all-reduce: the link carries twice the bus bandwidth)"
        )
    matched = int(rows.bools("matched").sum())
    if matched == len(rows) or not rows.bools("bound").any():
        return description
    if not matched:
        return f"{description}; not matched across all ranks: wait is a lower bound, transfer an upper bound"
    return f"{description}; {matched} of {len(rows)} matched across all ranks, bounds for the others"


def sum_message_sizes(collectives: Columns, steps: StepCounts) -> tuple[MessageSizes, ...]:
    """Return one entry per occurring kind, group and size bin, sorted by these."""
    entries = []
    for (kind, group), group_rows in group_rows_by_text(collectives, ("kind", "group"), _MESSAGE_COLUMNS):
        size = group_rows.ints("bytes")
        size_bin = np.searchsorted(_SIZE_EDGES, np.maximum(size, 0), side="right") - 1
        for number in np.unique(size_bin).tolist():
            rows, is_last = group_rows.at(size_bin == number), number + 1 == len(_SIZE_EDGES)
            rank_steps = steps.sum_for_group(group, rows)
            entries.append(
                MessageSizes(
                    kind=kind,
                    group=group,
                    at_least_bytes=int(_SIZE_EDGES[number]),
                    below_bytes=np.iinfo(np.int64).max if is_last else int(_SIZE_EDGES[number + 1]),
                    count=len(rows) / rank_steps,
                    exposed_ns=sum_exposed(rows) // rank_steps,
                    busbw_bytes_per_s=compute_bus_bandwidth(rows, kind, compute_algorithm_bandwidth(rows)),
                )
            )
    return tuple(sorted(entries, key=lambda entry: (entry.kind, entry.group, entry.at_least_bytes)))


def sum_unit_times(collectives: Columns, steps: StepCounts) -> tuple[UnitTime, ...]:
    """Return one entry per unit, kind and group, largest exposed time first; rows without a unit are
    ignored.
    """
    named = collectives.at(collectives.known("unit"))
    entries = [
        UnitTime(
            unit=unit,
            kind=kind,
            group=group,
            count=len(rows) / (rank_steps := steps.sum_for_group(group, rows)),
            bytes=int(rows.ints("bytes").sum()) // rank_steps,
            exposed_wait_ns=int(rows.ints("exposed_wait_ns").sum()) // rank_steps,
            exposed_transfer_ns=int(rows.ints("exposed_transfer_ns").sum()) // rank_steps,
            bound=bool(rows.bools("bound").any()),
        )
        for (unit, kind, group), rows in group_rows_by_text(named, ("unit", "kind", "group"), _UNIT_COLUMNS)
        if unit
    ]
    return tuple(
        sorted(
            entries,
            key=lambda e: (-(e.exposed_wait_ns + e.exposed_transfer_ns), e.unit, e.kind, e.group),
        )
    )


def sum_exposed_in_collectives(collectives: Columns, steps: StepCounts) -> ExposedInCollectives | None:
    """Return means per step over the loaded ranks; None if no collective was seen.

    Args:
        collectives: Collectives of the window's steps.
        steps: Steps of the window by rank.
    """
    steps_by_rank = {rank: count for rank, count in steps.by_rank.items() if count > 0}
    if not len(collectives) or not steps_by_rank:
        return None
    rank = collectives.ints("rank")
    weight = np.zeros(max(int(rank.max()), *steps_by_rank) + 1)
    weight[list(steps_by_rank)] = [1 / (count * len(steps_by_rank)) for count in steps_by_rank.values()]
    waits, transfers = (
        float(weight[rank] @ collectives.floats(name)) for name in ("exposed_wait_ns", "exposed_transfer_ns")
    )
    is_bound = collectives.bools("bound")
    bound = is_unsplit(sum_exposed(collectives), sum_exposed(collectives.at(is_bound)))
    return ExposedInCollectives(wait_ns=round(waits), transfer_ns=round(transfers), bound=bound)


def measure_partial_group(run: RunFacts, collectives: Iterable[CollectiveTime]) -> PartialGroup | None:
    """Return what the loaded ranks say about the incomplete group with the most exposed time."""
    loaded, by_group = frozenset(run.ranks_loaded), dict[str, list[CollectiveTime]]()
    for entry in collectives:
        ranks = parse_group_ranks(entry.group)
        if entry.bound and entry.group_size != 1 and not (ranks and ranks <= loaded):
            by_group.setdefault(entry.group, []).append(entry)
    if not by_group or len(loaded) >= run.world_size:
        return None
    entries = max(by_group.values(), key=lambda found: sum(entry.exposed_ns for entry in found))
    size, total_ns = entries[0].group_size, sum(entry.total_ns for entry in entries)
    ranks = parse_group_ranks(entries[0].group) or frozenset(
        range(run.world_size) if size == run.world_size else ()
    )
    is_sized = not any(is_unknown_size(entry.kind, entry.bytes) for entry in entries)
    carried = sum(entry.bytes * bus_factor(CollectiveKind(entry.kind), size) for entry in entries)
    usual, is_within_node = _find_usual_link(run.device, ranks)
    return PartialGroup(
        group=entries[0].group,
        group_size=size,
        loaded=len(ranks & loaded) or len(loaded),
        missing=len(ranks - loaded) if ranks else None,
        next_ranks=tuple(sorted(ranks - loaded)[:_MAX_NEXT_RANKS]),
        exposed_ns=sum(entry.exposed_ns for entry in entries),
        total_ns=total_ns,
        bytes=sum(entry.bytes for entry in entries),
        least_bus_bytes_per_s=carried / total_ns * 1e9 if is_sized and carried and total_ns else None,
        usual_bus_bytes_per_s=usual,
        is_within_node=is_within_node,
    )


def _find_usual_link(device: str, ranks: frozenset[int]) -> tuple[float | None, bool | None]:
    """Return the usual bus bandwidth between ranks of a group, and True if they fit into one node.

    Nodes are taken to hold consecutive ranks, as launchers number them.
    """
    machine = find_machine(device)
    if machine is None or not ranks:
        return None, None
    is_within_node = len({rank // machine.devices_per_node for rank in ranks}) == 1
    between = machine.node_bytes_per_s / machine.devices_per_node
    return (machine.intra_bytes_per_s if is_within_node else between), is_within_node


class FittedLine(Struct, frozen=True, kw_only=True):
    """T in ns over bytes; ``ns_per_byte`` is 0 if T does not grow with the size."""

    latency_ns: float
    ns_per_byte: float

    def at(self, sizes: Floats) -> Floats:
        """Return T for messages of these sizes."""
        return self.latency_ns + self.ns_per_byte * sizes


def fit_links(collectives: Columns) -> tuple[LinkFit, ...]:
    """Return one entry per kind and group with enough data, sorted by kind and group."""
    fits = []
    for (kind, group), group_rows in group_rows_by_text(
        collectives, ("kind", "group"), (*BANDWIDTH_COLUMNS, "instance")
    ):
        good = select_resolved(group_rows)
        rows = good.at((good.ints("bytes") > 0) & (good.ints("instance") >= 0))
        rows = rows.at(np.sort(Groups(rows.ints("instance")).first))
        sizes, times = rows.floats("bytes"), rows.floats("intrinsic_ns")
        line = fit_line(sizes, times)
        if line is None:
            continue
        bandwidth = 1e9 / line.ns_per_byte if line.ns_per_byte > 0 else None
        fits.append(
            LinkFit(
                kind=kind,
                group=group,
                messages=len(sizes),
                sizes=len(np.unique(sizes)),
                latency_ns=round(line.latency_ns),
                algbw_bytes_per_s=bandwidth,
                busbw_bytes_per_s=compute_bus_bandwidth(rows, kind, bandwidth),
                latency_share_ratio=float(min(1.0, line.latency_ns * len(times) / times.sum())),
                residual_ratio=float(np.median(np.abs(times - line.at(sizes)) / times)),
            )
        )
    return tuple(sorted(fits, key=lambda fit: (fit.kind, fit.group)))


def fit_line(sizes: Floats, times: Floats, min_spread: float = _MIN_SPREAD) -> FittedLine | None:
    """Fit a line to positive sizes and times; None if there are too few sizes or they are too similar.

    ``min_spread``: minimum ratio of the largest to the smallest size.
    """
    distinct_sizes = np.unique(sizes)
    if len(distinct_sizes) < 2 or distinct_sizes[-1] < min_spread * distinct_sizes[0]:
        return None
    typical = Groups(sizes).median(times)
    selected = np.unique(
        np.linspace(0, len(distinct_sizes) - 1, min(len(distinct_sizes), _MAX_SIZES)).astype(np.int64)
    )
    sizes, times = distinct_sizes[selected].astype(np.float64), typical[selected]
    low, high = np.triu_indices(len(sizes), 1)
    distance = sizes[high] - sizes[low]
    slope = _weighted_median((times[high] - times[low]) / distance, distance)
    if slope <= 0:
        return FittedLine(latency_ns=float(np.median(times)), ns_per_byte=0.0)
    latency = _weighted_median(times - slope * sizes, 1.0 / times)
    if latency < 0:
        return FittedLine(latency_ns=0.0, ns_per_byte=float(np.median(times / sizes)))
    return FittedLine(latency_ns=latency, ns_per_byte=slope)


def _weighted_median(values: Floats, weights: Floats) -> float:
    order = np.argsort(values, kind="stable")
    total = np.cumsum(weights[order])
    return float(values[order][np.searchsorted(total, total[-1] / 2)])


def measure_volume(
    collectives: Columns, training: TrainingFacts, steps: StepCounts
) -> tuple[Volume | None, list[Gap]]:
    """Return the mean over the steps of ranks with transfers, or None with the reason as a gap."""
    expected = compute_expected_volume(training)
    if expected is None:
        facts = _list_missing_facts(training) or ["the ZeRO formula of this stage"]
        return None, [make_gap("volume_formula_unknown", facts=facts)]
    if not sum(steps.by_rank.values()):
        return None, [make_gap("volume_not_recorded")]
    if expected == 0:
        return None, []
    kind, sizes = collectives.texts("kind"), collectives.ints("bytes")
    counted = _find_counted(collectives, training.model_parallel_ranks)
    is_replicating = counted & _find_replicating(collectives, training, counted)
    unsized = counted & ~kind.equals(CollectiveKind.BARRIER) & (sizes == 0)
    if unsized.any():
        return None, [make_gap("volume_without_sizes", unsized=unsized.sum(), collectives=counted.sum())]
    # gloo's all-gathers, of which only the size of one rank's shard is known
    is_shard_sized = counted & kind.equals(CollectiveKind.ALL_GATHER)
    is_shard_sized &= collectives.texts("group").equals(UNKNOWN_GROUP) & (collectives.ints("group_size") == 0)
    if is_shard_sized.any():
        if training.replica_ranks is None:
            return None, [make_gap("volume_of_shards", parts=is_shard_sized.sum(), rows=counted.sum())]
        # Hybrid sharding gathers within the shard group only.
        whole = sizes * np.where(is_shard_sized, training.shard_ranks or 1, 1)
        collectives = collectives.with_columns(bytes=whole)
    seen_bytes = _mean_bytes(collectives, counted & ~is_replicating, steps)
    other_bytes = _mean_bytes(collectives, is_replicating, steps)
    has_others = other_bytes >= _MIN_REPORTED_RATIO * expected
    return (
        Volume(
            expected_bytes=expected,
            seen_bytes=seen_bytes,
            ratio=seen_bytes / expected,
            parameter_bytes=compute_wire_parameter_bytes(training),
            engine_bytes=compute_engine_volume(training),
        ),
        [make_gap("volume_of_replicas", size=other_bytes)] if has_others else [],
    )


def _mean_bytes(collectives: Columns, rows: Mask, steps: StepCounts) -> int:
    """Return the rows' bytes per step, as the mean over ranks with rows."""
    times = np.where(collectives.texts("kind").equals(CollectiveKind.ALL_REDUCE), 2, 1)
    total = int((collectives.ints("bytes") * times)[rows].sum())
    ranks = collectives.ints("rank")[rows]
    return total // max(1, sum(steps.by_rank.get(int(rank), 0) for rank in np.unique(ranks)))


def _find_counted(collectives: Columns, stride: int) -> Mask:
    """Mark rows of groups whose ranks hold the same model part, excluding messages between two ranks."""
    counted: Mask = collectives.ints("group_size") != 1
    counted &= ~collectives.texts("kind").equals(*_POINT_TO_POINT)
    if stride == 1:  # no tensor parallelism
        return counted
    parts = collectives.texts("group").match(
        lambda group: len({rank % stride for rank in parse_group_ranks(group)}) == 1
    )
    return counted & parts


def _find_replicating(collectives: Columns, training: TrainingFacts, counted: Mask) -> Mask:
    """Mark all-reduces in groups of a different size than the sharding group.

    If the number of replicas is known, the formula includes these all-reduces.
    """
    if training.replica_ranks is not None:
        return np.zeros(len(collectives), dtype=bool)
    sharing: Mask = collectives.ints("group_size") == training.shard_ranks
    if not training.stage or not (sharing & counted).any():
        return np.zeros(len(collectives), dtype=bool)
    return ~sharing & collectives.texts("kind").equals(CollectiveKind.ALL_REDUCE)


def _list_missing_facts(training: TrainingFacts) -> list[str]:
    """List the missing facts that the formula needs, as text."""
    facts = {
        "the sharding stage": training.stage,
        "the number of parameters": training.parameters,
        "the ranks that share the model": training.shard_ranks,
        "the bytes per transferred element (equal for gathers and reductions)": training.communication_bytes,
    }
    return [what for what, value in facts.items() if value is None]
