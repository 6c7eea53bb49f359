"""How long messages of a run take, and the latency of its links."""

from collections.abc import Mapping, Sequence

import pytest
from msgspec.structs import replace

from tests.support.link_runs import MS, US, gathers, link_run, norm, reduces
from tests.support.rule_runs import with_clocks
from zprof.step.links import estimate_kind_latency_ns, measure_transfers, read_latencies

MIB, MB = 1 << 20, 1_000_000


@pytest.mark.parametrize(("uncertainty_ns", "timed"), [(MS // 2, False), (MS // 2 - 1, True)])
def test_what_the_clocks_cannot_tell_is_not_timed(uncertainty_ns: int, *, timed: bool) -> None:
    analysis = with_clocks(link_run(gathers(2, MIB, MS)), uncertainty_ns=uncertainty_ns)
    assert bool(len(measure_transfers(analysis, analysis.collectives))) is timed


LATENCY_NS = 500 * US
SIZES = (5 * MB, 5 * MB, 6 * MB, 7 * MB)


def latencies(
    sizes: Sequence[int], off_us: Sequence[int], times_gathered: float = 1.0
) -> Mapping[str, float]:
    """The latencies of a step whose messages take 500 us and a ms for 20 MB, each off by so much."""
    sent = []
    for number, (size, off) in enumerate(zip(sizes, off_us, strict=True)):
        each = round(LATENCY_NS + size / (20 * MB) * MS) + off * US
        begins = number * 20 * MS
        sent.append(gathers(3, size, round(times_gathered * each), begins_ns=begins))
        sent.append(reduces(3, size, each, begins_ns=400 * MS + begins))
    analysis = link_run(*sent)
    return read_latencies(replace(analysis, time=replace(analysis.time, fits=()))).by_ranks


def test_the_latency_is_read_from_sizes_that_are_apart() -> None:
    assert latencies(SIZES, (-8, 8, 4, -4)) == {"0,1": pytest.approx(LATENCY_NS, rel=0.1)}
    near = tuple(5 * MB + size // 100 for size in SIZES)
    assert latencies(near, (-40, 40, 35, -35)) == {}  # by more than the times scatter
    assert latencies((5 * MB,) * 4, (0,) * 4) == {}
    assert latencies(SIZES, (0,) * 4, times_gathered=2.0) == {}  # kinds of another speed are no line


@pytest.mark.parametrize(("size", "count", "latency_ns"), [(1024, 1, 90 * US), (1025, 1, None), (4, 0, None)])
def test_messages_up_to_a_kib_are_pure_latency(size: int, count: int, latency_ns: int | None) -> None:
    tiny = replace(norm(90 * US), bytes=size, count=count)
    analysis = link_run(gathers(2, 5 * MB, MS), tiny)
    rows = analysis.collectives.at(analysis.collectives.texts("kind").equals("all_gather"))
    assert estimate_kind_latency_ns(analysis, rows, "all_gather") == latency_ns
