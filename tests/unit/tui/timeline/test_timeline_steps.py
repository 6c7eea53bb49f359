"""Timelines of recorded and simulated steps: lanes are the ledger of the step, gaps name what blocks."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.device_ranks import Rows, write_run
from tests.support.simulations import make_three_hosts, simulated
from zprof.analysis.analysis import analyse_time_only
from zprof.analysis.intervals import intervals, measure, union
from zprof.analysis.step_timeline.build import build_step_model
from zprof.analysis.step_timeline.lane import LaneKind, LaneRole, TimelineLane
from zprof.analysis.step_timeline.step_model import (
    StepTimeline,
    find_gap,
    find_longest_gap,
    find_next_gap,
    get_gap,
)
from zprof.base.errors import MissingData
from zprof.run.reader import load as open_run
from zprof.tui.session import LoadedRun, RunRequest, load
from zprof.tui.timeline_cursor import (
    describe_collective,
    describe_event,
    describe_gap,
    describe_item,
    describe_target,
    find_cursor_target,
    make_first_view,
)

EVIL = "a\x1b[2J[bold]b\u202e\nc"
EXPOSED = (LaneRole.TRANSFER, LaneRole.WAIT)
starts = st.lists(st.integers(0, 200), max_size=9, unique=True).map(sorted)


@pytest.fixture(scope="module")
def device_job(tmp_path_factory: pytest.TempPathFactory) -> LoadedRun:
    """Three ranks on hosts and clocks of their own; rank 2 computes slower."""
    run = simulated(make_three_hosts(drift=2e-6), tmp_path_factory.mktemp("device_job")).run
    return load(RunRequest(path=run.path, opener=open_run), lambda doing: None)


@pytest.fixture(scope="module")
def device(tmp_path_factory: pytest.TempPathFactory) -> StepTimeline:
    """A gemm, a gather of which half is hidden, and a gemm that waits for it."""
    rows = Rows().step(1, 0, 1_000).event(0, 900, "user_annotation", "train_step")
    rows.call(5, 1).kernel(100, 300, correlation=1, name=EVIL).call(120, 2)
    rows.collective(200, 500, correlation=2, launch=120, unit="layers.1\x1b", bytes=4096, dtype="bf16")
    rows.call(140, 3).kernel(510, 600, correlation=3).call(150, 4).copy(700, 800, correlation=4)
    return build_rows(rows, tmp_path_factory.mktemp("device"), 1)


def build_rows(rows: Rows, folder: Path, step: int) -> StepTimeline:
    run = open_run(write_run(folder / "run", {0: rows}))
    return build_step_model(run, analyse_time_only(run), 0, step)


def lane(model: StepTimeline, name: str) -> TimelineLane:
    return next(lane for lane in model.lanes if name in (lane.key, lane.label))


def held(lane: TimelineLane, role: LaneRole) -> int:
    return lane.covers[role].length_ns if role in lane.covers else 0


def first_of(lane: TimelineLane, role: LaneRole, number: int = 0) -> int:
    """Return the place of the event that a column in the n-th stretch of a role shows."""
    begin = float(lane.covers[role].edges[2 * number])
    found = lane.items.select_event(begin, begin + 1, role)
    return found


def test_lanes_of_a_cpu_rank_are_its_ledger(alone: LoadedRun) -> None:
    for step in alone.report.time.steps:
        model = build_step_model(alone.run, alone.analysis, step.rank, step.step)
        main, collectives = lane(model, "main thread"), lane(model, "collectives")
        assert model.length_ns == step.wall_ns
        assert held(main, LaneRole.COMPUTE) == step.compute_ns
        for one in (main, collectives):
            assert [held(one, role) for role in EXPOSED] == [step.exposed_transfer_ns, step.exposed_wait_ns]
        assert held(collectives, LaneRole.HIDDEN) == step.overlapped_ns
        assert measure(model.gaps) == step.exposed_transfer_ns + step.exposed_wait_ns
        assert {"forward", "backward", "optimizer"} <= set(lane(model, "phase").names)
        assert "blocks.0" in lane(model, "unit").names


def test_lanes_of_a_device_are_its_ledger_on_every_clock(device_job: LoadedRun) -> None:
    for step in device_job.report.time.steps:
        model = build_step_model(device_job.run, device_job.analysis, step.rank, step.step)
        streams = [lane for lane in model.lanes if lane.kind is LaneKind.STREAM]
        collectives = lane(model, "collectives")
        # copies before a gather run beside the compute stream
        assert 0 <= sum(held(one, LaneRole.COMPUTE) for one in streams) - step.compute_ns < 10_000
        found = [held(collectives, role) for role in (*EXPOSED, LaneRole.HIDDEN)]
        assert found == [step.exposed_transfer_ns, step.exposed_wait_ns, step.overlapped_ns]
        begins = np.concatenate([one.items.start_ns for one in streams]).tolist()
        assert set(collectives.items.start_ns.tolist()) <= set(begins), "on the clock of the rank's events"
    assert {step.rank for step in device_job.report.time.steps} == {0, 1, 2}


@pytest.mark.parametrize(("rank", "step"), [(0, 99), (7, 3)])
def test_what_was_not_timed_is_missing(alone: LoadedRun, rank: int, step: int) -> None:
    with pytest.raises(MissingData):
        build_step_model(alone.run, alone.analysis, rank, step)


@settings(max_examples=50)
@given(starts, st.integers(-5, 210))
def test_the_next_gap_and_the_one_before(at: list[int], cursor: int) -> None:
    gaps = union(intervals(at, [start + 1 for start in at])) if at else np.empty((0, 2), dtype=np.int64)
    begins = gaps[:, 0].tolist()
    ahead, behind = find_next_gap(gaps, cursor, 1), find_next_gap(gaps, cursor, -1)
    later, earlier = [b for b in begins if b > cursor], [b for b in begins if b < cursor]
    assert (begins[ahead] if ahead is not None else None) == min(later, default=None)
    assert (begins[behind] if behind is not None else None) == max(earlier, default=None)


def test_each_gap_has_an_exposed_collective_that_crosses_it(alone: LoadedRun) -> None:
    step = alone.report.time.steps[0]
    model = build_step_model(alone.run, alone.analysis, step.rank, step.step)
    lengths = (model.gaps[:, 1] - model.gaps[:, 0]).tolist()
    assert len(lengths) > 10
    longest = find_longest_gap(model.gaps)
    assert lengths[longest] == max(lengths)
    assert find_longest_gap(model.gaps[:0]) is None
    for place in range(len(model.gaps)):
        gap = get_gap(model, place)
        row = model.collectives.list_rows()[gap.collective]
        assert row["start_ns"] < gap.end_ns
        assert row["end_ns"] > gap.begin_ns
        assert row["exposed_wait_ns"] + row["exposed_transfer_ns"] > 0
    begin, end = (int(edge) for edge in model.gaps[3])
    found = find_gap(model, begin + 1, begin + 2)
    assert (found.index, found.length_ns) == (3, end - begin)
    assert find_gap(model, end, int(model.gaps[4, 0])) is None


def test_a_kernel_says_its_launch_and_what_it_waited_for(device: StepTimeline) -> None:
    stream = lane(device, "s7 compute")
    first, second = (
        describe_event(device, stream, first_of(stream, LaneRole.COMPUTE, at))[1] for at in (0, 1)
    )
    assert all(part in second for part in ("cudaLaunchKernel", "370 ns", "gap 1 of 1: 200 ns", "all_gather"))
    assert "gap 1 of 1" not in first


def test_a_collective_says_wait_transfer_hidden_part_and_bytes(device: StepTimeline) -> None:
    for name, role in (("collectives", LaneRole.TRANSFER), ("s20 comm", LaneRole.HIDDEN)):
        mine = lane(device, name)
        rows = {
            row.split()[0]: row
            for row in describe_event(device, mine, first_of(mine, role))[1].split("\n")
            if row
        }
        assert "at least 0 ns" in rows["wait"]
        assert "at most 300 ns" in rows["transfer"]
        assert "200 ns" in rows["transfer"]
        assert "100 ns" in rows["hidden"]
        assert "4.0 KiB bf16" in rows["bytes"]
    row = device.collectives.list_rows()[0]
    many = {**row, "group": ",".join(map(str, range(300))), "group_size": 300}
    (group,) = (line for line in describe_collective(many) if line.startswith("group"))
    assert "300 ranks" in group
    assert len(group) < 70


def test_the_rank_that_came_last_is_named_with_its_lateness(device_job: LoadedRun) -> None:
    step = next(s for s in device_job.report.time.steps if s.rank == 0 and s.exposed_wait_ns > 0)
    model = build_step_model(device_job.run, device_job.analysis, 0, step.step)
    rows = model.collectives
    late = rows.at((rows.ints("blamed_rank") == 2) & (rows.ints("wait_ns") > 0))
    assert len(late)
    for row in late.list_rows():
        assert row["last_lateness_ns"] >= row["wait_ns"] > 0
        assert row["lateness_ns"] < row["last_lateness_ns"]
        assert any("rank 2" in line for line in describe_collective(row) if line.startswith("last rank"))
    gaps = [describe_gap(model, get_gap(model, at)) for at in range(len(model.gaps))]
    assert any("for rank 2" in line and "reduce_scatter" in line for line in gaps)
    assert describe_gap(model, None) == ""


def test_a_column_has_its_shares_and_names_of_strangers_are_escaped(device: StepTimeline) -> None:
    stream, view = lane(device, "s7 compute"), make_first_view(device.length_ns)
    shares = describe_target(stream, find_cursor_target(stream, device.gaps, view, 1))
    assert "compute 29.0 %" in shares
    assert "copies 10.0 %" in shares
    title, text = describe_event(device, stream, first_of(stream, LaneRole.COMPUTE))
    line = describe_item(device, stream, find_cursor_target(stream, device.gaps, view.at(150), 20))
    assert "a\\x1b[2J[bold]b\\u202e\\x0ac" in line
    assert not set(title + line + text) & set("\x1b\u202e")
