"""Explain why ranks are late and what to do about it, by the reason of the delay."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from zprof.analysis.analysis import Fact, RunAnalysis, make_fact
from zprof.analysis.time.host_time import locate_host_waits
from zprof.analysis.time.late_ranks import Suspect
from zprof.analysis.time.program_lines import (
    ExtraOperator,
    find_extra_operators,
    locate_extra_operators,
    locate_idle,
    locate_loader,
    name_place,
)
from zprof.base.formatting import printable, shorten
from zprof.causes.fix import LOAD_AHEAD, choose_fix, is_on_cpu
from zprof.model.findings import SourceLocation
from zprof.model.time import LateReason

_MAX_OPERATOR_NAME = 60

REASON_TEXT: Mapping[LateReason, str] = {
    LateReason.COMPUTE: "its compute takes longer",
    LateReason.MEMCPY: "its copies take longer",
    LateReason.DATA: "its data arrives late",
    LateReason.ALLOCATOR: "its allocator blocks it",
    LateReason.SYNC: "its host waits for the device",
    LateReason.HOST: "its host stalls",
}

_REASON_FIXES: Mapping[LateReason, str] = {
    LateReason.COMPUTE: "compare its device with a healthy rank's: clocks, temperature, power cap, ECC\n"
    "  nvidia-smi -q -d CLOCK,TEMPERATURE,PERFORMANCE,ECC\n"
    "if it runs more or larger operators, not slower ones: give ranks equal tokens, not equal samples",
    LateReason.MEMCPY: "check its PCIe link (width, generation), and pin the host memory\n"
    "  DataLoader(..., pin_memory=True); tensor.to(device, non_blocking=True)",
    LateReason.ALLOCATOR: "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
    "no torch.cuda.empty_cache() in the loop; that rank has less free memory than the others",
    LateReason.SYNC: "no .item(), .cpu(), print(tensor) on only one rank (logging on rank 0)\n"
    "  if step % 100 == 0: log(loss.detach())",
    LateReason.HOST: "check what differs on its host: other processes on its cores, CPU clocks, logging, "
    "checkpoints\n  numactl --cpunodebind=N --membind=N python train.py",
}

#: Differences for ranks that compute on the CPU.
_CPU_REASON_FIXES: Mapping[LateReason, str] = {
    LateReason.COMPUTE: "compare its host with a healthy rank's: other processes on its cores, clocks\n"
    "  top; OMP_NUM_THREADS; numactl --cpunodebind=N --membind=N python train.py\n"
    "if it runs more or larger operators, not slower ones: give ranks equal tokens, not equal samples",
    LateReason.MEMCPY: "check what it copies between its own tensors, and on which memory node they lie\n"
    "  numactl --cpunodebind=N --membind=N python train.py",
    LateReason.ALLOCATOR: "find what allocates and frees large tensors in each step of that rank\n"
    "keep them, or use an allocator that caches (LD_PRELOAD of jemalloc or tcmalloc)",
}


#: Reasons that the rank's additional operators explain better.
_REASONS_OF_WORK = frozenset({LateReason.COMPUTE, LateReason.MEMCPY, LateReason.HOST})
_EXTRA_TEXT = "it runs operators that the others run less often"
_EXTRA_FIX = (
    "rank {rank} runs {operators} more often than the others\n"
    "give all ranks the same work: logging or evaluation on one rank only (if rank == 0: ...), a branch\n"
    "that depends on the data, batches of unequal length or number, or a larger part of the model\n"
    "what one rank must do goes out of the step: in a thread, every N steps, or between epochs"
)
_EXTRA_DISPROOF = (
    "leave out what only this rank runs and record again: if it is still late, these operators are not the "
    "reason"
)
_LINE_FIX = (
    "{place} takes {share:.0%} of its time without an operator, beyond what the other ranks spend there\n"
    "move that out of the step: into a thread, every N steps, or to all ranks alike"
)


QUEUE_TEXT = "its thread waits for a processor that other threads use"
_QUEUE_FIX = (
    "look for other processes on the cores of rank {rank}, and for more threads than cores: top -H\n"
    "give each rank its own cores: torchrun --numa-binding=node, taskset, numactl --physcpubind=...\n"
    "OMP_NUM_THREADS and the workers of all loaders together at most the cores per rank"
)
_QUEUE_DISPROOF = (
    "record again while nothing else runs on the machine: a rank that is still late has another reason"
)


class Lateness(Struct, frozen=True, kw_only=True):
    """Why ranks are late, and what to do: reason in words, fix, experiment, line, further facts."""

    text: str
    fix: str
    disprove: str
    location: SourceLocation | None
    facts: tuple[Fact, ...] = ()


def explain_queue(suspect: Suspect) -> Lateness:
    """Return what to do about a rank whose thread waits for a processor."""
    return Lateness(
        text=QUEUE_TEXT,
        fix=_QUEUE_FIX.format(rank=suspect.rank),
        disprove=_QUEUE_DISPROOF,
        location=None,
        facts=(make_fact("processor_wait_per_step", suspect.queued_ns, rank=suspect.rank),),
    )


def explain_lateness(
    analysis: RunAnalysis, reason: LateReason, ranks: Sequence[int], delay_ns: float
) -> Lateness:
    """Return why ranks are late by ``delay_ns`` per step; the first rank is compared with the others."""
    extra = find_extra_operators(analysis.source, analysis.tracks, ranks, delay_ns)
    facts = []
    for place, each in enumerate(extra, 1):
        name = _name_operator(each)
        facts += [
            make_fact(
                "extra_operator_{place}_per_step", each.count, rank=ranks[0], place=place, operator=name
            ),
            make_fact("others_operator_{place}_per_step", each.others_count, place=place, operator=name),
        ]
    if extra and reason in _REASONS_OF_WORK:
        operators = ", ".join(_name_operator(each) for each in extra)
        return Lateness(
            text=_EXTRA_TEXT,
            fix=_EXTRA_FIX.format(rank=ranks[0], operators=operators),
            disprove=_EXTRA_DISPROOF,
            location=locate_extra_operators(analysis.source, analysis.tracks, ranks, extra),
            facts=tuple(facts),
        )
    fix, location = choose_late_fix(analysis, reason), None
    if reason is not LateReason.HOST:
        location = locate_late(analysis, reason, ranks)
    elif (idle := locate_idle(analysis.source, analysis.tracks, ranks)) is not None:
        fix = _LINE_FIX.format(place=name_place(idle.location), share=idle.share)
        location = idle.location
    is_slow_cpu = reason is LateReason.COMPUTE and is_on_cpu(analysis)
    return Lateness(
        text=REASON_TEXT[reason],
        fix=fix,
        disprove=MOVE_RANK if is_slow_cpu else _DISPROOFS.get(reason, MOVE_RANK),
        location=location,
        facts=tuple(facts),
    )


def _name_operator(operator: ExtraOperator) -> str:
    return shorten(printable(operator.name), _MAX_OPERATOR_NAME)


def choose_late_fix(analysis: RunAnalysis, reason: LateReason) -> str:
    """Return what to change for a rank that is late for this reason, in the form for the run's devices."""
    if reason is LateReason.DATA:
        loader = choose_fix(analysis, LOAD_AHEAD).splitlines()[0]
        return f"{loader}\ncheck that rank's storage, and any work that only it does per batch"
    return (is_on_cpu(analysis) and _CPU_REASON_FIXES.get(reason)) or _REASON_FIXES[reason]


def locate_late(analysis: RunAnalysis, reason: LateReason, ranks: Sequence[int]) -> SourceLocation | None:
    """Return the program line that makes these ranks late, if the reason is in the program."""
    if reason is LateReason.DATA:
        return locate_loader(analysis.source, ranks)
    if reason is LateReason.SYNC:
        return locate_host_waits(analysis, ranks)
    idle = locate_idle(analysis.source, analysis.tracks, ranks) if reason is LateReason.HOST else None
    return idle.location if idle is not None else None


_DISPROOFS: Mapping[LateReason, str] = {
    LateReason.COMPUTE: "swap this rank's device with another rank's and record again: if the delay follows "
    "the device, the device is slow; if it moves with the rank, its work is",
    LateReason.DATA: "train on one batch kept in memory and record again: if the rank is still late, "
    "data is not the cause",
}
#: An experiment that applies to any reason.
MOVE_RANK = (
    "move this rank to another host and record again: if the delay stays with the host, the host is slow; "
    "if it moves with the rank, its program is"
)
