"""Latency and bandwidth of a link, from messages whose times follow a known line."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.matched_rows import clocks, collective, table
from zprof.analysis.time.collective_times import fit_line, fit_links
from zprof.analysis.time.decomposition import decompose_collectives

KIB, MIB = 1 << 10, 1 << 20


@settings(max_examples=50)
@given(st.floats(0, 1e6), st.floats(1e-3, 10), st.sets(st.integers(1, 1 << 30), max_size=20))
def test_a_clean_line_is_found(latency: float, slope: float, drawn: set[int]) -> None:
    sizes = np.array(sorted(drawn), dtype=float)
    line = fit_line(sizes, latency + slope * sizes)
    if len(sizes) < 2 or sizes[-1] < 2 * sizes[0]:
        assert line is None
    else:
        assert line is not None
        assert line.ns_per_byte == pytest.approx(slope, rel=1e-3, abs=1e-4 * latency / sizes[-1] + 1e-9)
        assert line.latency_ns == pytest.approx(latency, rel=1e-3, abs=1e-3 * slope * sizes[-1] + 1e-6)


@pytest.mark.parametrize("sizes", [[], [MIB], [MIB, MIB * 3 // 2]])
def test_too_few_or_too_similar_sizes_are_not_fitted(sizes: list[int]) -> None:
    assert fit_line(np.array(sizes, dtype=float), np.array(sizes, dtype=float)) is None


def test_wild_times_change_little() -> None:
    random = np.random.default_rng(1)
    sizes = np.tile([64 * KIB, 256 * KIB, MIB, 4 * MIB, 16 * MIB], 20).astype(float)
    times = 20_000 + 0.01 * sizes
    wild = random.permutation(len(sizes))[: len(sizes) // 5]
    times[wild] *= random.uniform(3, 30, len(wild))
    few = np.array([64, 128, 256, 512, 1024, 2048, 4096], dtype=float) * KIB
    one_wild = (20_000 + 0.01 * few) * np.array([1, 1, 1, 8, 1, 1, 1])
    for line in (fit_line(sizes, times), fit_line(few, one_wild)):
        assert line is not None
        assert (line.latency_ns, line.ns_per_byte) == pytest.approx((20_000, 0.01), rel=0.05)


def messages(sizes, *, latency=20_000, slope=0.01, late=0, **more):
    rows = []
    for number, size in enumerate(sizes):
        at = number * 10_000_000
        end = at + late + round(latency + slope * size)
        rows.append(collective(number, {0: (at, end), 1: (at + late, end)}, bytes=size, **more))
    return decompose_collectives(table(*rows), clocks())


def test_waiting_for_a_rank_is_not_latency() -> None:
    sizes = [KIB, 64 * KIB, MIB] * 4
    (fit,) = fit_links(messages(sizes, late=3_000_000))
    assert fit.latency_ns == pytest.approx(20_000, rel=0.01)
    assert fit.algbw_bytes_per_s == pytest.approx(1e11, rel=0.01)
    assert fit.busbw_bytes_per_s == pytest.approx(1e11, rel=0.01)  # of two ranks an all-reduce moves it once
    assert (fit.kind, fit.messages, fit.sizes) == ("all_reduce", 12, 3)
    assert fit.residual_ratio < 0.001
    whole = sum(20_000 + 0.01 * size for size in sizes)
    assert fit.latency_share_ratio == pytest.approx(12 * 20_000 / whole, rel=0.001)
    (gather,) = fit_links(messages([KIB, MIB], kind="all_gather"))
    assert gather.busbw_bytes_per_s == pytest.approx(gather.algbw_bytes_per_s / 2)


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
def test_messages_that_tell_nothing_are_not_fitted(frame) -> None:
    assert fit_links(frame) == ()
