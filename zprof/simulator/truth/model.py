"""Define and write the ground truth of a simulation (truth.json, schema zprof.simulation/1).

Times are nanoseconds on the common clock.  In the file, groups of ranks are stored in a table, and rows refer
to them by index.
"""

from pathlib import Path

import msgspec
from msgspec import Struct
from msgspec.structs import fields

from zprof.model.collectives import CollectiveKind
from zprof.model.time import LateReason
from zprof.simulator.plan import Vendor
from zprof.simulator.whole_files import write_file

SCHEMA = "zprof.simulation/1"
TRUTH_FILE = "truth.json"


class CollectiveTruth(Struct, frozen=True, kw_only=True):
    """One collective on one rank.

    ``ranks``: its group.  ``sequence``: sequence number within the group.  ``bytes``: full tensor.
    ``wait_ns``: time until the last rank arrived; ``transfer_ns``: time after that.  ``late_rank`` arrived
    last, because of ``reason``, ``lead_ns`` after the second-to-last rank.  ``exposed_*``: parts without
    concurrent compute.  ``recorded``: True if its event is in the trace.
    """

    rank: int
    step: int
    kind: CollectiveKind
    ranks: tuple[int, ...]
    sequence: int
    unit: int | None
    bytes: int
    dtype: str
    launch_ns: int
    start_ns: int
    end_ns: int
    wait_ns: int
    transfer_ns: int
    exposed_wait_ns: int
    exposed_transfer_ns: int
    late_rank: int
    lead_ns: int
    reason: LateReason
    recorded: bool = True


class StepTruth(Struct, frozen=True, kw_only=True):
    """One step of one rank.

    On a device, it lasts from the end of the work launched before its start mark to the end of the work
    launched before its end mark; on a CPU rank, from mark to mark.  Times are unions: wall = compute +
    exposed_wait + exposed_transfer + exposed_memcpy + idle.  Exposed time is collective time without
    concurrent compute (on a CPU rank: collective time for which the main thread waits).  ``ambiguous_ns``:
    part of the exposed time in which one collective waited while another moved data.  It is assigned to the
    collective that the compute depends on, else to the one that started first.
    """

    rank: int
    step: int
    number: int
    host_begin_ns: int
    host_end_ns: int
    begin_ns: int
    end_ns: int
    wall_ns: int
    compute_ns: int
    collective_ns: int
    overlapped_ns: int
    exposed_wait_ns: int
    exposed_transfer_ns: int
    exposed_memcpy_ns: int
    idle_ns: int
    ambiguous_ns: int


class RankTruth(Struct, frozen=True, kw_only=True):
    """Clock of one rank, and its recording (``file`` None: no trace)."""

    rank: int
    offset_ns: int
    drift_ppb: int
    host: int
    file: str | None
    events: int
    dropped: int
    opens_ns: int
    closes_ns: int


class GroundTruth(Struct, frozen=True, kw_only=True):
    """Ground truth of a simulation.

    ``origin_ns``: reference time at which the clocks differ only by their offset.  ``law_bytes``: bytes per
    step according to the ZeRO formula, counting an all-reduce twice; ``step_bytes``: transferred bytes.
    """

    schema: str
    vendor: Vendor
    ranks: int
    steps: int
    stage: int
    seed: int
    cause: str
    strength: float
    origin_ns: int
    step_bytes: int
    law_bytes: int
    collectives: tuple[CollectiveTruth, ...]
    per_step: tuple[StepTruth, ...]
    per_rank: tuple[RankTruth, ...]


def write_truth(truth: GroundTruth, folder: Path) -> Path:
    """Write ``folder/truth.json``."""
    groups: dict[tuple[int, ...], int] = {}
    for row in truth.collectives:
        groups.setdefault(row.ranks, len(groups))
    document = {field.name: getattr(truth, field.name) for field in fields(GroundTruth)}
    document["groups"] = list(groups)
    document["collectives"] = [
        {**{field.name: getattr(row, field.name) for field in fields(row)}, "ranks": groups[row.ranks]}
        for row in truth.collectives
    ]
    path = folder / TRUTH_FILE
    write_file(path, msgspec.json.encode(document))
    return path
