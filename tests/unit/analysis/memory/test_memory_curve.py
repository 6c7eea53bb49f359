"""Curve, peak and timeline."""

import numpy as np
import pandas as pd
from memory_tables import Tables, at

from zprof.analysis.memory.live_bytes import compute_live_curve, find_peak
from zprof.analysis.memory.tables import FOREVER
from zprof.analysis.memory.timeline import read_timeline


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_live_bytes_are_the_sum_of_what_began_and_did_not_end() -> None:
    times, live = compute_live_curve(ints(1, 3, 3), ints(5, 4, FOREVER), ints(10, 20, 40))
    assert times.tolist() == [1, 3, 4, 5]
    assert live.tolist() == [10, 70, 50, 40]


def test_a_free_and_an_allocation_at_one_time_do_not_add_up() -> None:
    _, live = compute_live_curve(ints(1, 5), ints(5, 9), ints(10, 10))
    assert live.max() == 10


def test_the_first_of_equal_peaks_counts() -> None:
    times, live = compute_live_curve(ints(1, 5), ints(3, 9), ints(10, 10))
    assert find_peak(times, live, 0, 100) == (1, 10)


def test_only_the_window_counts_and_its_begin_too() -> None:
    times, live = compute_live_curve(ints(1, 2, 50), ints(4, FOREVER, FOREVER), ints(10, 5, 99))
    assert find_peak(times, live, 3, 20) == (3, 15)
    assert find_peak(times, live, 6, 20) == (6, 5)


def test_an_empty_window_has_no_bytes() -> None:
    times, live = compute_live_curve(ints(), ints(), ints())
    assert find_peak(times, live, 3, 20) == (3, 0)


def test_states_are_read_when_they_are_complete() -> None:
    """Gradients when the optimizer begins: by the end of the step they may be gone."""
    tables = Tables()
    tables.phase(10, "backward")
    tables.phase(50, "optimizer")
    tables.storage(1, 0x10, 8, 20, 60, phase="backward")
    tables.claim(1, 45, "gradients")
    tables.storage(2, 0x20, 16, 55, None, phase="optimizer")
    tables.claim(2, 58, "optimizer_state")
    assert list(tables.lives().states().values()) == [0, 8, 16]  # type: ignore[union-attr]


def test_peak_has_a_step_and_a_phase() -> None:
    tables = Tables()
    tables.phase(10, "forward")
    tables.phase(50, "backward")
    tables.storage(1, 0x10, 8, 60, 80)
    lives = tables.lives()
    time_ns = lives.peak().time_ns
    assert (lives.timeline.step_at(time_ns), lives.timeline.phase_at(time_ns)) == (4, "backward")
    assert lives.timeline.phase_at(at(5)) == "other"


def test_no_memory_window_no_timeline() -> None:
    mark = pd.DataFrame({"time_ns": [1], "kind": ["window_begin"], "number": [0], "name": ["time"]})
    assert read_timeline(mark) is None
