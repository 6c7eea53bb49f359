"""The curve of live bytes, its peak, and the states at the moments at which they are complete."""

import numpy as np

from tests.support.memory_tables import Tables, at
from tests.support.run_tables import table_of_rows
from zprof.analysis.memory.live_bytes import compute_live_curve, find_peak
from zprof.analysis.memory.tables import FOREVER, read_timeline


def ints(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int64)


def test_live_bytes_are_the_sum_of_what_began_and_did_not_end() -> None:
    times, live = compute_live_curve(ints(1, 3, 3, 5), ints(5, 4, FOREVER, 6), ints(10, 20, 40, 10))
    assert times.tolist() == [1, 3, 4, 5, 6]
    assert live.tolist() == [10, 70, 50, 50, 40], "a free and an allocation at one time do not add up"


def test_only_the_window_counts_and_the_first_of_equal_peaks() -> None:
    times, live = compute_live_curve(ints(1, 2, 50), ints(4, FOREVER, FOREVER), ints(10, 5, 99))
    assert find_peak(times, live, 3, 20) == (3, 15)
    assert find_peak(times, live, 6, 20) == (6, 5)
    assert find_peak(times, live, 6, 60) == (50, 104)
    assert find_peak(*compute_live_curve(ints(1, 5), ints(3, 9), ints(10, 10)), 0, 100) == (1, 10)
    assert find_peak(*compute_live_curve(ints(), ints(), ints()), 3, 20) == (3, 0)


def test_states_are_read_when_they_are_complete() -> None:
    """Gradients when the optimizer begins: by the end of the step they may be gone."""
    tables = Tables().phases(backward=10, optimizer=50)
    tables.storage(1, 0x10, 8, 20, 60, phase="backward")
    tables.claim(1, 45, "gradients")
    tables.storage(2, 0x20, 16, 55, None, phase="optimizer")
    tables.claim(2, 58, "optimizer_state")
    states = tables.lives().states()
    assert states is not None
    assert list(states.values()) == [0, 8, 16]


def test_a_tenant_has_its_own_peak() -> None:
    """Activations are gone when the optimizer state makes the rank's peak."""
    tables = Tables().phases(forward=10, optimizer=50)
    tables.storage(1, 0x10, 30, 15, 40, phase="forward")
    tables.claim(1, 15, "activations")
    tables.storage(2, 0x20, 100, 55, None, phase="optimizer")
    tables.claim(2, 56, "optimizer_state")
    lives = tables.lives()
    peaks = lives.find_tenant_peaks()
    assert (peaks["activations"], peaks["optimizer_state"], peaks["gradients"]) == (30, 100, 0)
    assert all(size <= peaks[tenant.value] for tenant, size in lives.peak().tenants.items())


def test_the_peak_has_a_step_and_a_phase() -> None:
    tables = Tables().phases(forward=10, backward=50)
    tables.storage(1, 0x10, 8, 60, 80)
    lives = tables.lives()
    time_ns = lives.peak().time_ns
    assert (lives.timeline.step_at(time_ns), lives.timeline.phase_at(time_ns)) == (4, "backward")
    assert lives.timeline.phase_at(at(5)) == "other"
    mark = table_of_rows("mark", [{"time_ns": 1, "kind": "window_begin", "number": 0, "name": "time"}])
    assert read_timeline(mark) is None, "a window of another kind"
