"""sharding_spans_nodes: where the hosts are known, shards over several of them wait for the link between."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from tests.support.link_runs import MS, Sent, gathers, link_run, norm, on_hosts, reduces
from tests.support.rule_runs import GAP, Answer, found, judged, values, without_collectives
from zprof.analysis.analysis import RunAnalysis
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Confidence
from zprof.rules.transfer.sharding_spans_nodes import sharding_spans_nodes

HIGH, MEDIUM = Confidence.HIGH, Confidence.MEDIUM
MIB = 1 << 20
SIZE = 32 * MIB
ALL = "0,1,2,3"


def over_hosts(each_ns: int = 4 * MS, *, shows: float = 0.5) -> tuple[Sent, ...]:
    """Four ranks, 6 units.  32 MiB in 4 ms are 6.3 GB/s of bus bandwidth."""
    return (
        gathers(12, SIZE, each_ns, shows=shows, group=ALL),
        reduces(6, SIZE, each_ns, shows=shows, group=ALL),
        norm(20_000, ALL),
    )


def within(each_ns: int, size: int = SIZE) -> Sent:
    """An all_reduce of tensor parallelism within a host, over two ranks: factor 1."""
    kind = CollectiveKind.ALL_REDUCE
    return Sent(kind=kind, count=4, bytes=size, each_ns=each_ns, shows=0, group="0,1", begins_ns=600 * MS)


def run(*sent: Sent, hosts: str = "aabb", wall_ms: float = 100, **more: object) -> RunAnalysis:
    made = link_run(*(sent or over_hosts()), wall_ns=round(wall_ms * MS), **more)  # type: ignore[arg-type]
    return on_hosts(made, *hosts)


def few_gathers(count: int) -> RunAnalysis:
    analysis = run(*over_hosts(shows=1.0), within(300_000))
    rows = analysis.collectives
    kept = rows[rows["kind"] == "all_gather"].index[:count]
    others = rows[rows["kind"] != "all_gather"].index
    return replace(analysis, collectives=rows.loc[sorted([*kept, *others])])


def alone(analysis: RunAnalysis) -> RunAnalysis:
    return replace(analysis, run=replace(analysis.run, world_size=1))


REPLICATED = Sent(kind=CollectiveKind.ALL_REDUCE, count=12, bytes=SIZE, each_ns=4 * MS, group=ALL)
A_QUARTER = (*over_hosts(shows=0.25), within(100_000))  # of 18 messages of 4 ms: 18 ms


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (run, MEDIUM),  # over two hosts
        (lambda: run(hosts="aaaa"), None),  # one host
        (lambda: run(hosts="abcd"), None),  # a host for each rank
        (lambda: run(hosts="aaab"), None),  # uneven
        (lambda: run(hosts="aab"), GAP),  # a host unknown
        (lambda: run(hosts=""), GAP),  # hosts unknown
        (lambda: run(*over_hosts(shows=0.01), hosts=""), None),  # hidden
        (lambda: run(*A_QUARTER, wall_ms=360), None),  # 5 % of the step
        (lambda: run(*A_QUARTER, wall_ms=359), HIGH),  # more than 5 %
        # 20 GB/s carry 32 MiB over four ranks in 1.258 ms
        (lambda: run(*over_hosts(1_250_000, shows=1.0)), None),  # as fast as inside a host
        (lambda: run(*over_hosts(1_270_000, shows=1.0)), MEDIUM),  # slower than inside
        # three quarters of 32 MiB in 4 ms against 24 MiB in 2 ms
        (lambda: run(*over_hosts(), within(2 * MS, 24 * MIB)), None),  # half of inside
        (lambda: run(*over_hosts(), within(2 * MS - 1000, 24 * MIB)), HIGH),  # less than half
        (lambda: run(REPLICATED, norm(20_000, ALL)), None),  # replicas
        (lambda: few_gathers(10), HIGH),  # ten messages
        (lambda: few_gathers(9), MEDIUM),  # nine messages
        (lambda: without_collectives(run()), GAP),  # no collectives
        (lambda: alone(run()), None),  # one rank
    ],
)
def test_thresholds(run: Callable[[], RunAnalysis], expected: Answer) -> None:
    assert judged(sharding_spans_nodes, run()) == expected


@pytest.mark.parametrize(("each_ns", "expected"), [(300_000, HIGH), (3_900_000, None)])
def test_a_baseline_within_a_host_tells_what_one_reaches(each_ns: int, expected: Answer) -> None:
    assert judged(sharding_spans_nodes, run(), run(*over_hosts(each_ns), hosts="aaaa")) == expected


def test_the_layout_and_the_bandwidth_are_evidence() -> None:
    finding = found(sharding_spans_nodes, run())
    assert (finding.id, values(finding, "count")) == ("ZP408", [2, 2])
    assert values(finding, "bytes_per_s") == [pytest.approx(0.75 * SIZE / 0.004)]
    assert 0 < finding.saving_ns[0] < finding.saving_ns[1] < 36 * MS


def test_an_unmeasured_host_is_taken_to_be_twice_as_fast_inside() -> None:
    """24 MiB in just less than 2 ms within a host are just more than twice what is seen."""
    unknown = found(sharding_spans_nodes, run(*over_hosts(shows=1.0))).saving_ns
    measured = run(*over_hosts(shows=1.0), within(2 * MS - 1000, 24 * MIB))
    assert unknown[0] == pytest.approx(found(sharding_spans_nodes, measured).saving_ns[0], rel=0.01)
    assert unknown[1] > found(sharding_spans_nodes, measured).saving_ns[1]


def test_a_cpu_rank_may_win_less() -> None:
    """It blocks on each reduce_scatter before it launches the all_reduce over the hosts."""
    savings = {
        device: found(
            sharding_spans_nodes, run(*over_hosts(shows=1.0), device=device, idle_ns=2 * MS)
        ).saving_ns
        for device in ("cpu", "cuda")
    }
    assert savings["cpu"][0] < savings["cuda"][0]
