"""Compute the ground truth of a schedule: its steps, collectives and the bytes expected by the ZeRO formula.

Stages 0, 1 and 2 move twice the parameters per step (an all-reduce is a reduce-scatter and an all-gather),
stage 3 three times (Rajbhandari et al. 2020, section 7); gathers and reductions in their own data types.
"""

from collections.abc import Mapping, Sequence

import numpy as np
from msgspec import Struct

from zprof.model.collectives import CollectiveKind
from zprof.model.time import LateReason
from zprof.simulator.engine.schedule import ORIGIN_NS, ExecutedInstruction, SimulatedRun
from zprof.simulator.plan import SimulationPlan, Vendor
from zprof.simulator.program.instructions import (
    CollectiveLaunch,
    CopyLaunch,
    EndAnnotation,
    KernelLaunch,
    StartAnnotation,
)
from zprof.simulator.program.step import FIRST_STEP
from zprof.simulator.truth.model import SCHEMA, CollectiveTruth, GroundTruth, RankTruth, StepTruth
from zprof.simulator.truth.sweep import (
    CollectiveSums,
    Dependencies,
    Running,
    StepSums,
    Sweep,
    find_blocked_spans,
    resolve_dependencies,
)

_STEP_PREFIX = "ProfilerStep#"


class _GroupTiming(Struct, frozen=True, kw_only=True):
    """Facts about one collective that are common to all ranks of a group."""

    ranks: tuple[int, ...]
    late_rank: int
    lead_ns: int
    reason: LateReason


def build_truth(
    schedule: SimulatedRun, ranks: Sequence[RankTruth], missing_collectives: Mapping[int, frozenset[int]]
) -> GroundTruth:
    """Return the ground truth of a schedule.

    Args:
        schedule: The simulated schedule.
        ranks: Clock and file of each rank.
        missing_collectives: By rank, the numbers of the collectives that are not in its trace.
    """
    plan, known = schedule.plan, resolve_dependencies(schedule)
    lines = [schedule.lines[index] for index in known.collectives]
    group_timings = [_time_groups(line) for line in lines]
    steps: list[StepTruth] = []
    rows: list[CollectiveTruth] = []
    for rank in range(plan.ranks):
        rank_steps, sums = measure_steps(schedule, known, rank)
        steps += rank_steps
        missing = missing_collectives.get(rank, frozenset())
        rows += [
            _make_row(line, group_timings[number][rank], rank, exposed, number not in missing)
            for number, (line, exposed) in enumerate(
                zip(lines, zip(sums.wait_ns, sums.transfer_ns, strict=True), strict=True)
            )
        ]
    return GroundTruth(
        schema=SCHEMA,
        vendor=plan.vendor,
        ranks=plan.ranks,
        steps=plan.steps,
        stage=plan.stage,
        seed=plan.seed,
        cause=plan.cause,
        strength=plan.strength,
        origin_ns=ORIGIN_NS,
        step_bytes=_count_step_bytes(lines),
        law_bytes=compute_zero_formula_bytes(plan),
        collectives=tuple(rows),
        per_step=tuple(steps),
        per_rank=tuple(ranks),
    )


def _time_groups(line: ExecutedInstruction) -> dict[int, _GroupTiming]:
    assert line.groups is not None
    timings: dict[int, _GroupTiming] = {}
    for members, (late, reason) in zip(line.groups.members, line.late, strict=True):
        starts = np.sort(line.begin[members])
        timing = _GroupTiming(
            ranks=tuple(sorted(int(rank) for rank in members)),
            late_rank=late,
            lead_ns=int(starts[-1] - starts[-2]) if len(starts) > 1 else 0,
            reason=reason,
        )
        timings.update(dict.fromkeys(members.tolist(), timing))
    return timings


def _make_row(
    line: ExecutedInstruction, timing: _GroupTiming, rank: int, exposed: tuple[int, int], recorded: bool
) -> CollectiveTruth:
    collective, arrival = line.instruction, line.arrival
    assert isinstance(collective, CollectiveLaunch)
    assert arrival is not None
    start, end = int(line.begin[rank]), int(line.end[rank])
    last_arrival = int(arrival[rank])
    return CollectiveTruth(
        rank=rank,
        step=line.step,
        kind=collective.kind,
        ranks=timing.ranks,
        sequence=line.sequence,
        unit=collective.unit,
        bytes=collective.bytes,
        dtype=str(collective.dtype),
        launch_ns=ORIGIN_NS + int(line.launch[rank]),
        start_ns=ORIGIN_NS + start,
        end_ns=ORIGIN_NS + end,
        wait_ns=last_arrival - start,
        transfer_ns=end - last_arrival,
        exposed_wait_ns=exposed[0],
        exposed_transfer_ns=exposed[1],
        late_rank=timing.late_rank,
        lead_ns=timing.lead_ns,
        reason=timing.reason,
        recorded=recorded,
    )


