"""What a collective had to wait for between its launch and its start."""

import numpy as np
import pytest

from tests.support.matched_rows import BASE_NS, collective, table
from zprof.analysis.time.transfer.launch_delays import NEVER_NS, find_collective_launches

NO_KERNELS = np.empty((0, 3), np.int64)
NO_STREAMS = np.empty(0, np.int64)


def launches(*spans, kernels=(), streams=None, stream=20, group=None):
    """Rows of rank 0: (launch, start, end); kernels: (launch, start, end), each on its stream."""
    rows = []
    for number, (launch, start, end) in enumerate(spans):
        rows += collective(
            number,
            {0: (start, end)},
            ranks=(0, 1),
            launch_start_ns=None if launch is None else BASE_NS + launch,
            stream=stream if not isinstance(stream, list) else stream[number],
            group=group[number] if group else "0,1",
        )
    frame = table(rows)
    on = np.array(streams or [7] * len(kernels), dtype=np.int64)
    kernels = np.array(kernels, dtype=np.int64).reshape(-1, 3) + BASE_NS
    return find_collective_launches(frame, kernels, on), frame


def dependencies(*spans, **more):
    found, frame = launches(*spans, **more)
    values = found.columns(frame)["dependency_ns"]
    return [
        None if value is None else int(value) for value in values.astype(object).where(values.notna(), None)
    ]


def test_nothing_to_wait_for():
    assert dependencies((100, 110, 200)) == [0]


def test_without_a_launch_nothing_is_said():
    assert dependencies((None, 110, 200)) == [None]


def test_the_collective_before_it_on_its_stream():
    assert dependencies((0, 10, 500), (100, 505, 900)) == [0, 400]
    assert dependencies((0, 10, 500), (100, 505, 900), stream=[20, 21]) == [0, 0]


def test_off_the_device_the_queue_is_that_of_the_group():
    assert dependencies((0, 10, 500), (100, 505, 900), stream=None) == [0, 400]
    assert dependencies((0, 10, 500), (100, 505, 900), stream=None, group=["0,1", "0,2"]) == [0, 0]


def test_two_at_once_do_not_wait_for_each_other():
    assert dependencies((0, 10, 50_000), (100, 120, 40_000), (200, 40_010, 60_000), stream=None) == [
        0,
        0,
        39_800,
    ]


def test_a_collective_of_no_length_is_not_before_itself():
    assert dependencies((0, 10, 10)) == [0]


def test_the_compute_launched_before_it():
    assert dependencies((100, 810, 900), kernels=[(0, 20, 800)]) == [700]


def test_compute_launched_after_it_is_nothing_to_wait_for():
    assert dependencies((100, 810, 900), kernels=[(101, 120, 800)]) == [0]


def test_compute_that_ends_after_the_start_is_nothing_to_wait_for():
    kernels = [(0, 20, 300), (10, 300, 5_000)]
    assert dependencies((100, 810, 900), kernels=kernels) == [200]


def test_the_later_of_two_streams():
    kernels = [(0, 20, 300), (10, 20, 600)]
    assert dependencies((100, 810, 900), kernels=kernels, streams=[7, 8]) == [500]


def test_both_ends_are_kept():
    found, _ = launches((0, 10, 500), (100, 905, 990), kernels=[(0, 20, 900)])
    assert (found.previous_ns - BASE_NS)[1] == 500
    assert (found.computed_ns - BASE_NS)[1] == 900
    assert found.previous.tolist() == [-1, 0]
    assert found.previous_ns[0] == NEVER_NS


@pytest.mark.parametrize("count", [0, 3])
def test_many_kernels_against_a_plain_loop(count):
    random = np.random.default_rng(count)
    ends = np.cumsum(random.integers(1, 90, 60 * (count > 0)))
    kernels = [(int(end) - 80, int(end) - 1, int(end)) for end in ends.tolist()]
    spans = [
        (int(at), int(at) + int(more), int(at) + int(more) + 9)
        for at, more in random.integers(1, 900, (40, 2))
    ]
    found, _ = launches(*spans, kernels=kernels, stream=list(range(len(spans))))
    for (launch, start, _), computed in zip(spans, found.computed_ns.tolist(), strict=True):
        wanted = [end for begin, _, end in kernels if begin < launch and end <= start]
        assert computed == (max(wanted) + BASE_NS if wanted else NEVER_NS)
