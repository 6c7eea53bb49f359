"""The whole time side on schedules whose truth is known: waits, exposure, offsets, the ledger."""

import numpy as np
import pytest

from tests.support.schedules import MS, Spec, expected, play, write
from zprof.analysis.time.analyse import analyse_time
from zprof.model.time import LEDGER_TERMS
from zprof.model.training import TrainingFacts
from zprof.run.reader import load

OFFSETS = (0, 5 * MS, -5 * MS, 3_141_592)
HOSTS = ("alpha", "beta", "gamma", "delta")
MEASURED = ("wait_ns", "transfer_ns", "exposed_wait_ns", "exposed_transfer_ns")

SPECS = {
    "no prefetch": Spec(),
    "prefetch": Spec(prefetch=1, steps=3),
    "straggler": Spec(ranks=3, slow_rank=1, slow_ns=40 * MS),
    "straggler behind prefetch": Spec(ranks=4, prefetch=1, slow_rank=3, slow_ns=20 * MS, seed=5),
    "queue on a slow link": Spec(prefetch=3, gather_ns=9 * MS, reduce_ns=14 * MS, seed=3),
    "other clocks": Spec(ranks=4, offsets_ns=OFFSETS, hosts=HOSTS, slow_rank=2, slow_ns=15 * MS),
    "other clocks, prefetch": Spec(ranks=3, prefetch=1, offsets_ns=OFFSETS[:3], hosts=HOSTS[:3], seed=9),
    "one host, wrong clocks": Spec(ranks=2, offsets_ns=(0, -5 * MS), slow_rank=0, slow_ns=9 * MS),
}


def analysed(tmp_path, spec, **options):
    truths = play(spec)
    return analyse_time(load(write(tmp_path / "x.zprof", spec, truths, **options))), truths


@pytest.fixture(params=SPECS, scope="module")
def case(request, tmp_path_factory):
    spec = SPECS[request.param]
    analysis, truths = analysed(tmp_path_factory.mktemp("schedule"), spec)
    return spec, analysis, truths


def test_waits_and_transfers_within_one_percent(case):
    _, analysis, truths = case
    known = expected(truths)
    assert len(analysis.collectives) == len(known)
    for row in analysis.collectives.itertuples():
        true = known[row.rank, row.sequence]
        for name in MEASURED:
            want = getattr(true, name)
            assert getattr(row, name) == pytest.approx(want, rel=0.01, abs=2_500), (name, row)
        assert row.wait_ns + row.transfer_ns == row.end_ns - row.start_ns


def test_exposure_sums_within_one_percent(case):
    spec, analysis, truths = case
    known = expected(truths)
    for rank in range(spec.ranks):
        mine = analysis.collectives[analysis.collectives["rank"] == rank]
        for name in MEASURED:
            want = sum(getattr(true, name) for (r, _), true in known.items() if r == rank)
            assert int(mine[name].sum()) == pytest.approx(want, rel=0.01, abs=25_000), (rank, name)


def test_offsets_within_two_microseconds(case):
    spec, analysis, _ = case
    offsets = analysis.time.alignment.offsets_ns
    planted = spec.offsets_ns or [0] * spec.ranks
    assert [offsets[rank] for rank in range(spec.ranks)] == pytest.approx(list(planted), abs=2_000)
    assert analysis.time.alignment.uncertainty_ns <= 2_000


def test_ledger_sums_to_wall_exactly(case):
    spec, analysis, truths = case
    steps = analysis.steps
    assert (steps["wall_ns"] == steps[list(LEDGER_TERMS)].sum(axis=1)).all()
    assert (steps[list(LEDGER_TERMS)] >= 0).all(axis=None)
    assert (steps["collective_ns"] >= steps["overlapped_ns"]).all()
    for entry in analysis.time.per_rank:
        assert entry.wall_ns == sum(getattr(entry, term) for term in LEDGER_TERMS)
        true_steps = truths[entry.rank].steps
        assert entry.wall_ns == sum(end - begin for begin, end in true_steps) // len(true_steps)
        assert entry.steps == spec.steps


def test_compute_is_what_was_computed(case):
    _, analysis, truths = case
    for entry in analysis.time.per_rank:
        truth = truths[entry.rank]
        computed = sum(end - start for start, end, _ in truth.compute)
        assert entry.compute_ns == pytest.approx(computed / len(truth.steps), abs=5)
        assert entry.unexplained_ns == 0


def test_everything_matches(case):
    spec, analysis, truths = case
    assert analysis.collectives["matched"].all()
    assert analysis.time.alignment.matched == len(truths[0].collectives)
    assert analysis.time.alignment.unmatched == 0
    assert [gap.what for gap in analysis.gaps] == ["volume"]
    first = analysis.collectives[analysis.collectives["first_of_window"]]
    assert sorted(zip(first["rank"], first["sequence"], strict=True)) == [(r, 0) for r in range(spec.ranks)]


def test_hidden_is_what_lies_under_compute(case):
    _, analysis, truths = case
    true = {(c.rank, c.sequence): c for truth in truths for c in truth.collectives}
    for row in analysis.collectives.itertuples():
        c = true[row.rank, row.sequence]
        under = sum(
            max(0, min(c.end, end) - max(c.start, start)) for start, end, _ in truths[row.rank].compute
        )
        assert row.hidden_ns == under


