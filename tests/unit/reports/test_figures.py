"""What outputs show beside leaves: sums that sum, shares of the whole, states with their remainder; names."""

from dataclasses import replace

import pytest

from tests.support.memories import memory_of
from tests.support.reports import slower, straggler
from zprof.model.formatting import format_bytes
from zprof.model.gaps import Gap
from zprof.model.time import CriticalPath, PathKind, PathShare
from zprof.reports.presenters.findings import grouped_gaps
from zprof.reports.presenters.memory_figures import largest_ranks, peak_bytes, state_lines, telling_frames
from zprof.reports.presenters.run_words import group_name
from zprof.reports.presenters.time_figures import (
    exposure,
    ledger,
    path_kinds,
    path_ranks,
    step_change_ns,
    step_ns,
    telling_ranks,
)

MS = 1_000_000


def test_changes_sum_to_the_change_of_the_step() -> None:
    report = slower()
    assert report.comparison is not None
    times = report.comparison.step_time
    changes = [row.change_ns for row in ledger(report)]
    assert None not in changes
    assert sum(change or 0 for change in changes) == times.b_ns - times.a_ns == step_change_ns(report)


def test_terms_and_baseline_terms_sum_to_their_steps() -> None:
    report = slower()
    assert report.comparison is not None
    rows = ledger(report)
    assert abs(sum(row.this_ns for row in rows) - step_ns(report.time.per_rank)) <= len(rows)
    before = sum(row.baseline_ns or 0 for row in rows)
    assert abs(before - step_ns(report.comparison.baseline_time)) <= len(rows)


def test_bars_are_shares_of_the_step_or_of_the_largest_change() -> None:
    alone = ledger(straggler())
    assert abs(sum(row.share for row in alone) - 1) < 1e-6
    assert max(row.share for row in ledger(slower())) == 1


def test_exposed_and_hidden_sum_to_the_collectives() -> None:
    seen = exposure(slower().time.per_rank)
    assert seen.exposed_ns + seen.hidden_ns == seen.collective_ns
    assert seen.ratio == seen.exposed_ns / seen.collective_ns
    assert exposure(()).ratio is None


def test_largest_peaks_are_shown_in_order_of_rank() -> None:
    ranks = memory_of(3, ranks=6).per_rank
    assert [rank.rank for rank in largest_ranks(ranks, 2)] == [4, 5]
    assert [rank.rank for rank in largest_ranks(ranks, 8)] == [0, 1, 2, 3, 4, 5]
    assert peak_bytes(ranks) == ranks[5].peak_bytes


def test_the_states_of_a_rank_sum_to_one_sentence() -> None:
    laws = [law for law in memory_of(2).laws if law.rank == 0]
    (line,) = state_lines(laws, 4)
    assert format_bytes(sum(law.law_bytes for law in laws)) in line
    assert format_bytes(sum(law.measured_bytes for law in laws)) in line
    assert state_lines(laws[:2], 4) == (), "without all three there is no sum"


@pytest.mark.parametrize(
    ("rests", "cause", "said"),
    [
        ((0, 0, 0), "", "exact to the byte"),
        ((8, 8, 8), "", "+24 B not explained"),
        ((8, 8, -16), "", "32 B not explained"),
        ((8, 8, -16), "uneven shards", "32 B off, of known cause"),
        ((8, 8, -16), "not explained", "32 B not explained"),
    ],
)
def test_too_much_of_one_state_does_not_hide_too_little_of_another(
    rests: tuple[int, ...], cause: str, said: str
) -> None:
    laws = [law for law in memory_of(2).laws if law.rank == 0]
    off = [replace(law, unexplained_bytes=rest, cause=cause) for law, rest in zip(laws, rests, strict=True)]
    assert said in state_lines(off, 4)[0]


def test_the_rank_furthest_off_comes_first_however_many_there_are() -> None:
    states = [law for law in memory_of(2).laws if law.rank == 0]
    laws = [replace(law, rank=at) for at in range(32) for law in states]
    laws = [replace(law, unexplained_bytes=1 << 20, cause="") if law.rank == 30 else law for law in laws]
    first, *_, left = state_lines(laws, 4)
    assert "of rank 30: " in first
    assert left.startswith("4 of 32 ranks")


def test_ranks_that_wait_most_and_least_are_told() -> None:
    ranks = [replace(slower().time.per_rank[0], rank=at, exposed_wait_ns=at % 7) for at in range(20)]
    kept = [rank.rank for rank in telling_ranks(ranks, 4)]
    assert kept == [0, 6, 13, 14] or {ranks[at].exposed_wait_ns for at in kept} == {0, 6}
    assert telling_ranks(ranks[:3], 8) == tuple(ranks[:3])
    assert telling_ranks((), 8) == ()


def test_the_critical_path_is_summed_by_rank_and_by_kind() -> None:
    shares = ((1, PathKind.HOST, 1), (0, PathKind.HOST, 2), (1, PathKind.COMPUTE, 7))
    path = CriticalPath(
        steps=1,
        wall_ns=10 * MS,
        shares=tuple(PathShare(rank=rank, what=kind, ns=ms * MS) for rank, kind, ms in shares),
    )
    assert [(rank.rank, rank.ns, rank.share) for rank in path_ranks(path)] == [
        (1, 8 * MS, 0.8),
        (0, 2 * MS, 0.2),
    ]
    assert path_kinds(path) == (("compute", 0.7), ("host", 0.3))


def test_the_same_gap_on_several_ranks_is_said_once() -> None:
    gaps = [Gap(what="memory", reason=why, remedy="record", rank=rank) for why in "ab" for rank in (1, 0)]
    groups = grouped_gaps([*gaps, Gap(what="link", reason="c", remedy="")])
    assert [(group.reason, group.ranks) for group in groups] == [("a", (0, 1)), ("b", (0, 1)), ("c", ())]


def test_frames_of_the_program_come_before_those_of_packages() -> None:
    installed = "/v/lib/python3.11/site-packages/torch/nn/functional.py:7 relu"
    own = "/home/me/job/models/gpt.py:31 forward"
    assert telling_frames([installed, installed, own, own], 3) == (
        "torch/nn/functional.py:7 relu",
        "job/models/gpt.py:31 forward",
        "job/models/gpt.py:31 forward",
    )
    assert telling_frames([installed] * 3, 2) == ("torch/nn/functional.py:7 relu",) * 2
    assert telling_frames([], 2) == ()


@pytest.mark.parametrize(
    ("group", "shown"),
    [
        ("0,1", "0,1"),
        ("0,1,2,3", "0,1,2,3"),
        ("0,1,2,3,4,5,6,7#fsdp", "0-7#fsdp"),
        (",".join(map(str, range(1024))), "0-1023"),
        (",".join(map(str, range(0, 1024, 8))), "0,8,..,1016 (128 ranks)"),
        ("0,1,2,3,8,9,10,11", "0-3,8-11"),
        ("0,1,4,5,8,9,12,13", "0-1,4-5,8-9,.. (8 ranks)"),
        ("stream:84", "stream:84"),
        ("a,b,c,d,e,f", "a,b,c,d,e,f"),
        ("1,2,3,4," + "9" * 40, "1,2,3,4," + "9" * 40),
    ],
)
def test_a_group_is_shown_short(group: str, shown: str) -> None:
    assert group_name(group) == shown
