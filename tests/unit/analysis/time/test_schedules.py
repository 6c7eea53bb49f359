"""The whole time side on schedules whose truth is known, and what is refused where parts are missing."""

import json
from pathlib import Path

import pytest

from tests.support.schedules import MS, Spec, expected, play, write
from zprof.analysis.time.analyse import TimeAnalysis, analyse_time
from zprof.model.time import LEDGER_TERMS
from zprof.run.reader import load

TERMS = list(LEDGER_TERMS)
ORDERED = "gloo_fifo_order"  # its sequence is only an order
OFFSETS = (0, 5 * MS, -5 * MS, 3_141_592)
HOSTS = ("alpha", "beta", "gamma", "delta")
MEASURED = ("wait_ns", "transfer_ns", "exposed_wait_ns", "exposed_transfer_ns")
SPECS = {
    "prefetch": Spec(prefetch=1, steps=3),
    "straggler": Spec(ranks=3, slow_rank=1, slow_ns=40 * MS),
    "queue on a slow link": Spec(prefetch=3, gather_ns=9 * MS, reduce_ns=14 * MS, seed=3),
    "other clocks": Spec(ranks=4, offsets_ns=OFFSETS, hosts=HOSTS, slow_rank=2, slow_ns=15 * MS),
    "one host, wrong clocks": Spec(ranks=2, offsets_ns=(0, -5 * MS), slow_rank=0, slow_ns=9 * MS),
}


def analysed(folder: Path, spec: Spec, **options):
    truths = play(spec)
    return analyse_time(load(write(folder / "x.zprof", spec, truths, **options))), truths


@pytest.fixture(params=SPECS, scope="module")
def case(request, tmp_path_factory):
    spec = SPECS[request.param]
    analysis, truths = analysed(tmp_path_factory.mktemp("schedule"), spec)
    return spec, analysis, truths


def test_waits_transfers_and_exposure_within_one_percent(case) -> None:
    spec, analysis, truths = case
    known = expected(truths)
    rows = analysis.collectives.to_frame()
    assert len(rows) == len(known)
    for row in rows.itertuples():
        for name in MEASURED:
            want = getattr(known[row.rank, row.sequence], name)
            assert getattr(row, name) == pytest.approx(want, rel=0.01, abs=2_500), (name, row)
        assert row.wait_ns + row.transfer_ns == row.end_ns - row.start_ns
    for rank in range(spec.ranks):
        for name in MEASURED:
            want = sum(getattr(true, name) for (r, _), true in known.items() if r == rank)
            assert rows.loc[rows["rank"] == rank, name].sum() == pytest.approx(want, rel=0.01, abs=25_000)


def test_clocks_and_matches(case) -> None:
    spec, analysis, truths = case
    alignment = analysis.time.alignment
    planted = list(spec.offsets_ns or [0] * spec.ranks)
    assert [alignment.offsets_ns[rank] for rank in range(spec.ranks)] == pytest.approx(planted, abs=2_000)
    assert alignment.uncertainty_ns <= 2_000
    rows = analysis.collectives.to_frame()
    assert rows["matched"].all()
    assert (alignment.matched, alignment.unmatched) == (len(truths[0].collectives), 0)
    assert [gap.what for gap in analysis.gaps] == ["a training step", "volume"]  # it has no backward
    first = rows[rows["first_of_window"]]
    assert sorted(zip(first["rank"], first["sequence"], strict=True)) == [(r, 0) for r in range(spec.ranks)]
    ends = rows.pivot(index="sequence", columns="rank", values="end_ns")
    assert (ends.max(axis=1) - ends.min(axis=1)).max() < 3_000, "times are on the common clock"


def test_the_ledger_is_the_truth(case) -> None:
    spec, analysis, truths = case
    known = expected(truths)
    steps = analysis.steps.to_frame()
    assert (steps["wall_ns"] == steps[TERMS].sum(axis=1)).all()
    assert (steps[TERMS] >= 0).all(axis=None)
    for entry in analysis.time.per_rank:
        truth = truths[entry.rank]
        assert entry.steps == spec.steps
        assert entry.wall_ns == sum(getattr(entry, term) for term in TERMS)
        assert entry.wall_ns == sum(end - begin for begin, end in truth.steps) // spec.steps
        computed = sum(end - start for start, end, _ in truth.compute)
        assert entry.compute_ns == pytest.approx(computed / spec.steps, abs=5)
        assert entry.unexplained_ns == 0
        ran = sum(c.end - c.start for c in truth.collectives)  # one thread: they never overlap each other
        exposed = sum(
            one.exposed_wait_ns + one.exposed_transfer_ns
            for (rank, _), one in known.items()
            if rank == entry.rank
        )
        assert entry.collective_ns == pytest.approx(ran / spec.steps, abs=2)
        assert entry.overlapped_ns == pytest.approx((ran - exposed) / spec.steps, abs=25_000)


