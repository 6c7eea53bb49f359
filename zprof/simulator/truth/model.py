"""The truth of a simulation (truth.json, schema zprof.simulation/1): its types, written and read.

Times are nanoseconds on the common clock. In the file, groups of ranks stand in a table and rows refer to
them by number.
"""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import msgspec

from zprof.model.collectives import CollectiveKind
from zprof.model.errors import BadInput
from zprof.model.time import LateReason
from zprof.simulator.plan import Vendor

SCHEMA = "zprof.simulation/1"


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveTruth:
    """One collective on one rank.

    ``ranks``: its group.  ``sequence``: in the group.  ``bytes``: full tensor.  ``wait_ns`` until the last
    rank came, ``transfer_ns`` from then on.  ``late_rank`` came last, because of ``reason``;
    ``lead_ns``: so much after the one before it.  ``exposed_*``: where no compute ran beside it.
    ``recorded``: whether its event is in the trace.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTruth:
    """One step of one rank.

    From the end of the work that was launched before its begin to the end of that launched before its end;
    on a CPU rank, between the marks.  Unions: wall = compute + exposed_wait + exposed_transfer +
    exposed_memcpy + idle.  Exposed is what of the collectives has no compute beside it (on a CPU rank:
    what of them the main thread waits for).  ``ambiguous_ns``: of it, where one collective waited while
    another moved data; it counts as the one that the compute depends on, else as the first to start.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RankTruth:
    """The clock of one rank, and what of it was recorded (None: no trace at all)."""

    rank: int
    offset_ns: int
    drift_ppb: int
    host: int
    file: str | None
    events: int
    dropped: int
    opens_ns: int
    closes_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Truth:
    """All of it.

    ``origin_ns``: where clocks with a drift agree but for their offset.  ``law_bytes``: what a step of
    this stage moves by its law, an all-reduce counting twice; ``step_bytes``: what it moved.
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


TRUTH_FILE = "truth.json"


def write_truth(truth: Truth, folder: Path) -> Path:
    """Write ``folder/truth.json``."""
    groups: dict[tuple[int, ...], int] = {}
    for row in truth.collectives:
        groups.setdefault(row.ranks, len(groups))
    document = {field.name: getattr(truth, field.name) for field in fields(Truth)}
    document["groups"] = list(groups)
    document["collectives"] = [{**_plain(row), "ranks": groups[row.ranks]} for row in truth.collectives]
    path = folder / TRUTH_FILE
    path.write_bytes(msgspec.json.encode(document))
    return path


def read_truth(folder: Path) -> Truth:
    """Read it back.

    Raises:
        BadInput: there is none, or it is of another schema.
    """
    path = folder / TRUTH_FILE
    try:
        document: dict[str, Any] = msgspec.json.decode(path.read_bytes())
        if not isinstance(document, dict) or document.get("schema") != SCHEMA:
            raise BadInput(f"{path}: not a truth of schema {SCHEMA}", hint="simulate again")
        groups = document.pop("groups")
        for row in document["collectives"]:
            row["ranks"] = groups[row["ranks"]]
        truth = msgspec.convert(document, Truth)
    except (OSError, msgspec.MsgspecError, KeyError, IndexError, TypeError) as error:
        raise BadInput(f"{path}: cannot be read as a truth ({error})", hint="simulate again") from None
    shared = {tuple(group): tuple(group) for group in groups}
    rows = tuple(replace(row, ranks=shared[row.ranks]) for row in truth.collectives)
    return replace(truth, collectives=rows)


def _plain(row: Any) -> dict[str, Any]:
    return {field.name: getattr(row, field.name) for field in fields(row)}
