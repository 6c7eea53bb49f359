"""low_bus_bandwidth and sharding_spans_nodes: links slower than others, and links between hosts."""

import numpy as np
import pytest
from msgspec.structs import replace

from tests.support.analyses import Scenario
from tests.support.link_runs import MS, US, Sent, gathers, link_run, norm, on_hosts, reduces
from tests.support.rule_runs import Run, found, judged, on_one_rank, run_of, values, without_collectives
from tests.support.tables import changed, selected
from zprof.analysis.analysis import RunAnalysis
from zprof.causes.low_bus_bandwidth import CAUSE as low_bus_bandwidth
from zprof.causes.sharding_spans_nodes import CAUSE as sharding_spans_nodes
from zprof.model.collectives import CollectiveKind
from zprof.step.bandwidth import compare_unsized, describe_group, read_reached_ratios, select_slow_rows

MIB = 1 << 20
FAST, SLOW = Scenario(bytes_per_s=500e6), Scenario(bytes_per_s=60e6)
EXPOSED = Scenario(prefetch=False)
HIDDEN = Scenario(compute_ms=40)


@pytest.mark.parametrize(
    ("plan", "baseline", "expected"),
    [
        (SLOW, FAST, "high"),  # slow
        (replace(EXPOSED, bytes_per_s=75e6), replace(EXPOSED, bytes_per_s=100e6), "high"),  # 75 %
        (replace(EXPOSED, bytes_per_s=85e6), replace(EXPOSED, bytes_per_s=100e6), None),  # 85 %
        (replace(HIDDEN, bytes_per_s=1e9), replace(HIDDEN, bytes_per_s=4e9), None),  # hidden
        (replace(FAST, delay_ms={1: 80}), FAST, None),  # a late rank
        (SLOW, None, "gap"),  # nothing expected
        (SLOW, replace(FAST, unit_bytes=64 << 10), "gap"),  # other sizes
        (SLOW, replace(FAST, stage=0), "high"),  # another stage
        (Scenario(ranks=1), None, None),  # one rank
    ],
)
def test_against_a_baseline(plan: Scenario, baseline: Scenario | None, expected: str | None) -> None:
    assert judged(low_bus_bandwidth, run_of(plan), baseline and run_of(baseline)) == expected


def test_the_saving_holds_what_the_fast_link_wins() -> None:
    won = run_of(SLOW).steps.ints("wall_ns").mean() - run_of(FAST).steps.ints("wall_ns").mean()
    finding = found(low_bus_bandwidth, run_of(SLOW), run_of(FAST))
    low, high = finding.saving_ns
    assert 0.8 * low <= won <= 1.2 * high
    assert (finding.id, read_reached_ratios(finding)[CollectiveKind.ALL_GATHER]) == (
        "ZP402",
        pytest.approx(0.12),
    )


def shards(group: str, each_ns: int) -> tuple[Sent, Sent]:
    return gathers(12, 32 * MIB, each_ns, group=group), reduces(6, 32 * MIB, each_ns, group=group)


def replicas(group: str, each_ns: int, size: int = 16 * MIB) -> Sent:
    """An all_reduce of 16 MiB moves as much as a gather of 32."""
    kind = CollectiveKind.ALL_REDUCE
    return Sent(kind=kind, count=6, bytes=size, each_ns=each_ns, group=group, begins_ns=600 * MS)


def two_shards(slow_ns: int = 3 * MS, hosts: str = "") -> RunAnalysis:
    return on_hosts(link_run(*shards("0,1", slow_ns), *shards("2,3", MS)), *hosts)


def replicated(hosts: str = "") -> RunAnalysis:
    return on_hosts(link_run(*shards("0,1", MS), replicas("0,2", 3 * MS)), *hosts)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: two_shards(2_000 * US), "gap"),  # half: as fast, but both may be slow
        (lambda: link_run(*shards("0,1", 3 * MS)), "gap"),  # one group
        # replicas compare with shards, and groups with each other, if both are within a host
        (replicated, "low"),  # replicas on unknown hosts
        (lambda: replicated("aaa"), "high"),  # replicas on one host
        (lambda: two_shards(hosts="abcc"), "gap"),  # between hosts
        (lambda: two_shards(hosts="aacc"), "high"),  # each within a host
        (lambda: two_shards(hosts="aa"), "low"),  # one on unknown hosts
    ],
)
def test_against_other_groups(run: Run, expected: str | None) -> None:
    assert judged(low_bus_bandwidth, run()) == expected


def test_the_rank_that_all_slow_groups_share_is_named() -> None:
    def ranks(*sent: Sent) -> set[int | None]:
        return {fact.rank for fact in found(low_bus_bandwidth, link_run(*sent)).evidence} - {None}

    both = (*shards("0,1", 3 * MS), *shards("2,3", MS), replicas("0,2", MS), replicas("1,3", 3 * MS))
    assert ranks(*both) == {1}
    assert ranks(*both[:4]) == set()


