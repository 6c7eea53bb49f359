"""Where a step is at an instant: by ranges of the program, by autograd, and unknown without either."""

import numpy as np
import pandas as pd
import pyarrow as pa

from zprof.analysis.intervals import EMPTY, Int64s, Intervals, intervals
from zprof.analysis.time.clocks.offsets import RankClock
from zprof.analysis.time.passes.evidence import Evidence, evidence_of
from zprof.analysis.time.passes.where import Where, where

STEP = (0, 1000)


def at(evidence: Evidence, *times: int, step: tuple[int, int] = STEP) -> Where:
    count = len(times)
    asked: Int64s = np.array(times, dtype=np.int64)
    return where(evidence, asked, intervals([step[0]] * count, [step[1]] * count))


def spans(*pairs: tuple[int, int]) -> Intervals:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def test_nothing_known_stays_unknown() -> None:
    seen = at(Evidence(), 5)
    assert (list(seen.phase), list(seen.method), seen.micro_batch.tolist()) == (
        ["unknown"],
        ["unknown"],
        [-1],
    )


def test_ranges_of_the_program_say_it() -> None:
    seen = at(Evidence(forward=spans((10, 20)), backward=spans((50, 60))), 15, 55)
    assert list(seen.phase) == ["forward", "backward"]
    assert set(seen.method) == {"ranges"}


def test_a_prefetch_serves_the_pass_that_it_names() -> None:
    """The gather of the first backward pass, launched while the last forward pass is prepared."""
    evidence = Evidence(forward=spans((10, 20)), ahead_backward=spans((14, 16)), backward=spans((50, 60)))
    assert list(at(evidence, 12, 15).phase) == ["forward", "backward"]


def test_a_forward_within_a_backward_is_recomputation() -> None:
    nested = Evidence(forward=spans((55, 57)), backward=spans((50, 60)))
    by_autograd = Evidence(forward=spans((55, 57)), autograd=spans((50, 60)))
    assert list(at(nested, 56).phase) == list(at(by_autograd, 56).phase) == ["recompute"]


def test_a_backward_range_within_a_forward_range_is_a_backward() -> None:
    assert list(at(Evidence(forward=spans((10, 60)), backward=spans((20, 30))), 25).phase) == ["backward"]


def test_the_optimizer_comes_first() -> None:
    evidence = Evidence(optimizer=spans((80, 90)), forward=spans((70, 95)))
    assert list(at(evidence, 85).phase) == ["optimizer"]


def test_nodes_of_autograd_and_what_runs_outside_of_them() -> None:
    evidence = Evidence(autograd=spans((50, 60), (70, 80)), operators=spans((10, 20), (90, 95)))
    seen = at(evidence, 5, 15, 55, 65, 97)
    assert list(seen.phase) == ["forward", "forward", "backward", "backward", "forward"]
    assert set(seen.method) == {"autograd"}


def test_a_new_forward_after_a_backward_is_a_micro_batch() -> None:
    evidence = Evidence(
        operators=spans((10, 20), (110, 120), (210, 220)),
        autograd=spans((50, 60), (70, 80), (150, 160)),
    )
    assert at(evidence, 15, 55, 75, 115, 155).micro_batch.tolist() == [0, 0, 0, 1, 1]
    # what follows the last backward of the step has none of its own
    assert at(evidence, 215).micro_batch.tolist() == [1]


def test_micro_batches_are_counted_from_the_begin_of_their_step() -> None:
    evidence = Evidence(
        operators=spans((10, 20), (110, 120), (1010, 1020), (1110, 1120)),
        autograd=spans((50, 60), (150, 160), (1050, 1060), (1150, 1160)),
    )
    assert at(evidence, 1015, 1155, step=(1000, 2000)).micro_batch.tolist() == [0, 1]


def test_forward_ranges_within_a_backward_begin_no_micro_batch() -> None:
    evidence = Evidence(forward=spans((10, 20), (55, 57)), autograd=spans((50, 60), (70, 80)))
    assert at(evidence, 75).micro_batch.tolist() == [0]


def test_without_a_backward_micro_batches_are_not_known() -> None:
    assert at(Evidence(forward=spans((10, 20)), operators=EMPTY), 15).micro_batch.tolist() == [-1]


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
        return evidence_of(events, marks, RankClock()).forward

    assert not len(marked(100, 200, 300))
    assert marked(1000, 1200, 1300).tolist() == [[1000, 1200]]