def _count_step_bytes(lines: Sequence[ExecutedInstruction]) -> int:
    """Return the bytes of the first step's parameter and gradient messages, an all-reduce counted twice."""
    total = 0
    for line in lines:
        collective = line.instruction
        assert isinstance(collective, CollectiveLaunch)
        if line.step == 0 and collective.elements > 1 and not collective.key.startswith("tensor."):
            total += collective.bytes * (2 if collective.kind is CollectiveKind.ALL_REDUCE else 1)
    return total


def measure_steps(
    schedule: SimulatedRun, known: Dependencies, rank: int
) -> tuple[list[StepTruth], CollectiveSums]:
    """Return the steps of a rank, and the exposed parts of its collectives within them."""
    starts = _find_marks(schedule, StartAnnotation, rank)
    host = list(zip(starts, _find_marks(schedule, EndAnnotation, rank), strict=True))
    bounds = host if schedule.plan.vendor is Vendor.GLOO else _find_device_steps(schedule, host, rank)
    sums = [StepSums(begin_ns=begin, end_ns=end) for begin, end in bounds]
    sweep = Sweep([_make_running(schedule.lines[index], rank) for index in known.collectives], sums)
    sweep.run(
        compute=[_get_span(schedule.lines[index], rank) for index in known.kernels],
        copies=[_get_span(schedule.lines[index], rank) for index in known.copies],
        blocked=find_blocked_spans(schedule, known, rank),
    )
    steps = [
        _make_step_truth(rank, step, span, one)
        for step, (span, one) in enumerate(zip(host, sums, strict=True))
    ]
    return steps, sweep.sums


def _make_step_truth(rank: int, step: int, host: tuple[int, int], sums: StepSums) -> StepTruth:
    wall = sums.end_ns - sums.begin_ns
    exposed_ns = sums.wait_ns + sums.transfer_ns
    return StepTruth(
        rank=rank,
        step=step,
        number=FIRST_STEP + step,
        host_begin_ns=ORIGIN_NS + host[0],
        host_end_ns=ORIGIN_NS + host[1],
        begin_ns=ORIGIN_NS + sums.begin_ns,
        end_ns=ORIGIN_NS + sums.end_ns,
        wall_ns=wall,
        compute_ns=sums.compute_ns,
        collective_ns=sums.collective_ns,
        overlapped_ns=sums.collective_ns - exposed_ns,
        exposed_wait_ns=sums.wait_ns,
        exposed_transfer_ns=sums.transfer_ns,
        exposed_memcpy_ns=sums.memcpy_ns,
        idle_ns=wall - sums.compute_ns - exposed_ns - sums.memcpy_ns,
        ambiguous_ns=sums.ambiguous_ns,
    )


def _find_marks(
    schedule: SimulatedRun, kind: type[StartAnnotation] | type[EndAnnotation], rank: int
) -> list[int]:
    return [
        int(line.host_begin[rank])
        for line in schedule.lines
        if isinstance(line.instruction, kind) and line.instruction.name.startswith(_STEP_PREFIX)
    ]


def _find_device_steps(
    schedule: SimulatedRun, host: list[tuple[int, int]], rank: int
) -> list[tuple[int, int]]:
    """Return the device's step boundaries: each moves to the end of the work launched before it."""
    work = [
        line
        for line in schedule.lines
        if isinstance(line.instruction, KernelLaunch | CollectiveLaunch | CopyLaunch)
    ]
    launched = [(int(line.launch[rank]), int(line.end[rank])) for line in work]

    def get_work_end(boundary: int) -> int:
        return max([boundary, *(end for launch, end in launched if launch < boundary)])

    return [(get_work_end(begin), get_work_end(end)) for begin, end in host]


def _make_running(line: ExecutedInstruction, rank: int) -> Running:
    assert line.arrival is not None
    return Running(
        begin_ns=int(line.begin[rank]), arrival_ns=int(line.arrival[rank]), end_ns=int(line.end[rank])
    )


def _get_span(line: ExecutedInstruction, rank: int) -> tuple[int, int]:
    return int(line.begin[rank]), int(line.end[rank])


def compute_zero_formula_bytes(plan: SimulationPlan) -> int:
    """Return the bytes per step according to the ZeRO formula, with the plan's types; 0 for a single rank."""
    if plan.shard_size * plan.replicas == 1:
        return 0
    elements = plan.units * plan.unit_elements
    gather, reduce = plan.precision.gather.size_bytes, plan.precision.reduce.size_bytes
    if plan.stage == 0:
        return 2 * elements * reduce
    return elements * (reduce + (2 if plan.stage == 3 else 1) * gather)
