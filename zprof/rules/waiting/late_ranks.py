"""Find the rank, or the few ranks, that are busy longer than the others, and the reason.

The sum of compute, copies and idle time gives the cost of a delay. But if one of them varies from step to
step it hides the others: a host that sleeps 40 ms in each step does not show in a sum whose compute varies by
100 ms. So each part is also judged by itself, and its chance is multiplied by the number of parts. The reason
comes from the ledger: what the late rank has more of than the others. For idle time, the reasons of the
collectives to which it arrived last (:mod:`zprof.analysis.time.blame`) say which calls of its host took it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import comb, exp, lgamma, log, log1p

import numpy as np
import numpy.typing as npt
import pandas as pd

from zprof.analysis.analysis import RunAnalysis
from zprof.model.time import LateReason
from zprof.rules.rule import get_clock_uncertainty_ns, max_noise_floor_ns
from zprof.rules.waiting.own_time import OwnTime, Table

_PARTS = ("compute", "copies", "idle")
_ABOVE_NOISE = 3
_ABOVE_CLOCK = 10
#: Ranks with at least this share of the latest rank's delay are late with it (same host or switch).
_WITH_IT_RATIO = 0.5
#: Ranks that share a host's cores are late by turns of its scheduler: 1.3 ms in the median of healthy gloo
#: runs, 4.4 ms at worst. Three times the median accuses nobody on a CPU. The floor is lower if compute takes
#: so equally long in all steps that there are no such turns; real gloo runs deviate by 2 to 57 ms (MAD).
_SCHEDULER_NS = 4_000_000
_SCHEDULER_DEVIATIONS = 4
#: Three standard errors of a median over n steps are 3 * 1.25 * 1.48 / sqrt(n) deviations (MAD).
_STANDARD_ERRORS = 3 * 1.25 * 1.48


@dataclass(frozen=True, slots=True, kw_only=True)
class Suspect:
    """The latest rank ``rank``; ``chosen`` marks it and those that are late with it among all ranks.

    ``delay_ns``: median over steps of how much longer ``rank`` is busy than the others; ``mean_ns``: the
    mean; ``error_ns``: what chance can make of the median. ``beyond_ns``: how much longer than the longest
    rank not chosen, on average. ``last_ratio``: share of steps in which a chosen rank is the longest.
    ``chance``: probability that equal ranks look like this. ``part``: the part of the own time that is
    judged; empty for all of it.
    """

    rank: int
    chosen: npt.NDArray[np.bool_]
    ranks: tuple[int, ...]
    steps: int
    delay_ns: float
    mean_ns: float
    error_ns: float
    beyond_ns: float
    floor_ns: float
    last_ratio: float
    chance: float
    part: str = ""

    @property
    def named(self) -> tuple[int, ...]:
        """The late ranks."""
        return tuple(rank for rank, mine in zip(self.ranks, self.chosen.tolist(), strict=True) if mine)


def noise_floor_of_delay_ns(analysis: RunAnalysis) -> float:
    """Return the delay that noise, clocks and the turns of a scheduler can cause."""
    return max(
        _ABOVE_NOISE * max_noise_floor_ns(analysis),
        _ABOVE_CLOCK * get_clock_uncertainty_ns(analysis),
        _scheduler_ns(analysis) if analysis.run.device == "cpu" else 0,
    )


def _scheduler_ns(analysis: RunAnalysis) -> float:
    compute = analysis.steps.groupby("rank")["compute_ns"]
    deviation = (analysis.steps["compute_ns"] - compute.transform("median")).abs()
    worst = float(deviation.groupby(analysis.steps["rank"]).median().max())
    return min(_SCHEDULER_NS, _SCHEDULER_DEVIATIONS * worst)


def find_suspect(analysis: RunAnalysis, own: OwnTime) -> Suspect:
    """Return the latest rank by all of its own time; needs two ranks and one step."""
    found = _find_latest(own, own.longer, noise_floor_of_delay_ns(analysis))
    return replace(
        found,
        beyond_ns=float(own.beyond(found.chosen).mean()),
        chance=min(found.chance, _chance_by_order(own, found.chosen)),
    )


def find_suspects_by_part(analysis: RunAnalysis, own: OwnTime) -> tuple[Suspect, ...]:
    """Return the latest rank by compute, by copies and by idle time, sorted by falling delay.

    The cost of a part is how much longer the step's longest rank is because of it.
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
        mean_ns=float(mine.mean()),
        error_ns=_STANDARD_ERRORS * _median_deviation(mine) / float(np.sqrt(own.steps)),
        beyond_ns=0.0,
        floor_ns=floor,
        last_ratio=float(late.mean()),
        chance=_chance_by_steps(late, chosen),
    )


def _median_deviation(values: npt.NDArray[np.float64]) -> float:
    return float(np.median(np.abs(values - np.median(values))))


