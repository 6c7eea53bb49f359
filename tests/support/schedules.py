"""Small schedules of sharded steps whose every wait, transfer and exposed nanosecond is known.

Plays ranks against each other on a perfect clock (each with one main thread and one communication
thread), keeps the truth, and writes the run that a recorder would have written, on each rank's own
wrong clock.  Shares no code with the analysis: plain Python integers, loops over spans.
"""

import json
import random
from collections.abc import Callable, Sequence
from pathlib import Path

from msgspec import Struct, field

from zprof.model.training import TrainingFacts
from zprof.run.manifest import RunManifest
from zprof.run.schema import TABLES
from zprof.run.writer import RankWriter

BASE_NS = 1_790_857_026_000_000_000
US, MS = 1_000, 1_000_000
MAIN, COMM = 100, 200


class Spec(Struct):
    """What to play.  ``offsets_ns``: by how much each rank's clock is ahead of true time."""

    ranks: int = 2
    steps: int = 4
    units: int = 4
    forward_ns: int = 4 * MS
    backward_ns: int = 8 * MS
    gather_ns: int = 3 * MS
    reduce_ns: int = 3 * MS
    unit_bytes: int = 1 << 20
    prefetch: int = 0
    slow_rank: int | None = None
    slow_ns: int = 0
    slow_everywhere: bool = False
    python_ns: int = 200 * US
    wake_ns: int = 30 * US
    jitter_ns: int = 20 * US
    offsets_ns: Sequence[int] = ()
    hosts: Sequence[str] = ()
    pings: int = 3
    waits_recorded: bool = True
    method: str = "range"
    seed: int = 1


class Collective(Struct):
    """One collective on one rank, in true time."""

    rank: int
    step: int
    sequence: int
    kind: str
    unit: str
    launch: tuple[int, int]
    start: int = 0
    end: int = 0
    wait: tuple[int, int] | None = None


class RankTruth(Struct):
    """What one rank did, in true time."""

    compute: list[tuple[int, int, str]] = field(default_factory=list)
    collectives: list[Collective] = field(default_factory=list)
    steps: list[tuple[int, int]] = field(default_factory=list)
    pings: list[tuple[int, int]] = field(default_factory=list)


Program = list[tuple[str, object]]


def program(spec: Spec, rank: int, step: int) -> Program:
    """What the main thread of a rank does in a step: compute, launch and wait, by unit."""
    lines: Program = [("python", spec.python_ns)]
    order = [("forward", unit) for unit in range(spec.units)]
    order += [("backward", unit) for unit in reversed(range(spec.units))]
    launched = 0

    def gather_up_to(index: int) -> None:
        nonlocal launched
        while launched <= min(index, len(order) - 1):
            phase, unit = order[launched]
            lines.append(("launch", (f"{phase}{unit}", "all_gather", f"blocks.{unit}")))
            launched += 1

    for index, (phase, unit) in enumerate(order):
        gather_up_to(index)
        lines.append(("wait", f"{phase}{unit}"))
        gather_up_to(index + spec.prefetch)
        length = spec.forward_ns if phase == "forward" else spec.backward_ns
        if rank == spec.slow_rank and (spec.slow_everywhere or (phase, unit) == ("forward", 1)):
            length += spec.slow_ns
        lines.append(("compute", (length, phase, f"blocks.{unit}")))
        if phase == "backward":
            lines.append(("launch", (f"reduce{unit}", "reduce_scatter", f"blocks.{unit}")))
    lines += [("wait", f"reduce{unit}") for unit in reversed(range(spec.units))]
    return lines


def play(spec: Spec) -> list[RankTruth]:
    """Play all ranks; a collective ends everywhere one transfer after its last rank has started it."""
    draw = random.Random(spec.seed)
    truths = [RankTruth() for _ in range(spec.ranks)]
    clock = [rank * 7 * US for rank in range(spec.ranks)]
    free = [0] * spec.ranks
    _ping(spec, draw, truths, clock)
    for step in range(spec.steps):
        _play_step(spec, draw, step, truths, clock, free)
    _ping(spec, draw, truths, clock)
    return truths


def _ping(spec: Spec, draw: random.Random, truths: list[RankTruth], clock: list[int]) -> None:
    for _ in range(spec.pings):
        end = max(clock) + 20 * US
        for rank, truth in enumerate(truths):
            left = end + draw.randrange(600)
            truth.pings.append((clock[rank], left))
            clock[rank] = left + draw.randrange(1, 5 * US)