def gaps_of(analysis: TimeAnalysis, what: str) -> list[int | None]:
    return [gap.rank for gap in analysis.gaps if gap.what == what]


def check_pairs(analysis: TimeAnalysis, truths, drop, matched: int) -> None:
    """Each wait of a matched row is its true one, and so many instances are matched."""
    known = expected(truths)
    collectives = analysis.collectives.to_frame()
    for truth in truths:
        kept = [c for c in truth.collectives if not drop(c.rank, c)]
        rows = collectives[collectives["rank"] == kept[0].rank].sort_values("sequence")
        assert len(rows) == len(kept)
        for row, true in zip(rows.itertuples(), kept, strict=True):
            want = known[true.rank, true.sequence].wait_ns
            assert not row.matched or row.wait_ns == pytest.approx(want, rel=0.01, abs=2_500)
    assert analysis.time.alignment.matched == matched


@pytest.mark.parametrize(
    ("method", "position"),
    [("gloo_fifo_order", 0), ("gloo_fifo_order", 30), ("gloo_fifo_order", 71), ("range", 7)],
)
def test_a_dropped_event_costs_one_instance(tmp_path: Path, method: str, position: int) -> None:
    spec = Spec(ranks=3, steps=6, method=method, slow_rank=2, slow_ns=30 * MS)

    def drop(rank, collective):
        return (rank, collective.sequence) == (1, position)

    analysis, truths = analysed(tmp_path, spec, drop=drop)
    count = len(truths[0].collectives)
    check_pairs(analysis, truths, drop, matched=count - 1)
    assert analysis.time.alignment.shifts == ({1: 1} if method == ORDERED and position < count - 1 else {})
    rows = analysis.collectives.to_frame()
    assert set(rows.loc[rows["lateness_ns"] > 10 * MS, "rank"]) == {2}
    assert (rows.loc[~rows["matched"], "last_rank"] == -1).all()
    assert gaps_of(analysis, "matching of collectives")


def test_unrecorded_waits_give_an_upper_bound(tmp_path: Path) -> None:
    spec = Spec(waits_recorded=False)
    analysis, truths = analysed(tmp_path, spec)
    known = expected(truths)
    for entry in analysis.time.per_rank:
        mine = [true for (rank, _), true in known.items() if rank == entry.rank]
        true = sum(one.exposed_wait_ns + one.exposed_transfer_ns for one in mine)
        assert entry.upper_bound
        assert entry.exposed_wait_ns + entry.exposed_transfer_ns >= true // spec.steps
        assert entry.wall_ns == sum(getattr(entry, term) for term in TERMS)
    assert gaps_of(analysis, "exposed time") == [0, 1]


def test_a_rank_whose_clock_jumps_is_left_out(tmp_path: Path) -> None:
    spec = Spec(ranks=3, hosts=HOSTS[:3], pings=0, slow_rank=1, slow_ns=20 * MS)
    truths = play(spec)
    for collective in truths[2].collectives[::2]:
        collective.start += 900 * MS
        collective.end += 900 * MS
    analysis = analyse_time(load(write(tmp_path / "x.zprof", spec, truths)))
    assert sorted(analysis.time.alignment.offsets_ns) == [0, 1]
    assert analysis.time.alignment.excluded == (2,)
    assert gaps_of(analysis, "clock alignment") == [2]
    rows = analysis.collectives.to_frame()
    assert (rows["last_rank"] == -1).all()
    assert (rows.query("rank == 2")["lateness_ns"] == 0).all()


def test_a_run_without_a_time_window_has_gaps(tmp_path: Path) -> None:
    path = write(tmp_path / "x.zprof", Spec(), play(Spec()))
    for folder in path.glob("rank*"):
        manifest = json.loads((folder / "rank.json").read_text())
        del manifest["files"]["events"]
        (folder / "rank.json").write_text(json.dumps(manifest))
    analysis = analyse_time(load(path))
    assert (analysis.time.per_rank, len(analysis.steps)) == ((), 0)
    assert [gap.rank for gap in analysis.gaps] == [0, 1]
