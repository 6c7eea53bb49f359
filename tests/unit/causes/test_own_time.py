"""A rank is late only by what its own host or compute takes longer; all hosts slow are no straggler."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.device_plays import MS, US, Collect, Drain, Host, Join, Kernel, Op, Step, write
from tests.support.rule_runs import found, judged
from tests.support.tables import changed, selected
from zprof.analysis.analysis import RunAnalysis, analyse_time_only
from zprof.analysis.time.own_time import measure_own_time
from zprof.causes.rotating_straggler import CAUSE as rotating_straggler
from zprof.causes.straggler_rank import CAUSE as straggler_rank
from zprof.run.reader import load

LATE = 1
STEPS, UNITS, KERNELS = 8, 6, 3
Pause = Callable[[int], int]


def program(
    ranks: tuple[int, ...], rank: int, pause: Pause, kernel_ns: int, start_ns: int, planted: Sequence[Op]
) -> list[Op]:
    ops: list[Op] = [Host(ns=start_ns)] if start_ns and rank == LATE else []
    for step in range(STEPS):
        ops.append(Step())
        for unit in range(UNITS):
            key = f"{step}.{unit}"
            ops += [Collect(key=key, group=ranks, ns=100 * US), Join(key=key)]
            for _ in range(KERNELS):
                ops += [Host(ns=pause(rank)), Kernel(ns=kernel_ns)]
            ops += planted if rank == LATE and unit == UNITS // 2 else ()
    return ops


def played(
    folder: Path,
    pause: Pause,
    *,
    kernel_ns: int = 300 * US,
    start_ns: int = 0,
    planted: Sequence[Op] = (),
    ranks: tuple[int, ...] = (0, 1, 2, 3),
) -> RunAnalysis:
    programs = {rank: program(ranks, rank, pause, kernel_ns, start_ns, planted) for rank in ranks}
    return analyse_time_only(load(write(folder / "x.zprof", programs)))


def steady(rank: int) -> int:
    return 900 * US


def slower(rank: int) -> int:
    """15 % of 18 pauses of 0.9 ms are 2.43 ms."""
    return int(900 * US * (1.15 if rank == LATE else 1.0))


def test_all_hosts_slow_are_no_straggler_although_one_started_late(tmp_path: Path) -> None:
    """The late rank idles 10 ms of each step while the others wait: that is the pace of all hosts."""
    analysis = played(tmp_path, steady, start_ns=9 * MS)
    waits = [entry.exposed_wait_ns for entry in analysis.time.per_rank if entry.rank != LATE]
    assert min(waits) > 8 * MS
    assert judged(straggler_rank, analysis) is None
    assert judged(rotating_straggler, analysis) is None


def test_a_slower_host_is_late_by_what_it_is_slower(tmp_path: Path) -> None:
    finding = found(straggler_rank, played(tmp_path, slower, start_ns=9 * MS))
    delay = finding.evidence[0]
    assert (delay.rank, delay.value) == (LATE, pytest.approx(2.43 * MS, rel=0.02))
    assert finding.saving_ns == (0, pytest.approx(2.43 * MS, rel=0.02))


def test_of_two_hosts_each_is_compared_with_the_other(tmp_path: Path) -> None:
    own = measure_own_time(played(tmp_path, slower, ranks=(0, LATE)))
    assert np.median(own.idle[:, 1]) == pytest.approx(2.43 * MS, rel=0.02)


@pytest.mark.parametrize(
    "planted",
    [
        [Drain(), Host(ns=4 * MS)],
        [op for _ in range(40) for op in (Drain(), Host(ns=100 * US))],
    ],
)
def test_a_host_that_stalls_behind_its_own_device_is_late(tmp_path: Path, planted: Sequence[Op]) -> None:
    """The host waits for its device before it stalls: that wait is for no other rank."""
    analysis = played(tmp_path, lambda rank: 50 * US, kernel_ns=MS, planted=planted)
    delay = found(straggler_rank, analysis).evidence[0]
    assert (delay.rank, delay.value) == (LATE, pytest.approx(4.5 * MS, abs=0.5 * MS))


def test_unrecorded_launches_neither_accuse_nor_clear_a_rank(tmp_path: Path) -> None:
    analysis = played(tmp_path, steady, start_ns=9 * MS)
    rows = analysis.collectives
    analysis = replace(analysis, collectives=changed(rows, rows.ints("rank") == LATE, host_ns=None))
    assert not measure_own_time(analysis).is_host_known
    assert judged(straggler_rank, analysis) == "gap"


def test_a_lost_launch_costs_one_step(tmp_path: Path) -> None:
    """The rank without it has its later ones numbered too low: no host can be compared in that step."""
    analysis = played(tmp_path, slower)
    rows = analysis.collectives
    lost = (rows.ints("rank") == 2) & (rows.ints("step") == 3) & rows.texts("unit").equals("3.2")
    assert lost.sum() == 1
    own = measure_own_time(replace(analysis, collectives=selected(rows, ~lost)))
    assert own.is_host_known
    assert 3 not in own.numbers
    assert np.median(own.idle[:, LATE]) == pytest.approx(2.43 * MS, rel=0.02)
