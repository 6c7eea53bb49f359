"""Matching on traces of simulated jobs, read as a user's would be: rows of one instance are one in truth."""

from dataclasses import replace

import pytest

from zprof.analysis.time.synchronise import synchronise
from zprof.analysis.time.timeline import load_collectives, load_timelines
from zprof.integrations.imports.import_paths import import_paths
from zprof.integrations.imports.options import ImportOptions
from zprof.run.reader import load
from zprof.simulator.plan import Plan, Recording, Vendor, Window
from zprof.simulator.simulate import simulate

MS = 1_000_000
PLAN = Plan(ranks=4, steps=3, units=3, ranks_per_host=1, offsets_ns={1: 5 * MS, 2: -4 * MS, 3: 900_000})


def matched(plan, folder):
    """The synchronised rows with ``true``, the collective that each is, and the run's Synchronised."""
    truth = simulate(plan, folder / "traces")
    import_paths([folder / "traces"], folder / "run.zprof", options=ImportOptions(workers=1))
    run = load(folder / "run.zprof")
    timelines, _ = load_timelines(run)
    seen = synchronise(load_collectives(run, timelines), timelines, run.manifest.world_size)
    return seen.collectives.assign(true=_true(seen.collectives, truth)), seen


def _true(frame, truth):
    """By rank and order of start: every recorded collective of a rank is a row."""
    found = frame["rank"].astype(object)
    for rank, rows in frame.groupby("rank"):
        known = sorted(
            (c.start_ns, c.end_ns, (c.ranks, c.sequence, c.kind))
            for c in truth.collectives
            if c.rank == rank and c.recorded
        )
        assert len(known) == len(rows), rank
        ordered = rows.sort_values(["start_ns", "end_ns"], kind="stable").index
        for index, (_, _, name) in zip(ordered, known, strict=True):
            found[index] = str(name)
    return found


def wrong(frame):
    placed = frame[frame["instance"] >= 0].groupby("instance")["true"].nunique()
    return placed[placed > 1].index.tolist()


@pytest.mark.parametrize("vendor", [Vendor.NVIDIA, Vendor.AMD])
def test_a_whole_job_is_matched_without_a_shift(tmp_path, vendor):
    frame, seen = matched(replace(PLAN, vendor=vendor), tmp_path)
    assert not wrong(frame)
    assert not seen.shifts
    assert not seen.excluded
    assert frame["matched"].mean() > 0.95
    planted = [0, 5 * MS, -4 * MS, 900_000]
    assert [seen.clocks.offsets_ns[rank] for rank in range(4)] == pytest.approx(planted, abs=2_000)


STATED, ORDERED, BARE = Recording(), Recording(sequence=False), Recording(metadata=False)


@pytest.mark.parametrize(
    ("recording", "drops"),
    [
        (STATED, ((0, 5), (3, 11))),
        (ORDERED, ((2, 0),)),
        (ORDERED, ((1, 4), (1, 5), (3, 9))),
        (BARE, ((2, 7),)),
    ],
)
def test_dropped_events_make_no_instance_wrong(tmp_path, recording, drops):
    frame, seen = matched(replace(PLAN, drops=drops, recording=recording), tmp_path)
    assert not wrong(frame)
    assert not seen.excluded
    assert frame["matched"].mean() > 0.8
    assert bool(seen.shifts) == (recording is not STATED)


@pytest.mark.parametrize("recording", [STATED, ORDERED])
def test_windows_that_open_and_close_elsewhere(tmp_path, recording):
    windows = {1: Window(opens_late_ns=6 * MS), 2: Window(closes_early_ns=9 * MS)}
    frame, seen = matched(replace(PLAN, windows=windows, recording=recording), tmp_path)
    assert not wrong(frame)
    assert not seen.excluded
    assert frame["matched"].mean() > 0.5


def test_a_missing_rank_matches_nothing_wholly(tmp_path):
    frame, seen = matched(replace(PLAN, missing=(2,)), tmp_path)
    assert not wrong(frame)
    assert not frame["matched"].any()
    assert not seen.shifts
    assert [gap.what for gap in seen.gaps].count("wait and transfer") == 1


def test_a_mesh_of_groups(tmp_path):
    frame, seen = matched(replace(PLAN, ranks=4, tensor=2, drops=((1, 6),)), tmp_path)
    assert not wrong(frame)
    assert sorted(seen.clocks.offsets_ns) == [0, 1, 2, 3]
    assert frame["matched"].mean() > 0.8
