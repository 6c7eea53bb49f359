"""The ledger of ranks: against a sweep that shares no code, in whole runs, and in its means and noise."""

from math import sqrt
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.device_ranks import NCCL, Rows, write_run
from tests.support.interval_oracle import Work, totals
from zprof.analysis.columns import Columns
from zprof.analysis.time.activity import read_device_activity
from zprof.analysis.time.analyse import TimeAnalysis, analyse_time
from zprof.analysis.time.ledger import (
    attribute_exposure,
    average_rank_time,
    divide_evenly,
    estimate_step_noise,
    find_blocking,
    make_step_columns,
)
from zprof.analysis.time.rank import measure_device_totals
from zprof.analysis.time.steps import find_step_windows, find_trace_windows
from zprof.analysis.time.timeline import RankTimeline
from zprof.model.time import LEDGER_TERMS, WindowPolicy
from zprof.run.reader import load

TERMS = list(LEDGER_TERMS)
span = st.tuples(st.integers(0, 900), st.integers(0, 80)).map(lambda s: (s[0], s[0] + s[1]))
piece = st.one_of(
    st.tuples(span, st.sampled_from(["compute", "mem"]), st.sampled_from([7, 8])),
    st.tuples(span, st.just("comm"), st.sampled_from([20, 21])),
)
work = st.lists(piece, min_size=1, max_size=25)


def rows_of(items, launches=()) -> Rows:
    rows = Rows()
    for index, ((start, end), what, stream) in enumerate(items):
        call = launches[index] if index < len(launches) else None
        number = None if call is None else index + 1
        if call is not None:
            rows.call(call, number)
        if what == "comm":
            rows.collective(start, end, stream, number, launch=call)
        else:
            (rows.kernel if what == "compute" else rows.copy)(start, end, stream, number)
    return rows


def true_totals(items):
    return totals(Work(*ran, what) for ran, what, _ in items if ran[1] > ran[0])


def measured(rows: Rows, numbers: list[int] | None = None):
    """Timeline, step rows and exposure: of the marked steps, else of the whole trace."""
    activity = read_device_activity(rows.events_table(), rows.collectives_table())
    marked = find_step_windows(Columns.from_arrow(rows.marks_table()), numbers, activity) if numbers else None
    windows = marked or find_trace_windows(activity)
    collectives = rows.decomposed().sort_by("start_ns", "end_ns")
    timeline = RankTimeline(
        rank=0, host="a", steps=windows.steps, host_steps=windows.host_steps, activity=activity, pings={}
    )
    blocking, _ = find_blocking(0, activity, timeline.steps, collectives)
    exposure = attribute_exposure(collectives.ints("arrival_ns"), blocking)
    return timeline, make_step_columns(timeline, blocking, exposure), exposure


@settings(max_examples=30)
@given(work)
def test_the_whole_trace_equals_the_sweep(items) -> None:
    want = true_totals(items)
    if not want.span:
        return
    _, steps, exposure = measured(rows_of(items))
    row = steps.to_frame().iloc[0]
    measures = ("wall_ns", "collective_ns", "compute_ns", "memcpy_ns", "overlapped_ns")
    assert [row[name] for name in measures] == [want.span, want.comm, want.compute, want.mem, want.overlap]
    assert row["exposed_wait_ns"] + row["exposed_transfer_ns"] == want.exposed
    assert row["idle_ns"] + row["unexplained_ns"] == want.idle
    assert row["wall_ns"] == row[TERMS].sum()
    assert exposure.wait_ns.sum() + exposure.transfer_ns.sum() == want.exposed


@settings(max_examples=30)
@given(work, st.lists(st.integers(0, 900), max_size=25), st.integers(1, 300), st.integers(1, 300))
def test_steps_sum_exactly_and_leave_nothing_out(items, launches, first, second) -> None:
    rows = rows_of(items, launches)
    rows.step(3, 100, 100 + first).step(4, 100 + first, 100 + first + second)
    timeline, steps, exposure = measured(rows, [3, 4])
    table = steps.to_frame()
    assert (table["wall_ns"] == table[TERMS].sum(axis=1)).all()
    assert (table[TERMS] >= 0).all(axis=None)
    exposed = table["exposed_wait_ns"] + table["exposed_transfer_ns"]
    assert (table["collective_ns"] == table["overlapped_ns"] + exposed).all()
    assert exposed.sum() == exposure.wait_ns.sum() + exposure.transfer_ns.sum()
    mean = average_rank_time(steps, "kernels", 0)
    assert mean.wall_ns == sum(getattr(mean, term) for term in TERMS)
    busy = table["compute_ns"] + exposed + table["exposed_memcpy_ns"]
    total = true_totals(items)
    assert busy.sum() + timeline.outside_ns == total.span - total.idle


def test_a_communication_kernel_without_a_description_is_unexplained_but_for_copies() -> None:
    rows = Rows().kernel(0, 10).kernel(10, 40, stream=20, name=NCCL).copy(15, 22).kernel(30, 50)
    _, steps, _ = measured(rows)
    names = ("compute_ns", "exposed_memcpy_ns", "unexplained_ns", "idle_ns")
    assert [steps.ints(name)[0] for name in names] == [30, 7, 13, 0]


@given(st.lists(st.integers(0, 10**12), min_size=1, max_size=7), st.integers(1, 50))
def test_means_still_sum(sums: list[int], count: int) -> None:
    means = divide_evenly(sums, count)
    assert sum(means) == sum(sums) // count
    assert all(mean >= 0 and abs(mean - value / count) <= 1 for mean, value in zip(means, sums, strict=True))


