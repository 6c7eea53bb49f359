"""Hand-made analyses with a known truth: a small model of ranks, units and one link.

Every rank runs the same list of operations.  A collective starts on a rank when it is launched there
and the link is free, transfers from the last start on, and ends everywhere at the same time; a main
thread computes, or blocks in a wait.
"""

import numpy as np
from msgspec import Struct, field
from msgspec.structs import replace

from tests.support.tables import changed, selected
from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.columns import Columns, Groups, OptionalInts, Texts, find_places
from zprof.analysis.intervals import Int64s, Intervals, union
from zprof.analysis.time.decomposition import measure_prefetch
from zprof.analysis.time.ledger import estimate_step_noise
from zprof.model.collectives import CollectiveKind, bus_factor
from zprof.model.gaps import Gap, GapKind
from zprof.model.memory import Memory
from zprof.model.report import RunFacts, Volume
from zprof.model.time import Alignment, CollectiveTime, RankTime, Time
from zprof.model.training import TrainingFacts

MS = 1_000_000
ORIGIN = 1_700_000_000_000_000_000
_LEDGER = ["compute_ns", "exposed_wait_ns", "exposed_transfer_ns", "exposed_memcpy_ns", "idle_ns"]
_NULLABLE = [
    "launch_start_ns", "launch_end_ns", "wait_start_ns", "wait_end_ns", "compute_before_wait_ns",
    "dependency_ns", "blocked_ns",
]  # fmt: skip


class Scenario(Struct, frozen=True, kw_only=True):
    """What is planted.  Times in ms; ``delay_ms`` sleeps on a rank before one unit of each step."""

    name: str = "run"
    ranks: int = 2
    steps: int = 8
    units: int = 6
    stage: int = 3
    prefetch: bool = True
    compute_ms: float = 12.0
    unit_bytes: int = 4 << 20
    bytes_per_s: float = 500e6
    delay_ms: dict[int, float] = field(default_factory=dict)
    slower: dict[int, float] = field(default_factory=dict)
    first_skew_ms: float = 0.0
    noise_ms: float = 0.3
    uncertainty_ns: int = 20_000
    noise_floor_ns: int = 500_000
    seed: int = 7
    engine: str = "reference"


