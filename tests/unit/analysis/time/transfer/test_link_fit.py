"""Latency and bandwidth of a link, from messages whose times follow a known line."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.matched_rows import clocks, collective, table
from zprof.analysis.time.transfer.decomposition import decompose_collectives
from zprof.analysis.time.transfer.link_fits import fit_line, fit_links

KIB, MIB = 1 << 10, 1 << 20


@given(st.floats(0, 1e6), st.floats(1e-3, 10), st.sets(st.integers(1, 1 << 30), min_size=2, max_size=20))
def test_a_clean_line_is_found(latency, slope, sizes):
    sizes = np.array(sorted(sizes), dtype=float)
    line = fit_line(sizes, latency + slope * sizes)
    if sizes[-1] < 2 * sizes[0]:
        assert line is None
    else:
        assert line.ns_per_byte == pytest.approx(slope, rel=1e-3, abs=1e-4 * latency / sizes[-1] + 1e-9)
        assert line.latency_ns == pytest.approx(latency, rel=1e-3, abs=1e-3 * slope * sizes[-1] + 1e-6)


def test_a_fifth_of_wild_times_changes_little():
    random = np.random.default_rng(1)
    sizes = np.tile([64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB], 20).astype(float)
    times = 20_000 + 0.01 * sizes
    wild = random.permutation(len(sizes))[: len(sizes) // 5]
    times[wild] *= random.uniform(3, 30, len(wild))
    line = fit_line(sizes, times)
    assert line.latency_ns == pytest.approx(20_000, rel=0.02)
    assert line.ns_per_byte == pytest.approx(0.01, rel=0.02)


def test_one_wild_size_among_many_changes_little():
    sizes = np.array([64, 128, 256, 512, 1024, 2048, 4096], dtype=float) * KIB
    times = 20_000 + 0.01 * sizes
    times[3] *= 8
    line = fit_line(sizes, times)
    assert line.latency_ns == pytest.approx(20_000, rel=0.05)
    assert line.ns_per_byte == pytest.approx(0.01, rel=0.05)


@pytest.mark.parametrize("sizes", [[MIB], [MIB, MIB * 3 // 2], []])
def test_sizes_that_say_too_little_are_not_fitted(sizes):
    assert fit_line(np.array(sizes, dtype=float), np.array(sizes, dtype=float)) is None


def test_neither_latency_nor_bandwidth_is_negative():
    sizes = np.array([1e3, 1e6, 1e9])
    steeper = fit_line(sizes, 1e-3 * sizes**1.2)
    assert steeper.latency_ns >= 0
    falling = fit_line(sizes, 1e6 - 1e-4 * sizes)
    assert falling.ns_per_byte == 0
    assert falling.latency_ns > 0


def messages(sizes, *, latency=20_000, slope=0.01, late=0, **more):
    rows = []
    for number, size in enumerate(sizes):
        at = number * 10_000_000
        end = at + late + round(latency + slope * size)
        rows.append(collective(number, {0: (at, end), 1: (at + late, end)}, bytes=size, **more))
    return decompose_collectives(table(*rows), clocks())


def test_waiting_for_a_rank_is_not_latency():
    (fit,) = fit_links(messages([KIB, 64 * KIB, MIB] * 4, late=3_000_000))
    assert fit.latency_ns == pytest.approx(20_000, rel=0.01)
    assert fit.algbw_bytes_per_s == pytest.approx(1e11, rel=0.01)
    assert fit.busbw_bytes_per_s == pytest.approx(1e11, rel=0.01)  # of two ranks an all-reduce moves it once
    assert (fit.messages, fit.sizes) == (12, 3)
    assert fit.residual_ratio < 0.001
    whole = sum(20_000 + 0.01 * size for size in [KIB, 64 * KIB, MIB] * 4)
    assert fit.latency_share_ratio == pytest.approx(12 * 20_000 / whole, rel=0.001)


def test_each_kind_and_group_by_itself():
    fits = fit_links(messages([KIB, MIB])), fit_links(messages([KIB, MIB], kind="all_gather"))
    assert [fit.kind for (fit,) in fits] == ["all_reduce", "all_gather"]
    assert fits[1][0].busbw_bytes_per_s == pytest.approx(fits[1][0].algbw_bytes_per_s / 2)


@pytest.mark.parametrize(
    "frame",
    [
        messages([MIB] * 5),
        messages([KIB, MIB], first_of_window=True),
        messages([KIB, MIB], latency=0, slope=1e-4),  # 100 ns are below what the clocks resolve
        messages([KIB, MIB], ranks=(0, 1, 2)),
    ],
    ids=["one size", "first of its window", "below the clocks", "ranks missing"],
)
def test_what_says_nothing_is_not_fitted(frame):
    assert fit_links(frame) == ()
