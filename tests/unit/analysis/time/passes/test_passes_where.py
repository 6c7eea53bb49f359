"""Where a step is at an instant: by ranges of the program, by autograd, and unknown without either."""

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from zprof.analysis.intervals import EMPTY, Int64s, Intervals, intervals
from zprof.analysis.time.clocks.rank_clock import RankClock
from zprof.analysis.time.passes.phases import (
    LocatedInstants,
    PhaseEvidence,
    collect_phase_evidence,
    locate_instants,
)

STEP = (0, 1000)


def at(evidence: PhaseEvidence, *times: int, step: tuple[int, int] = STEP) -> LocatedInstants:
    count = len(times)
    asked: Int64s = np.array(times, dtype=np.int64)
    return locate_instants(evidence, asked, intervals([step[0]] * count, [step[1]] * count))


def spans(*pairs: tuple[int, int]) -> Intervals:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def test_nothing_known_stays_unknown() -> None:
    seen = at(PhaseEvidence(), 5)
    assert (list(seen.phase), list(seen.method), seen.micro_batch.tolist()) == (
        ["unknown"],
        ["unknown"],
        [-1],
    )


def test_ranges_of_the_program_say_it() -> None:
    seen = at(PhaseEvidence(forward=spans((10, 20)), backward=spans((50, 60))), 15, 55)
    assert list(seen.phase) == ["forward", "backward"]
    assert set(seen.method) == {"ranges"}


def test_a_prefetch_serves_the_pass_that_it_names() -> None:
    """The gather of the first backward pass, launched while the last forward pass is prepared."""
    evidence = PhaseEvidence(
        forward=spans((10, 20)), ahead_backward=spans((14, 16)), backward=spans((50, 60))
    )
    assert list(at(evidence, 12, 15).phase) == ["forward", "backward"]


def test_a_forward_within_a_backward_is_recomputation() -> None:
    nested = PhaseEvidence(forward=spans((55, 57)), backward=spans((50, 60)))
    by_autograd = PhaseEvidence(forward=spans((55, 57)), autograd=spans((50, 60)))
    assert list(at(nested, 56).phase) == list(at(by_autograd, 56).phase) == ["recompute"]


def test_a_backward_range_within_a_forward_range_is_a_backward() -> None:
    assert list(at(PhaseEvidence(forward=spans((10, 60)), backward=spans((20, 30))), 25).phase) == [
        "backward"
    ]


def test_the_optimizer_comes_first() -> None:
    evidence = PhaseEvidence(optimizer=spans((80, 90)), forward=spans((70, 95)))
    assert list(at(evidence, 85).phase) == ["optimizer"]


def test_nodes_of_autograd_and_what_runs_outside_of_them() -> None:
    evidence = PhaseEvidence(autograd=spans((50, 60), (70, 80)), operators=spans((10, 20), (90, 95)))
    seen = at(evidence, 5, 15, 55, 65, 97)
    assert list(seen.phase) == ["forward", "forward", "backward", "backward", "forward"]
    assert set(seen.method) == {"autograd"}


def test_a_new_forward_after_a_backward_is_a_micro_batch() -> None:
    evidence = PhaseEvidence(
        operators=spans((10, 20), (110, 120), (210, 220)),
        autograd=spans((50, 60), (70, 80), (150, 160)),
    )
    assert at(evidence, 15, 55, 75, 115, 155).micro_batch.tolist() == [0, 0, 0, 1, 1]
    # what follows the last backward of the step has none of its own
    assert at(evidence, 215).micro_batch.tolist() == [1]


def test_micro_batches_are_counted_from_the_begin_of_their_step() -> None:
    evidence = PhaseEvidence(
        operators=spans((10, 20), (110, 120), (1010, 1020), (1110, 1120)),
        autograd=spans((50, 60), (150, 160), (1050, 1060), (1150, 1160)),
    )
    assert at(evidence, 1015, 1155, step=(1000, 2000)).micro_batch.tolist() == [0, 1]


def test_forward_ranges_within_a_backward_begin_no_micro_batch() -> None:
    evidence = PhaseEvidence(forward=spans((10, 20), (55, 57)), autograd=spans((50, 60), (70, 80)))
    assert at(evidence, 75).micro_batch.tolist() == [0]


