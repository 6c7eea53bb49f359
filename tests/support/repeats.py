"""Hand-made analyses of steps that gather and reduce a stated number of times, each with a stated exposure.

One rank, ``steps`` steps of 100 ms with 60 ms of compute.  A step is a list of (kind, unit, micro-batch,
phase); each moves 1 MB in 4 ms, of which ``exposed_ms`` block the rank; one follows the other 10 ms later.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from tests.support.analyses import MS, ORIGIN
from tests.support.rule_runs import run_of
from tests.support.tables import changed
from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Groups, OptionalInts
from zprof.model.memory import DeviceMemory, Memory

WALL_NS = 100 * MS
MEGABYTE = 1_000_000


class Move(Struct, frozen=True, kw_only=True):
    """One collective of a step."""

    kind: str
    unit: str | None
    micro_batch: int | None
    phase: str
    exposed_ms: float = 0.0
    between_ms: float | None = None
    updates: int = 0


def gather(
    unit: str, micro_batch: int, phase: str, exposed_ms: float = 0.0, between_ms: float = 30.0
) -> Move:
    return Move(
        kind="all_gather",
        unit=unit,
        micro_batch=micro_batch,
        phase=phase,
        exposed_ms=exposed_ms,
        between_ms=between_ms,
    )


def reduce(unit: str, micro_batch: int, exposed_ms: float = 0.0, updates: int = 0) -> Move:
    return Move(
        kind="reduce_scatter",
        unit=unit,
        micro_batch=micro_batch,
        phase="backward",
        exposed_ms=exposed_ms,
        updates=updates,
    )


def analysis_with(
    moves: Sequence[Move],
    *,
    steps: int = 4,
    method: str = "ranges",
    free_bytes: int | None = None,
    noise_floor_ns: int = 0,
) -> RunAnalysis:
    """A run whose every step makes these moves."""
    run = run_of(ranks=1, steps=steps)
    passes = [_pass(move, step, method) for step in range(steps) for move in moves]
    collectives = [
        _collective(move, step, place) for step in range(steps) for place, move in enumerate(moves)
    ]
    walls = changed(run.steps, wall_ns=WALL_NS, compute_ns=60 * MS, rank=0)
    rank = replace(run.time.per_rank[0], wall_ns=WALL_NS, noise_floor_ns=noise_floor_ns)
    return replace(
        run,
        run=replace(run.run, device="cuda", world_size=2),
        passes=_number(passes),
        collectives=Columns.from_rows(collectives, collectives[0]).with_columns(
            wait_start_ns=OptionalInts.of([None] * len(collectives))
        ),
        steps=walls,
        time=replace(run.time, per_rank=(rank,)),
        memory=Memory(devices=(_device(free_bytes),) if free_bytes is not None else ()),
    )


def _pass(move: Move, step: int, method: str) -> dict[str, Any]:
    return {
        "rank": 0, "step": step, "kind": move.kind, "unit": move.unit, "bytes": MEGABYTE,
        "micro_batch": move.micro_batch, "phase": move.phase, "method": method,
        "updates": move.updates,
        "compute_between_ns": None if move.between_ms is None else int(move.between_ms * MS),
    }  # fmt: skip


def _number(rows: list[dict[str, Any]]) -> Columns:
    table = Columns.from_rows(rows, rows[0])
    micro_batch, between = (
        OptionalInts.of(row[name] for row in rows) for name in ("micro_batch", "compute_between_ns")
    )
    unit, one = table.texts("unit"), np.ones(len(table), dtype=np.int64)
    units = Groups(table.ints("step"), table.texts("kind"), unit)
    number, part = (
        groups.cumsum(one)
        for groups in (units, Groups(units.codes, np.where(micro_batch.known, micro_batch.values, -1)))
    )
    return table.with_columns(
        row=np.arange(len(table)),
        micro_batch=micro_batch,
        number=OptionalInts(number, unit.known),
        in_micro_batch=OptionalInts(part, unit.known & micro_batch.known),
        compute_between_ns=OptionalInts(between.values, between.known & (number > 1)),
    )


def _collective(move: Move, step: int, place: int) -> dict[str, object]:
    start_ns = ORIGIN + step * WALL_NS + place * 10 * MS
    return {
        "rank": 0, "step": step, "kind": move.kind, "unit": move.unit, "bytes": MEGABYTE,
        "start_ns": start_ns, "end_ns": start_ns + 4 * MS, "launch_start_ns": start_ns,
        "transfer_ns": 4 * MS, "exposed_transfer_ns": int(move.exposed_ms * MS), "exposed_wait_ns": 0,
    }  # fmt: skip


def _device(free_bytes: int) -> DeviceMemory:
    total = 80_000_000_000
    return DeviceMemory(
        rank=0,
        device="cuda:0",
        moment="allocated peak",
        live_bytes=0,
        tenants={},
        device_used_bytes=total - free_bytes,
        device_total_bytes=total,
    )
