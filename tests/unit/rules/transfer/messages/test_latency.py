"""The latency of a link from messages of a run: sizes may be close, if their times say enough."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from tests.support.link_runs import MS, US, gathers, link_run, reduces
from zprof.rules.transfer.latency import read_latencies

MB = 1_000_000
LATENCY_NS, BYTES_PER_MS = 500 * US, 20 * MB


def known(sizes: Sequence[int], off_ns: Sequence[int], times_gathered: float = 1.0) -> Mapping[str, float]:
    """The latencies of a step that gathers and reduces these sizes, each message off the line by so much."""
    sent = []
    for number, (size, off) in enumerate(zip(sizes, off_ns, strict=True)):
        each = round(LATENCY_NS + size / BYTES_PER_MS * MS) + off
        begins = number * 20 * MS
        sent.append(gathers(3, size, round(times_gathered * each), begins_ns=begins))
        sent.append(reduces(3, size, each, begins_ns=400 * MS + begins))
    analysis = link_run(*sent)
    return read_latencies(replace(analysis, time=replace(analysis.time, fits=()))).by_ranks


SIZES = (5 * MB, 5 * MB, 6 * MB, 7 * MB)


def test_sizes_half_as_far_apart_as_the_smallest_tell_it() -> None:
    off = (-8 * US, 8 * US, 4 * US, -4 * US)
    assert known(SIZES, off)["0,1"] == pytest.approx(LATENCY_NS, rel=0.1)


def test_what_the_times_scatter_sizes_must_be_apart() -> None:
    off = (-40 * US, 40 * US, 35 * US, -35 * US)
    near = tuple(5 * MB + size // 100 for size in SIZES)
    assert known(near, off) == {}


def test_one_size_tells_none() -> None:
    assert known((5 * MB,) * 4, (0,) * 4) == {}


def test_kinds_of_other_speed_are_no_line() -> None:
    """Gathers take twice as long: no line through both comes near either."""
    assert known(SIZES, (0,) * 4, times_gathered=2.0) == {}
