"""The truth of a schedule, put together."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from zprof.model.collectives import CollectiveKind
from zprof.model.time import LateReason
from zprof.simulator.clocks import ORIGIN_NS
from zprof.simulator.engine.schedule import Line, Schedule
from zprof.simulator.program.instructions import Collective
from zprof.simulator.truth.law import law_bytes
from zprof.simulator.truth.model import SCHEMA, CollectiveTruth, RankTruth, StepTruth, Truth
from zprof.simulator.truth.spans import dependencies
from zprof.simulator.truth.steps import swept_steps


@dataclass(frozen=True, slots=True, kw_only=True)
class _Meeting:
    """What all ranks of a group share about one collective."""

    ranks: tuple[int, ...]
    late_rank: int
    lead_ns: int
    reason: LateReason


def build_truth(schedule: Schedule, ranks: Sequence[RankTruth], lost: Mapping[int, frozenset[int]]) -> Truth:
    """The truth of a schedule.

    Args:
        schedule: What happened.
        ranks: What is known of each rank's clock and file.
        lost: By rank, the numbers of the collectives that its trace lacks.
    """
    plan, known = schedule.plan, dependencies(schedule)
    lines = [schedule.lines[index] for index in known.collectives]
    meetings = [_meetings(line) for line in lines]
    steps: list[StepTruth] = []
    rows: list[CollectiveTruth] = []
    for rank in range(plan.ranks):
        swept, sums = swept_steps(schedule, known, rank)
        steps += swept
        missing = lost.get(rank, frozenset())
        rows += [
            _row(line, meetings[number][rank], rank, exposed, number not in missing)
            for number, (line, exposed) in enumerate(
                zip(lines, zip(sums.wait_ns, sums.transfer_ns, strict=True), strict=True)
            )
        ]
    return Truth(
        schema=SCHEMA,
        vendor=plan.vendor,
        ranks=plan.ranks,
        steps=plan.steps,
        stage=plan.stage,
        seed=plan.seed,
        cause=plan.cause,
        strength=plan.strength,
        origin_ns=ORIGIN_NS,
        step_bytes=_step_bytes(lines),
        law_bytes=law_bytes(plan),
        collectives=tuple(rows),
        per_step=tuple(steps),
        per_rank=tuple(ranks),
    )


def _meetings(line: Line) -> dict[int, _Meeting]:
    assert line.groups is not None
    found: dict[int, _Meeting] = {}
    for members, (late, reason) in zip(line.groups.members, line.late, strict=True):
        starts = np.sort(line.begin[members])
        meeting = _Meeting(
            ranks=tuple(sorted(int(rank) for rank in members)),
            late_rank=late,
            lead_ns=int(starts[-1] - starts[-2]) if len(starts) > 1 else 0,
            reason=reason,
        )
        found.update(dict.fromkeys(members.tolist(), meeting))
    return found


def _row(
    line: Line, meeting: _Meeting, rank: int, exposed: tuple[int, int], recorded: bool
) -> CollectiveTruth:
    collective, arrival = line.instruction, line.arrival
    assert isinstance(collective, Collective)
    assert arrival is not None
    start, end = int(line.begin[rank]), int(line.end[rank])
    came = int(arrival[rank])
    return CollectiveTruth(
        rank=rank,
        step=line.step,
        kind=collective.kind,
        ranks=meeting.ranks,
        sequence=line.sequence,
        unit=collective.unit,
        bytes=collective.bytes,
        dtype=str(collective.dtype),
        launch_ns=ORIGIN_NS + int(line.launch[rank]),
        start_ns=ORIGIN_NS + start,
        end_ns=ORIGIN_NS + end,
        wait_ns=came - start,
        transfer_ns=end - came,
        exposed_wait_ns=exposed[0],
        exposed_transfer_ns=exposed[1],
        late_rank=meeting.late_rank,
        lead_ns=meeting.lead_ns,
        reason=meeting.reason,
        recorded=recorded,
    )


def _step_bytes(lines: Sequence[Line]) -> int:
    """Bytes of the first step's messages of parameters and gradients, an all-reduce counted twice."""
    total = 0
    for line in lines:
        collective = line.instruction
        assert isinstance(collective, Collective)
        if line.step == 0 and collective.elements > 1 and not collective.key.startswith("tensor."):
            total += collective.bytes * (2 if collective.kind is CollectiveKind.ALL_REDUCE else 1)
    return total
