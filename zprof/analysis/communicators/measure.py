"""Measure the communicators of a job: bandwidths by message class, slow communicators, late ranks.

*Late ranks.* With d_r the duration of rank r in an operation, it arrived d_s - d_r after rank s, since a
collective ends on all ranks almost together. A set of ranks is late if in most operations that have a wait
one of them is last, and clearly after the others. A rank that itself waits in a slow communicator, or for a
late rank in another communicator, may be late for that reason.

*Slow communicators.* Only whole operations count, so a missing rank is not a slow link, and only their
shortest kernels, so a late rank is not a slow link either.
"""

import math
from collections import defaultdict
from collections.abc import Sequence

import numpy as np
from msgspec.structs import replace

from zprof.analysis.columns import Columns, Floats, Groups, Mask
from zprof.analysis.communicators.operations import Operations, compute_bus_rates, make_operations
from zprof.analysis.communicators.periods import find_slow_period
from zprof.analysis.intervals import Int64s
from zprof.model.collectives import CollectiveKind
from zprof.model.communicators import Communicators, LateRanks, MessageClass, SlowCommunicator, SlowPeriod
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap

#: Nothing is said about fewer operations, or late ranks in fewer that have a wait.
MIN_OPERATIONS, _MIN_WAITED = 20, 10
#: A rank that comes so much after the others is late: ends of ranks differ by a few µs, records are whole µs.
_MIN_LEAD_NS, _MIN_LEAD_RATIO = 20_000, 0.02
_MIN_LAST_RATIO = 0.6
#: Of the operations of a late rank, this quantile of its lateness is above the minimum.
_LATE_QUANTILE = 0.25
_MESSAGES = (CollectiveKind.SEND, CollectiveKind.RECV)
#: Messages are compared by their fastest tenth.
_FASTEST = 0.1
#: Medians of message sizes within this factor are compared, and bandwidths below this ratio are slow.
_MAX_SIZE_RATIO, _SLOW_RATIO = 1.25, 0.8
_Z95 = 1.96
_MAX_LISTED = 64
_Process = tuple[str, int]


def measure_communicators(table: Columns) -> tuple[Communicators, tuple[Gap, ...]]:
    """Return what the records of NCCL's Inspector show, and gaps.

    Args:
        table: The table ``inspector`` of a run, with at least one record.
    """
    operations, gaps = make_operations(table)
    classes, periods = _measure_classes(operations)
    compared, slow = _find_slow(operations, classes)
    tested, late = _find_late_ranks(operations)
    late = _explain_late(operations, late, slow)
    if not tested:
        gaps.append(make_gap("communicators_lateness_untested", least=MIN_OPERATIONS))
    processes = operations.records.group_by("host", "process")
    return (
        Communicators(
            records=len(operations.records),
            processes=len(processes),
            hosts=len(operations.records.texts("host").list_distinct()),
            communicators=len(operations.records.group_by("key")),
            tested=tested,
            compared=compared,
            classes=tuple(sorted(classes, key=lambda each: -each.operations * each.duration_ns)),
            missing=operations.missing,
            slow=tuple(sorted(slow, key=lambda each: -each.cost_ns)[:_MAX_LISTED]),
            late=tuple(sorted(late, key=lambda each: (bool(each.waits_for), -each.cost_ns))[:_MAX_LISTED]),
            periods=tuple(sorted(periods, key=lambda each: -each.cost_ns)[:_MAX_LISTED]),
        ),
        tuple(gaps),
    )


def _measure_classes(operations: Operations) -> tuple[list[MessageClass], list[SlowPeriod]]:
    """Return the message classes, and a slow period of each in which there is one."""
    records, groups = operations.records, operations.groups
    durations = records.ints("duration_ns")
    size = operations.first("full_bytes")
    waits = groups.mean(durations) - operations.shortest_ns
    exponent = np.frexp(np.maximum(size, 1).astype(np.float64))[1]
    classes, periods = list[MessageClass](), list[SlowPeriod]()
    record_class = Groups(operations.first("key"), operations.kinds, exponent)
    own_durations = _split_by(record_class.codes[groups.codes], durations, len(record_class))
    for rows, own in zip(record_class.split(), own_durations, strict=True):
        first = int(groups.first[rows[0]])
        kind, ranks = records.texts("kind")[first], int(records.ints("ranks")[first])
        shortest = operations.shortest_ns[rows]
        rates = compute_bus_rates(kind, ranks, size[rows], shortest)
        # the kernel of a message contains its wait for the other rank, except in the fastest
        level = _FASTEST if kind in _MESSAGES else 0.5
        has_rate = bool(np.isfinite(rates).all())
        factor = rates / (size[rows] / shortest * 1e9) if has_rate and size[rows].all() else None
        waiting = operations.can_wait[rows]
        entry = MessageClass(
            communicator=records.texts("communicator")[first],
            name=records.texts("name")[first],
            ranks=ranks,
            nodes=int(records.ints("nodes")[first]),
            kind=kind,
            bytes=int(np.median(size[rows])),
            operations=len(rows),
            whole=int(operations.is_whole[rows].sum()),
            duration_ns=int(np.median(own)),
            transfer_ns=int(np.quantile(shortest, level)),
            slow_transfer_ns=int(np.quantile(shortest, 0.95)),
            algbw_bytes_per_s=float(np.quantile(rates / factor, 1 - level)) if factor is not None else None,
            busbw_bytes_per_s=float(np.quantile(rates, 1 - level)) if has_rate else None,
            slow_busbw_bytes_per_s=float(np.quantile(rates, 0.05)) if has_rate else None,
            wait_ns=int(np.median(waits[rows][waiting])) if waiting.any() else None,
        )
        classes.append(entry)
        if kind not in _MESSAGES:
            order = rows[np.argsort(operations.first("sequence")[rows], kind="stable")]
            dumped = operations.first("dumped_ns")[order]
            period = find_slow_period(entry, operations.shortest_ns[order], size[order], dumped)
            periods += [] if period is None else [period]
    return classes, periods