def test_what_is_not_exposed_is_overlapped(case):
    _, analysis, truths = case
    known = expected(truths)
    for entry in analysis.time.per_rank:
        true = [c for truth in truths for c in truth.collectives if c.rank == entry.rank]
        ran = sum(c.end - c.start for c in true)  # one communication thread: they never overlap each other
        mine = [one for (rank, _), one in known.items() if rank == entry.rank]
        exposed = sum(one.exposed_wait_ns + one.exposed_transfer_ns for one in mine)
        assert entry.collective_ns == pytest.approx(ran / entry.steps, abs=2)
        assert entry.overlapped_ns == pytest.approx((ran - exposed) / entry.steps, abs=25_000)
        exposed_parts = entry.exposed_wait_ns + entry.exposed_transfer_ns
        assert entry.overlapped_ns + exposed_parts == pytest.approx(entry.collective_ns, abs=3)


def test_the_late_rank_is_last_and_late(tmp_path):
    spec = Spec(ranks=3, slow_rank=1, slow_ns=40 * MS, offsets_ns=OFFSETS[:3], hosts=HOSTS[:3])
    analysis, truths = analysed(tmp_path, spec)
    behind = analysis.collectives[analysis.collectives["lateness_ns"] > 10 * MS]
    assert set(behind["rank"]) == {1}
    assert len(behind) == spec.steps
    starts = {(c.rank, c.sequence): c.start for truth in truths for c in truth.collectives}
    for row in analysis.collectives.itertuples():
        earliest = min(starts[rank, row.sequence] for rank in range(spec.ranks))
        assert row.lateness_ns == pytest.approx(starts[row.rank, row.sequence] - earliest, abs=2_500)
    waiting = analysis.collectives[analysis.collectives["wait_ns"] > 10 * MS]
    assert set(waiting["rank"]) == {0, 2}
    assert set(waiting["last_rank"]) == {1}


def test_a_tie_within_the_clocks_names_nobody(tmp_path):
    analysis, truths = analysed(tmp_path, Spec(jitter_ns=0, prefetch=0, wake_ns=0))
    starts = {}
    for truth in truths:
        for c in truth.collectives:
            starts.setdefault(c.sequence, []).append(c.start)
    ties = {sequence for sequence, times in starts.items() if max(times) - min(times) < 1_000}
    tied = analysis.collectives[analysis.collectives["sequence"].isin(ties)]
    assert len(tied)
    assert (tied["last_rank"] == -1).all()


def test_prefetch_hides_and_no_prefetch_exposes(tmp_path):
    shares = {}
    for prefetch in (0, 1):
        analysis, _ = analysed(tmp_path / str(prefetch), Spec(prefetch=prefetch))
        entry = analysis.time.per_rank[0]
        shares[prefetch] = (entry.exposed_wait_ns + entry.exposed_transfer_ns) / entry.collective_ns
    assert shares[0] > 0.8
    assert shares[1] < 0.35


def test_compute_between_launch_and_wait(tmp_path):
    for prefetch in (0, 1):
        spec = Spec(prefetch=prefetch)
        analysis, truths = analysed(tmp_path / str(prefetch), spec)
        for row in analysis.collectives.itertuples():
            c = next(c for c in truths[row.rank].collectives if c.sequence == row.sequence)
            inside = sum(
                end - start
                for start, end, _ in truths[row.rank].compute
                if start >= c.launch[1] and end <= c.wait[0]
            )
            assert row.compute_before_wait_ns == inside


def test_bandwidth_is_that_of_the_link(tmp_path):
    """A rank that is late to everything makes the others wait, and the link no slower."""
    link = {"gather_ns": 4 * MS, "reduce_ns": 8 * MS, "unit_bytes": 4_000_000}
    spec = Spec(ranks=4, slow_rank=1, slow_ns=9 * MS, slow_everywhere=True, **link)
    analysis, _ = analysed(tmp_path, spec)
    reached = {entry.kind: entry for entry in analysis.time.collectives}
    assert reached["all_gather"].algbw_bytes_per_s == pytest.approx(1e9, rel=0.01)
    assert reached["all_gather"].busbw_bytes_per_s == pytest.approx(0.75e9, rel=0.01)
    assert reached["reduce_scatter"].algbw_bytes_per_s == pytest.approx(0.5e9, rel=0.01)
    assert reached["all_gather"].count == 2 * spec.units
    assert reached["all_gather"].bytes == 2 * spec.units * spec.unit_bytes
    assert reached["all_gather"].launch_delay_ns == 15_000


def test_volume_against_the_law(tmp_path):
    spec = Spec(unit_bytes=4_000_000)
    facts = TrainingFacts(stage=3, parameters=4_000_000, shard_ranks=2, communication_bytes=4)
    analysis, _ = analysed(tmp_path, spec, training=facts)
    assert analysis.volume.expected_bytes == 3 * 16_000_000
    assert analysis.volume.seen_bytes == 3 * 16_000_000
    assert analysis.volume.ratio == 1.0


def test_times_stand_on_the_common_clock(tmp_path):
    spec = Spec(offsets_ns=(0, 5 * MS), hosts=HOSTS[:2])
    analysis, _ = analysed(tmp_path, spec)
    ends = analysis.collectives.pivot(index="sequence", columns="rank", values="end_ns")
    assert np.abs(ends[0] - ends[1]).max() < 3_000
    for column in ("launch_start_ns", "wait_end_ns"):
        by_rank = analysis.collectives.pivot(index="sequence", columns="rank", values=column)
        assert np.abs((by_rank[0] - by_rank[1]).astype("int64")).max() < MS, column
