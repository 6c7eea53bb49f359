"""Group the records of NCCL's Inspector into operations: one per communicator, kind and number."""

from collections.abc import Mapping

import numpy as np
from msgspec import Struct

from zprof.analysis.columns import Columns, Floats, Groups, Mask, Texts
from zprof.analysis.intervals import Int64s
from zprof.model.collectives import FULL_SYNC, CollectiveKind, bus_factor
from zprof.model.communicators import MissingRanks, RankPlace
from zprof.model.gap_texts import make_gap
from zprof.model.gaps import Gap

#: NCCL's names of operations.
_KINDS: Mapping[str, CollectiveKind] = {
    "AllReduce": CollectiveKind.ALL_REDUCE,
    "AllGather": CollectiveKind.ALL_GATHER,
    "AllGatherV": CollectiveKind.ALL_GATHER,
    "ReduceScatter": CollectiveKind.REDUCE_SCATTER,
    "Broadcast": CollectiveKind.BROADCAST,
    "Reduce": CollectiveKind.REDUCE,
    "All2All": CollectiveKind.ALL_TO_ALL,
    "AlltoAll": CollectiveKind.ALL_TO_ALL,
    "Send": CollectiveKind.SEND,
    "Recv": CollectiveKind.RECV,
}
#: Kinds whose bytes in the file are one part of the full tensor.
_PARTS = (CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER, CollectiveKind.ALL_TO_ALL)
#: Durations of other sources contain time on the host.
_HOST_TIMING = "collective_cpu"
_MAX_NAMED = 64
_TOLERANCE = 0.02
_MAX_BYTES = 1 << 62


class Operations(Struct, frozen=True):
    """The usable records, sorted by operation, and the operations.

    ``records``: as in the run, with ``kind``, ``full_bytes`` and ``key`` (the number of its communicator).
    ``groups``: the records of each operation. ``is_whole``: operations with exactly one record of each rank,
    and messages. ``places``: the ranks of each communicator that have a file.
    """

    records: Columns
    groups: Groups
    is_whole: Mask
    shortest_ns: Int64s
    places: tuple[Mapping[int, RankPlace], ...]
    missing: tuple[MissingRanks, ...]

    def first(self, name: str) -> Int64s:
        """Return an integer column of the first record of each operation."""
        return self.records.ints(name)[self.groups.first]

    @property
    def kinds(self) -> Texts:
        """Return the kind of each operation."""
        return self.records.texts("kind").at(self.groups.first)

    @property
    def can_wait(self) -> Mask:
        """Return a mask of the whole operations that no rank leaves before all have entered."""
        is_timed = self.groups.min(self.records.bools("is_on_device").astype(np.int64)) > 0
        return self.is_whole & is_timed & self.kinds.match(lambda kind: kind in FULL_SYNC)


