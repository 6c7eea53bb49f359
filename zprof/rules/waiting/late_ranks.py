"""Find the rank, or the few ranks, that are busy longer than the others, and the reason.

The sum of compute, copies and idle time gives the cost of a delay. But if one part varies from step to step
it hides the others: a host that sleeps 40 ms in each step is invisible in a sum whose compute varies by 100
ms. So each part is also tested by itself, and its chance is multiplied by the number of parts. The reason
comes from the ledger: the term in which the late rank exceeds the others. For idle time, the reasons of the
collectives at which it arrived last (:mod:`zprof.analysis.time.blame`) identify the host calls that took it.
"""

from collections.abc import Mapping, Sequence
from math import comb, exp, lgamma, log, log1p

import numpy as np
import numpy.typing as npt
from msgspec import Struct
from msgspec.structs import replace

from zprof.analysis.analysis import RunAnalysis
from zprof.analysis.per_step import get_clock_uncertainty_ns, max_noise_floor_ns
from zprof.analysis.time.own_time import OwnTime, Table
from zprof.analysis.time.own_work import (
    ExtraOperator,
    find_extra_operators,
    locate_extra_operators,
    locate_idle,
    name_place,
)
from zprof.analysis.time.program_lines import locate_loader
from zprof.analysis.time.wait_groups import locate_host_waits
from zprof.causes.fix import LOAD_AHEAD, choose_fix, is_on_cpu
from zprof.model.findings import SourceLocation
from zprof.model.formatting import printable, shorten
from zprof.model.time import LateReason
from zprof.rules.evidence import Fact, make_fact

_PARTS = ("compute", "copies", "idle")
_ABOVE_NOISE = 3
_ABOVE_CLOCK = 10
#: Ranks with at least this share of the latest rank's delay are late with it (same host or switch).
_WITH_IT_RATIO = 0.5
#: Ranks that share a host's cores are late by time slices of its scheduler: 1.3 ms in the median of healthy
#: gloo runs, 4.4 ms at worst. Three times the median gives no false positives on a CPU. The floor is lower if
#: compute times vary too little for such time slices; real gloo runs deviate by 2 to 57 ms (MAD).
_SCHEDULER_NS = 4_000_000
_SCHEDULER_DEVIATIONS = 4
#: Three standard errors of a median over n steps are 3 * 1.25 * 1.48 / sqrt(n) deviations (MAD).
_STANDARD_ERRORS = 3 * 1.25 * 1.48
#: Two ranks over more steps are told apart by counting; all signs of 16 differences are 65,536.
_MAX_SIGNED_STEPS = 16
_ROUNDING_RATIO = 1e-9
#: Share of a delay, or of the waiting, that one reason must explain.
_MAJORITY_RATIO = 0.5


class Suspect(Struct, frozen=True, kw_only=True):
    """The latest rank ``rank``; ``chosen`` marks it and those that are late with it among all ranks.

    ``delay_ns``: median over steps of the busy time of ``rank`` in excess of the others; ``error_ns``: the
    random error of the median. ``beyond_ns``: the mean excess over the longest rank that was not chosen.
    ``last_ratio``: share of steps in which a chosen rank is the longest. ``chance``: probability that equal
    ranks look like this. ``queued_ns``: the median time of ``rank`` in excess of the others in which its
    thread was ready but had no processor; 0 if unknown. ``part``: the part of the own time that was tested;
    empty for the total.
    """

    rank: int
    chosen: npt.NDArray[np.bool_]
    ranks: tuple[int, ...]
    steps: int
    delay_ns: float
    error_ns: float
    beyond_ns: float
    floor_ns: float
    last_ratio: float
    chance: float
    queued_ns: float = 0.0
    part: str = ""

    @property
    def lacks_processors(self) -> bool:
        """True if most of the delay is time in which its thread waited for a processor."""
        return self.queued_ns > _MAJORITY_RATIO * self.delay_ns

    @property
    def named(self) -> tuple[int, ...]:
        """The late ranks."""
        return tuple(rank for rank, mine in zip(self.ranks, self.chosen.tolist(), strict=True) if mine)