def _split_by(codes: Int64s, values: Int64s, count: int) -> list[Int64s]:
    """Return the values of each code from 0 to ``count`` - 1."""
    order = np.argsort(codes, kind="stable")
    return np.split(values[order], np.cumsum(np.bincount(codes, minlength=count))[:-1])


def _find_slow(operations: Operations, classes: Sequence[MessageClass]) -> tuple[int, list[SlowCommunicator]]:
    """Return how many message classes have peers, and those that are clearly slower than these."""
    by_shape: dict[tuple[str, int, int], list[MessageClass]] = defaultdict(list)
    for entry in classes:
        if entry.busbw_bytes_per_s is not None and entry.whole >= MIN_OPERATIONS:
            by_shape[entry.kind, entry.ranks, entry.nodes].append(entry)
    numbers = {
        operations.records.texts("communicator")[at]: int(operations.records.ints("key")[at])
        for at in operations.records.group_by("key").first.tolist()
    }
    compared, found = 0, list[SlowCommunicator]()
    for alike in by_shape.values():
        sizes = np.array([entry.bytes for entry in alike], np.float64)
        rates = np.array([entry.busbw_bytes_per_s for entry in alike], np.float64)
        counts = np.array([entry.whole for entry in alike])
        for at, entry in enumerate(alike):
            near = np.abs(np.log(np.maximum(sizes, 1) / max(entry.bytes, 1))) <= math.log(_MAX_SIZE_RATIO)
            near &= np.array([other.communicator != entry.communicator for other in alike])
            if not near.any():
                continue
            compared += 1
            usual = float(np.median(rates[near]))
            if rates[at] >= _SLOW_RATIO * usual:
                continue
            if entry.kind not in _MESSAGES and not _is_apart(operations, entry, usual):
                continue
            excess_ns = entry.transfer_ns * (1 - rates[at] / usual)
            found.append(
                SlowCommunicator(
                    communicator=entry.communicator,
                    name=entry.name,
                    ranks=entry.ranks,
                    nodes=entry.nodes,
                    places=tuple(operations.places[numbers[entry.communicator]].values())[:_MAX_LISTED],
                    kind=entry.kind,
                    bytes=entry.bytes,
                    operations=entry.whole,
                    busbw_bytes_per_s=float(rates[at]),
                    peers=int(near.sum()),
                    peer_operations=int(counts[near].sum()),
                    peer_busbw_bytes_per_s=usual,
                    cost_ns=int(excess_ns * entry.operations),
                )
            )
    return compared, found


def _is_apart(operations: Operations, entry: MessageClass, usual_bytes_per_s: float) -> bool:
    """Return True if most operations of a class are slower than the peers, not only their median."""
    first = operations.groups.first
    rows = operations.is_whole & (operations.kinds.equals(entry.kind))
    rows &= operations.records.texts("communicator").at(first).equals(entry.communicator)
    size = operations.first("full_bytes")
    rows &= np.frexp(np.maximum(size, 1).astype(np.float64))[1] == math.frexp(max(entry.bytes, 1))[1]
    rates = compute_bus_rates(entry.kind, entry.ranks, size[rows], operations.shortest_ns[rows])
    return bool(np.quantile(rates, 1 - _LATE_QUANTILE) < usual_bytes_per_s)


def _find_late_ranks(operations: Operations) -> tuple[int, list[LateRanks]]:
    """Return in how many communicators a late rank could be found, and the late ranks of each."""
    tested, found = 0, list[LateRanks]()
    can_wait, key = operations.can_wait, operations.first("key")
    for number, places in enumerate(operations.places):
        chosen = np.flatnonzero(can_wait & (key == number))
        if len(chosen) < MIN_OPERATIONS or len(places) < 2:
            continue
        tested += 1
        late = _find_late_in(operations, number, chosen)
        found += [] if late is None else [late]
    return tested, found