REPLICA_GROUPS = "04", "15", "26", "37"


def hybrid(
    replica_ns: int = 2 * MS,
    *,
    hosts: str = "",
    shows: float = 1.0,
    slow_group: str = "",
    replica_bytes: int = 8 * MIB,
    **more: object,
) -> RunAnalysis:
    """Two sharding groups of four ranks at 252 GB/s, and equally slow replicas: 4.2 GB/s.

    ``slow_group``: replicas that take four times as long as the others.
    """
    fast = [
        sent
        for group in ("0,1,2,3", "4,5,6,7")
        for sent in (
            gathers(12, 32 * MIB, 100 * US, group=group, shows=0),
            reduces(6, 32 * MIB, 100 * US, group=group, shows=0),
        )
    ]
    slow = [
        replace(
            replicas(",".join(pair), replica_ns * (4 if pair == slow_group else 1), replica_bytes),
            shows=shows,
        )
        for pair in REPLICA_GROUPS
    ]
    return on_hosts(link_run(*fast, *slow, **more), *hosts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (hybrid, "low"),  # hosts unknown: the replicas may cross a network
        (lambda: hybrid(hosts="a" * 8), "medium"),  # no network between them
        (lambda: hybrid(hosts="aaaabbbb"), "gap"),  # a network, and nobody knows which
        (lambda: hybrid(hosts="aaaabbbb", shows=0.1), None),  # hidden
        (lambda: hybrid(shows=0.1), None),
        (lambda: hybrid(100 * US), None),  # as fast as a message of that size can be
        (lambda: hybrid(hosts="aaaabbbb", slow_group="15"), "high"),  # slower than other replicas
    ],
)
def test_equally_slow_groups_do_not_vouch_for_one_another(run: Run, expected: str | None) -> None:
    assert judged(low_bus_bandwidth, run()) == expected


def with_rows(analysis: RunAnalysis, **columns: object) -> RunAnalysis:
    return replace(analysis, collectives=changed(analysis.collectives, **columns))


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (lambda: with_rows(hybrid(), bytes=0), "gap"),  # sizes unknown
        (lambda: with_rows(hybrid(), matched=False), "gap"),  # ranks missing
        (lambda: with_rows(hybrid(shows=0.1), bytes=0), None),  # hidden
    ],
)
def test_exposed_messages_of_unknown_bandwidth_leave_a_gap(run: Run, expected: str | None) -> None:
    assert judged(low_bus_bandwidth, run()) == expected


def test_slow_replicas_are_one_claim_with_both_figures() -> None:
    finding = found(low_bus_bandwidth, hybrid())
    assert values(finding, "bytes_per_s") == [pytest.approx(8 * MIB / 2e-3), pytest.approx(24 * MIB / 1e-4)]
    groups = next(fact.value for fact in finding.evidence if fact.key == "all_reduce_slow_groups")
    assert groups == len(REPLICA_GROUPS)


def test_less_sure_groups_are_evidence_beside_a_sure_finding() -> None:
    """One group of replicas is slower than the others, which are all slower than the shards."""
    keys = {fact.key for fact in found(low_bus_bandwidth, hybrid(slow_group="15")).evidence}
    assert {"all_reduce_bus_bandwidth", "other_bus_bandwidth", "other_expected_bus_bandwidth"} <= keys


def test_only_slow_groups_run_faster_without_the_cause() -> None:
    run = hybrid()
    norm_too = link_run(
        gathers(12, 32 * MIB, 100 * US, group="0,1,2,3", shows=0),
        replace(replicas("0,4", 2 * MS), shows=1.0),
        replace(replicas("0,1", 50 * US), shows=1.0),
    )
    for analysis in (run, norm_too):
        rows = analysis.collectives
        slow = select_slow_rows(analysis, found(low_bus_bandwidth, analysis))
        crosses = rows.texts("group").equals(*(",".join(pair) for pair in REPLICA_GROUPS))
        assert set(slow) == set(np.flatnonzero(crosses).tolist())


@pytest.mark.parametrize(
    ("group", "place"),
    [
        ("0,4#mesh_dp_replicate", "replicas"),
        ("0,4#mesh_dp_shard", "data"),
        ("0,4", "replicas"),  # they reduce the shards of different sharding groups
        ("0,1", "groups of 2"),  # ranks of one sharding group
    ],
)
def test_groups_are_named_by_what_they_connect(group: str, place: str) -> None:
    assert place in describe_group(hybrid(), group, 2)


def test_tensor_parallel_groups_are_no_replicas() -> None:
    """Each of their ranks has its own sharding group too, but they reduce activations, of another size."""
    assert "replicas" not in describe_group(hybrid(replica_bytes=6 * MIB), "0,4", 2)