def noise_floor_of_delay_ns(analysis: RunAnalysis) -> float:
    """Return the delay that noise, clocks and scheduler time slices can cause."""
    return max(
        _ABOVE_NOISE * max_noise_floor_ns(analysis),
        _ABOVE_CLOCK * get_clock_uncertainty_ns(analysis),
        _scheduler_ns(analysis) if analysis.run.device == "cpu" else 0,
    )


def _scheduler_ns(analysis: RunAnalysis) -> float:
    ranks, compute_ns = analysis.steps.group_by("rank"), analysis.steps.ints("compute_ns")
    deviation = np.abs(compute_ns - ranks.median(compute_ns)[ranks.codes])
    worst = float(ranks.median(deviation).max(initial=0.0))
    return min(_SCHEDULER_NS, _SCHEDULER_DEVIATIONS * worst)


def find_suspect(analysis: RunAnalysis, own: OwnTime) -> Suspect:
    """Return the latest rank by its total own time; needs two ranks and one step."""
    found = _find_latest(own, own.longer, noise_floor_of_delay_ns(analysis))
    return replace(
        found,
        beyond_ns=float(own.beyond(found.chosen).mean()),
        chance=min(found.chance, _chance_by_order(own, found.chosen)),
    )


def find_suspects_by_part(analysis: RunAnalysis, own: OwnTime) -> tuple[Suspect, ...]:
    """Return the latest rank by compute, by copies and by idle time, sorted by decreasing delay.

    The cost of a part is the time by which it lengthens the step's longest rank.
    """
    tables = {name: getattr(own, name) for name in _PARTS}
    tables = {name: table for name, table in tables.items() if table.any()}
    found = []
    for name, table in tables.items():
        one = _find_latest(own, table, noise_floor_of_delay_ns(analysis))
        beyond = float(own.without(table, one.chosen).mean())
        chance = min(1.0, one.chance * len(tables))
        found.append(replace(one, part=name, beyond_ns=beyond, chance=chance))
    return tuple(sorted(found, key=lambda suspect: -suspect.delay_ns))


def _find_latest(own: OwnTime, longer: Table, floor: float) -> Suspect:
    medians = np.median(longer, axis=0)
    place = int(np.argmax(medians))
    chosen = medians >= max(_WITH_IT_RATIO * medians[place], floor)
    chosen = chosen if 0 < chosen.sum() <= len(medians) / 2 else np.arange(len(medians)) == place
    mine = longer[:, place]
    late = chosen[np.argmax(longer, axis=1)] & (longer.max(axis=1) > floor)
    return Suspect(
        rank=own.ranks[place],
        chosen=chosen,
        ranks=own.ranks,
        steps=own.steps,
        delay_ns=float(medians[place]),
        error_ns=_STANDARD_ERRORS
        * float(np.median(np.abs(mine - np.median(mine))))
        / float(np.sqrt(own.steps)),
        beyond_ns=0.0,
        floor_ns=floor,
        last_ratio=float(late.mean()),
        chance=min(_chance_by_steps(late, chosen), _chance_by_signs(longer, mine)),
        queued_ns=float(np.median(own.queued[:, place])),
    )


def _chance_by_steps(late: npt.NDArray[np.bool_], chosen: npt.NDArray[np.bool_]) -> float:
    """Return the chance that as many equal ranks are the latest in as many steps (binomial).

    Computed in logarithms: a thousand steps have more combinations than a float can hold.
    """
    blamed, steps, share = int(late.sum()), len(late), float(chosen.mean())
    ways = _log_comb(len(chosen), int(chosen.sum()))
    logs = (
        ways + _log_comb(steps, late_steps) + late_steps * log(share) + (steps - late_steps) * log1p(-share)
        for late_steps in range(blamed, steps + 1)
    )
    return min(1.0, sum(exp(min(0.0, term)) for term in logs))