class _Ranks:
    """Main threads and link of all ranks, in lockstep over the operations of a step."""

    def __init__(self, plan: Scenario) -> None:
        self.plan = plan
        self.now = np.full(plan.ranks, ORIGIN, dtype=np.int64)
        self.link = np.full(plan.ranks, ORIGIN, dtype=np.int64)
        self.computed = np.zeros(plan.ranks, dtype=np.int64)
        self.busy: list[list[tuple[int, int]]] = [[] for _ in range(plan.ranks)]
        self.moving: list[list[tuple[int, int]]] = [[] for _ in range(plan.ranks)]
        self.random = np.random.default_rng(plan.seed)
        self.rows: list[dict[str, object]] = []
        self.step = 0
        self.sequence = 0
        self._open: dict[tuple[str, int], list[dict[str, object]]] = {}

    def compute(self, milliseconds: float) -> None:
        noise = self.random.exponential(self.plan.noise_ms, self.plan.ranks)
        factors = np.array([self.plan.slower.get(rank, 1.0) for rank in range(self.plan.ranks)])
        spent = ((milliseconds * factors + noise) * MS).astype(np.int64)
        for rank, begin in enumerate(self.now):
            self.busy[rank].append((int(begin), int(begin + spent[rank])))
        self.now += spent
        self.computed += spent

    def sleep(self) -> None:
        for rank, milliseconds in self.plan.delay_ms.items():
            self.now[rank] += int(milliseconds * MS)

    def launch(self, kind: CollectiveKind, unit: int) -> None:
        start = np.maximum(self.now, self.link)
        if not self.rows:
            start[-1] += int(self.plan.first_skew_ms * MS)
        last = int(start.max())
        factor = bus_factor(kind, self.plan.ranks)
        end = last + int(self.plan.unit_bytes * factor / self.plan.bytes_per_s * 1e9)
        self.link[:] = end
        rows = [self._row(kind, unit, rank, int(start[rank]), last, end) for rank in range(self.plan.ranks)]
        self._open[kind.value, unit] = rows
        self.rows += rows
        self.sequence += 1

    def _row(
        self, kind: CollectiveKind, unit: int, rank: int, start: int, last: int, end: int
    ) -> dict[str, object]:
        return {
            "rank": rank, "step": self.step, "kind": kind.value, "group": "0",
            "group_size": self.plan.ranks, "sequence": self.sequence, "dtype": "float32",
            "instance": self.sequence,
            "bytes": self.plan.unit_bytes, "unit": f"blocks.{unit}", "start_ns": start, "end_ns": end,
            "wait_ns": last - start, "transfer_ns": end - last, "exposed_wait_ns": 0,
            "exposed_transfer_ns": 0, "hidden_ns": end - start,
            "launch_start_ns": int(self.now[rank]), "launch_end_ns": int(self.now[rank]),
            "blocked_ns": 0, "dependency_ns": start - int(self.now[rank]),
            "computed_at_launch": int(self.computed[rank]), "last_ns": last,
            "first_of_window": not self.rows, "matched": True,
        }  # fmt: skip

    def wait(self, kind: CollectiveKind, unit: int) -> None:
        for row in self._open.pop((kind.value, unit)):
            rank, end, last = int(row["rank"]), int(row["end_ns"]), int(row["last_ns"])  # type: ignore[call-overload]
            begin = int(self.now[rank])
            row["wait_start_ns"], row["wait_end_ns"] = begin, max(begin, end)
            row["compute_before_wait_ns"] = int(self.computed[rank]) - int(row["computed_at_launch"])  # type: ignore[call-overload]
            row["exposed_wait_ns"] = max(0, last - max(begin, int(row["start_ns"])))  # type: ignore[call-overload]
            row["exposed_transfer_ns"] = max(0, end - max(begin, last))
            # blocked before its start: others move their bytes
            self.moving[rank] += [(begin, int(row["start_ns"])), (max(begin, last), end)]  # type: ignore[call-overload]
            row["hidden_ns"] = (
                end - int(row["start_ns"]) - row["exposed_wait_ns"] - row["exposed_transfer_ns"]
            )  # type: ignore[call-overload, operator]
            self.now[rank] = max(begin, end)


def analysis_of(plan: Scenario) -> RunAnalysis:
    """The analysis that a perfect measurement of ``plan`` would give."""
    ranks = _Ranks(plan)
    steps = [row for step in range(plan.steps) for row in _run_step(ranks, step)]
    collectives = _make_collectives(ranks, plan.ranks)
    table = _make_steps(steps, collectives)
    return RunAnalysis(
        run=_facts(plan),
        training=_training(plan),
        time=Time(
            per_rank=_rank_times(plan, table),
            collectives=_collective_times(plan, table, collectives),
            alignment=_alignment(plan, collectives),
            step_noise_ns=estimate_step_noise(table),
        ),
        memory=Memory(),
        volume=Volume(expected_bytes=3 * _parameters(plan), seen_bytes=3 * _parameters(plan), ratio=1.0),
        steps=table,
        collectives=collectives,
        gaps=(),
    )


def _training(plan: Scenario) -> TrainingFacts:
    """fp32 with AdamW; by default of the size of ``tests.support.memories``."""
    return TrainingFacts(
        engine=plan.engine,
        stage=plan.stage,
        parameters=_parameters(plan),
        shard_ranks=plan.ranks,
        parameter_bytes=4,
        gradient_bytes=4,
        optimizer_state_bytes=8,
        communication_bytes=4,
        tokens_per_step=8192,
    )


def _parameters(plan: Scenario) -> int:
    """As many as travel as fp32 for each pass over the units."""
    return plan.units * plan.unit_bytes // 4


def without_rank(analysis: RunAnalysis, rank: int) -> RunAnalysis:
    """The same run as it looks when a rank's recording is missing."""
    loaded = tuple(r for r in analysis.run.ranks_loaded if r != rank)
    steps, rows = (
        selected(each, each.ints("rank") != rank) for each in (analysis.steps, analysis.collectives)
    )
    return replace(
        analysis,
        run=replace(analysis.run, ranks_loaded=loaded),
        steps=steps,
        collectives=changed(rows, matched=False, last_rank=-1),
        time=replace(
            analysis.time,
            per_rank=tuple(entry for entry in analysis.time.per_rank if entry.rank != rank),
            alignment=None,
        ),
        gaps=(
            Gap(
                kind=GapKind.RANK_MISSING,
                what="rank missing",
                rank=rank,
                reason="it was killed",
                remedy="record again",
            ),
        ),
    )


