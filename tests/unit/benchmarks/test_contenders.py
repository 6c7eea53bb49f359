"""Turns, medians, limits and tables of whole processes, and the guard's verdict, on figures made up here."""

import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from benchmarks.contenders import (
    Cache,
    Comparison,
    Contender,
    Group,
    Medians,
    Quantity,
    compare,
    compute_medians,
    make_environment,
    run_group,
)
from benchmarks.guard import COMPARISONS, compute_ratios, judge
from benchmarks.processes import ProcessUse, run_process

_HOLD_40_MIB = "import time; held = bytearray(40 << 20); time.sleep(0.5)"
_TWO_PROCESSES = (
    f"import subprocess, sys; other = subprocess.Popen([sys.executable, '-c', {_HOLD_40_MIB!r}]); "
    f"{_HOLD_40_MIB}; other.wait()"
)


def use(seconds: float, mib: float, tree_mib: float | None = None) -> ProcessUse:
    return ProcessUse(seconds=seconds, cpu_s=2 * seconds, peak_mib=mib, tree_peak_mib=tree_mib)


def figures(**seconds: float) -> dict[str, Medians]:
    return {
        name: compute_medians(use(value, 10), [use(value, 100 * value)]) for name, value in seconds.items()
    }


def test_medians_leave_out_the_round_that_warms_up() -> None:
    found = compute_medians(use(99, 50, 80), [use(3, 60), use(1, 61), use(2, 62)])
    assert (found.seconds, found.cpu_s, found.seconds_of_each) == (2, 4, (3, 1, 2))
    assert found.peak_mib == 80  # of several processes at once, sampled
    assert compute_medians(use(1, 50, 50), [use(1, 61)]).peak_mib == 61


@pytest.mark.parametrize(
    ("comparison", "ratio", "holds"),
    [
        (Comparison(contender="slow", peer="fast", max_ratio=4), 4, True),
        (Comparison(contender="slow", peer="fast", max_ratio=3.9), 4, False),
        (Comparison(contender="fast", peer="slow", max_ratio=1 / 5), 1 / 4, False),
        (Comparison(contender="slow", peer="fast", max_ratio=1.3, work_ratio=16), 1 / 4, True),
        (Comparison(contender="slow", peer="fast", quantity=Quantity.MEMORY), 4, None),
        (Comparison(contender="slow", max_seconds=7), None, False),
        (Comparison(contender="slow", max_seconds=8), None, True),
    ],
)
def test_a_limit_is_of_the_ratio_or_of_seconds(
    comparison: Comparison, ratio: float | None, holds: bool | None
) -> None:
    row = compare(comparison, figures(slow=8, fast=2))
    assert row is not None
    assert (row.ratio, row.holds) == (ratio, holds)


def test_a_user_keeps_reports_and_compiled_modules() -> None:
    found = make_environment({"ZPROF_NO_CACHE": "1", "PYTHONDONTWRITEBYTECODE": "1", "HOME": "/h"}, "/c")
    assert found.items() >= {"HOME": "/h", "XDG_CACHE_HOME": "/c"}.items()
    assert not found.keys() & {"ZPROF_NO_CACHE", "PYTHONDONTWRITEBYTECODE"}


def test_only_what_is_kept_sees_the_cache_of_the_process_before_it(tmp_path: Path) -> None:
    """The second and third fail if the cache is not as they expect it."""
    expect = "import os, sys; folder = os.environ['XDG_CACHE_HOME']; found = os.listdir(folder)\n"
    fill = expect + "assert not found; open(folder + '/kept', 'w').close()"
    group = Group(
        name="caches",
        contenders=(
            Contender(name="cold", arguments=("-c", fill)),
            Contender(name="kept", arguments=("-c", expect + "assert found"), cache=Cache.KEPT),
            Contender(name="fails", arguments=("-c", expect + "sys.exit(4 + len(found))"), exit_code=4),
        ),
        comparisons=(),
    )
    found = run_group(group, 2, tmp_path)
    assert [len(each.seconds_of_each) for each in found.values()] == [2, 2, 2]


def test_memory_is_that_of_all_processes_at_once() -> None:
    alone = run_process([sys.executable, "-c", _HOLD_40_MIB], is_tree_sampled=True)
    both = run_process([sys.executable, "-c", _TWO_PROCESSES], is_tree_sampled=True)
    assert 40 < alone.peak_mib < 80
    assert alone.tree_peak_mib == alone.peak_mib
    assert both.tree_peak_mib is not None
    assert both.peak_mib < 80 < both.tree_peak_mib < 140


def test_processor_time_includes_children() -> None:
    busy = "import time\nwhile time.process_time() < 0.5: pass"
    parent = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {busy!r}])"
    assert run_process([sys.executable, "-c", parent]).cpu_s >= 0.5


def guarded(slowdown: Mapping[str, float]) -> dict[str, float]:
    names = {name for one in COMPARISONS for name in (one.contender, one.peer) if name is not None}
    return compute_ratios(figures(**{name: slowdown.get(name, 1.0) for name in names}))


def test_the_guard_fails_above_the_committed_ratio() -> None:
    committed = guarded({})
    assert len(committed) == 6
    assert all(verdict.holds for verdict in judge(committed, committed))
    answer = COMPARISONS[0].contender
    assert all(verdict.holds for verdict in judge(guarded({answer: 1.49}), committed))
    broken = [verdict.name for verdict in judge(guarded({answer: 1.51}), committed) if not verdict.holds]
    assert len(broken) == 1
    assert broken[0].startswith(answer)


def test_the_guard_fails_without_a_committed_ratio() -> None:
    assert not any(verdict.holds for verdict in judge(guarded({}), {}))
