"""From a report to a baseline: what of a run is kept in a repository.

Every value is a leaf of the report, or a sum or a mean of a list of leaves:

    memory        the rank with the highest peak, of equal ones the first
    collectives   by kind, data type and group size: the sum over groups of mean * group size / world size
    time          by step the mean over the ranks that ran it
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from zprof.checks.baseline_file import MOST_MODELLED, read_baseline, share_of, to_json
from zprof.model.baseline import Baseline, CollectiveBaseline, Conditions, MemoryBaseline, TimeBaseline
from zprof.model.collectives import CollectiveKind
from zprof.model.memory import RankMemory
from zprof.model.printable import printable, shorten
from zprof.model.report import Report
from zprof.model.time import CollectiveTime, StepTime
from zprof.version import __version__

__all__ = ["baseline_of", "conditions_of", "highest", "read_baseline", "to_json"]

#: Columns of a name that comes from a run: more is no name of a data type or of a device.
_LONGEST = 100


def baseline_of(report: Report, environment: Mapping[str, str], name: str) -> Baseline:
    """What later runs are held against; ``environment`` is that of the run's manifest."""
    return Baseline(
        zprof_version=__version__,
        name=_name(name),
        conditions=conditions_of(report, environment),
        memory=_memory(report),
        collectives=_collectives(report),
        time=_time(report),
    )


def conditions_of(report: Report, environment: Mapping[str, str]) -> Conditions:
    """Under which the run was recorded; what nobody said is empty."""
    run, window = report.run, report.time.window
    return Conditions(
        device=_name(run.device),
        backend=_name(run.backend),
        world_size=run.world_size,
        engine=_name(run.engine),
        stage=run.stage,
        torch=_name(environment.get("torch", "")),
        modelled=tuple(_name(said) for said in run.modelled[:MOST_MODELLED]),
        window="trace" if window is not None and window.is_whole else "step",
    )


def highest(ranks: Sequence[RankMemory]) -> int:
    """Where in the list the rank with the highest peak stands, of equal ones the first; not of none."""
    return max(range(len(ranks)), key=lambda place: (ranks[place].peak_bytes, -place))


def _memory(report: Report) -> MemoryBaseline | None:
    ranks = report.memory.per_rank
    if not ranks:
        return None
    rank = ranks[highest(ranks)]
    return MemoryBaseline(
        peak_bytes=rank.peak_bytes,
        untagged_bytes=rank.untagged_bytes,
        tenants={tenant.value: size for tenant, size in rank.tenants.items()},
        upper_bound=rank.upper_bound,
        lower_bound=any(entry.lower_bound for entry in ranks),
        missing_ranks=_missing(report, {entry.rank for entry in ranks}),
    )


def _missing(report: Report, seen: set[int]) -> tuple[int, ...]:
    return tuple(rank for rank in range(report.run.world_size) if rank not in seen)


def _collectives(report: Report) -> tuple[CollectiveBaseline, ...] | None:
    """None where no step was timed, and where none was seen of ranks that must have met."""
    entries, world = report.time.collectives, report.run.world_size
    if not report.time.per_rank or (not entries and world > 1):
        return None
    groups: defaultdict[tuple[str, str, int], list[CollectiveTime]] = defaultdict(list)
    for entry in entries:
        groups[(_name(entry.kind), _name(entry.dtype), max(0, entry.group_size))].append(entry)
    return tuple(_of_a_rank(*key, groups[key], world) for key in sorted(groups))


def _of_a_rank(
    kind: str, dtype: str, size: int, entries: Sequence[CollectiveTime], world: int
) -> CollectiveBaseline:
    """One group is all there is of it, and is its leaf; of several each rank is in some only."""
    alone = len(entries) == 1 and size >= world
    weight, whole = (1, 1) if alone or not size else (size, max(1, world))
    moves = kind != CollectiveKind.BARRIER
    return CollectiveBaseline(
        kind=kind,
        dtype=dtype,
        group_size=size,
        count=sum(entry.count for entry in entries) * weight / whole,
        bytes=round(sum(entry.bytes for entry in entries) * weight / whole),
        lower_bound=moves and any(entry.bytes == 0 for entry in entries),
    )


def _time(report: Report) -> TimeBaseline | None:
    steps: defaultdict[int, list[StepTime]] = defaultdict(list)
    for entry in report.time.steps:
        steps[entry.step].append(entry)
    ranks = report.time.per_rank
    if not steps or not ranks:
        return None
    rows = [_of_a_step(steps[step]) for step in sorted(steps)]
    wall, exposed, collective, wait = (tuple(column) for column in zip(*rows, strict=True))
    return TimeBaseline(
        wall_ns=wall,
        exposed_ns=exposed,
        exposed_ratio=share_of(sum(exposed), sum(wall)),
        overlap_ratio=share_of(sum(collective) - sum(exposed), sum(collective)),
        exposed_wait_ns=round(sum(wait) / len(wait)),
        collective_ns=collective,
        upper_bound=any(rank.upper_bound for rank in ranks),
        wait_lower_bound=any(rank.unsplit_ns > 0 for rank in ranks),
        missing_ranks=_missing(report, {rank.rank for rank in ranks}),
    )


def _of_a_step(ranks: Sequence[StepTime]) -> tuple[int, int, int, int]:
    """Wall, exposed, collective and exposed wait of a step."""
    rows = [
        (
            rank.wall_ns,
            rank.exposed_wait_ns + rank.exposed_transfer_ns,
            rank.collective_ns,
            rank.exposed_wait_ns,
        )
        for rank in ranks
    ]
    wall, exposed, collective, wait = (round(sum(column) / len(ranks)) for column in zip(*rows, strict=True))
    return wall, exposed, collective, wait


def _name(said: str) -> str:
    return shorten(printable(said), _LONGEST)
