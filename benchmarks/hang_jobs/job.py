"""A job that hangs, drawn by its seed: mesh, program, fault, what its dumps look like, and the truth."""

import random
from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from benchmarks.hang_jobs.engine import Entry, Key, Schedule, Speed, Stops, run_programs
from benchmarks.hang_jobs.faults import FAULTS, HEALTHY
from benchmarks.hang_jobs.findings import Finding, Outcome
from benchmarks.hang_jobs.mesh import Mesh, draw_mesh, draw_pair_mesh, make_megatron_mesh
from benchmarks.hang_jobs.plans import Plan
from benchmarks.hang_jobs.program import Program, Shape, draw_shape, write_programs
from zprof.model.hang import HangClass

KINDS = ("ddp", "fsdp", "3d", "expert")
WORLDS = (2, 4, 8, 8, 16, 16, 32, 64, 128)
LARGE_WORLDS = (256, 512, 1024)
#: Jobs with groups of two, in which the faults are planted.
PAIR_KINDS = ("pairs", "pairs", "fsdp", "3d", "expert")
PAIR_WORLDS = (4, 4, 6, 8, 12, 16)
#: 2.3 has pg_status, 2.7 the version of NCCL, 2.9 threads; 2.10 renames that version.
#: (2.2 has no pg_status; it is older than the dumps that zprof reads.)
VERSIONS = ("2.3", "2.4", "2.7", "2.9", "2.10")
NAME_STYLES = ("_dump_{rank}", "nccl_trace_rank_{rank}", "rank{rank}")
#: Faults whose dumps lead nowhere else if a member of the stuck group left none.
NEEDS_MEMBERS = {HangClass.NOT_FINISHED, HangClass.DIFFERENT_COLLECTIVES, HangClass.MISMATCHED}
MAX_TRIES, PLANS_PER_JOB = 400, 20
#: Whole steps before that of a fault, from which a reader knows what a rank repeats.
MIN_EARLIER_STEPS = 3
#: Faults of a rank that leaves the order of its earlier steps.
ORDER_FAULTS = ("never_entered", "circular_wait")
RANKS_PER_NODE = 8


class Dialect(Struct, frozen=True, kw_only=True):
    """What the dumps of a job look like.

    ``buffer``: entries that a rank keeps. ``earlier_steps``: how many steps came before the first entry that
    is kept. ``clocks_ns``: what the clock of each rank is ahead. ``copied_after_ns``: how long after the
    dumps their files were copied (their times say nothing then).
    """

    version: str
    is_json: bool
    has_frames: bool
    has_timing: bool
    only_active: bool
    buffer: int
    earlier_steps: int
    name_style: str
    clocks_ns: tuple[int, ...]
    copied_after_ns: int = 0


class TrueOperation(Struct, frozen=True, kw_only=True):
    """An operation that may be called the first stuck one, by any of ``sequences`` (none: unknown)."""

    kinds: tuple[str, ...]
    group: str
    description: str
    sequences: tuple[int, ...]
    ranks: tuple[int, ...]


class Truth(Struct, frozen=True, kw_only=True):
    """What a reader of the dumps must find; the first of each is what was planted, the others as defensible.

    ``kinds`` is empty if the job does not hang. ``planted``: the ranks with the fault. ``note``: why more
    than one answer is right.
    """

    seed: int
    fault: str
    kinds: tuple[HangClass, ...] = ()
    culprits: tuple[tuple[int, ...], ...] = ((),)
    operations: tuple[TrueOperation, ...] = ()
    planted: tuple[int, ...] = ()
    missing: tuple[int, ...] = ()
    note: str = ""


class Job(Struct, frozen=True, kw_only=True):
    """A job and its dumps. ``dump_ns``: when each rank wrote its own, on a clock that all share."""

    mesh: Mesh
    shape: Shape
    outcome: Outcome
    dialect: Dialect
    dump_ns: tuple[int, ...]
    truth: Truth

    @property
    def schedule(self) -> Schedule:
        """Return what happened."""
        return self.outcome.schedule


def draw_job(seed: int, fault: str | None = None, *, large: bool = False, has_pairs: bool = False) -> Job:
    """Return the job of a seed, with one of ``FAULTS`` or ``HEALTHY``; with pairs, they have the fault."""
    rng = random.Random(f"{seed} {fault} {large}" + " pairs" * has_pairs)
    faults = [*FAULTS, *HEALTHY]
    fault = fault or faults[seed % len(faults)]
    for _ in range(MAX_TRIES):
        if has_pairs:
            job = _try_pair_job(rng, seed, fault)
        else:
            job = _try_job(rng, seed, fault, rng.choice(LARGE_WORLDS if large else WORLDS))
        if job is not None:
            return job
    raise RuntimeError(f"no job of seed {seed} shows the fault {fault}")


