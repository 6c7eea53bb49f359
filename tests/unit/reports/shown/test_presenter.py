"""What faces show beside leaves: sums that sum, shares of the whole, laws with their remainder."""

from dataclasses import replace

from tests.support.memories import memory_of
from tests.support.reports import slower, straggler
from zprof.model.gaps import Gap
from zprof.reports.shown.memory_presenter import telling_frames
from zprof.reports.shown.presenter import (
    exposure,
    grouped_gaps,
    ledger,
    peak_bytes,
    shown_ranks,
    state_checks,
    step_change_ns,
    step_ns,
)


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
    assert [rank.rank for rank in shown_ranks(ranks, 2)] == [4, 5]
    assert [rank.rank for rank in shown_ranks(ranks, 8)] == [0, 1, 2, 3, 4, 5]
    assert peak_bytes(ranks) == ranks[5].peak_bytes


def test_the_states_of_a_rank_sum_to_one_check() -> None:
    laws = memory_of(2).laws
    first, second = state_checks(laws)
    assert (first.rank, second.rank) == (0, 1)
    assert first.law_bytes == sum(law.law_bytes for law in laws if law.rank == 0)
    assert first.law_bytes + first.padding_bytes + first.scalar_bytes == first.measured_bytes
    assert first.rest_bytes == 0


def test_what_no_law_explains_is_the_rest() -> None:
    more = [replace(law, unexplained_bytes=8) for law in memory_of(2).laws[:3]]
    assert [check.rest_bytes for check in state_checks(more)] == [24]


def test_too_much_of_one_state_does_not_hide_too_little_of_another() -> None:
    rests = (8, 8, -16)
    laws = [
        replace(law, unexplained_bytes=b, cause="") for law, b in zip(memory_of(2).laws, rests, strict=False)
    ]
    (check,) = state_checks(laws)
    assert (check.rest_bytes, check.off_bytes, check.has_cause) == (0, 32, False)
    (known,) = state_checks([replace(law, cause="uneven shards") for law in laws])
    assert known.has_cause
    (unknown,) = state_checks([replace(law, cause="not explained") for law in laws])
    assert not unknown.has_cause


def test_a_rank_without_all_three_laws_has_no_check() -> None:
    assert state_checks(memory_of(2).laws[:2]) == ()


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