def _play_step(
    spec: Spec, draw: random.Random, step: int, truths: list[RankTruth], clock: list[int], free: list[int]
) -> None:
    programs = [program(spec, rank, step) for rank in range(spec.ranks)]
    position = [0] * spec.ranks
    open_: list[dict[str, Collective]] = [{} for _ in range(spec.ranks)]
    begins = list(clock)
    done: dict[str, int] = {}
    while any(position[rank] < len(programs[rank]) for rank in range(spec.ranks)):
        moved = False
        for rank in range(spec.ranks):
            while position[rank] < len(programs[rank]):
                verb, what = programs[rank][position[rank]]
                if verb == "wait" and what not in done:
                    break
                _do(spec, draw, step, rank, verb, what, truths[rank], clock, open_[rank])
                position[rank] += 1
                moved = True
            _finish(spec, draw, open_, free, done)
        assert moved or done, "deadlock in the schedule"
    for rank, truth in enumerate(truths):
        truth.steps.append((begins[rank], clock[rank]))


def _do(
    spec: Spec,
    draw: random.Random,
    step: int,
    rank: int,
    verb: str,
    what: object,
    truth: RankTruth,
    clock: list[int],
    open_: dict[str, Collective],
) -> None:
    now = clock[rank]
    if verb == "python":
        clock[rank] = now + int(what) + draw.randrange(spec.jitter_ns + 1)
    elif verb == "compute":
        length, phase, unit = what
        clock[rank] = now + length + draw.randrange(spec.jitter_ns + 1)
        truth.compute.append((now, clock[rank], f"zero::compute {phase} unit={unit}"))
    elif verb == "launch":
        name, kind, unit = what
        launch = (now, now + 40 * US)
        collective = Collective(rank, step, len(truth.collectives), kind, unit, launch)
        truth.collectives.append(collective)
        open_[name] = collective
        clock[rank] = launch[1]
    else:
        collective = open_[str(what)]
        clock[rank] = max(now, collective.end) + spec.wake_ns
        collective.wait = (now, clock[rank])


def _finish(
    spec: Spec,
    draw: random.Random,
    open_: list[dict[str, Collective]],
    free: list[int],
    done: dict[str, int],
) -> None:
    """Run, in order, the collectives that every rank has launched."""
    for name in list(open_[0]):
        if name in done:
            continue
        if not all(name in mine for mine in open_):
            return
        for rank, mine in enumerate(open_):
            mine[name].start = max(mine[name].launch[0] + 15 * US, free[rank])
        length = spec.gather_ns if open_[0][name].kind == "all_gather" else spec.reduce_ns
        end = max(mine[name].start for mine in open_) + length
        for rank, mine in enumerate(open_):
            mine[name].end = end + draw.randrange(500)
            free[rank] = mine[name].end
        done[name] = end


class Expected(Struct):
    """Truth of one collective on one rank."""

    wait_ns: int
    transfer_ns: int
    exposed_wait_ns: int
    exposed_transfer_ns: int


def expected(truths: list[RankTruth]) -> dict[tuple[int, int], Expected]:
    """Waits and exposure by (rank, sequence), by looking at each pair of spans."""
    arrival: dict[int, int] = {}
    for truth in truths:
        for collective in truth.collectives:
            arrival[collective.sequence] = max(arrival.get(collective.sequence, 0), collective.start)
    found: dict[tuple[int, int], Expected] = {}
    for rank, truth in enumerate(truths):
        waits = [c.wait for c in truth.collectives if c.wait is not None]
        for c in truth.collectives:
            last = min(arrival[c.sequence], c.end)
            found[rank, c.sequence] = Expected(
                wait_ns=last - c.start,
                transfer_ns=c.end - last,
                exposed_wait_ns=sum(_overlap(c.start, last, *wait) for wait in waits),
                exposed_transfer_ns=sum(_overlap(last, c.end, *wait) for wait in waits),
            )
    return found


def _overlap(start: int, end: int, other_start: int, other_end: int) -> int:
    return max(0, min(end, other_end) - max(start, other_start))


Drop = Callable[[int, Collective], bool]


