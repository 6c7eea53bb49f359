"""A rank is late only by what its own host or compute takes longer; all hosts slow are no straggler."""

import random
import warnings
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests.support.device_plays import MS, US, Collect, Drain, Host, Join, Kernel, Op, Step, write
from tests.support.rule_runs import found, judged
from zprof.analysis.analysis import RunAnalysis, analyse_time_alone
from zprof.model.findings import Cause
from zprof.rules.diagnose import diagnose
from zprof.rules.waiting.own_time import measure_own_time
from zprof.rules.waiting.rotating_straggler import rotating_straggler
from zprof.rules.waiting.straggler_rank import straggler_rank
from zprof.run.reader import load

RANKS, LATE = (0, 1, 2, 3), 2
STEPS, UNITS, KERNELS = 8, 6, 3
Pause = Callable[[int], int]


def program(rank: int, pause: Pause, kernel_ns: int, start_ns: int, planted: Sequence[Op]) -> list[Op]:
    ops: list[Op] = [Host(ns=start_ns)] if start_ns and rank == LATE else []
    for step in range(STEPS):
        ops.append(Step())
        for unit in range(UNITS):
            key = f"{step}.{unit}"
            ops += [Collect(key=key, group=RANKS, ns=100 * US), Join(key=key)]
            for _ in range(KERNELS):
                ops += [Host(ns=pause(rank)), Kernel(ns=kernel_ns)]
            ops += planted if rank == LATE and unit == UNITS // 2 else ()
    return ops


def played(
    folder: Path, pause: Pause, *, kernel_ns: int = 300 * US, start_ns: int = 0, planted: Sequence[Op] = ()
) -> RunAnalysis:
    programs = {rank: program(rank, pause, kernel_ns, start_ns, planted) for rank in RANKS}
    return analyse_time_alone(load(write(folder / "x.zprof", programs)))


def steady(rank: int) -> int:
    return 900 * US


def jittering(seed: int) -> Pause:
    drawn = random.Random(seed)
    return lambda rank: int(900 * US * drawn.uniform(0.8, 1.2))


@pytest.mark.parametrize(
    "pause", [steady, pytest.param(jittering(1), marks=pytest.mark.slow)], ids=["steady", "jittering"]
)
def test_hosts_that_are_all_slow_are_no_straggler_although_one_started_late(
    tmp_path: Path, pause: Pause
) -> None:
    """The late rank idles 10 ms of each step while the others wait: that is the pace of all hosts."""
    analysis = played(tmp_path, pause, start_ns=9 * MS)
    waits = {entry.rank: entry.exposed_wait_ns for entry in analysis.time.per_rank}
    assert min(wait for rank, wait in waits.items() if rank != LATE) > 8 * MS
    assert straggler_rank(analysis, None) is None
    assert rotating_straggler(analysis, None) is None
    (first,) = [f for f in diagnose(analysis).findings if f.confidence != "low"]
    assert first.cause is Cause.CPU_BOUND_LAUNCH


def slower(rank: int) -> int:
    """15 % of 18 pauses of 0.9 ms are 2.43 ms."""
    return int(900 * US * (1.15 if rank == LATE else 1.0))


@pytest.mark.parametrize("start_ns", [pytest.param(0, marks=pytest.mark.slow), 9 * MS])
def test_a_slower_host_is_late_by_what_it_is_slower(tmp_path: Path, start_ns: int) -> None:
    finding = found(straggler_rank, played(tmp_path, slower, start_ns=start_ns))
    delay = finding.evidence[0]
    assert (delay.rank, delay.value) == (LATE, pytest.approx(2.43 * MS, rel=0.02))
    low, high = finding.saving_ns
    assert low <= 0.15 * UNITS * KERNELS * 900 * US <= high


@pytest.mark.parametrize(
    "planted",
    [
        ([Drain(), Host(ns=4 * MS)],),  # stall
        ([op for _ in range(40) for op in (Drain(), Host(ns=100 * US))],),  # many
    ],
)
def test_a_host_that_stalls_behind_its_own_device_is_late(tmp_path: Path, planted: Sequence[Op]) -> None:
    """The host waits for its device before it stalls: that wait is for no other rank."""
    analysis = played(tmp_path, lambda rank: 50 * US, kernel_ns=MS, planted=planted)
    delay = found(straggler_rank, analysis).evidence[0]
    assert (delay.rank, delay.value) == (LATE, pytest.approx(4.5 * MS, abs=0.5 * MS))


def test_unrecorded_launches_neither_accuse_nor_clear_a_rank(tmp_path: Path) -> None:
    analysis = played(tmp_path, steady, start_ns=9 * MS)
    analysis.collectives["host_ns"] = analysis.collectives["host_ns"].where(
        analysis.collectives["rank"] != LATE
    )
    assert not measure_own_time(analysis).is_host_known
    assert judged(straggler_rank, analysis) == "gap"


def test_a_rank_alone_has_no_others_to_be_slower_than(tmp_path: Path) -> None:
    analysis = played(tmp_path, steady)
    rows, steps = analysis.collectives, analysis.steps
    alone = replace(analysis, collectives=rows[rows["rank"] == LATE], steps=steps[steps["rank"] == LATE])
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        assert not measure_own_time(alone).is_host_known


def test_a_lost_launch_costs_one_step(tmp_path: Path) -> None:
    """The rank without it has its later ones numbered too low: no host can be compared in that step."""
    analysis = played(tmp_path, slower)
    rows = analysis.collectives
    lost = (rows["rank"] == 1) & (rows["step"] == 3) & (rows["unit"] == "3.2")
    assert lost.sum() == 1
    own = measure_own_time(replace(analysis, collectives=rows[~lost]))
    assert own.is_host_known
    assert 3 not in own.numbers
    assert np.median(own.idle[:, LATE]) == pytest.approx(2.43 * MS, rel=0.02)