def make_large_job(seed: int, world: int = 1024, entries: int = 2000) -> Job:
    """Return a job of an expert mesh in which one host is stuck, and each rank has filled its buffer."""
    rng = random.Random(seed)
    mesh = make_megatron_mesh("expert", world, 4, 4, 8)
    # Batched sends: none is left pending on the rank that gets stuck.
    shape = Shape(steps=1, layers=2, micro_batches=8, buckets=4, syncs_per_layer=True, is_batched=True)
    program = write_programs(rng, mesh, shape, ranks=[0])[0]
    per_step = sum(op.group is not None for op in program)
    shape = replace(shape, steps=entries // per_step + 2)
    dialect = Dialect(
        version="2.9",
        is_json=False,
        has_frames=True,
        has_timing=False,
        only_active=False,
        buffer=entries,
        earlier_steps=0,
        name_style=NAME_STYLES[0],
        clocks_ns=(0,) * world,
    )
    programs = write_programs(rng, mesh, shape)
    for _ in range(MAX_TRIES):
        rank = rng.randrange(world)
        index = rng.randrange(len(programs[rank]) * (shape.steps - 1) // shape.steps, len(programs[rank]) - 1)
        stops = Stops(host={rank: index})
        plan = Plan(programs=programs, culprits=(rank,), places=((rank, index),), stops=stops)
        job = _run_plan(rng, seed, "host_stuck", mesh, shape, dialect, plan)
        if job is not None:
            return job
    raise RuntimeError("no large job")


def _try_job(rng: random.Random, seed: int, fault: str, world: int) -> Job | None:
    kind = "3d" if fault == "receive_cycle" else rng.choice(KINDS)
    if kind in ("3d", "expert"):
        world = max(world, 8)
    if fault == "circular_wait" and kind == "ddp":
        kind = "fsdp"
    mesh = draw_mesh(rng, kind, world)
    shape = draw_shape(rng, mesh)
    if fault == "receive_cycle":
        shape = replace(shape, is_batched=False)
    dialect = _draw_dialect(rng, world, fault)
    return _plant_fault(rng, seed, fault, mesh, shape, dialect, write_programs(rng, mesh, shape))


def _try_pair_job(rng: random.Random, seed: int, fault: str) -> Job | None:
    kind = "3d" if fault == "receive_cycle" else rng.choice(PAIR_KINDS)
    mesh = draw_pair_mesh(
        rng, kind, rng.choice([each for each in PAIR_WORLDS if kind == "pairs" or each % 4 == 0])
    )
    shape = draw_shape(rng, mesh, steps=rng.randint(3, 8))
    shape = replace(shape, log_every=rng.choice((0, 0, 1, 2)))
    if fault == "receive_cycle":
        shape = replace(shape, is_batched=False)
    dialect = _draw_dialect(rng, mesh.world, fault)
    return _plant_fault(
        rng, seed, fault, mesh, shape, dialect, write_programs(rng, mesh, shape), in_pair=True
    )


def _plant_fault(
    rng: random.Random,
    seed: int,
    fault: str,
    mesh: Mesh,
    shape: Shape,
    dialect: Dialect,
    programs: list[Program],
    *,
    in_pair: bool = False,
) -> Job | None:
    if fault not in FAULTS:
        return _run_plan(rng, seed, fault, mesh, shape, dialect, Plan(programs=programs))
    for _ in range(PLANS_PER_JOB):
        plan = FAULTS[fault][0](rng, mesh, programs)
        if plan is not None and (not in_pair or _is_in_pair(plan, programs)):
            return _run_plan(rng, seed, fault, mesh, shape, dialect, plan, by_order=in_pair)
    return None


def _is_in_pair(plan: Plan, programs: list[Program]) -> bool:
    """Tell whether a fault is in an operation of a group of two."""
    groups = [programs[rank][index].group for rank, index in plan.places if index < len(programs[rank])]
    return any(group is not None and len(group.ranks) == 2 for group in groups)


def _run_plan(
    rng: random.Random,
    seed: int,
    fault: str,
    mesh: Mesh,
    shape: Shape,
    dialect: Dialect,
    plan: Plan,
    *,
    by_order: bool = False,
) -> Job | None:
    speeds = _draw_speeds(rng, mesh, plan.is_sync)
    outcome = Outcome(plan, mesh, run_programs(plan.programs, speeds, plan.stops))
    finding = FAULTS[fault][1](outcome) if fault in FAULTS else None
    if finding is None and fault in FAULTS:
        return None
    dump_ns = _draw_dump_times(rng, outcome, fault)
    missing = _draw_missing(rng, outcome, fault, finding)
    dialect = _widen_buffer(outcome, dialect, finding, missing)
    planted = tuple(sorted({rank for rank, _ in plan.places} & set(plan.culprits)))
    truth = Truth(seed=seed, fault=fault, planted=planted, missing=missing)
    if finding is not None:
        if by_order and fault in ORDER_FAULTS:
            finding = _settle_order(finding, outcome, shape, dialect)
        truth = _make_truth(truth, outcome, dialect, finding)
    return Job(mesh=mesh, shape=shape, outcome=outcome, dialect=dialect, dump_ns=dump_ns, truth=truth)


def _settle_order(finding: Finding, outcome: Outcome, shape: Shape, dialect: Dialect) -> Finding:
    """Settle who of a pair is odd: its earlier steps tell, else either is as defensible."""
    culprits = outcome.plan.culprits
    if _shows_order(outcome, shape, dialect):
        return replace(finding, culprits=(culprits,), note="its earlier steps tell")
    peers = [outcome.list_members(key) for key in finding.operations if len(key) == 2]
    pairs = tuple(each for each in peers if len(each) == 2 and set(culprits) <= set(each))
    return replace(
        finding,
        kinds=tuple(dict.fromkeys((*finding.kinds, HangClass.CIRCULAR_WAIT))),
        culprits=(*finding.culprits, *pairs),
        note="no earlier steps tell which of two left the order",
    )


def _shows_order(outcome: Outcome, shape: Shape, dialect: Dialect) -> bool:
    """Tell whether the dump of the odd rank has several whole steps before the one with the fault."""
    (rank, index), *_ = outcome.plan.places
    entries = outcome.schedule.entries[rank]
    per_step = -(-len(outcome.plan.programs[rank]) // shape.steps)
    earlier = [entry for entry in entries if index - MIN_EARLIER_STEPS * per_step <= entry.index < index]
    is_whole = index >= MIN_EARLIER_STEPS * per_step
    is_kept = len(entries) - earlier[0].record_id < dialect.buffer if earlier else False
    return is_whole and is_kept and not dialect.only_active


def _draw_dialect(rng: random.Random, world: int, fault: str) -> Dialect:
    is_json = rng.random() < 0.3
    only_active = rng.random() < 0.5
    is_wrapped = only_active or rng.random() < 0.4
    is_spread = rng.random() < 0.5
    nodes = [
        rng.randint(-400_000_000, 400_000_000) if is_spread else 0 for _ in range(-(-world // RANKS_PER_NODE))
    ]
    return Dialect(
        version=rng.choice(VERSIONS),
        is_json=is_json,
        has_frames=not is_json and rng.random() < 0.5,
        has_timing=rng.random() < 0.3,
        only_active=only_active,
        buffer=rng.choice((20, 60, 200)) if is_wrapped else 2000,
        earlier_steps=rng.choice((0, 30, 4000)) if is_wrapped else 0,
        name_style=rng.choice(NAME_STYLES),
        clocks_ns=tuple(nodes[rank // RANKS_PER_NODE] for rank in range(world)),
        copied_after_ns=86_400_000_000_000 if fault != "running" and rng.random() < 0.3 else 0,
    )


def _draw_speeds(rng: random.Random, mesh: Mesh, is_sync: bool | None) -> list[Speed]:
    ahead = rng.choice((1, 10, 30, 100, 300))
    if is_sync is not None:
        ahead = 1 if is_sync else max(ahead, 10)
    device_ns = rng.randint(100_000, 2_000_000)
    return [
        Speed(
            host_ns=rng.randint(20_000, 60_000),
            device_ns=device_ns + rng.randint(0, device_ns // 8),
            max_ahead=ahead,
        )
        for _ in range(mesh.world)
    ]


def _draw_dump_times(rng: random.Random, outcome: Outcome, fault: str) -> tuple[int, ...]:
    """Return when each rank dumps: long after the last operation, or amid those of a job that runs."""
    entries = [entry for rank in outcome.schedule.entries for entry in rank]
    end_ns = max(max(entry.created_ns, entry.completed_ns or 0) for entry in entries)
    world = outcome.mesh.world
    if fault == "running":
        at_ns = int(end_ns * rng.uniform(0.4, 0.9))
        spread_ns = rng.choice((0, 0, 2_000_000))
        return tuple(at_ns + rng.randint(0, spread_ns) for _ in range(world))
    at_ns = end_ns + rng.choice((120, 180, 600)) * 1_000_000_000
    return tuple(at_ns + rng.randint(0, 2_000_000_000) for _ in range(world))


def _draw_missing(
    rng: random.Random, outcome: Outcome, fault: str, finding: Finding | None
) -> tuple[int, ...]:
    """Return the ranks whose dumps are missing: the culprits, a few victims, or none."""
    if finding is None:
        return ()
    culprits, world = outcome.plan.culprits, outcome.mesh.world
    chance = rng.random()
    if fault == "rank_died" or (culprits and chance < 0.1 and world >= 4 and fault != "receive_cycle"):
        return culprits
    if chance > 0.4:
        return ()
    spared = set(culprits).union(*finding.culprits)
    if finding.kinds[0] in NEEDS_MEMBERS:
        spared |= {rank for key in finding.operations for rank in outcome.list_members(key)}
    # Whoever waits directly must be seen: of each operation the one that entered it first.
    spared |= {outcome.schedule.meetings[key].entered[0].rank for key in finding.operations}
    spared |= {entry.rank for entry in finding.evidence}
    victims = [rank for rank in range(world) if rank not in spared]
    return tuple(sorted(rng.sample(victims, min(rng.randint(1, 3), len(victims) // 2))))


def _widen_buffer(
    outcome: Outcome, dialect: Dialect, finding: Finding | None, missing: Sequence[int]
) -> Dialect:
    """Make the buffer as large as the evidence needs: what was overwritten everywhere nobody can find."""
    if finding is None:
        return dialect
    needed = list(finding.evidence)
    for key in finding.operations[:1]:
        needed += [entry for entry in outcome.schedule.meetings[key].entered if entry.rank not in missing][:1]
    buffer = dialect.buffer
    for entry in needed:
        buffer = max(buffer, len(outcome.schedule.entries[entry.rank]) - entry.record_id)
    return Dialect(
        **{**{name: getattr(dialect, name) for name in dialect.__struct_fields__}, "buffer": buffer}
    )


def _make_truth(truth: Truth, outcome: Outcome, dialect: Dialect, finding: Finding) -> Truth:
    kinds, culprits, note = finding.kinds, finding.culprits, finding.note
    gone = set(truth.missing) & set(outcome.plan.culprits)
    if gone:
        kinds, culprits = (HangClass.RANK_MISSING,), ((), truth.missing)
        note = "" if truth.fault == "rank_died" else "the dumps of the culprits are missing"
    offsets = count_earlier(outcome, dialect)
    operations = tuple(_describe(outcome, key, offsets) for key in dict.fromkeys(finding.operations))
    return replace(truth, kinds=kinds, culprits=culprits, operations=operations, note=note)


def _describe(outcome: Outcome, key: Key, offsets: dict[str, int]) -> TrueOperation:
    entered = outcome.schedule.meetings[key].entered
    group = entered[0].op.group
    assert group is not None
    offset = offsets[group.name]
    sequences: tuple[int, ...] = (key[-1] + offset,)
    if len(key) != 2:
        senders = [entry for entry in entered if entry.rank == key[1]]
        numbers = (entry.p2p_sequence + offset for entry in entered)
        sequences = tuple(dict.fromkeys(numbers)) if senders else ()
    return TrueOperation(
        kinds=tuple(dict.fromkeys(entry.op.kind for entry in entered)),
        group=group.name,
        description=group.description,
        sequences=sequences,
        ranks=outcome.list_members(key),
    )


def count_earlier(outcome: Outcome, dialect: Dialect) -> dict[str, int]:
    """Return how many operations each group had before the first simulated step."""
    return {group.name: dialect.earlier_steps * (3 + len(group.ranks) % 5) for group in outcome.mesh.groups}


def list_kept(job: Job, rank: int) -> list[Entry]:
    """Return what a rank's buffer holds when it dumps, oldest first."""
    entered = [entry for entry in job.schedule.entries[rank] if entry.created_ns <= job.dump_ns[rank]]
    oldest = entered[-1].record_id - job.dialect.buffer + 1 if entered else 0
    return [entry for entry in entered if entry.record_id >= oldest]
