"""Collectives of several ranks with known truth: which rows are one, and how far each clock is ahead.

Plays groups of ranks on a perfect clock (a rank runs one collective after another, nobody leaves before
all have entered), stamps the rows by each rank's own clock, and lets rows and whole steps go missing.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace

import numpy as np
import pandas as pd
from msgspec import Struct, field
from msgspec.structs import replace

from tests.support.tables import as_columns
from zprof.analysis.time.steps import StepWindows
from zprof.analysis.time.synchronise import synchronise

US, MS, S = 1_000, 1_000_000, 1_000_000_000
EPOCH_NS = 1_790_000_000_000_000_000


class Op(Struct, frozen=True):
    """One collective of a step: in which groups, of what, for how long; every group runs its own."""

    kind: str = "all_gather"
    size: int = 1 << 20
    length: int = 3 * MS
    groups: Sequence[tuple[int, ...]] = ()
    root: int | None = None


class World(Struct, frozen=True):
    """What to play."""

    ranks: int = 4
    steps: int = 4
    ops: Sequence[Op] = (
        Op(),
        Op(size=1 << 21),
        Op(kind="reduce_scatter", length=4 * MS),
        Op(size=4, length=20 * US),
    )
    compute: int = 2 * MS
    jitter: int = 300 * US
    tail: Callable[[random.Random, int, int], int] = lambda draw, rank, length: draw.randrange(600)
    offsets: Mapping[int, int] = field(default_factory=dict)
    drifts: Mapping[int, float] = field(default_factory=dict)
    hosts: Sequence[str] = ()
    windows: Mapping[int, tuple[int, int]] = field(default_factory=dict)
    marked: bool = True
    stated: bool = False
    late: Mapping[int, int] = field(default_factory=dict)
    missing: Sequence[int] = ()
    pause: int = 0
    seed: int = 1

    @property
    def everyone(self) -> tuple[int, ...]:
        return tuple(range(self.ranks))


def play(world: World) -> pd.DataFrame:
    """Rows of all ranks in true time, with ``true`` (equal on rows that are one) and ``true_step``."""
    draw = random.Random(world.seed)
    clock = [rank * 5 * US for rank in range(world.ranks)]
    rows: list[dict[str, object]] = []
    count = 0
    for step in range(world.steps):
        for op in world.ops:
            for group in op.groups or (world.everyone,):
                rows += _collective(world, draw, step, op, group, count, clock)
                count += 1
        clock = [time + world.pause for time in clock]
    return pd.DataFrame(rows)


def _collective(world, draw, step, op, group, number, clock):
    launch = {}
    for rank in group:
        launch[rank] = clock[rank]
        clock[rank] += world.compute + draw.randrange(world.jitter + 1) + world.late.get(rank, 0)
    last = max(clock[rank] for rank in group)
    if op.kind == "broadcast":
        last = clock[op.root]
    rows = []
    for rank in group:
        start = clock[rank]
        end = max(last, start) + op.length + world.tail(draw, rank, op.length)
        clock[rank] = end + 2 * US
        names = ",".join(str(one) for one in sorted(group))
        rows.append(
            {
                "rank": rank,
                "kind": op.kind,
                "group": names,
                "group_size": len(group),
                "dtype": "bfloat16",
                "bytes": op.size,
                "start_ns": start,
                "end_ns": end,
                "launch_start_ns": launch[rank],
                "launch_end_ns": launch[rank] + 10 * US,
                "peer_rank": op.root,
                "true": number,
                "true_step": step,
            }
        )
    return rows


def recorded(world: World, drop: Callable[[int, int], bool] = lambda rank, place: False):
    """What the ranks recorded: rows on their own clocks, and their timelines.

    ``drop(rank, place)``: whether the rank's row of that place (in its window, all groups) is missing.
    """
    truth = play(world)
    frames, timelines = [], []
    for rank in world.everyone:
        first, last = world.windows.get(rank, (0, world.steps))
        mine = truth[(truth["rank"] == rank) & truth["true_step"].between(first, last - 1)]
        begin = mine.groupby("true_step")["launch_start_ns"].min()
        kept = mine[[not drop(rank, place) for place in range(len(mine))]]
        kept = kept.assign(stream=7, method="nccl" if world.stated else "nccl_order", unit=None)
        kept["sequence"] = kept["true"] if world.stated else kept.groupby("group").cumcount()
        for column in ("start_ns", "end_ns", "launch_start_ns", "launch_end_ns"):
            kept[column] = local(world, rank, kept[column].to_numpy())
        if rank not in world.missing:
            frames.append(kept.assign(wait_start_ns=pd.NA, wait_end_ns=pd.NA))
            timelines.append(_timeline(world, rank, begin, int(mine["end_ns"].max())))
    frame = pd.concat(frames, ignore_index=True)
    for column in ("launch_start_ns", "launch_end_ns", "wait_start_ns", "wait_end_ns", "peer_rank"):
        frame[column] = frame[column].astype("Int64")
    return frame, timelines


def local(world: World, rank: int, times: np.ndarray) -> np.ndarray:
    """True times as the rank's clock shows them."""
    drifted = np.rint(np.asarray(times, dtype=np.float64) * world.drifts.get(rank, 0.0)).astype(np.int64)
    return times + EPOCH_NS + world.offsets.get(rank, 0) + drifted


def _timeline(world: World, rank: int, begin: "pd.Series[int]", end: int):
    ends = np.append(begin.to_numpy()[1:], end + US)
    steps = StepWindows(
        number=begin.index.to_numpy(dtype=np.int64),
        begin_ns=local(world, rank, begin.to_numpy()),
        end_ns=local(world, rank, ends),
    )
    return SimpleNamespace(
        rank=rank,
        host=world.hosts[rank] if world.hosts else f"host{rank}",
        pings={},
        host_steps=steps,
        source="ProfilerStep" if world.marked else "whole trace",
    )


def synchronised(world: World, drop=lambda rank, place: False):
    """What is made of it."""
    frame, timelines = recorded(world, drop)
    return synchronise_frame(frame, timelines, world.ranks)


def synchronise_frame(frame: pd.DataFrame, timelines, ranks: int):
    """What is made of these rows, with its collectives as a frame again."""
    seen = synchronise(as_columns(frame), timelines, ranks)
    return replace(seen, collectives=seen.collectives.to_frame())


def wrong_instances(seen) -> list[int]:
    """Instances whose rows are not one in truth."""
    placed = seen.collectives[seen.collectives["instance"] >= 0]
    several = placed.groupby("instance")["true"].nunique()
    return several[several > 1].index.tolist()


def split_truths(seen) -> int:
    """Collectives whose placed rows lie in several instances."""
    placed = seen.collectives[seen.collectives["instance"] >= 0]
    return int((placed.groupby("true")["instance"].nunique() > 1).sum())


def whole(seen) -> int:
    """Instances that all ranks of the group are in."""
    return seen.collectives.loc[seen.collectives["matched"], "instance"].nunique()
