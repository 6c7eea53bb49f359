"""A baseline: what of a run is kept in a repository, small enough to be reviewed (``zprof.baseline/1``)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

BASELINE_SCHEMA = "zprof.baseline/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """Under which a run was recorded: a baseline of others is refused."""

    device: str
    backend: str
    world_size: int
    engine: str
    stage: int | None
    torch: str
    modelled: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryBaseline:
    """Of the rank with the highest peak: the peak, and its tenants, which sum to it with untagged."""

    peak_bytes: int
    untagged_bytes: int
    tenants: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveBaseline:
    """One kind of collective of one data type and group size, a step of one rank."""

    kind: str
    dtype: str
    group_size: int
    count: float
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeBaseline:
    """Of the timed steps, each the mean over its ranks: walls and exposed times in the order of the steps."""

    wall_ns: tuple[int, ...]
    exposed_ns: tuple[int, ...]
    exposed_ratio: float | None
    overlap_ratio: float | None
    exposed_wait_ns: int | None


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