def _find_late_in(operations: Operations, number: int, chosen: Int64s) -> LateRanks | None:
    """Return the late ranks of a communicator; None if there are none.

    Args:
        operations: All operations.
        number: The communicator.
        chosen: Its whole operations.
    """
    records, count = operations.records, int(operations.groups.sizes[chosen[0]])
    rows = operations.groups.order[operations.groups.starts[chosen][:, None] + np.arange(count)]
    rows = np.take_along_axis(rows, np.argsort(records.ints("rank")[rows], axis=1), axis=1)
    durations = records.ints("duration_ns")[rows]
    total_ns = int(durations.mean(axis=1).sum())
    min_leads = np.maximum(_MIN_LEAD_NS, _MIN_LEAD_RATIO * durations.min(axis=1))
    is_waited = durations.max(axis=1) - durations.min(axis=1) >= min_leads
    if is_waited.sum() < _MIN_WAITED:
        return None
    rows, durations, min_leads = rows[is_waited], durations[is_waited], min_leads[is_waited]
    late = _choose_late(durations, min_leads)
    inner, outer = durations[:, late].min(axis=1), durations[:, ~late].min(axis=1)
    leads = outer - inner
    is_last = leads > 0
    if not _is_often(is_last) or np.median(leads - min_leads) < 0:
        return None
    starts, known = records.ints("start_ns")[rows], records.known("start_ns")[rows]
    places = operations.places[number]
    has_clock = known.all() and len({place.host for place in places.values()}) == 1
    confirmed = np.isin(starts.argmax(axis=1), np.flatnonzero(late)).mean() if has_clock else None
    waits = durations[:, ~late].mean(axis=1) - inner
    first = int(operations.groups.first[chosen[0]])
    return LateRanks(
        communicator=records.texts("communicator")[first],
        name=records.texts("name")[first],
        ranks=count,
        kinds=tuple(operations.kinds.at(chosen).list_distinct()),
        places=tuple(places[member] for member in np.flatnonzero(late).tolist()),
        operations=len(chosen),
        waited=len(durations),
        last_ratio=float(is_last.mean()),
        lead_ns=int(np.median(leads)),
        wait_ns=int(np.median(waits)),
        waits_for="",
        confirmed_ratio=None if confirmed is None else float(confirmed),
        cost_ns=int(np.maximum(leads, 0).sum()),
        total_ns=total_ns,
    )


def _choose_late(durations: Int64s, min_leads: Floats) -> Mask:
    """Return a mask of the ranks that may be late: a minority, or the one that is last most often.

    Args:
        durations: Operations x ranks.
        min_leads: Minimum lateness against the median rank in each operation, in ns.
    """
    count = durations.shape[1]
    last = np.bincount(durations.argmin(axis=1), minlength=count)
    single: Mask = np.arange(count) == last.argmax()
    if count < 4:
        return single
    lateness: Floats = np.median(durations, axis=1)[:, None] - durations
    late: Mask = np.quantile(lateness - min_leads[:, None], _LATE_QUANTILE, axis=0) >= 0
    is_minority = 0 < late.sum() <= count // 2
    return late if is_minority else single


def _is_often(is_last: Mask) -> bool:
    """Return True if the share is large, and the lower end of its 95 % interval (Wilson) above a half."""
    count, share = len(is_last), float(is_last.mean())
    center = share + _Z95**2 / (2 * count)
    spread = _Z95 * math.sqrt(share * (1 - share) / count + _Z95**2 / (4 * count**2))
    return share >= _MIN_LAST_RATIO and (center - spread) / (1 + _Z95**2 / count) > 0.5


def _explain_late(
    operations: Operations, found: Sequence[LateRanks], slow: Sequence[SlowCommunicator]
) -> list[LateRanks]:
    """Return the late ranks; some say in which other communicator they wait, which may be why they are late.

    All of them, but not all of the ranks that wait for them, are in a communicator that is slow or has
    another late rank, or exchange messages with ranks in a slow one. Two sets that wait for each other
    explain nothing.
    """
    records = operations.records
    members, exchanges = dict[str, set[_Process]](), list[set[_Process]]()
    for at in records.group_by("key").first.tolist():
        places = operations.places[int(records.ints("key")[at])].values()
        members[records.texts("communicator")[at]] = {(place.host, place.process) for place in places}
    is_message = records.texts("kind").equals(*_MESSAGES)
    for name in records.texts("communicator").at(is_message).list_distinct():
        exchanges.append(members[name])
    near = {
        each.communicator: set[_Process]().union(
            *(others for others in exchanges if others & members[each.communicator]),
            members[each.communicator],
        )
        for each in slow
    }
    late = [{(place.host, place.process) for place in entry.places} for entry in found]

    def can_explain(origin: str, around: set[_Process], at: int) -> bool:
        own = found[at].communicator
        return origin != own and late[at] <= around and not members[own] <= around

    waits = [
        {
            other
            for other, origin in enumerate(found)
            if not late[at] & late[other]
            and can_explain(origin.communicator, members[origin.communicator], at)
        }
        for at in range(len(found))
    ]
    explained = []
    for at, entry in enumerate(found):
        origins: list[LateRanks | SlowCommunicator] = [
            each for each in slow if can_explain(each.communicator, near[each.communicator], at)
        ] or [found[other] for other in waits[at] if at not in waits[other]]
        origin = max(origins, key=lambda each: each.cost_ns, default=None)
        explained.append(entry if origin is None else replace(entry, waits_for=origin.communicator))
    return explained