def _chance_by_signs(longer: Table, mine: npt.NDArray[np.float64]) -> float:
    """Return the chance that the sum of the differences of two equal ranks is as large; 1 for other numbers.

    Each of two equal ranks is the longer one in half of the steps, so all signs of the differences are
    equally likely. Unlike a count of steps this tells a step in which the other rank is hardly longer from
    one in which it is late. No step counts for more than the median: a single one proves nothing.
    """
    steps, ranks = longer.shape
    limit = float(np.median(mine))
    if ranks != 2 or steps > _MAX_SIGNED_STEPS or limit <= 0:
        return 1.0
    sizes = np.clip(mine, -limit, limit)
    signs = 1 - 2 * ((np.arange(2**steps)[:, None] >> np.arange(steps)) & 1)
    sums = np.abs(signs @ np.abs(sizes))
    return float((sums >= abs(sizes.sum()) * (1 - _ROUNDING_RATIO)).mean())


def _log_comb(whole: int, part: int) -> float:
    return lgamma(whole + 1) - lgamma(part + 1) - lgamma(whole - part + 1)


def _chance_by_order(own: OwnTime, chosen: npt.NDArray[np.bool_]) -> float:
    """Return the chance that all steps of some of equal ranks exceed all others; 1 if they do not exceed
    them.

    With few steps this is more informative than counting: of all orders of the times of all steps, 1 in
    (ranks * steps over chosen * steps) has exactly these on top.
    """
    if own.own[:, chosen].min() <= own.own[:, ~chosen].max():
        return 1.0
    late, steps = int(chosen.sum()), own.steps
    return min(1.0, comb(len(chosen), late) / comb(len(chosen) * steps, late * steps))


#: Reasons that can be identified from the host's calls.
_HOST_REASONS = (LateReason.DATA, LateReason.ALLOCATOR, LateReason.SYNC)
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

#: What differs if the rank computes on its processors.
_CPU_REASON_FIXES: Mapping[LateReason, str] = {
    LateReason.COMPUTE: "compare its host with a healthy rank's: other processes on its cores, clocks\n"
    "  top; OMP_NUM_THREADS; numactl --cpunodebind=N --membind=N python train.py\n"
    "if it runs more or larger operators, not slower ones: give ranks equal tokens, not equal samples",
    LateReason.MEMCPY: "check what it copies between its own tensors, and on which memory node they lie\n"
    "  numactl --cpunodebind=N --membind=N python train.py",
    LateReason.ALLOCATOR: "find what allocates and frees large tensors in each step of that rank\n"
    "keep them, or use an allocator that caches (LD_PRELOAD of jemalloc or tcmalloc)",
}


#: Reasons that operators of its own explain better.
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
    """Why ranks are late, and what to do: the reason in words, fix, experiment, line, further evidence."""

    text: str
    fix: str
    disprove: str
    location: SourceLocation | None
    evidence: tuple[Fact, ...] = ()


def explain_queue(suspect: Suspect) -> Lateness:
    """Return what to do about a rank whose thread waits for a processor."""
    return Lateness(
        text=QUEUE_TEXT,
        fix=_QUEUE_FIX.format(rank=suspect.rank),
        disprove=_QUEUE_DISPROOF,
        location=None,
        evidence=(make_fact("processor_wait_per_step/excess", suspect.queued_ns, rank=suspect.rank),),
    )


