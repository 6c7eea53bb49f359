"""A slow link among the groups of one run: it is found without a baseline, and the rank is named."""

from dataclasses import replace

import pytest

from tests.support.link_runs import MS, US, Sent, gathers, link_run, norm, on_hosts, reduces
from zprof.model.collectives import CollectiveKind
from zprof.model.findings import Confidence, Finding
from zprof.model.gaps import Gap
from zprof.rules.transfer.low_bus_bandwidth import check_against, low_bus_bandwidth

MIB = 1 << 20


def shards(group: str, each_ns: int) -> tuple[Sent, Sent]:
    return (
        gathers(12, 32 * MIB, each_ns, group=group),
        reduces(6, 32 * MIB, each_ns, group=group),
    )


def replicas(group: str, each_ns: int) -> Sent:
    """An all_reduce of 16 MiB moves as much as a gather of 32."""
    kind = CollectiveKind.ALL_REDUCE
    return Sent(kind=kind, count=6, bytes=16 * MIB, each_ns=each_ns, group=group, begins_ns=600 * MS)


def hsdp(slow_ns: int = 3 * MS, slow_replicas_ns: int = 3 * MS) -> tuple[Sent, ...]:
    """Rank 1 has the slow link: its shard group and its replica group suffer."""
    return (
        *shards("0,1", slow_ns),
        *shards("2,3", MS),
        replicas("0,2", MS),
        replicas("1,3", slow_replicas_ns),
    )


def test_names_the_rank_that_all_slow_groups_share() -> None:
    finding = low_bus_bandwidth(link_run(*hsdp()), None)
    assert isinstance(finding, Finding)
    assert finding.sentence.endswith("all slow groups have rank 1, and no other has")
    assert finding.fix.startswith("look at the link of rank 1:")
    assert {fact.what for fact in finding.evidence} >= {"as of other groups"}


def test_names_nobody_where_a_whole_group_is_slow() -> None:
    finding = low_bus_bandwidth(link_run(*shards("0,1", 3 * MS), *shards("2,3", MS)), None)
    assert isinstance(finding, Finding)
    assert "rank" not in finding.sentence


def test_half_of_the_other_groups() -> None:
    assert isinstance(
        low_bus_bandwidth(link_run(*shards("0,1", 2_010 * US), *shards("2,3", MS)), None), Finding
    )
    assert low_bus_bandwidth(link_run(*shards("0,1", 2_000 * US), *shards("2,3", MS)), None) is None


def test_replicas_compare_with_shards_only_where_the_hosts_are_known() -> None:
    """Else nobody knows which of the two lie between hosts."""
    analysis = link_run(*shards("0,1", MS), replicas("0,2", 3 * MS))
    assert isinstance(low_bus_bandwidth(analysis, None), Gap)
    assert isinstance(low_bus_bandwidth(on_hosts(analysis, "a", "a", "a"), None), Finding)


def test_one_group_has_nothing_to_compare_with() -> None:
    assert isinstance(low_bus_bandwidth(link_run(*shards("0,1", 3 * MS)), None), Gap)


def test_groups_between_hosts_may_be_slower_than_groups_within() -> None:
    analysis = link_run(*shards("0,1", 3 * MS), *shards("2,3", MS))
    assert isinstance(low_bus_bandwidth(on_hosts(analysis, "a", "b", "c", "c"), None), Gap)
    assert isinstance(low_bus_bandwidth(on_hosts(analysis, "a", "a", "c", "c"), None), Finding)


def test_a_baseline_within_a_host_expects_nothing_between_hosts() -> None:
    mine, theirs = link_run(*shards("0,1", 3 * MS)), link_run(*shards("0,1", MS))
    assert isinstance(low_bus_bandwidth(on_hosts(mine, "a", "b"), on_hosts(theirs, "a", "a")), Gap)
    assert isinstance(low_bus_bandwidth(on_hosts(mine, "a", "b"), on_hosts(theirs, "a", "b")), Finding)
    assert isinstance(low_bus_bandwidth(on_hosts(mine, "a", "b"), theirs), Finding)


@pytest.mark.parametrize(("latency_ns", "fires"), [(1_500 * US, True), (1_501 * US, False)])
def test_messages_that_are_mostly_latency_say_nothing_of_bandwidth(latency_ns: int, *, fires: bool) -> None:
    mine, theirs = link_run(*shards("0,1", 3 * MS), norm(latency_ns)), link_run(*shards("0,1", MS))
    assert isinstance(low_bus_bandwidth(mine, theirs), Finding) == fires


@pytest.mark.parametrize(
    ("device", "kinds"), [("cuda", {"all_gather", "reduce_scatter"}), ("cpu", {"all_gather"})]
)
def test_gloo_reduce_scatters_are_compared_with_themselves_only(device: str, kinds: set[str]) -> None:
    """The baseline has all_reduces alone: by them gloo's reduce_scatter reaches half."""
    baseline = link_run(replace(replicas("0,1", MS), bytes=32 * MIB), device=device)
    finding = low_bus_bandwidth(link_run(*shards("0,1", 6 * MS), device=device), baseline)
    assert isinstance(finding, Finding)
    said = {fact.what.split()[0] for fact in finding.evidence if "median of large" in fact.what}
    assert said == kinds


@pytest.mark.parametrize(("shows", "fires"), [(0.3, True), (0.2999, False)])
def test_three_hundredths_of_the_step_are_worth_it(shows: float, *, fires: bool) -> None:
    """10 ms of a step of 100."""
    slow = link_run(gathers(1, 32 * MIB, 10 * MS, shows=shows))
    assert isinstance(check_against(10e9)(slow, None), Finding) == fires


@pytest.mark.parametrize(("messages", "confidence"), [(10, Confidence.HIGH), (9, Confidence.MEDIUM)])
def test_ten_large_messages_make_it_sure(messages: int, confidence: Confidence) -> None:
    slow = link_run(gathers(3, 32 * MIB, 10 * MS))
    rows = slow.collectives
    kept = rows["instance"].isin(rows["instance"].unique()[:messages])
    finding = check_against(10e9)(replace(slow, collectives=rows[kept]), None)
    assert isinstance(finding, Finding)
    assert finding.confidence is confidence


@pytest.mark.parametrize(("share", "fires"), [(64, True), (64.5, False), (63.5, True)])
def test_messages_of_a_64th_still_tell_of_bandwidth(share: float, *, fires: bool) -> None:
    """Gathers of 64 MiB are as fast as they should be, small reductions are not."""
    small = reduces(10, round(64 * MIB / share), 4 * MS)
    analysis = link_run(gathers(2, 64 * MIB, 10 * MS), small)
    assert isinstance(check_against(3e9)(analysis, None), Finding) == fires


def test_one_rank_has_no_link() -> None:
    analysis = link_run(gathers(3, 32 * MIB, 10 * MS))
    alone = replace(analysis, run=replace(analysis.run, world_size=1))
    assert check_against(10e9)(alone, None) is None


def test_a_group_on_unknown_hosts_expects_nothing_of_one_within() -> None:
    analysis = link_run(*shards("0,1", 3 * MS), *shards("2,3", MS))
    assert isinstance(low_bus_bandwidth(on_hosts(analysis, "a", "a"), None), Gap)