def _chance_by_steps(late: npt.NDArray[np.bool_], chosen: npt.NDArray[np.bool_]) -> float:
    """Return the chance that any so many of equal ranks are the latest in as many steps (binomial).

    Computed in logarithms: a thousand steps have more combinations than a float can hold.
    """
    blamed, steps, share = int(late.sum()), len(late), float(chosen.mean())
    ways = _log_comb(len(chosen), int(chosen.sum()))
    logs = (
        ways + _log_comb(steps, count) + count * log(share) + (steps - count) * log1p(-share)
        for count in range(blamed, steps + 1)
    )
    return min(1.0, sum(exp(min(0.0, term)) for term in logs))


def _log_comb(whole: int, part: int) -> float:
    return lgamma(whole + 1) - lgamma(part + 1) - lgamma(whole - part + 1)


def _chance_by_order(own: OwnTime, chosen: npt.NDArray[np.bool_]) -> float:
    """Return the chance that equal ranks put all steps of so many of them above all others; 1 if not above.

    With few steps this says more than counting them: of all orders of the times of all steps, 1 in (ranks *
    steps over chosen * steps) has exactly these on top.
    """
    if own.own[:, chosen].min() <= own.own[:, ~chosen].max():
        return 1.0
    late, steps = int(chosen.sum()), own.steps
    return min(1.0, comb(len(chosen), late) / comb(len(chosen) * steps, late * steps))


#: What can keep the host busy, as far as its calls show it.
_HOST_REASONS = (LateReason.DATA, LateReason.ALLOCATOR, LateReason.SYNC)
_MAJORITY_RATIO = 0.5

REASON_TEXT: Mapping[LateReason, str] = {
    LateReason.COMPUTE: "its compute takes longer",
    LateReason.MEMCPY: "its copies take longer",
    LateReason.DATA: "its data comes late",
    LateReason.ALLOCATOR: "its allocator holds it up",
    LateReason.SYNC: "its host waits for the device",
    LateReason.HOST: "its host stalls",
}

REASON_FIXES: Mapping[LateReason, str] = {
    LateReason.COMPUTE: "compare its device with a healthy rank's: clocks, temperature, power cap, ECC\n"
    "  nvidia-smi -q -d CLOCK,TEMPERATURE,PERFORMANCE,ECC\n"
    "more or larger operators there, not slower ones: give ranks equal tokens, not equal samples",
    LateReason.MEMCPY: "look at its PCIe link (width, generation), and pin the host memory\n"
    "  DataLoader(..., pin_memory=True); tensor.to(device, non_blocking=True)",
    LateReason.DATA: "DataLoader(..., num_workers=8, prefetch_factor=4, persistent_workers=True, "
    "pin_memory=True)\nlook at that rank's storage, and at what only it does per batch",
    LateReason.ALLOCATOR: "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\n"
    "no torch.cuda.empty_cache() in the loop; that rank has less memory to spare than the others",
    LateReason.SYNC: "no .item(), .cpu(), print(tensor) in the step of that rank alone (logging of rank 0)\n"
    "  if step % 100 == 0: log(loss.detach())",
    LateReason.HOST: "look at what only its host does: other processes on its cores, CPU clocks, logging, "
    "checkpoints\n  numactl --cpunodebind=N --membind=N python train.py",
}

DISPROOFS: Mapping[LateReason, str] = {
    LateReason.COMPUTE: "swap the devices of this rank and another and record again: what stays with the "
    "device is the device, what moves with the rank is its work",
    LateReason.DATA: "train on one batch kept in memory and record again: if the rank is late all the same, "
    "it is not its data",
}
_DISPROOF = (
    "move this rank to another host and record again: what stays with the host is the host, what moves with "
    "the rank is its program"
)


def choose_disproof(reason: LateReason) -> str:
    """Return an experiment that can disprove the reason."""
    return DISPROOFS.get(reason, _DISPROOF)


def find_reason(
    analysis: RunAnalysis, late: tuple[int, ...], *, compute_ns: float, copies_ns: float, idle_ns: float
) -> LateReason:
    """Return the reason that explains most of a delay.

    Args:
        analysis: The run, whose collectives say what the host did.
        late: The late ranks.
        compute_ns: How much more compute they have than the others.
        copies_ns: How much more copying.
        idle_ns: How much more idle time.
    """
    shares = _reason_shares(analysis.collectives, late)
    called = max(_HOST_REASONS, key=lambda call: shares.get(call, 0.0))
    explained = shares.get(called, 0.0) >= _MAJORITY_RATIO
    if idle_ns >= max(compute_ns, copies_ns):
        return called if explained else LateReason.HOST
    if called is LateReason.DATA and explained:
        return called  # a loader on the main thread computes too
    return LateReason.COMPUTE if compute_ns >= copies_ns else LateReason.MEMCPY


def _reason_shares(rows: pd.DataFrame, late: tuple[int, ...]) -> dict[str, float]:
    """Return the shares of the waiting for these ranks, by reason, where the delay started on them."""
    mine = rows[rows["blamed_rank"].isin(late) & rows["origin_rank"].isin(late)]
    sums = mine.groupby("late_reason", observed=True)["wait_ns"].sum()
    total = float(sums.sum())
    return {str(reason): float(value) / total for reason, value in sums.items()} if total > 0 else {}