@pytest.mark.parametrize(
    ("milliseconds", "slower_rank", "noise_ms"),
    [
        ((96, 100, 104), 0, 1.96 * 4 * sqrt(2 / 3)),  # steps deviate by 4: two means of three such steps
        ((96, 104) * 4, 0, 1.96 * 4 * sqrt(8 / 7) * sqrt(2 / 8)),
        ((100, 100, 100), 50, 0),
        ((50, 150), 0, None),
        ((), 0, None),
    ],
)
def test_noise_of_steps_in_closed_form(
    milliseconds: tuple[float, ...], slower_rank: float, noise_ms: float | None
) -> None:
    walls = np.array([[wall, wall + slower_rank] for wall in milliseconds]).ravel() * 1_000_000
    steps = np.repeat(np.arange(len(milliseconds)), 2)
    noise = estimate_step_noise(Columns({"step": steps, "wall_ns": walls.astype(np.int64)}))
    assert noise == (None if noise_ms is None else pytest.approx(noise_ms * 1_000_000, abs=1))


def two_ranks(late: int = 0) -> dict[int, Rows]:
    """Two steps; a gather in each, to which rank 1 comes late; work before the window, and behind its end."""
    ranks = {}
    for rank in (0, 1):
        rows = Rows().step(5, 1000, 2000).step(6, 2000, 3000)
        rows.call(500, 1).kernel(900, 1100, correlation=1)
        for index, base in enumerate((1000, 2000)):
            start, number = base + 300 + late * rank, 10 * (index + 1)
            rows.call(base + 10, number).call(base + 20, number + 1).call(base + 30, number + 2)
            rows.kernel(base + 200, start, correlation=number)
            described = {"dtype": "bfloat16", "bytes": 1 << 20, "group": "0,1", "group_size": 2}
            described |= {"sequence": index, "method": "nccl"}
            rows.collective(start, base + 600 + late, correlation=number + 1, launch=base + 20, **described)
            rows.kernel(base + 600 + late, base + 1150, correlation=number + 2)
        ranks[rank] = rows
    return ranks


def analysed(folder: Path, ranks: dict[int, Rows], **options) -> TimeAnalysis:
    return analyse_time(load(write_run(folder / "x.zprof", ranks, **options)))


def gap_ranks(analysis: TimeAnalysis, what: str) -> list[int | None]:
    return [gap.rank for gap in analysis.gaps if gap.what == what]


def test_a_run_by_steps(tmp_path: Path) -> None:
    analysis = analysed(tmp_path, two_ranks(late=100))
    time = analysis.time
    assert time.window is not None
    assert (time.window.policy, time.window.source) == (WindowPolicy.STEP, "ProfilerStep")
    assert time.window.pre_window_ns == 200, "the kernel that was launched before the first step"
    walls = {(step.rank, step.step): step.wall_ns for step in time.steps}
    assert walls == {(0, 5): 1050, (0, 6): 1000, (1, 5): 1050, (1, 6): 1000}
    for step in time.steps:
        assert step.wall_ns == sum(getattr(step, term) for term in TERMS)
        assert step.compute_ns == (100 if step.rank == 0 else 200) + 450
        assert step.exposed_wait_ns == (100 if step.rank == 0 else 0)
        assert step.exposed_transfer_ns == 300
    assert time.per_rank[0].first_wait_ns == 50, "one of the waits of two steps"
    assert not gap_ranks(analysis, "exposed wait")


def test_a_run_as_one_window(tmp_path: Path) -> None:
    run = load(write_run(tmp_path / "x.zprof", two_ranks(late=100)))
    analysis = analyse_time(run, WindowPolicy.TRACE)
    assert analysis.time.window is not None
    assert (analysis.time.window.source, analysis.time.window.pre_window_ns) == ("whole trace", 0)
    assert (analysis.collectives.ints("step") == 0).all()
    found, gaps = measure_device_totals(run)
    assert not gaps
    for entry, total in zip(analysis.time.per_rank, found, strict=True):
        assert (entry.steps, entry.wall_ns, entry.unexplained_ns) == (1, 3150 - 900, 0)
        assert entry.wall_ns == sum(getattr(entry, term) for term in TERMS)
        assert (entry.rank, entry.compute_ns, entry.memcpy_ns) == (
            total.rank,
            total.compute_ns,
            total.memory_ns,
        )
        assert (entry.collective_ns, entry.overlap_ratio) == (total.communication_ns, total.overlap_ratio)


def test_a_rank_that_used_a_gpu_of_which_nothing_was_recorded(tmp_path: Path) -> None:
    ranks = two_ranks()
    ranks[1].events = [row for row in ranks[1].events if row["category"] == "cuda_runtime"]
    ranks[1].collectives = []
    analysis = analysed(tmp_path, ranks)
    assert [entry.rank for entry in analysis.time.per_rank] == [0]
    assert gap_ranks(analysis, "GPU work") == [1]


@pytest.mark.parametrize(
    ("ranks", "silent", "gaps"), [((0, 1), (0, 1), [None]), ((0, 1), (1,), [1]), ((0,), (0,), [])]
)
def test_ranks_that_do_not_communicate(
    tmp_path: Path, ranks: tuple[int, ...], silent: tuple[int, ...], gaps: list[int | None]
) -> None:
    both = two_ranks()
    for rank in silent:
        both[rank].collectives = []
        both[rank].events = [row for row in both[rank].events if row["name"] != NCCL]
    assert gap_ranks(analysed(tmp_path, {rank: both[rank] for rank in ranks}), "collectives") == gaps