def make_operations(table: Columns) -> tuple[Operations, list[Gap]]:
    """Return the operations of a run's table ``inspector``, and gaps."""
    gaps: list[Gap] = []
    records = _drop_repeated(_number_communicators(table, gaps), gaps)
    kinds = records.texts("operation").map(lambda name: _KINDS.get(name, CollectiveKind.OTHER))
    is_part = kinds.equals(*_PARTS)
    factor = np.where(is_part, records.ints("ranks"), 1)
    size = np.minimum(records.ints("bytes"), _MAX_BYTES // factor) * factor
    on_device = ~records.texts("timing").equals(_HOST_TIMING)
    records = records.with_columns(kind=kinds, full_bytes=size, is_on_device=on_device)
    if not on_device.all():
        gaps.append(make_gap("communicators_host_times", count=int((~on_device).sum())))
    gaps += _check_bandwidths(records)
    is_message = records.texts("kind").equals(CollectiveKind.SEND, CollectiveKind.RECV)
    # a message is numbered by its own rank, and has no counterpart in the file of another
    own = np.where(is_message, records.ints("rank"), -1)
    groups = Groups(records.ints("key"), records.texts("operation"), records.ints("sequence"), own)
    ranks = records.ints("ranks")[groups.first]
    is_single = groups.count_distinct(records.ints("rank")) == groups.sizes
    is_equal = groups.min(records.ints("bytes")) == groups.max(records.ints("bytes"))
    if unequal := int((~(is_single & is_equal)).sum()):
        gaps.append(make_gap("communicators_contradicted", count=unequal))
    is_whole = is_single & is_equal & (groups.sizes == np.where(is_message[groups.first], 1, ranks))
    places = _list_places(records)
    if (sets := _count_sets(records)) > 1:
        gaps.append(make_gap("communicators_apart", count=sets))
    missing = _list_missing(records, places)
    if missing:
        gaps.append(_make_missing_gap(missing))
    incomplete = ~is_message[groups.first] & is_single & ~is_whole
    absent = np.array([len(each) for each in places])[records.ints("key")[groups.first]] < ranks
    if count := int((incomplete & is_equal & ~absent).sum()):
        gaps.append(
            make_gap(
                "communicators_incomplete", count=count, operations=int((~is_message[groups.first]).sum())
            )
        )
    shortest = groups.min(records.ints("duration_ns"))
    return Operations(records, groups, is_whole, shortest, places, missing), gaps


def compute_bus_rates(
    kind: str, ranks: int, full_bytes: Floats | Int64s, duration_ns: Floats | Int64s
) -> Floats:
    """Return bus bandwidths in bytes per second; NaN for a kind that has none."""
    factor = bus_factor(CollectiveKind(kind), ranks)
    is_known = factor > 0 and kind != CollectiveKind.OTHER
    rates: Floats = np.asarray(full_bytes, np.float64) / duration_ns * 1e9 * factor
    return rates if is_known else np.full(len(rates), np.nan)


def _number_communicators(table: Columns, gaps: list[Gap]) -> Columns:
    """Return the records with the number of their communicator; its size is the one most records state."""
    groups = table.group_by("communicator")
    ranks = table.ints("ranks")
    sizes = np.array(
        [np.bincount(np.unique(ranks[rows], return_inverse=True)[1]).argmax() for rows in groups.split()]
    )
    usual = np.array([np.unique(ranks[rows])[at] for rows, at in zip(groups.split(), sizes, strict=True)])
    agrees = ranks == usual[groups.codes]
    if not agrees.all():
        gaps.append(make_gap("communicators_sizes_differ", count=int((~agrees).sum())))
    table = table.with_columns(key=groups.codes).at(agrees).renumber()
    return table


def _drop_repeated(records: Columns, gaps: list[Gap]) -> Columns:
    """Return the records without copies, as of a file that was copied."""
    names = ("key", "operation", "sequence", "rank", "host", "process", "bytes", "duration_ns", "dumped_ns")
    groups = Groups(*(records[name] for name in names), records.ints("peer", -1))  # type: ignore[arg-type]
    if len(groups) == len(records):
        return records
    gaps.append(make_gap("communicators_repeated", count=len(records) - len(groups)))
    return records.at(np.sort(groups.first)).renumber()


def _check_bandwidths(records: Columns) -> list[Gap]:
    """Return a gap if the bandwidths of the files contradict their sizes and durations."""
    stated = records.floats("bus_bytes_per_s")
    compared = differing = 0
    for rows in records.group_by("kind", "ranks").split():
        first = int(rows[0])
        expected = compute_bus_rates(
            records.texts("kind")[first],
            int(records.ints("ranks")[first]),
            records.ints("full_bytes")[rows],
            records.ints("duration_ns")[rows],
        )
        is_known = np.isfinite(stated[rows]) & np.isfinite(expected)
        # the files have six decimals of a GB/s
        error = np.abs(stated[rows] - expected)[is_known] - 1e3
        differing += int((error > _TOLERANCE * expected[is_known]).sum())
        compared += int(is_known.sum())
    return (
        [make_gap("communicators_bandwidths_differ", count=differing, records=compared)] if differing else []
    )


def _list_places(records: Columns) -> tuple[Mapping[int, RankPlace], ...]:
    """Return the ranks of each communicator that have a file, by their number in it.

    The ranks of the job are those of a communicator with all processes, each of which has one rank in it.
    """
    members = records.at(records.group_by("key", "rank").first)
    key, rank, pid = members.ints("key"), members.ints("rank"), members.ints("process")
    hosts = members.texts("host")
    processes = Groups(hosts, pid)
    by_size = np.argsort(-members.ints("ranks"), kind="stable")
    world = key == key[by_size[0]]
    is_world = int(world.sum()) == len(processes) == len(np.unique(processes.codes[world]))
    global_ranks = (
        dict(zip(processes.codes[world].tolist(), rank[world].tolist(), strict=True)) if is_world else {}
    )
    places: list[dict[int, RankPlace]] = [{} for _ in range(int(key.max()) + 1)]
    for at in range(len(members)):
        places[key[at]][int(rank[at])] = RankPlace(
            member=int(rank[at]),
            host=hosts[at],
            process=int(pid[at]),
            rank=global_ranks.get(int(processes.codes[at])),
        )
    return tuple(places)


def _count_sets(records: Columns) -> int:
    """Return the number of sets of communicators that share no process."""
    members = records.at(records.group_by("key", "host", "process").first)
    processes = members.group_by("host", "process").codes
    of_communicator = members.ints("key").copy()
    while True:  # the lowest number of a set reaches all of its members
        lowest = np.full(int(processes.max()) + 1, len(members), np.int64)
        np.minimum.at(lowest, processes, of_communicator)
        by_key = np.full(int(members.ints("key").max()) + 1, len(members), np.int64)
        np.minimum.at(by_key, members.ints("key"), lowest[processes])
        reached = by_key[members.ints("key")]
        if np.array_equal(reached, of_communicator):
            return len(np.unique(reached))
        of_communicator = reached


def _list_missing(records: Columns, places: tuple[Mapping[int, RankPlace], ...]) -> tuple[MissingRanks, ...]:
    found = []
    for at in records.group_by("key").first.tolist():
        seen, ranks = places[int(records.ints("key")[at])], int(records.ints("ranks")[at])
        if len(seen) < ranks:
            absent = (member for member in range(ranks) if member not in seen)
            found.append(
                MissingRanks(
                    communicator=records.texts("communicator")[at],
                    name=records.texts("name")[at],
                    ranks=ranks,
                    missing=ranks - len(seen),
                    members=tuple(member for member, _ in zip(absent, range(_MAX_NAMED), strict=False)),
                )
            )
    return tuple(sorted(found, key=lambda each: -each.ranks))


def _make_missing_gap(missing: tuple[MissingRanks, ...]) -> Gap:
    first = missing[0]
    return make_gap(
        "communicators_ranks_missing",
        count=len(missing),
        missing=first.missing,
        ranks=first.ranks,
        name=first.name or first.communicator,
        members=first.members,
    )