def _run_step(ranks: _Ranks, step: int) -> list[dict[str, int]]:
    ranks.step = step
    begin = ranks.now.copy()
    before = ranks.computed.copy()
    (_sharded_step if ranks.plan.stage == 3 else _replicated_step)(ranks)
    return [
        {
            "rank": rank,
            "step": step,
            "wall_ns": int(ranks.now[rank] - begin[rank]),
            "compute_ns": int(ranks.computed[rank] - before[rank]),
        }
        for rank in range(ranks.plan.ranks)
    ]


def _sharded_step(ranks: _Ranks) -> None:
    units, gather, reduce = ranks.plan.units, CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER
    order = [*range(units), *range(units, 2 * units)]  # the second half is the backward pass
    if ranks.plan.prefetch:
        ranks.launch(gather, order[0])
    for position, unit in enumerate(order):
        if not ranks.plan.prefetch:
            ranks.launch(gather, unit)
        ranks.wait(gather, unit)
        if ranks.plan.prefetch and position + 1 < len(order):
            ranks.launch(gather, order[position + 1])
        if position == 2:
            ranks.sleep()
        ranks.compute(ranks.plan.compute_ms * (1 if unit < units else 2))
        if unit >= units:
            ranks.launch(reduce, unit)
    for unit in range(units, 2 * units):
        ranks.wait(reduce, unit)


def _replicated_step(ranks: _Ranks) -> None:
    for unit in range(2 * ranks.plan.units):
        if unit == 2:
            ranks.sleep()
        ranks.compute(ranks.plan.compute_ms * (1 if unit < ranks.plan.units else 2))
        if unit >= ranks.plan.units:
            ranks.launch(CollectiveKind.ALL_REDUCE, unit)
    for unit in range(ranks.plan.units, 2 * ranks.plan.units):
        ranks.wait(CollectiveKind.ALL_REDUCE, unit)


def _make_collectives(ranks: _Ranks, world_size: int) -> Columns:
    """Return the rows of all ranks; a single one has no collectives."""
    names = [name for name in ranks.rows[0] if name not in ("computed_at_launch", "last_ns")]
    rows = Columns.from_rows(ranks.rows, names)
    optional = {name: OptionalInts(rows.ints(name), rows.known(name)) for name in _NULLABLE}
    start, instances = rows.ints("start_ns"), Groups(rows.ints("sequence"))
    last = np.lexsort((-start, instances.codes))[instances.starts]
    last_rank = rows.ints("rank")[last][instances.codes]
    rows = rows.with_columns(
        **optional,
        lateness_ns=start - instances.min(start)[instances.codes],
        last_rank=last_rank,
        blamed_rank=last_rank,
        origin_rank=last_rank,
        late_reason=Texts(("host",), np.zeros(len(rows), dtype=np.int64)),
        **_measure_room(rows, ranks),
    )
    return rows if world_size > 1 else rows.at(slice(0))


def _spans(pairs: list[tuple[int, int]]) -> Intervals:
    return union(np.array(pairs, dtype=np.int64).reshape(-1, 2))


def _measure_room(rows: Columns, ranks: _Ranks) -> dict[str, Int64s]:
    """Return what each gather could have run under."""
    room = {name: np.zeros(len(rows), dtype=np.int64) for name in ("free_compute_ns", "queued_exposed_ns")}
    for rank in range(ranks.plan.ranks):
        mine = rows.ints("rank") == rank
        of_rank = measure_prefetch(rows.at(mine), _spans(ranks.busy[rank]), _spans(ranks.moving[rank]))
        for name, values in of_rank.items():
            room[name][mine] = values
    return room