@pytest.mark.parametrize(
    ("mine", "theirs", "expected"), [("ab", "aa", "gap"), ("ab", "ab", "high"), ("ab", "", "high")]
)
def test_a_baseline_within_a_host_expects_nothing_between_hosts(
    mine: str, theirs: str, expected: str | None
) -> None:
    run, baseline = link_run(*shards("0,1", 3 * MS)), link_run(*shards("0,1", MS))
    assert judged(low_bus_bandwidth, on_hosts(run, *mine), on_hosts(baseline, *theirs)) == expected


@pytest.mark.parametrize(
    ("device", "kinds"),
    [
        ("cuda", {CollectiveKind.ALL_GATHER, CollectiveKind.REDUCE_SCATTER}),
        ("cpu", {CollectiveKind.ALL_GATHER}),
    ],
)
def test_gloo_reduce_scatters_compare_only_with_themselves(device: str, kinds: set[CollectiveKind]) -> None:
    """The baseline has all_reduces alone: by them gloo's reduce_scatter reaches half."""
    baseline = link_run(replicas("0,1", MS, 32 * MIB), device=device)
    finding = found(low_bus_bandwidth, link_run(*shards("0,1", 6 * MS), device=device), baseline)
    assert set(read_reached_ratios(finding)) == kinds


def test_a_lost_message_leaves_the_comparison_of_the_others() -> None:
    """Without sizes a message is known by its place in the step; a short one comes last."""
    whole, baseline = (
        link_run(gathers(3, 0, each_ns), gathers(1, 0, each_ns // 10, begins_ns=100 * MS))
        for each_ns in (4 * MS, 2 * MS)
    )
    lost = replace(whole, collectives=whole.collectives.at(slice(1, None)).renumber())
    ratios = [each.reached_ratio for run in (whole, lost) for each in compare_unsized(run, baseline)]
    assert ratios == pytest.approx([0.5, 0.5])


def test_elements_of_twice_the_bytes_may_take_twice_as_long() -> None:
    for types, ratio in (
        (("float32", "bfloat16"), 0.8),
        (("bfloat16", "float32"), 0.4),
        (("", "float32"), 0.4),
    ):
        now, before = (
            link_run(gathers(3, 0, each_ns, dtype=dtype))
            for each_ns, dtype in zip((5 * MS, 2 * MS), types, strict=True)
        )
        assert [each.reached_ratio for each in compare_unsized(now, before)] == pytest.approx([ratio])


def few(messages: int) -> RunAnalysis:
    analysis = link_run(gathers(3, 32 * MIB, 10 * MS))
    rows = analysis.collectives
    kept = np.isin(rows.ints("instance"), np.unique(rows.ints("instance"))[:messages])
    return replace(analysis, collectives=selected(rows, kept))


def alone() -> RunAnalysis:
    return replace(few(12), run=replace(few(12).run, world_size=1))


@pytest.mark.parametrize(
    ("bytes_per_s", "run", "expected"),
    [
        (500e6, lambda: run_of(SLOW), "high"),  # below
        (100e6, lambda: run_of(SLOW), None),  # enough
        (10e9, lambda: few(9), "medium"),  # nine messages
        (10e9, alone, None),  # one rank
    ],
)
def test_against_a_stated_bandwidth(bytes_per_s: float, run: Run, expected: str | None) -> None:
    stated = replace(run(), expected_bus_bytes_per_s=bytes_per_s)
    assert judged(low_bus_bandwidth, stated) == expected


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


REPLICATED = Sent(kind=CollectiveKind.ALL_REDUCE, count=12, bytes=SIZE, each_ns=4 * MS, group=ALL)


@pytest.mark.parametrize(
    ("run", "expected"),
    [
        (run, "medium"),  # over two hosts
        (lambda: run(hosts="aaaa"), None),  # one host
        (lambda: run(hosts="abcd"), None),  # a host for each rank
        (lambda: run(hosts="aaab"), None),  # uneven
        (lambda: run(hosts="aab"), "gap"),  # a host unknown
        (lambda: run(hosts=""), "gap"),  # hosts unknown
        (lambda: run(*over_hosts(shows=0.01), hosts=""), None),  # hidden
        (lambda: run(*over_hosts(1_250_000, shows=1.0)), None),  # as fast as inside a host
        (lambda: run(*over_hosts(), within(2 * MS, 24 * MIB)), None),  # half of inside
        (lambda: run(REPLICATED, norm(20_000, ALL)), None),  # replicas
        (lambda: without_collectives(run()), "gap"),  # no collectives
        (lambda: on_one_rank(run()), None),  # one rank
    ],
)
def test_sharding_spans_nodes(run: Run, expected: str | None) -> None:
    assert judged(sharding_spans_nodes, run()) == expected


def test_the_layout_and_the_bandwidth_are_evidence() -> None:
    finding = found(sharding_spans_nodes, run())
    assert (finding.id, values(finding, "count")) == ("ZP408", [2, 2])
    assert values(finding, "bytes_per_s") == [pytest.approx(0.75 * SIZE / 0.004)]
    assert 0 < finding.saving_ns[0] < finding.saving_ns[1] < 36 * MS
