"""Shards over hosts: where the hosts are known, the link between them is the slow one, and it shows."""

from dataclasses import replace

import pytest

from tests.support.exact import wall_for, with_walls
from tests.support.link_runs import MS, Sent, gathers, link_run, norm, on_hosts, reduces
from zprof.analysis.analysis import RunAnalysis
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Confidence, Finding
from zprof.model.gaps import Gap
from zprof.rules.transfer.sharding_spans_nodes import (
    _find_layout,
    _finding,
    _measure_spanning,
    _saving,
    sharding_spans_nodes,
)
from zprof.rules.transfer.traffic import read_step_traffic

MIB = 1 << 20
SIZE = 32 * MIB
ALL = "0,1,2,3"
TWO_HOSTS = ("a", "a", "b", "b")


def over_hosts(each_ns: int = 4 * MS, *, shows: float = 0.5) -> tuple[Sent, ...]:
    """Four ranks, 6 units.  32 MiB in 4 ms are 6.3 GB/s of bus bandwidth."""
    return (
        gathers(12, SIZE, each_ns, shows=shows, group=ALL),
        reduces(6, SIZE, each_ns, shows=shows, group=ALL),
        norm(20_000, ALL),
    )


def within(each_ns: int) -> Sent:
    """An all_reduce of tensor parallelism within a host: 32 MiB over two ranks, factor 1."""
    kind = CollectiveKind.ALL_REDUCE
    return Sent(kind=kind, count=4, bytes=SIZE, each_ns=each_ns, shows=0, group="0,1", begins_ns=600 * MS)


def answer(*sent: Sent, hosts: tuple[str, ...] = TWO_HOSTS) -> Finding | Gap | None:
    return sharding_spans_nodes(on_hosts(link_run(*(sent or over_hosts())), *hosts), None)


def test_names_the_hosts_and_what_they_reach() -> None:
    finding = answer()
    assert isinstance(finding, Finding)
    assert finding.id == "ZP408"
    assert finding.confidence is Confidence.MEDIUM
    assert finding.sentence.startswith("shards lie on 2 hosts, so every all_gather crosses the link")
    assert "6.3 GB/s" in finding.sentence
    assert 0 < finding.saving_ns[0] < finding.saving_ns[1] < 36 * MS


@pytest.mark.parametrize(
    "hosts",
    [("a", "a", "a", "a"), ("a", "b", "c", "d"), ("a", "a", "a", "b")],
    ids=["one host", "a host a rank", "unevenly"],
)
def test_silent_where_there_is_nothing_to_shard_within(hosts: tuple[str, ...]) -> None:
    assert answer(hosts=hosts) is None


def test_not_tested_where_hosts_are_not_known() -> None:
    assert isinstance(answer(hosts=("a", "a", "b")), Gap)
    assert isinstance(answer(hosts=()), Gap)
    assert answer(*over_hosts(shows=0.01), hosts=()) is None


@pytest.mark.parametrize(("wall_ms", "fires"), [(360, False), (359, True)])
def test_five_per_cent_of_the_step_must_show(wall_ms: int, *, fires: bool) -> None:
    """A quarter of 18 messages of 4 ms is 18 ms."""
    analysis = link_run(*over_hosts(shows=0.25), within(100_000), wall_ns=wall_ms * MS)
    found = sharding_spans_nodes(on_hosts(analysis, *TWO_HOSTS), None)
    assert isinstance(found, Finding) == fires


@pytest.mark.parametrize(("each_ns", "fires"), [(1_250_000, False), (1_270_000, True)])
def test_below_what_a_host_has_inside(each_ns: int, *, fires: bool) -> None:
    """20 GB/s carry 32 MiB over four ranks in 1.258 ms."""
    assert isinstance(answer(*over_hosts(each_ns, shows=1.0)), Finding) == fires


@pytest.mark.parametrize(("within_ns", "fires"), [(2_700_000, False), (2_640_000, True)])
def test_below_half_of_what_was_measured_within_a_host(within_ns: int, *, fires: bool) -> None:
    """6.29 GB/s between, half of 12.4 or of 12.7 GB/s within."""
    found = answer(*over_hosts(), within(within_ns))
    assert isinstance(found, Finding) == fires
    if isinstance(found, Finding):
        assert found.confidence is Confidence.HIGH
        assert "within a host" in found.sentence


def test_a_baseline_within_a_host_tells_what_one_reaches() -> None:
    baseline = on_hosts(link_run(*over_hosts(300_000)), *["a"] * 4)
    found = sharding_spans_nodes(on_hosts(link_run(*over_hosts()), *TWO_HOSTS), baseline)
    assert isinstance(found, Finding)
    assert found.confidence is Confidence.HIGH
    slow = on_hosts(link_run(*over_hosts(3_900_000)), *["a"] * 4)
    assert sharding_spans_nodes(on_hosts(link_run(*over_hosts()), *TWO_HOSTS), slow) is None