def _make_steps(rows: list[dict[str, int]], collectives: Columns) -> Columns:
    """Return the ledger of each rank and step; the model counts what a gather stood behind as hidden."""
    steps = Columns.from_rows(rows, rows[0])
    keys = [steps.ints("rank"), steps.ints("step")]
    wait, transfer, hidden, queued = (
        _sum_by_step(keys, collectives, name)
        for name in ("exposed_wait_ns", "exposed_transfer_ns", "hidden_ns", "queued_exposed_ns")
    )
    nothing = np.zeros(len(steps), dtype=np.int64)
    return steps.with_columns(
        exposed_wait_ns=wait,
        exposed_transfer_ns=transfer,
        overlapped_ns=np.maximum(0, hidden - queued),
        exposed_memcpy_ns=nothing,
        collective_ns=wait + transfer + hidden,
        idle_ns=steps.ints("wall_ns") - steps.ints("compute_ns") - wait - transfer,
        unexplained_ns=nothing,
    )


def _sum_by_step(keys: list[Int64s], collectives: Columns, name: str) -> Int64s:
    sums = np.zeros(len(keys[0]), dtype=np.int64)
    if len(collectives):
        places = find_places([collectives.ints("rank"), collectives.ints("step")], keys)
        np.add.at(sums, places, collectives.ints(name))
    return sums


def _rank_times(plan: Scenario, steps: Columns) -> tuple[RankTime, ...]:
    times = []
    for rank in range(plan.ranks):
        rows = steps.at(steps.ints("rank") == rank)
        means = {
            name: round(float(rows.ints(name).mean()))
            for name in [*_LEDGER, "overlapped_ns", "collective_ns"]
        }
        wall = round(float(rows.ints("wall_ns").mean()))
        collective = means["collective_ns"]
        times.append(
            RankTime(
                rank=rank,
                steps=len(rows),
                wall_ns=wall,
                unexplained_ns=wall - sum(means[term] for term in _LEDGER),
                wall_median_ns=round(float(np.median(rows.ints("wall_ns")))),
                overlap_ratio=means["overlapped_ns"] / collective if collective else None,
                method="wait spans",
                noise_floor_ns=plan.noise_floor_ns,
                **means,
            )
        )
    return tuple(times)


def _collective_times(plan: Scenario, steps: Columns, collectives: Columns) -> tuple[CollectiveTime, ...]:
    times, count = [], len(steps)
    for places in Groups(collectives.texts("kind")).split() if len(collectives) else ():
        rows = collectives.at(places)
        kind = CollectiveKind(rows.texts("kind")[0])
        exposed = rows.ints("exposed_wait_ns") + rows.ints("exposed_transfer_ns")
        times.append(
            CollectiveTime(
                kind=kind.value,
                group="0",
                dtype="float32",
                count=len(rows) / count,
                bytes=int(rows.ints("bytes").sum() // count),
                total_ns=int((rows.ints("end_ns") - rows.ints("start_ns")).sum() // count),
                exposed_ns=int(exposed.sum() // count),
                wait_ns=int(rows.ints("wait_ns").sum() // count),
                transfer_ns=int(rows.ints("transfer_ns").sum() // count),
                launch_delay_ns=0,
                algbw_bytes_per_s=plan.bytes_per_s / bus_factor(kind, plan.ranks),
                busbw_bytes_per_s=plan.bytes_per_s,
                method="range",
            )
        )
    return tuple(times)


def _alignment(plan: Scenario, collectives: Columns) -> Alignment:
    return Alignment(
        method="clock pings",
        offsets_ns=dict.fromkeys(range(plan.ranks), 0),
        uncertainty_ns=plan.uncertainty_ns,
        matched=len(np.unique(collectives.ints("sequence"))) if len(collectives) else 0,
        unmatched=0,
    )


def _facts(plan: Scenario) -> RunFacts:
    return RunFacts(
        name=plan.name,
        source="recorder",
        world_size=plan.ranks,
        ranks_loaded=tuple(range(plan.ranks)),
        steps=tuple(range(plan.steps)),
        memory_steps=(),
        device="cpu",
        backend="gloo",
        engine=plan.engine,
        stage=plan.stage,
        modelled=(f"link {plan.bytes_per_s / 1e6:.0f} MB/s", f"compute {plan.compute_ms} ms a unit"),
    )
