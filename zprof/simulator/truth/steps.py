"""The steps of one rank, as its device ran them, and what happened in each."""

from zprof.simulator.clocks import ORIGIN_NS
from zprof.simulator.engine.schedule import Line, Schedule
from zprof.simulator.plan import Vendor
from zprof.simulator.program.instructions import Begin, Collective, Copy, End, Kernel
from zprof.simulator.program.step import FIRST_STEP
from zprof.simulator.truth.model import StepTruth
from zprof.simulator.truth.spans import Dependencies, blocked_spans
from zprof.simulator.truth.sweep import CollectiveSums, Running, StepSums, Sweep

_STEP = "ProfilerStep#"


def swept_steps(schedule: Schedule, known: Dependencies, rank: int) -> tuple[list[StepTruth], CollectiveSums]:
    """The steps of a rank, and the exposed parts of its collectives within them."""
    host = _host_steps(schedule, rank)
    bounds = host if schedule.plan.vendor is Vendor.GLOO else _device_steps(schedule, host, rank)
    sums = [StepSums(begin_ns=begin, end_ns=end) for begin, end in bounds]
    sweep = Sweep([_running(schedule.lines[index], rank) for index in known.collectives], sums)
    sweep.over(
        compute=[_span(schedule.lines[index], rank) for index in known.kernels],
        copies=[_span(schedule.lines[index], rank) for index in known.copies],
        blocked=blocked_spans(schedule, known, rank),
    )
    steps = [_truth(rank, step, span, one) for step, (span, one) in enumerate(zip(host, sums, strict=True))]
    return steps, sweep.sums


def _truth(rank: int, step: int, host: tuple[int, int], sums: StepSums) -> StepTruth:
    wall = sums.end_ns - sums.begin_ns
    held_up = sums.wait_ns + sums.transfer_ns
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
        overlapped_ns=sums.collective_ns - held_up,
        exposed_wait_ns=sums.wait_ns,
        exposed_transfer_ns=sums.transfer_ns,
        exposed_memcpy_ns=sums.memcpy_ns,
        idle_ns=wall - sums.compute_ns - held_up - sums.memcpy_ns,
        ambiguous_ns=sums.ambiguous_ns,
    )


def _host_steps(schedule: Schedule, rank: int) -> list[tuple[int, int]]:
    begins = _marks(schedule, Begin, rank)
    return list(zip(begins, _marks(schedule, End, rank), strict=True))


def _marks(schedule: Schedule, kind: type[Begin] | type[End], rank: int) -> list[int]:
    return [
        int(line.host_begin[rank])
        for line in schedule.lines
        if isinstance(line.instruction, kind) and line.instruction.name.startswith(_STEP)
    ]


def _device_steps(schedule: Schedule, host: list[tuple[int, int]], rank: int) -> list[tuple[int, int]]:
    """Each boundary moves behind the work that was launched before it."""
    work = [line for line in schedule.lines if isinstance(line.instruction, Kernel | Collective | Copy)]
    launched = [(int(line.launch[rank]), int(line.end[rank])) for line in work]

    def moved(boundary: int) -> int:
        return max([boundary, *(end for launch, end in launched if launch < boundary)])

    return [(moved(begin), moved(end)) for begin, end in host]


def _running(line: Line, rank: int) -> Running:
    assert line.arrival is not None
    return Running(
        begin_ns=int(line.begin[rank]), arrival_ns=int(line.arrival[rank]), end_ns=int(line.end[rank])
    )


def _span(line: Line, rank: int) -> tuple[int, int]:
    return int(line.begin[rank]), int(line.end[rank])
