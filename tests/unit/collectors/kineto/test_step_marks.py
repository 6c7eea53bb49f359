"""Steps of a trace: marked, odd, only on the device, or not there at all."""

from dataclasses import replace

import pytest

from tests.support.kineto_traces import BASE, trace_of
from zprof.collectors.kineto.steps import WHOLE_TRACE, StepMarks, mark_steps


def ranged(name: str, start_us: int, length_us: int, tid: int = 1, cat: str = "user_annotation") -> dict:
    where = {"ph": "X", "pid": 9, "tid": tid, "args": {}}
    return {**where, "cat": cat, "name": name, "ts": start_us, "dur": length_us}


def steps(*events: dict) -> StepMarks:
    trace = trace_of(events)
    return mark_steps(replace(trace, header=replace(trace.header, base_ns=BASE)))


def spans(marks: StepMarks) -> list[tuple[int, int, int]]:
    """Number, begin and end in microseconds."""
    columns = marks.columns
    assert list(columns["kind"]) == ["step_begin", "step_end"] * len(marks.numbers)
    times = [(time - BASE) // 1000 for time in columns["time_ns"]]
    return list(zip(marks.numbers, times[::2], times[1::2], strict=True))


def test_steps_are_those_of_prof_step_once() -> None:
    marks = steps(
        ranged("ProfilerStep#4", 100, 50),
        ranged("ProfilerStep#5", 150, 60),
        ranged("ProfilerStep#4", 103, 90, tid=7, cat="gpu_user_annotation"),
        ranged("ProfilerStep*", 100, 110),
        ranged("## forward ##", 101, 5),
    )
    assert spans(marks) == [(4, 100, 150), (5, 150, 210)]
    assert set(marks.columns["name"]) == {"ProfilerStep"}
    assert list(marks.columns["number"]) == [4, 4, 5, 5]
    assert marks.gaps == ()


@pytest.mark.parametrize("name", ["Iteration 3", "Iteration#3", "Iteration_3", "Iteration: 3"])
def test_other_names_of_steps(name: str) -> None:
    marks = steps(ranged(name, 10, 5), ranged("Iterations", 0, 99), ranged("Iteration Start: X", 0, 9))
    assert spans(marks) == [(3, 10, 15)]
    assert set(marks.columns["name"]) == {"Iteration"}


def test_profiler_steps_go_before_iterations() -> None:
    iterations = [ranged("Iteration 1", 0, 10), ranged("Iteration 2", 10, 10)]
    marks = steps(*iterations, ranged("ProfilerStep#9", 0, 20))
    assert marks.numbers == (9,)


def test_old_traces_have_them_among_the_operators() -> None:
    assert spans(steps(ranged("ProfilerStep#2", 10, 5, cat="cpu_op"))) == [(2, 10, 15)]


def test_the_thread_that_has_most_is_taken_and_the_rest_is_told() -> None:
    marks = steps(
        ranged("ProfilerStep#1", 0, 10, tid=3),
        ranged("ProfilerStep#1", 0, 10),
        ranged("ProfilerStep#2", 10, 10),
        ranged("ProfilerStep#7", 70, 10, tid=3),
        ranged("ProfilerStep#3", 20, 10),
    )
    assert marks.numbers == (1, 2, 3)
    assert "1 marked steps" in marks.gaps[0].reason


def test_steps_within_steps_are_left_out() -> None:
    marks = steps(
        ranged("ProfilerStep#1", 0, 100), ranged("ProfilerStep#2", 10, 10), ranged("ProfilerStep#3", 90, 30)
    )
    assert spans(marks) == [(1, 0, 100)]
    assert "2 marked steps overlap others" in marks.gaps[0].reason


def test_steps_that_only_touch_are_cut_to_fit() -> None:
    marks = steps(ranged("ProfilerStep#1", 0, 101), ranged("ProfilerStep#2", 100, 50))
    assert spans(marks) == [(1, 0, 100), (2, 100, 150)]
    assert marks.gaps == ()


def test_a_number_that_comes_twice_counts_once() -> None:
    marks = steps(ranged("ProfilerStep#1", 0, 5), ranged("ProfilerStep#1", 50, 40))
    assert spans(marks) == [(1, 50, 90)]
    assert len(marks.gaps) == 1


def test_the_device_stands_in_where_the_host_was_not_profiled() -> None:
    marks = steps(ranged("ProfilerStep#1", 0, 5, cat="gpu_user_annotation"), ranged("k", 0, 5, cat="kernel"))
    assert spans(marks) == [(1, 0, 5)]
    assert "only the device's copies" in marks.gaps[0].reason


def test_without_steps_the_whole_trace_is_one() -> None:
    marks = steps(
        ranged("k", 500, 7, cat="kernel"),
        ranged("op", 100, 50, cat="cpu_op"),
        ranged("PyTorch Profiler (0)", 1, 99_999, cat="Trace"),
        ranged("lost", 0, 0, cat="kernel"),
    )
    assert spans(marks) == [(0, 100, 507)]
    assert set(marks.columns["name"]) == {WHOLE_TRACE}
    assert "prof.step()" in marks.gaps[0].remedy


def test_an_event_at_time_zero_with_a_length_is_real() -> None:
    assert spans(steps(ranged("a", 0, 4, cat="cpu_op"), ranged("b", 5, 1, cat="cpu_op"))) == [(0, 0, 6)]


def test_nothing_but_bookkeeping_is_no_step() -> None:
    marks = steps(ranged("PyTorch Profiler (0)", 1, 99, cat="Trace"))
    assert marks.numbers == ()
    assert marks.gaps


def test_a_number_beyond_all_bounds_is_no_step() -> None:
    assert steps(ranged("ProfilerStep#" + "9" * 400, 0, 5)).numbers == (0,)


def test_a_last_step_that_nothing_was_done_in_is_left_out_and_told() -> None:
    work = ranged("aten::mm", 120, 5, cat="cpu_op"), ranged("aten::mm", 170, 5, cat="cpu_op")
    marked = ranged("ProfilerStep#4", 100, 50), ranged("ProfilerStep#5", 150, 60)
    marks = steps(*work, *marked, ranged("ProfilerStep#6", 210, 2))
    assert marks.numbers == (4, 5)
    assert "step 6" in marks.gaps[0].reason
    worked = ranged("aten::mm", 211, 1, cat="cpu_op")
    assert steps(*work, *marked, ranged("ProfilerStep#6", 210, 2), worked).numbers == (4, 5, 6)
    assert steps(*marked).numbers == (4, 5), "where operators were not recorded at all nothing tells"


def _worked(number: int, launches: int, kernels: int) -> list[dict]:
    begin = 1_000 * number
    events = [ranged(f"ProfilerStep#{number}", begin, 1_000)]
    for index in range(20):
        events.append(ranged("aten::mm", begin + 40 * index, 20, cat="cpu_op"))
        ids = {"args": {"correlation": 100 * number + index}}
        if index < launches:
            events.append(ranged("cudaLaunchKernel", begin + 40 * index, 9, cat="cuda_runtime") | ids)
        if index < kernels:
            events.append(ranged("gemm", begin + 40 * index + 10, 9, tid=7, cat="kernel") | ids)
    return events


@pytest.mark.parametrize(
    ("held", "whole"),
    [
        ([(20, 20), (20, 20), (20, 20)], (1, 2, 3)),
        ([(20, 20), (20, 20), (12, 12)], (1, 2)),
        ([(20, 20), (20, 20), (20, 12)], (1, 2)),
        ([(20, 20), (20, 20), (0, 0)], (1, 2)),
        ([(14, 14), (15, 15), (16, 16), (0, 0)], ()),
        ([(20, 20), (3, 3)], ()),
    ],
)
def test_of_a_file_that_ends_early_only_whole_steps_count(
    held: list[tuple[int, int]], whole: tuple[int, ...]
) -> None:
    trace = trace_of(event for index, counts in enumerate(held) for event in _worked(index + 1, *counts))
    every = tuple(range(1, len(held) + 1))
    assert mark_steps(trace).numbers == every
    marks = mark_steps(replace(trace, report=replace(trace.report, cut_short=True)))
    assert marks.numbers == whole
    assert [gap.what for gap in marks.gaps] == ["steps"] * (whole != every)


def _optimized(index: int, *names: str, backward: bool = True) -> list[dict]:
    """A forward, a backward on another thread, and the steps of optimizers."""
    begin = 1_000 * index
    events = [ranged("aten::mm", begin, 400, cat="cpu_op")]
    if backward:
        node = "autograd::engine::evaluate_function: MmBackward0"
        events.append(ranged(node, begin + 400, 300, tid=2, cat="cpu_op"))
    for place, name in enumerate(names):
        events.append(ranged(f"Optimizer.step#{name}.step", begin + 700 + 100 * place, 90))
    return events


def test_steps_that_nothing_marks_lie_between_the_ends_of_optimizer_steps() -> None:
    marks = steps(*(event for index in range(4) for event in _optimized(index, "SGD")))
    assert spans(marks) == [(0, 790, 1_790), (1, 1_790, 2_790), (2, 2_790, 3_790)]
    assert set(marks.columns["name"]) == {"Optimizer.step"}
    assert "4 optimizer steps" in marks.gaps[0].reason


def test_optimizers_without_a_backward_between_them_end_one_step() -> None:
    two = ("Shampoo", "EMA")
    assert len(steps(*(event for i in range(3) for event in _optimized(i, *two))).numbers) == 2
    groups = ("Adam", "Adam")
    assert len(steps(*(event for i in range(3) for event in _optimized(i, *groups))).numbers) == 2
    alone = steps(*(event for i in range(3) for event in _optimized(i, *two, backward=False)))
    assert spans(alone) == [(0, 890, 1_890), (1, 1_890, 2_890)]


def test_one_optimizer_step_is_one_step_of_the_whole_trace() -> None:
    """Micro-batches before it have no end of their own."""
    marks = steps(*_optimized(0), *_optimized(1), *_optimized(2, "SGD"))
    assert set(marks.columns["name"]) == {WHOLE_TRACE}


def test_steps_without_a_range_end_with_what_optimizers_run() -> None:
    def updated(index: int) -> list[dict]:
        update = ranged("aten::_fused_adamw_", index * 1_000 + 700, 90, cat="cpu_op")
        return [*_optimized(index), update]

    marks = steps(*(event for index in range(3) for event in updated(index)))
    assert spans(marks) == [(0, 790, 1_790), (1, 1_790, 2_790)]
    alone = steps(*(ranged("aten::_fused_adamw_", index * 1_000, 90, cat="cpu_op") for index in range(3)))
    assert set(alone.columns["name"]) == {WHOLE_TRACE}  # of one step or of three


def test_what_is_sent_right_behind_an_optimizer_belongs_to_its_step() -> None:
    def sent(index: int) -> list[dict]:
        gather = ranged("c10d::_allgather_base_", index * 1_000 + 795, 40, cat="cpu_op")
        return [*_optimized(index, "SGD"), gather]

    marks = steps(*(event for index in range(3) for event in sent(index)))
    assert spans(marks) == [(0, 835, 1_835), (1, 1_835, 2_835)]