def test_replicas_over_hosts_are_no_shards() -> None:
    kind = CollectiveKind.ALL_REDUCE
    replicated = Sent(kind=kind, count=12, bytes=SIZE, each_ns=4 * MS, group=ALL)
    assert answer(replicated, norm(20_000, ALL)) is None


def test_a_cpu_rank_may_win_less() -> None:
    """It blocks on each reduce_scatter before it launches the all_reduce over the hosts."""

    def saving(device: str) -> tuple[int, int]:
        analysis = link_run(*over_hosts(shows=1.0), device=device, idle_ns=2 * MS)
        found = sharding_spans_nodes(on_hosts(analysis, *TWO_HOSTS), None)
        assert isinstance(found, Finding)
        return found.saving_ns

    assert saving("cpu")[0] < saving("cuda")[0]


def test_silent_or_not_tested_without_collectives() -> None:
    analysis: RunAnalysis = link_run(*over_hosts())
    nothing = replace(analysis, collectives=analysis.collectives.iloc[:0])
    assert isinstance(sharding_spans_nodes(nothing, None), Gap)
    assert sharding_spans_nodes(replace(nothing, run=replace(nothing.run, world_size=1)), None) is None


@pytest.mark.parametrize(("gathered", "confidence"), [(10, Confidence.HIGH), (9, Confidence.MEDIUM)])
def test_ten_messages_make_it_sure(gathered: int, confidence: Confidence) -> None:
    analysis = link_run(*over_hosts(shows=1.0), within(300_000))
    rows = analysis.collectives
    kept = rows[rows["kind"] == "all_gather"].index[:gathered]
    others = rows[rows["kind"] != "all_gather"].index
    few = replace(analysis, collectives=rows.loc[sorted([*kept, *others])])
    found = sharding_spans_nodes(on_hosts(few, *TWO_HOSTS), None)
    assert isinstance(found, Finding)
    assert found.confidence is confidence


def test_half_of_what_was_measured_within_a_host_is_not_low() -> None:
    """32 MiB over four ranks in 4 ms, of which three quarters move; within a host 24 MiB in 2 ms."""
    kind = CollectiveKind.ALL_REDUCE
    inside = Sent(
        kind=kind, count=4, bytes=24 * MIB, each_ns=2 * MS, shows=0, group="0,1", begins_ns=600 * MS
    )
    assert answer(*over_hosts(), inside) is None
    faster = replace(inside, each_ns=2 * MS - 1000)
    assert isinstance(answer(*over_hosts(), faster), Finding)


def test_a_host_that_nobody_measured_is_at_least_twice_as_fast_inside() -> None:
    analysis = on_hosts(link_run(*over_hosts(shows=1.0)), *TWO_HOSTS)
    traffic = read_step_traffic(analysis)
    assert traffic is not None
    assert traffic.gathers is not None
    found = _measure_spanning(analysis, None, traffic, traffic.gathers, (2, 2))
    assert found is not None
    assert found.within is None
    twice = replace(found, within=2 * found.seen)
    assert _saving(found, cpu=False)[0] == pytest.approx(_saving(twice, cpu=False)[0])


def test_one_rank_spans_nothing() -> None:
    analysis = on_hosts(link_run(*over_hosts(shows=1.0)), *TWO_HOSTS)
    assert isinstance(sharding_spans_nodes(analysis, None), Finding)
    alone = replace(analysis, run=replace(analysis.run, world_size=1))
    assert sharding_spans_nodes(alone, None) is None


def test_shards_span_hosts_where_each_has_several_of_them() -> None:
    assert _find_layout([{"a": 2, "b": 2}]) == (2, 2)
    assert _find_layout([{"a": 4}]) is None
    assert _find_layout([{"a": 1, "b": 1}]) is None


def test_two_hundredths_of_the_step_are_worth_it() -> None:
    analysis = on_hosts(link_run(*over_hosts(shows=1.0)), *TWO_HOSTS)
    traffic = read_step_traffic(analysis)
    assert traffic is not None
    assert traffic.gathers is not None
    found = _measure_spanning(analysis, None, traffic, traffic.gathers, (2, 2))
    assert found is not None
    wall = wall_for(_saving(found, cpu=False)[1], 0.02)
    assert _finding(with_walls(analysis, wall), found) is not None
    assert _finding(with_walls(analysis, 1.001 * wall), found) is None
