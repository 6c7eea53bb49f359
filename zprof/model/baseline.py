"""A baseline: what of a run is kept in a repository, small enough to be reviewed (``zprof.baseline/1``)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

BASELINE_SCHEMA = "zprof.baseline/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Under which a run was recorded: a baseline of others is refused.

    ``window``: what was measured: its steps, or all of a recording as one stretch (values of WindowPolicy).
    """

    device: str
    backend: str
    world_size: int
    engine: str
    stage: int | None
    torch: str
    modelled: tuple[str, ...] = ()
    window: str = "step"


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBaseline:
    """Of the rank with the highest peak: the peak, and its tenants, which sum to it with untagged.

    ``upper_bound`` and ``lower_bound`` are those of the peak (:class:`~zprof.model.memory.RankMemory`);
    ``missing_ranks``: those of the job whose memory was not seen.
    """

    peak_bytes: int
    untagged_bytes: int
    tenants: Mapping[str, int] = field(default_factory=dict)
    upper_bound: bool = False
    lower_bound: bool = False
    missing_ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveBaseline:
    """One kind of collective of one data type and group size: a step of one rank, mean over all ranks.

    ``lower_bound``: some of them do not say how many bytes they move.
    """

    kind: str
    dtype: str
    group_size: int
    count: float
    bytes: int
    lower_bound: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBaseline:
    """Of the timed steps, each the mean over its ranks: lists in the order of the steps.

    exposed_ratio = sum(exposed) / sum(wall)          overlap_ratio = 1 - sum(exposed) / sum(collective)

    ``exposed_wait_ns``: mean of a step.  ``upper_bound``: the exposed times are the most that they can be;
    ``wait_lower_bound``: the waits are the least.  ``missing_ranks`` were not timed.
    """

    wall_ns: tuple[int, ...]
    exposed_ns: tuple[int, ...]
    exposed_ratio: float | None
    overlap_ratio: float | None
    exposed_wait_ns: int | None
    collective_ns: tuple[int, ...] = ()
    upper_bound: bool = False
    wait_lower_bound: bool = False
    missing_ranks: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Baseline:
    """What a later run is held against; None where it was not measured."""

    schema: str = BASELINE_SCHEMA
    zprof_version: str
    name: str
    conditions: Conditions
    memory: MemoryBaseline | None
    collectives: tuple[CollectiveBaseline, ...] | None
    time: TimeBaseline | None