def explain_lateness(
    analysis: RunAnalysis, reason: LateReason, ranks: Sequence[int], delay_ns: float
) -> Lateness:
    """Return why ranks are late by ``delay_ns`` per step; the first one is compared with the others."""
    extra = find_extra_operators(analysis.source, analysis.tracks, ranks, delay_ns)
    facts = [fact for place, each in enumerate(extra, 1) for fact in _make_extra_facts(ranks[0], place, each)]
    if extra and reason in _REASONS_OF_WORK:
        operators = ", ".join(_name_operator(each) for each in extra)
        return Lateness(
            text=_EXTRA_TEXT,
            fix=_EXTRA_FIX.format(rank=ranks[0], operators=operators),
            disprove=_EXTRA_DISPROOF,
            location=locate_extra_operators(analysis.source, analysis.tracks, ranks, extra),
            evidence=tuple(facts),
        )
    fix, location = choose_late_fix(analysis, reason), None
    if reason is not LateReason.HOST:
        location = locate_late(analysis, reason, ranks)
    elif (idle := locate_idle(analysis.source, analysis.tracks, ranks)) is not None:
        fix = _LINE_FIX.format(place=name_place(idle.location), share=idle.share)
        location = idle.location
    return Lateness(
        text=REASON_TEXT[reason],
        fix=fix,
        disprove=_choose_disproof(analysis, reason),
        location=location,
        evidence=tuple(facts),
    )


def _name_operator(operator: ExtraOperator) -> str:
    return shorten(printable(operator.name), _MAX_OPERATOR_NAME)


def _make_extra_facts(rank: int, place: int, operator: ExtraOperator) -> list[Fact]:
    name = _name_operator(operator)
    return [
        make_fact("extra_operator_{place}_per_step", operator.count, rank=rank, place=place, operator=name),
        make_fact("others_operator_{place}_per_step", operator.others_count, place=place, operator=name),
    ]


def choose_late_fix(analysis: RunAnalysis, reason: LateReason) -> str:
    """Return what to change for a rank that is late for this reason, as it applies to the run's devices."""
    if reason is LateReason.DATA:
        loader = choose_fix(analysis, LOAD_AHEAD).splitlines()[0]
        return f"{loader}\ncheck that rank's storage, and any work that only it does per batch"
    return (is_on_cpu(analysis) and _CPU_REASON_FIXES.get(reason)) or _REASON_FIXES[reason]


def locate_late(analysis: RunAnalysis, reason: LateReason, ranks: Sequence[int]) -> SourceLocation | None:
    """Return the line of these ranks' program that makes them late, if the reason is one in the program."""
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
_DISPROOF = (
    "move this rank to another host and record again: if the delay stays with the host, the host is slow; "
    "if it moves with the rank, its program is"
)


def _choose_disproof(analysis: RunAnalysis, reason: LateReason) -> str:
    if reason is LateReason.COMPUTE and is_on_cpu(analysis):
        return _DISPROOF
    return _DISPROOFS.get(reason, _DISPROOF)


def find_reason(
    analysis: RunAnalysis, late: tuple[int, ...], *, compute_ns: float, copies_ns: float, idle_ns: float
) -> LateReason:
    """Return the reason that explains most of a delay.

    Args:
        analysis: The run, whose collectives have reasons from the host's calls.
        late: The late ranks.
        compute_ns: Their compute in excess of the others'.
        copies_ns: Their excess copy time.
        idle_ns: Their excess idle time.
    """
    # The shares of the waiting for these ranks, by reason, for delays that started on them.
    rows = analysis.collectives
    mine = rows.at(np.isin(rows.ints("blamed_rank"), late) & np.isin(rows.ints("origin_rank"), late))
    reasons = mine.group_by("late_reason")
    sums = reasons.sum(mine.ints("wait_ns"))
    total = float(sums.sum())
    names = mine.texts("late_reason").at(reasons.first)
    shares = dict(zip(names, (sums / total).tolist(), strict=True)) if total > 0 else {}
    called = max(_HOST_REASONS, key=lambda call: shares.get(call, 0.0))
    explained = shares.get(called, 0.0) >= _MAJORITY_RATIO
    if idle_ns >= max(compute_ns, copies_ns):
        return called if explained else LateReason.HOST
    if called is LateReason.DATA and explained:
        return called  # a loader on the main thread computes too
    return LateReason.COMPUTE if compute_ns >= copies_ns else LateReason.MEMCPY