def write(
    path: Path,
    spec: Spec,
    truths: list[RankTruth],
    *,
    drop: Drop = lambda rank, collective: False,
    skip_ranks: Sequence[int] = (),
    training: TrainingFacts | None = None,
) -> Path:
    """Write the run that a recorder would have written.

    Args:
        path: The run directory.
        spec: What was played.
        truths: Its truth.
        drop: Collectives that are to be missing from the table of a rank.
        skip_ranks: Ranks that are to be missing altogether.
        training: What the program says of itself.
    """
    manifest = RunManifest(
        zprof_version="0",
        created_ns=BASE_NS,
        world_size=spec.ranks,
        backend="gloo",
        device="cpu",
        training=training or TrainingFacts(),
    )
    for rank, truth in enumerate(truths):
        if rank not in skip_ranks:
            _write_rank(path, spec, rank, truth, manifest, drop)
    return path


def _write_rank(
    path: Path, spec: Spec, rank: int, truth: RankTruth, manifest: RunManifest, drop: Drop
) -> None:
    offset = BASE_NS + (spec.offsets_ns[rank] if spec.offsets_ns else 0)
    writer = RankWriter(path, rank, manifest)
    writer.write_table("events", _events(spec, truth, offset))
    kept = [c for c in truth.collectives if not drop(rank, c)]
    rows = [_collective_row(spec, index, c, offset) for index, c in enumerate(kept)]
    writer.write_table(
        "collectives", {name: [row.get(name) for row in rows] for name in TABLES["collectives"].names}
    )
    writer.write_table("mark", _marks(truth, offset))
    writer.finish(memory_steps=(), time_steps=range(spec.steps), gaps=(), status="complete")
    if spec.hosts:
        _rename_host(writer.folder / "rank.json", spec.hosts[rank])


def _rename_host(path: Path, host: str) -> None:
    content = json.loads(path.read_text())
    path.write_text(json.dumps(content | {"host": host}))


def _events(spec: Spec, truth: RankTruth, offset: int) -> dict[str, list[object]]:
    spans = [(start, end, "user_annotation", name, MAIN) for start, end, name in truth.compute]
    spans += [(start, end, "cpu_op", "aten::mm", MAIN) for start, end, _ in truth.compute]
    for c in truth.collectives:
        tail = f"{c.kind} pg=0 seq={c.sequence} unit={c.unit}"
        spans.append((*c.launch, "user_annotation", f"zero::launch {tail}", MAIN))
        spans.append((c.start, c.end, "user_annotation", f"zero::comm {tail}", COMM))
        if c.wait is not None and spec.waits_recorded:
            spans.append((*c.wait, "user_annotation", f"zero::wait {tail}", MAIN))
    spans += [(start, start + US, "cpu_op", "profiler::mark", MAIN) for start, _ in truth.steps]
    spans += [(end - US, end, "cpu_op", "profiler::mark", MAIN) for _, end in truth.steps]
    spans.sort()
    return {
        "start_ns": [offset + start for start, *_ in spans],
        "duration_ns": [end - start for start, end, *_ in spans],
        "category": [category for _, _, category, _, _ in spans],
        "name": [name for *_, name, _ in spans],
        "thread": [thread for *_, thread in spans],
        "stream": [None] * len(spans),
        "correlation": [None] * len(spans),
    }


def _collective_row(spec: Spec, index: int, c: Collective, offset: int) -> dict[str, object]:
    waited = c.wait is not None and spec.waits_recorded
    return {
        "kind": c.kind,
        "group": ",".join(str(rank) for rank in range(spec.ranks)),
        "group_size": spec.ranks,
        "sequence": index if spec.method.endswith("_order") else c.sequence,
        "dtype": "float32",
        "bytes": spec.unit_bytes,
        "start_ns": offset + c.start,
        "end_ns": offset + c.end,
        "launch_start_ns": offset + c.launch[0],
        "launch_end_ns": offset + c.launch[1],
        "wait_start_ns": offset + c.wait[0] if waited else None,
        "wait_end_ns": offset + c.wait[1] if waited else None,
        "unit": c.unit,
        "stream": None,
        "method": spec.method,
    }


def _marks(truth: RankTruth, offset: int) -> dict[str, list[object]]:
    rows: list[tuple[int, str, int, str]] = []
    for number, (begin, end) in enumerate(truth.steps):
        rows += [(offset + begin, "step_begin", number, ""), (offset + end, "step_end", number, "")]
    for number, (begin, end) in enumerate(truth.pings):
        rows += [(offset + begin, "ping_begin", number, ""), (offset + end, "ping_end", number, "")]
    return {
        name: [row[column] for row in rows]
        for column, name in enumerate(("time_ns", "kind", "number", "name"))
    }
