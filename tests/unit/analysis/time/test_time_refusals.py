"""What does not fit is refused and stated: no wrong accusation, no guess."""

import json

import pytest

from tests.support.schedules import MS, Spec, expected, play, rewrite_collective, write
from zprof.analysis.time.analyse import analyse_time
from zprof.run.reader import load

HOSTS = ("alpha", "beta", "gamma")


def analysed(tmp_path, spec, **options):
    truths = play(spec)
    return analyse_time(load(write(tmp_path / "x.zprof", spec, truths, **options))), truths


def gaps_of(analysis, what):
    return [gap.reason for gap in analysis.gaps if gap.what == what]


def one_event(rank, sequence):
    return lambda r, collective: r == rank and collective.sequence == sequence


def assert_true_pairs(analysis, truths, drop, least):
    """Each wait of a matched row is its true one, and so many instances are matched."""
    known = expected(truths)
    for truth in truths:
        kept = [c for c in truth.collectives if not drop(c.rank, c)]
        rows = analysis.collectives[analysis.collectives["rank"] == kept[0].rank].sort_values("sequence")
        assert len(rows) == len(kept)
        for row, true in zip(rows.itertuples(), kept, strict=True):
            if row.matched:
                want = known[true.rank, true.sequence].wait_ns
                assert row.wait_ns == pytest.approx(want, rel=0.01, abs=2_500)
    assert analysis.time.alignment.matched == least


@pytest.mark.parametrize("position", [0, 7, 30, 71])
def test_a_dropped_event_where_the_sequence_is_only_an_order(tmp_path, position):
    spec = Spec(ranks=3, steps=6, method="gloo_fifo_order", slow_rank=2, slow_ns=30 * MS)
    analysis, truths = analysed(tmp_path, spec, drop=one_event(1, position))
    count = len(truths[0].collectives)
    assert_true_pairs(analysis, truths, one_event(1, position), least=count - 1)
    assert analysis.time.alignment.rungs == {"signature": count - 1}
    assert analysis.time.alignment.shifts == ({1: 1} if position < count - 1 else {})
    late = analysis.collectives[analysis.collectives["lateness_ns"] > 10 * MS]
    assert set(late["rank"]) == {2}
    assert any("some ranks have" in reason for reason in gaps_of(analysis, "matching of collectives"))


def test_a_dropped_event_where_the_sequence_is_stated(tmp_path):
    spec = Spec(ranks=3, slow_rank=2, slow_ns=30 * MS)
    analysis, truths = analysed(tmp_path, spec, drop=one_event(1, 7))
    partial = analysis.collectives[analysis.collectives["sequence"] == 7]
    assert set(partial["rank"]) == {0, 2}
    assert not partial["matched"].any()
    assert (partial["last_rank"] == -1).all()
    assert any(
        "some ranks have no event" in reason for reason in gaps_of(analysis, "matching of collectives")
    )
    known = expected(truths)
    others = analysis.collectives[analysis.collectives["matched"]]
    assert len(others) == len(known) - 3
    for row in others.itertuples():
        assert row.wait_ns == pytest.approx(known[row.rank, row.sequence].wait_ns, rel=0.01, abs=2_500)


def test_the_dropped_event_leaves_its_wait_unexplained(tmp_path):
    analysis, truths = analysed(tmp_path, Spec(), drop=one_event(1, 0))
    wait = truths[1].collectives[0].wait
    unexplained = analysis.steps.query("rank == 1 and step == 0")["unexplained_ns"].item()
    assert unexplained == wait[1] - wait[0]
    assert analysis.steps["unexplained_ns"].sum() == unexplained


@pytest.mark.parametrize("same_kind", [False, True])
def test_a_shifted_sequence_is_found_out_and_repaired(tmp_path, same_kind):
    """Both ranks lose one event, of different collectives: counts agree, orders do not."""
    spec = Spec(units=1, steps=8, method="gloo_fifo_order")
    truths = play(spec)
    for collective in [c for truth in truths for c in truth.collectives if same_kind]:
        collective.kind = "all_gather"

    def drop(rank, collective):
        return collective.sequence == (0 if rank == 0 else 20)

    analysis = analyse_time(load(write(tmp_path / "x.zprof", spec, truths, drop=drop)))
    assert_true_pairs(analysis, truths, drop, least=len(truths[0].collectives) - 2)
    assert not analysis.time.alignment.excluded


@pytest.mark.parametrize("column", ["kind", "unit_bytes"])
def test_ranks_that_disagree_on_one_collective_are_not_matched_there(tmp_path, column):
    spec, truths = Spec(), play(Spec())
    path = write(tmp_path / "x.zprof", spec, truths)
    odd = truths[1].collectives[5]
    if column == "kind":
        odd.kind = "all_to_all"
    changed = Spec(unit_bytes=spec.unit_bytes + (4 if column == "unit_bytes" else 0))
    rewrite_collective(path, changed, rank=1, collective=odd)
    analysis = analyse_time(load(path))
    unmatched = analysis.collectives[~analysis.collectives["matched"]]
    assert sorted(zip(unmatched["rank"], unmatched["sequence"], strict=True)) == [(0, 5), (1, 5)]
    assert (unmatched["last_rank"] == -1).all()
    assert any("disagree" in reason for reason in gaps_of(analysis, "matching of collectives"))


