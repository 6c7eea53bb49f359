"""What no finding explains is one rank's, and its groups have what no finding can have claimed."""

from dataclasses import replace

from tests.unit.rules.test_claims import claim, rank
from zprof.model.findings import Cause
from zprof.model.time import CollectiveTime
from zprof.rules.claims import ExposedGroup, find_unexplained_loss
from zprof.rules.registry import all_rules


def exposed(kind: str, group: str, ns: int) -> CollectiveTime:
    return CollectiveTime(
        kind=kind, group=group, dtype="bfloat16", count=1.0, bytes=1, total_ns=ns, exposed_ns=ns, wait_ns=0,
        transfer_ns=ns, launch_delay_ns=None, algbw_bytes_per_s=None, busbw_bytes_per_s=None, method="x",
    )  # fmt: skip


def test_terms_of_different_ranks_are_never_added() -> None:
    """One rank waits 30 for another that is idle 32: nobody loses 62."""
    base = rank(exposed_memcpy_ns=0, unexplained_ns=0)
    waiting = replace(base, rank=0, exposed_wait_ns=30)
    idle = replace(base, rank=1, idle_ns=32)
    rest = find_unexplained_loss((), all_rules(), [waiting, idle])
    assert (rest.rank, rest.total_ns) == (1, 32)
    assert rest.terms["exposed_wait_ns"] == 0


def test_a_straggler_explains_the_wait_of_one_rank_and_the_idle_time_of_the_other() -> None:
    base = rank(exposed_memcpy_ns=0, unexplained_ns=0)
    waiting = replace(base, rank=0, exposed_wait_ns=30)
    late = replace(base, rank=1, idle_ns=32)
    rest = find_unexplained_loss([claim(Cause.STRAGGLER_RANK, 10, 25)], all_rules(), [waiting, late])
    assert (rest.rank, rest.total_ns, rest.terms["idle_ns"]) == (1, 7, 7)


def test_groups_keep_what_no_finding_can_have_claimed() -> None:
    seen = [
        exposed("all_reduce", "replica", 50),
        exposed("all_reduce", "replica", 32),
        exposed("all_gather", "shard", 30),
    ]
    assert find_unexplained_loss((), all_rules(), [rank()], seen).groups == (
        ExposedGroup(kind="all_reduce", group="replica", ns=82),
        ExposedGroup(kind="all_gather", group="shard", ns=30),
    )
    claimed = [claim(Cause.NO_PREFETCH, 20, 30)]
    assert find_unexplained_loss(claimed, all_rules(), [rank()], seen).groups == (
        ExposedGroup(kind="all_reduce", group="replica", ns=52),
    )
