"""Steps of a trace: marked, cut, only on the device, ended by optimizers, or not there at all."""

import pytest
from msgspec.structs import replace

from tests.support.kineto_traces import BASE, trace_of
from zprof.collectors.read.kineto.steps import StepMarks, mark_steps


def ranged(name: str, start_us: int, length_us: int, tid: int = 1, cat: str = "user_annotation") -> dict:
    where = {"ph": "X", "pid": 9, "tid": tid, "args": {}}
    return {**where, "cat": cat, "name": name, "ts": start_us, "dur": length_us}


def step(number: int, start_us: int, length_us: int, **options) -> dict:
    return ranged(f"ProfilerStep#{number}", start_us, length_us, **options)


def operator(name: str, start_us: int, length_us: int, tid: int = 1) -> dict:
    return ranged(name, start_us, length_us, tid, "cpu_op")


def marks_of(*events: dict, cut_short: bool = False) -> StepMarks:
    trace = trace_of(events)
    report = replace(trace.report, cut_short=cut_short)
    return mark_steps(replace(trace, header=replace(trace.header, base_ns=BASE), report=report))


def spans(marks: StepMarks) -> list[tuple[int, int, int]]:
    """Return number, begin and end in microseconds."""
    columns = marks.columns
    assert list(columns["kind"]) == ["step_begin", "step_end"] * len(marks.numbers)
    assert list(columns["number"]) == [number for number in marks.numbers for _ in range(2)]
    times = [(time - BASE) // 1000 for time in columns["time_ns"]]
    return list(zip(marks.numbers, times[::2], times[1::2], strict=True))


@pytest.mark.parametrize(
    ("events", "want", "gaps"),
    [
        pytest.param(
            [
                step(4, 100, 50),
                step(5, 150, 60),
                step(4, 103, 90, tid=7, cat="gpu_user_annotation"),
                ranged("ProfilerStep*", 100, 110),
            ],
            [(4, 100, 150), (5, 150, 210)],
            0,
            id="of prof.step",
        ),
        pytest.param(
            [ranged("Iteration 3", 10, 5), ranged("Iterations", 0, 99)], [(3, 10, 15)], 0, id="words"
        ),
        pytest.param([ranged("Iteration#3", 10, 5)], [(3, 10, 15)], 0, id="hash"),
        pytest.param([ranged("Iteration_3", 10, 5)], [(3, 10, 15)], 0, id="underscore"),
        pytest.param([ranged("Iteration: 3", 10, 5)], [(3, 10, 15)], 0, id="colon"),
        pytest.param([ranged("Iteration 1", 0, 10), step(9, 0, 20)], [(9, 0, 20)], 0, id="both"),
        pytest.param([step(2, 10, 5, cat="cpu_op")], [(2, 10, 15)], 0, id="of old traces"),
        pytest.param(
            [step(1, 0, 10, tid=3), step(7, 70, 10, tid=3), step(1, 0, 10), step(2, 10, 10), step(3, 20, 10)],
            [(1, 0, 10), (2, 10, 20), (3, 20, 30)],
            1,
            id="of the thread that has most",
        ),
        pytest.param([step(1, 0, 100), step(2, 10, 10), step(3, 90, 30)], [(1, 0, 100)], 1, id="nested"),
        pytest.param([step(1, 0, 101), step(2, 100, 50)], [(1, 0, 100), (2, 100, 150)], 0, id="touching"),
        pytest.param([step(1, 0, 5), step(1, 50, 40)], [(1, 50, 90)], 1, id="a number twice"),
        pytest.param([step(1, 0, 5, cat="gpu_user_annotation")], [(1, 0, 5)], 1, id="on the device only"),
        pytest.param(
            [
                ranged("k", 500, 7, cat="kernel"),
                operator("op", 100, 50),
                ranged("PyTorch Profiler (0)", 1, 99_999, cat="Trace"),
                ranged("lost", 0, 0, cat="kernel"),
            ],
            [(0, 100, 507)],
            1,
            id="none: the whole trace",
        ),
        pytest.param([operator("a", 0, 4), operator("b", 5, 1)], [(0, 0, 6)], 1, id="from time 0"),
        pytest.param([ranged("PyTorch Profiler (0)", 1, 99, cat="Trace")], [], 1, id="nothing"),
        pytest.param([ranged("ProfilerStep#" + "9" * 400, 0, 5)], [(0, 0, 5)], 1, id="an endless number"),
    ],
)
def test_steps(events, want, gaps):
    marks = marks_of(*events)
    assert spans(marks) == want
    assert len(marks.gaps) == gaps


def test_an_empty_last_step_is_left_out_with_a_gap():
    work = operator("aten::mm", 120, 5), operator("aten::mm", 170, 5)
    marked = step(4, 100, 50), step(5, 150, 60)
    marks = marks_of(*work, *marked, step(6, 210, 2))
    assert (marks.numbers, len(marks.gaps)) == ((4, 5), 1)
    assert marks_of(*work, *marked, step(6, 210, 2), operator("aten::mm", 211, 1)).numbers == (4, 5, 6)
    assert marks_of(*marked).numbers == (4, 5)  # operators were not recorded at all


def worked(number: int, launches: int, kernels: int) -> list[dict]:
    begin = 1_000 * number
    events = [step(number, begin, 1_000)]
    for index in range(20):
        events.append(operator("aten::mm", begin + 40 * index, 20))
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
def test_only_whole_steps_of_a_file_that_is_cut_count(held, whole):
    events = [event for index, counts in enumerate(held) for event in worked(index + 1, *counts)]
    every = tuple(range(1, len(held) + 1))
    assert marks_of(*events).numbers == every
    marks = marks_of(*events, cut_short=True)
    assert (marks.numbers, len(marks.gaps)) == (whole, int(whole != every))


def optimized(index: int, *names: str, backward: bool = True, update: bool = False, sent: bool = False):
    """Return a forward, a backward on another thread, and the steps of optimizers, of 1 ms."""
    begin = 1_000 * index
    events = [operator("aten::mm", begin, 400)]
    if backward:
        node = "autograd::engine::evaluate_function: MmBackward0"
        events.append(operator(node, begin + 400, 300, tid=2))
    for place, name in enumerate(names):
        events.append(ranged(f"Optimizer.step#{name}.step", begin + 700 + 100 * place, 90))
    if update:
        events.append(operator("aten::_fused_adamw_", begin + 700, 90))
    if sent:
        events.append(operator("c10d::_allgather_base_", begin + 795, 40))
    return events


@pytest.mark.parametrize(
    ("names", "options", "want"),
    [
        (["SGD"], {}, [(0, 790, 1_790), (1, 1_790, 2_790)]),
        (["Shampoo", "EMA"], {}, [(0, 890, 1_890), (1, 1_890, 2_890)]),
        (["Adam", "Adam"], {}, [(0, 890, 1_890), (1, 1_890, 2_890)]),
        (["Shampoo", "EMA"], {"backward": False}, [(0, 890, 1_890), (1, 1_890, 2_890)]),
        ([], {"update": True}, [(0, 790, 1_790), (1, 1_790, 2_790)]),
        # what is sent right behind an optimizer belongs to its step
        (["SGD"], {"sent": True}, [(0, 835, 1_835), (1, 1_835, 2_835)]),
    ],
)
def test_unmarked_steps_lie_between_the_ends_of_optimizer_steps(names, options, want):
    marks = marks_of(*(event for index in range(3) for event in optimized(index, *names, **options)))
    assert spans(marks) == want
    assert set(marks.columns["name"]) == {"Optimizer.step"}
    assert len(marks.gaps) == 1