def test_a_missing_rank_leaves_bounds(tmp_path):
    spec = Spec(ranks=3, slow_rank=1, slow_ns=40 * MS, hosts=HOSTS)
    analysis, truths = analysed(tmp_path, spec, skip_ranks=[1])
    known = expected(truths)
    assert set(analysis.collectives["rank"]) == {0, 2}
    assert (analysis.collectives["last_rank"] == -1).all()
    assert not analysis.collectives["matched"].any()
    for row in analysis.collectives.itertuples():
        assert row.wait_ns <= known[row.rank, row.sequence].wait_ns + 2_500
        assert row.transfer_ns >= known[row.rank, row.sequence].transfer_ns - 2_500
    assert all("lower" in entry.method for entry in analysis.time.collectives)
    assert all(entry.algbw_bytes_per_s is None for entry in analysis.time.collectives)
    assert any("not all ranks" in reason for reason in gaps_of(analysis, "wait and transfer"))


def test_no_recorded_wait_gives_an_upper_bound(tmp_path):
    spec = Spec(waits_recorded=False)
    analysis, truths = analysed(tmp_path, spec)
    known = expected(truths)
    for entry in analysis.time.per_rank:
        true = sum(
            t.exposed_wait_ns + t.exposed_transfer_ns for (rank, _), t in known.items() if rank == entry.rank
        )
        assert entry.method == "aten gap upper bound"
        assert entry.upper_bound
        assert entry.exposed_wait_ns + entry.exposed_transfer_ns >= true // spec.steps
        assert entry.wall_ns == sum(
            (entry.compute_ns, entry.exposed_wait_ns, entry.exposed_transfer_ns, entry.idle_ns)
        )
    assert len(gaps_of(analysis, "exposed time")) == spec.ranks


def test_hosts_that_share_nothing_are_not_compared(tmp_path):
    spec = Spec(pings=0, hosts=HOSTS[:2], offsets_ns=(0, 5 * MS), method="gloo_fifo_order")
    analysis, _ = analysed(tmp_path, spec, drop=lambda rank, collective: rank == 1)
    assert any("shares no usable" in reason for reason in gaps_of(analysis, "clock alignment"))
    assert not analysis.collectives["matched"].any()
    assert dict(analysis.time.alignment.offsets_ns) == {0: 0}


def test_a_rank_whose_clock_nothing_explains_is_left_out(tmp_path):
    """Its clock jumps between two collectives: no offset explains both, and the others go on."""
    spec = Spec(ranks=3, hosts=HOSTS, pings=0, slow_rank=1, slow_ns=20 * MS)
    truths = play(spec)
    for collective in truths[2].collectives[::2]:
        collective.start += 900 * MS
        collective.end += 900 * MS
    analysis = analyse_time(load(write(tmp_path / "x.zprof", spec, truths)))
    assert sorted(analysis.time.alignment.offsets_ns) == [0, 1]
    assert [gap.rank for gap in analysis.gaps if gap.what == "clock alignment"] == [2]
    assert analysis.time.alignment.excluded == (2,)
    assert not analysis.collectives["matched"].any()
    assert (analysis.collectives["last_rank"] == -1).all()
    assert (analysis.collectives.query("rank == 2")["lateness_ns"] == 0).all()
    assert any("no shift" in reason for reason in gaps_of(analysis, "matching of collectives"))


def test_broadcasts_align_nothing_and_are_not_compared(tmp_path):
    """A broadcast's root may leave before the others come: it bounds no clock and names no late rank."""
    spec = Spec(hosts=HOSTS[:2], pings=0)
    truths = play(spec)
    for truth in truths:
        for collective in truth.collectives:
            collective.kind = "broadcast"
    analysis = analyse_time(load(write(tmp_path / "x.zprof", spec, truths)))
    assert gaps_of(analysis, "clock alignment")
    assert not analysis.collectives["matched"].any()
    assert (analysis.collectives["wait_ns"] == 0).all()


def test_without_pings_collectives_align_the_clocks(tmp_path):
    spec = Spec(pings=0, hosts=HOSTS[:2], offsets_ns=(0, 5 * MS))
    analysis, _ = analysed(tmp_path, spec)
    assert analysis.time.alignment.offsets_ns[1] == pytest.approx(5 * MS, abs=5_000)
    assert analysis.time.alignment.method.endswith("collectives")
    assert analysis.time.alignment.uncertainty_ns > 100_000, "long collectives align less sharply"


def test_a_run_without_collectives_still_has_a_ledger(tmp_path):
    analysis, _ = analysed(tmp_path, Spec(), drop=lambda rank, collective: True)
    entry = analysis.time.per_rank[0]
    assert not len(analysis.collectives)
    assert entry.overlap_ratio is None
    assert entry.wall_ns == entry.compute_ns + entry.idle_ns + entry.unexplained_ns
    assert entry.unexplained_ns > 0, "it waited for collectives that the trace does not show"


def test_a_run_without_a_time_window_says_so(tmp_path):
    path = write(tmp_path / "x.zprof", Spec(), play(Spec()))
    for folder in path.glob("rank*"):
        manifest = json.loads((folder / "rank.json").read_text())
        del manifest["files"]["events"]
        (folder / "rank.json").write_text(json.dumps(manifest))
    analysis = analyse_time(load(path))
    assert analysis.time.per_rank == ()
    assert [gap.rank for gap in analysis.gaps] == [0, 1]
    assert not len(analysis.steps)