def test_without_a_backward_micro_batches_are_not_known() -> None:
    assert at(PhaseEvidence(forward=spans((10, 20)), operators=EMPTY), 15).micro_batch.tolist() == [-1]


def events_of(*rows: tuple[str, str, int, int, int]) -> pa.Table:
    """Category, name, thread, begin and end of each."""
    categories, names, threads, begins, ends = zip(*rows, strict=True)
    return pa.table(
        {
            "start_ns": pa.array(begins, pa.int64()),
            "duration_ns": pa.array([e - b for b, e in zip(begins, ends, strict=True)], pa.int64()),
            "category": pa.array(categories).dictionary_encode(),
            "name": pa.array(names).dictionary_encode(),
            "thread": pa.array(threads, pa.int64()),
            "stream": pa.nulls(len(rows), pa.int64()),
            "correlation": pa.nulls(len(rows), pa.int64()),
        }
    )


NO_MARKS = pd.DataFrame({"time_ns": [], "kind": [], "name": []})


@pytest.mark.parametrize("autograd_thread", [1, 2])
def test_recomputation_outside_of_the_nodes_of_autograd_is_no_micro_batch(autograd_thread: int) -> None:
    """Each unit's forward runs again right before its backward: on autograd's thread, or on the only one."""

    def span(name: str, begin: int, thread: int = 1) -> tuple[str, str, int, int, int]:
        return ("user_annotation", name, thread, begin, begin + 5)

    rows = [("user_annotation", "ProfilerStep#1", 1, 0, 1000)]
    rows += [span(f"FSDP::pre_forward (layers.{unit})", 10 * unit) for unit in range(3)]
    rows += [span("FSDP::pre_backward (root)", 90, autograd_thread)]
    for place, unit in enumerate((2, 1, 0)):
        rows += [
            span(f"FSDP::pre_forward (layers.{unit})", 100 + 20 * place, autograd_thread),
            span(f"FSDP::post_backward (layers.{unit})", 110 + 20 * place, autograd_thread),
        ]
    evidence = collect_phase_evidence(events_of(*rows), NO_MARKS, RankClock())
    seen = at(evidence, 2, 22, 102, 112, 122, 142, 152)
    assert list(seen.phase) == [
        "forward", "forward", "recompute", "backward", "recompute", "recompute", "backward",
    ]  # fmt: skip
    assert set(seen.micro_batch.tolist()) == {0}


def test_a_forward_of_some_units_behind_the_optimizer_recomputes_nothing() -> None:
    rows = [
        ("user_annotation", "FSDP::pre_forward (layers.0)", 1, 0, 5),
        ("user_annotation", "FSDP::pre_forward (layers.1)", 1, 10, 15),
        ("user_annotation", "FSDP::post_backward (layers.1)", 1, 20, 25),
        ("user_annotation", "Optimizer.step#AdamW.step", 1, 30, 40),
        ("user_annotation", "FSDP::pre_forward (layers.0)", 1, 50, 55),
    ]
    evidence = collect_phase_evidence(events_of(*rows), NO_MARKS, RankClock())
    assert list(at(evidence, 52).phase) == ["forward"]


def test_phases_that_a_recorder_marked_before_the_timed_steps_say_nothing_of_them() -> None:
    events = pa.table(
        {
            "start_ns": [1000, 1200],
            "duration_ns": [100, 100],
            "category": pa.array(["cpu_op", "cpu_op"]).dictionary_encode(),
            "name": pa.array(["aten::mm", "MmBackward0"]).dictionary_encode(),
            "thread": [1, 1],
            "stream": pa.nulls(2, pa.int64()),
            "correlation": pa.nulls(2, pa.int64()),
        }
    )

    def marked(*times: int) -> Intervals:
        names = ["forward", "backward", "optimizer"]
        marks = pd.DataFrame({"time_ns": times, "kind": "phase", "name": names})
        return collect_phase_evidence(events, marks, RankClock()).forward

    assert not len(marked(100, 200, 300))
    assert marked(1000, 1200, 1300).tolist() == [[1000, 1200]]
